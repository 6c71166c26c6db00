"""`simulate` as a whole: statuses, encodings, growth in logarithms, files, and what it refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from toposcope.core.errors import BadEncoding, BadFile, BadValue, NotFound
from toposcope.core.fields import plain
from toposcope.dynamics import run as run_module
from toposcope.dynamics.agreement import compare, first_token_rate
from toposcope.dynamics.diagonal import automatic_diagonal
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.matrices import matrices, simulate
from toposcope.dynamics.observables import HEAVY
from toposcope.dynamics.regime import Verdict, regime
from toposcope.dynamics.rotation import turned
from toposcope.dynamics.run import MOST_HEAVY
from toposcope.dynamics.trajectory import Status, Trajectory
from toposcope.encodings import alibi, rope, sinusoidal, xpos

EYE = np.eye(2)


def cloud(n: int, d: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def reference(x: np.ndarray, w: np.ndarray, v: np.ndarray, causal: bool, encoding: object, tau: float) -> np.ndarray:
    """The field written out token by token."""
    n = len(x)
    out = np.zeros_like(x)
    for i in range(n):
        visible = range(i + 1) if causal else range(n)
        logits = []
        for j in visible:
            q, k = x[i], w @ x[j]
            if encoding.rotary is not None:
                q = encoding.rotary.rotate(q[None], [i], side="query", context=n)[0]
                k = encoding.rotary.rotate(k[None], [j], side="key", context=n)[0]
            bias = 0.0 if encoding.bias is None else encoding.bias.table([i], [j])[0, 0, 0]
            logits.append(q @ k + tau * x[i] @ x[j] + bias)
        p = np.exp(np.array(logits) - max(logits))
        out[i] = v @ sum(pj * x[j] for pj, j in zip(p / p.sum(), visible, strict=True))
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "encoding", [rope(4), rope(4, rotary_dim=2, pairing="interleaved"), xpos(4, scale_base=4.0), alibi(1)]
)
def test_the_field_is_the_formula(encoding: object, causal: bool) -> None:
    random = np.random.default_rng(1)
    w, v = random.standard_normal((2, 4, 4))
    x = random.standard_normal((5, 4))
    system = System(w[None], v[None], causal=causal, rotary=encoding.rotary, bias=encoding.bias, diagonal=0.3)
    ours = AttentionField(system, 5)(x)
    assert np.allclose(ours, reference(x, w, v, causal, encoding, 0.3), atol=1e-12)


def test_a_lifted_state_moves_as_the_whole_does() -> None:
    random = np.random.default_rng(2)
    d, r, n = 9, 4, 5
    q, k, v = random.standard_normal((3, r, d))
    o = random.standard_normal((d, r))
    frame, triangle = np.linalg.qr(o)
    base, s = random.standard_normal((n, d)), random.standard_normal((n, r))
    whole = System(k[None], v[None], q[None], o[None], rotary=rope(r).rotary, diagonal=0.2)
    small = System(k[None], v[None], q[None], triangle[None], rotary=rope(r).rotary, diagonal=0.2)
    field = AttentionField(small, n, lift=frame, base=base)
    assert np.allclose(field(s) @ frame.T, AttentionField(whole, n)(s @ frame.T + base), atol=1e-10)
    assert np.allclose(field.tokens(s), s @ frame.T + base)


def test_c1_to_c4_the_run_decides_and_the_verdict_never_disagrees() -> None:
    def turn(degrees: float) -> np.ndarray:
        a = np.deg2rad(degrees)
        return np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])

    cases = [
        (turn(60), turn(-60), cloud(1), False, Status.GREW),  # C1
        (turn(60), turn(120), cloud(1), False, Status.CONVERGED),  # its mirror, one token
        (turn(60), turn(120), 2 * cloud(5), False, Status.GREW),  # and five
        (-EYE, -EYE, cloud(2), False, Status.GREW),  # C2
        (-EYE, -EYE, cloud(2), True, Status.CONVERGED),  # C2, causal
        (-EYE, EYE, cloud(5), False, Status.GREW),  # C4: A = -I, W = -I
    ]
    for w, v, x, causal, status in cases:
        found = simulate(w, v, x, causal=causal, horizon=80.0)
        verdict = regime(w, v, causal=causal)
        assert found.status is status, (w, v, found.events)
        assert compare(verdict, found).word != "contradicts"
        if status is Status.GREW:
            assert verdict.verdict is not Verdict.CONVERGES
        if status is Status.CONVERGED:
            assert verdict.verdict is not Verdict.DIVERGES
    # C1's rate is that of e^{t/2}
    assert simulate(turn(60), turn(-60), cloud(1), causal=False).growth_rate == pytest.approx(0.5, abs=1e-3)
    # C4: pairs contract in |A| while everything leaves
    c4 = simulate(-EYE, EYE, cloud(5) + 1.0, causal=False)
    assert c4.observables["distance_mean"][-1] < c4.observables["distance_mean"][0]


def test_c5_is_metastable_and_said_so() -> None:
    found = simulate(-8 * EYE, -EYE, np.array([[0.4, 0.0], [0.0, 1.755]]), horizon=200.0)
    assert found.status is Status.AT_REST
    assert np.linalg.norm(found.final[1]) == pytest.approx(1.80, abs=0.01)
    assert [event.name for event in found.events] == ["plateau"]
    said = compare(regime(-8 * EYE, -EYE), found)
    assert said.word == "not_yet"
    assert "metastable" in said.sentence


@pytest.mark.parametrize(("first", "word", "rate"), [([1.0, 0.0], "agrees", 1.0), ([0.0, 1.0], "not_yet", -1.0)])
def test_a_theorem_about_the_first_token_is_compared_with_the_first_token(
    first: list[float], word: str, rate: float
) -> None:
    """The second token grows in both runs; the theorem speaks of the first, and excepts starts that do not grow."""
    v = np.diag([1.0, -1.0])
    found = simulate(EYE, v, np.array([first, [3.0, 0.5]]), horizon=3.0)
    verdict = regime(EYE, v, causal=True)
    assert (verdict.verdict, verdict.scope, verdict.alpha) == (Verdict.NOT_CONVERGENT, "first_token", 1.0)
    assert found.growth_rate > 0
    assert first_token_rate(found) == pytest.approx(rate, abs=1e-4)
    said = compare(verdict, found)
    assert said.word == word
    assert "first token" in said.sentence


def test_divergence_is_a_result_up_to_1e300() -> None:
    x = cloud(4)
    found = simulate(EYE, EYE, x, causal=False, horizon=2000.0, growth_cap=1e300, rtol=1e-4, max_evaluations=50_000)
    assert found.status is Status.GREW
    assert found.log_growth == pytest.approx(np.log(1e300), rel=1e-6)
    assert found.growth_rate == pytest.approx(1.0, abs=1e-3)
    assert np.isfinite(found.tokens).all()
    for name, values in found.observables.items():
        known = np.isfinite(values)
        if name in HEAVY:  # at some moments only, the first and the last among them
            assert known[[0, -1]].all()
            assert known.sum() == min(len(values), MOST_HEAVY)
        else:
            assert known.all(), name


def test_growth_cap_and_rate_of_a_single_token() -> None:
    found = simulate(EYE, np.diag([0.7, 0.7]), cloud(1), horizon=100.0, growth_cap=1e6)
    assert found.status is Status.GREW
    assert found.end == pytest.approx(np.log(1e6) / 0.7, rel=1e-5)
    assert found.growth_rate == pytest.approx(0.7, abs=1e-4)
    assert "single token" in found.notes[0]
    assert found.observables["clusters"][0] == 1


def test_absolute_encoding_in_its_three_places() -> None:
    random = np.random.default_rng(3)
    w, v, x = random.standard_normal((4, 4)), -np.eye(4), cloud(4, 4)
    p = sinusoidal(4)
    vectors = p.input.vectors(np.arange(4))
    at_input = simulate(w / 4, v, x, encoding=p, horizon=300.0)
    assert np.allclose(at_input.tokens[0], x + vectors)
    assert at_input.status is Status.CONVERGED
    again = simulate(w / 4, v, x, encoding=p, absolute="reinject", horizon=300.0, rtol=1e-9)
    assert again.status is Status.CONVERGED
    assert np.abs(again.final + vectors).max() < 1e-5, "limits stay distinct: x_i -> -p_i"
    # the exact change of variables y = x + p
    moved = simulate(w / 4, v, x + vectors, horizon=again.end, rtol=1e-9)
    assert np.abs(moved.final - (again.final + vectors)).max() < 1e-6
    in_logits = simulate(w / 4, v, x, encoding=p, absolute="logits", horizon=300.0)
    assert in_logits.status is Status.CONVERGED
    assert np.abs(in_logits.final).max() < 1e-5
    plain = simulate(w / 4, v, x, horizon=1.0)
    assert np.abs(simulate(w / 4, v, x, encoding=p, absolute="logits", horizon=1.0).final - plain.final).max() > 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_the_automatic_diagonal_makes_every_offset_positive(seed: int) -> None:
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((2, 4, 6))
    turn = rope(4, base=20.0).rotary
    system = System(k[None], np.zeros((1, 4, 6)), q[None], np.zeros((1, 6, 4)), scale=0.5, rotary=turn)
    tau = automatic_diagonal(system)
    for offset in np.linspace(-50, 50, 101):
        w = 0.5 * q.T @ turned(turn, k, offset, "key")
        assert np.linalg.eigvalsh((w + w.T) / 2)[0] + tau > 0


def test_rotation_equivariance_of_a_run() -> None:
    random = np.random.default_rng(4)
    turn = np.linalg.qr(random.standard_normal((3, 3)))[0]
    w, v = random.standard_normal((2, 3, 3)) / 2
    x = random.standard_normal((6, 3))
    one = simulate(w, v, x, horizon=3.0)
    other = simulate(turn @ w @ turn.T, turn @ v @ turn.T, x @ turn.T, horizon=3.0)
    assert one.evaluations == other.evaluations
    assert np.allclose(one.final @ turn.T, other.final, atol=1e-9)
    for name in one.observables:
        assert np.allclose(one.observables[name], other.observables[name], atol=1e-6, equal_nan=True), name


def test_even_times_however_early_a_run_stops() -> None:
    early = simulate(EYE, EYE, cloud(3), causal=False, horizon=5000.0)
    assert early.status is Status.GREW
    assert len(early.times) >= 8
    assert np.allclose(np.diff(early.times[:-1]), early.times[1], rtol=1e-6)
    asked = simulate(EYE, -EYE, cloud(3), times=[0.0, 0.5, 2.0], horizon=2.0)
    assert asked.times.tolist() == [0.0, 0.5, 2.0]


@pytest.mark.parametrize("limits", [{}, {"AT_ONCE": 1}, {"ALLOTTED": 1}, {"AT_ONCE": 100, "MOST_KEPT": 2000}])
@pytest.mark.parametrize("horizon", [3.0, 50.0])  # the second stops early: most steps that were kept are dropped
def test_states_do_not_depend_on_how_memory_is_portioned(
    limits: dict[str, int], horizon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is thinned, dropped and written over is compared with states that are asked for by their times."""
    system = partial(simulate, EYE[[1, 0]], EYE, cloud(7), causal=False, horizon=horizon, rtol=1e-9)
    for name, value in limits.items():
        monkeypatch.setattr(run_module, name, value)
    found = system()
    monkeypatch.undo()
    asked = system(times=found.times)
    assert len(found.times) > 60
    assert [event.name for event in found.events] == [event.name for event in asked.events]
    np.testing.assert_allclose(found.tokens, asked.tokens, rtol=1e-12, atol=1e-12)
    for name, values in asked.observables.items():
        np.testing.assert_allclose(found.observables[name], values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_horizon_that_never_ends_is_stopped_and_marked() -> None:
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    found = simulate(EYE, turn, cloud(3), horizon=1e9, max_evaluations=500)
    assert found.status in (Status.EXHAUSTED, Status.STIFF)
    assert found.evaluations <= 500
    assert "not known" in found.status.meaning


def test_tokens_at_zero_and_singular_v_are_marked() -> None:
    still = simulate(EYE, EYE, np.zeros((3, 2)))
    assert still.status is Status.CONVERGED
    assert still.evaluations == 0
    singular = simulate(EYE, np.diag([0.0, -1.0]), cloud(3), horizon=5.0)
    assert any("singular" in note for note in singular.notes)
    assert np.allclose(simulate(EYE, np.zeros((2, 2)), cloud(3)).final, cloud(3))


def test_a_result_is_saved_and_read_back(tmp_path: Path) -> None:
    found = simulate(EYE, -EYE, cloud(4), causal=False, horizon=5.0)
    again = Trajectory.load(found.save(tmp_path / "flow.npz"))
    assert again.status is found.status
    assert np.array_equal(again.tokens, found.tokens)
    assert set(again.observables) == set(found.observables)
    assert np.array_equal(again.observables["log_energy"], found.observables["log_energy"], equal_nan=True)
    assert again.settings["horizon"] == 5.0
    assert plain(again) == plain(found)
    with pytest.raises(NotFound):
        Trajectory.load(tmp_path / "nowhere.npz")
    (tmp_path / "bad.npz").write_bytes(b"not an archive")
    with pytest.raises(BadFile):
        Trajectory.load(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((np.ones((2, 3)), EYE, cloud(3)), {}, "square"),
        ((EYE, np.full((2, 2), np.nan), cloud(3)), {}, "NaN"),
        ((EYE, np.eye(3), cloud(3)), {}, r"\(3, 3\)"),
        ((EYE, EYE, cloud(3, 5)), {}, r"\(3, 5\)"),
        ((EYE, EYE, np.zeros((0, 2))), {}, r"\(0, 2\)"),
        ((EYE, EYE, np.full((2, 2), np.inf)), {}, "tokens.*NaN"),
        ((EYE, EYE, cloud(3)), {"horizon": -1.0}, "horizon.*-1"),
        ((EYE, EYE, cloud(3)), {"horizon": np.nan}, "horizon.*nan"),
        ((EYE, EYE, cloud(3)), {"max_evaluations": 3}, "8 evaluations"),
        ((EYE, EYE, cloud(3)), {"growth_cap": 0.5}, "growth cap"),
        ((EYE, EYE, cloud(3)), {"diagonal": "lots"}, "lots"),
        ((EYE, EYE, cloud(3)), {"absolute": "somewhere", "encoding": "sinusoidal"}, "somewhere"),
        ((EYE, EYE, cloud(3)), {"factors": (EYE, 2 * EYE)}, "not W"),
        ((EYE, EYE, cloud(3)), {"times": [2.0, 1.0], "horizon": 3.0}, "increase"),
    ],
)
def test_bad_input_gets_a_sentence(arguments: tuple[np.ndarray, ...], options: dict[str, object], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        simulate(*arguments, **options)  # type: ignore[arg-type]


def test_encodings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadEncoding):
        simulate(EYE, EYE, cloud(3), encoding="cope")
    with pytest.raises(BadEncoding, match="width 4"):
        simulate(EYE, EYE, cloud(3), encoding=rope(4))
    with pytest.raises(BadEncoding, match="width 4"):
        simulate(EYE, EYE, cloud(3), encoding=sinusoidal(4))


def test_verdicts_and_runs_agree_on_random_systems() -> None:
    """Whatever `regime` certifies, a run never contradicts; and both outcomes occur."""
    words: list[str] = []
    for seed in range(24):
        random = np.random.default_rng(seed)
        w, v = random.standard_normal((2, 3, 3)) / 1.5
        v = v - float(random.uniform(0, 1.2)) * np.eye(3)
        problem = matrices(w, v, random.standard_normal((4, 3)), causal=bool(seed % 2))
        found = simulate(
            w, v, random.standard_normal((4, 3)), causal=bool(seed % 2), horizon=60.0, max_evaluations=3000
        )
        words.append(compare(problem.decide(), found).word)
    assert "contradicts" not in words
    assert words.count("agrees") >= 9


def test_beta_of_t8_counts_biases() -> None:
    plain = System(EYE[None], EYE[None], causal=False)
    assert AttentionField(plain, 5).beta() == pytest.approx(np.log(5))
    slope = alibi(1, slopes=[0.5])
    table = slope.bias.table(np.arange(5), np.arange(5))[0]
    biased = System(EYE[None], EYE[None], causal=True, bias=slope.bias)
    wanted = max(np.log(np.exp(table[i, : i + 1] - table[i, i]).sum()) for i in range(5))
    assert AttentionField(biased, 5).beta() == pytest.approx(wanted)
