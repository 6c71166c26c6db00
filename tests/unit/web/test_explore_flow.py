"""The flow on the page against SciPy's solver, the library's run, and its verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.dynamics.matrices import simulate
from toposcope.dynamics.presets import PRESETS, rotation
from toposcope.dynamics.regime import regime
from toposcope.web import explore_flow
from toposcope.web.explore_flow import MOST_TOKENS, UNIT, explore, matrix, presets
from toposcope.web.query import Query


def no_models(*_: Any) -> Any:
    raise AssertionError("no model was asked for")


def ask(**given: Any) -> dict[str, Any]:
    return explore(Query([(name, str(value)) for name, value in given.items()]), no_models)


def tokens(found: dict[str, Any], frame: int) -> np.ndarray:
    """The tokens of a frame as the page computes them."""
    whole = np.array(found["frames"][frame], dtype=float).reshape(found["tokens"], found["dims"])
    return whole * found["sizes"][frame] / UNIT


@pytest.mark.parametrize("width", [2, 3])
def test_matrices_have_the_eigenvalues_asked_for(width: int) -> None:
    wanted = np.array([-1.5, 0.5, 2.0][:width])
    made = matrix(wanted, 33.0, 0.0)
    np.testing.assert_allclose(made, made.T, atol=1e-15)
    np.testing.assert_allclose(np.linalg.eigvalsh(made), wanted, atol=1e-14)
    np.testing.assert_allclose(matrix(np.ones(2), 12.0, 60.0), rotation(60), atol=1e-15)
    turned = matrix(np.ones(width), 0.0, 40.0)
    np.testing.assert_allclose(turned @ turned.T, np.eye(width), atol=1e-14)
    assert np.linalg.det(turned) == pytest.approx(1)


def reference(W: np.ndarray, V: np.ndarray, start: np.ndarray, times: np.ndarray, causal: bool) -> np.ndarray:
    """The flow by SciPy, from the formula."""

    def field(_: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(start.shape)
        logits = x @ W @ x.T
        if causal:
            logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return ((weights / weights.sum(axis=1, keepdims=True)) @ x @ V.T).ravel()

    found = solve_ivp(field, (0, times[-1]), start.ravel(), t_eval=times, rtol=1e-10, atol=1e-12, method="DOP853")
    return found.y.T.reshape(len(times), *start.shape)


@pytest.mark.parametrize("settled", [0, 1])
@pytest.mark.parametrize("causal", [0, 1])
def test_tokens_move_as_they_should(settled: int, causal: int) -> None:
    given = {"v1": -0.7, "v2": 0.4, "v_axes": 20, "v_turn": 15, "w1": 1.2, "w2": 0.3, "w_turn": -30}
    found = ask(**given, n=7, seed=3, horizon=2, causal=causal, settled=settled)
    V, W = matrix(np.array([-0.7, 0.4]), 20, 15), matrix(np.array([1.2, 0.3]), 0, -30)
    np.testing.assert_allclose(found["V"], V, atol=1e-12)
    start = np.random.default_rng(3).standard_normal((7, 2))
    times = np.array(found["times"])
    exact = reference(W, V, start, times, bool(causal))
    assert times[-1] == pytest.approx(2)
    assert len(times) > 10
    for frame in (0, len(times) // 2, len(times) - 1):
        size = np.abs(exact[frame]).max()
        np.testing.assert_allclose(tokens(found, frame), exact[frame], atol=(2e-4 if settled else 5e-3) * size)


def test_verdicts_are_those_of_regime() -> None:
    for v1, v2, causal in ((-1, -2, 1), (1, -1, 1), (1, 1, 0), (-1, -1, 0), (-1, 2, 0)):
        found = ask(v1=v1, v2=v2, w1=2, w2=1, causal=causal, n=5)["verdict"]
        there = regime(np.diag([2.0, 1.0]), np.diag([float(v1), float(v2)]), causal=bool(causal))
        assert (found["verdict"], found["rule"], found["scope"]) == (there.verdict.value, there.rule, there.scope)
        assert found["margin"] == there.margin
        assert sorted(found["eigenvalues"]) == [[float(v), 0.0] for v in sorted((v1, v2))]


def test_a_certificate_comes_with_its_matrices() -> None:
    found = ask(v1=-1, v2=-1, w1=1, w2=1, causal=0, encoding="alibi", n=6)["verdict"]
    assert found["rule"] == "T8"
    S, N = np.array(found["certificate"]["S"]), np.array(found["certificate"]["N"])
    np.testing.assert_allclose(N, S, atol=1e-9)  # N = -S V with V = -I
    assert np.linalg.eigvalsh(S)[0] > 0


@pytest.mark.parametrize("name", ["explode", "c1", "metastable"])
def test_presets_are_the_library_s(name: str) -> None:
    found = ask(source="preset", preset=name, settled=1)
    given = PRESETS[name].arguments()
    there = simulate(given.pop("W"), given.pop("V"), given.pop("x0"), **given, samples=len(found["times"]))
    assert found["status"] == there.status
    assert found["end"] == pytest.approx(there.end)
    assert found["log_growth"] == pytest.approx(there.log_growth, abs=1e-12)
    assert found["observables"]["norm_max"][-1] == pytest.approx(there.observables["norm_max"][-1])
    assert found["agreement"] in ("agrees", "not_yet", "no_verdict")


def test_a_preset_can_be_changed() -> None:
    held = ask(source="preset", preset="helix", settled=1)
    let_go = ask(source="preset", preset="helix", encoding="none", settled=1)
    assert held["status"] == "at_rest"
    assert let_go["log_growth"] < -1
    assert let_go["verdict"]["verdict"] == "converges"
    assert {each["name"] for each in presets()} == set(PRESETS)


def test_rope_on_an_odd_number_of_coordinates_leaves_one_alone() -> None:
    found = ask(dim=3, encoding="rope", n=5)
    assert "2 of 3" in found["settings"]["encoding"]


@pytest.mark.parametrize(
    "encoding", ["none", "rope", "xpos", "alibi", "kerple", "t5", "fire", "sinusoidal", "learned"]
)
@pytest.mark.parametrize("dim", [2, 3])
def test_every_encoding_flows(encoding: str, dim: int) -> None:
    given = {"encoding": encoding, "dim": dim, "n": 6}
    if (encoding, dim) == ("sinusoidal", 3):
        given["absolute"] = "reinject"
    found = ask(**given)
    assert found["verdict"]["verdict"] == "converges"  # T6, whatever position does to the logits
    assert found["verdict"]["rule"] == "T6"


def test_a_hurried_preview_is_the_beginning_of_the_patient_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"n": 24, "encoding": "rope", "causal": 0, "v_turn": 40, "horizon": 20}
    patient = ask(**given)
    monkeypatch.setattr(explore_flow, "HASTE", 0.0)
    hurried = ask(**given)
    assert hurried["status"] == "exhausted"
    assert hurried["meaning"] == explore_flow.SHORT
    assert 0 < hurried["end"] < patient["end"]
    assert hurried["evaluations"] < patient["evaluations"]
    assert hurried["verdict"] == patient["verdict"]
    W, V = np.eye(2), matrix(-np.ones(2), 0.0, 40.0)
    start = np.random.default_rng(0).standard_normal((24, 2))
    exact = simulate(W, V, start, encoding="rope", causal=False, horizon=hurried["end"], samples=2).tokens[-1]
    np.testing.assert_allclose(tokens(hurried, -1), exact, atol=5e-3 * np.abs(exact).max())


def test_work_is_bounded() -> None:
    found = ask(n=MOST_TOKENS, dim=3, causal=0, v1=1, v2=1, v3=1, w1=9, w2=9, w3=9)
    assert found["evaluations"] <= 60
    assert sum(map(len, found["frames"])) <= 60_000
    with pytest.raises(BadValue, match="256"):
        ask(n=MOST_TOKENS + 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"v1": "nan"}, "'v1' is nan"),
        ({"v1": "inf"}, "'v1' is inf"),
        ({"w2": 1e9}, "from -10 to 10"),
        ({"dim": 4}, "from 2 to 3"),
        ({"n": 0}, "from 1 to 256"),
        ({"n": -3}, "from 1 to 256"),
        ({"horizon": 0}, "'horizon' is 0"),
        ({"horizon": "nan"}, "'horizon' is nan"),
        ({"horizon": 1e9}, "to 1000"),
        ({"diagonal": "x"}, "'diagonal' is x"),
        ({"causal": "maybe"}, "expected 1 or 0"),
        ({"source": "file"}, "expected one of matrices, preset, head"),
        ({"source": "preset", "preset": "colapse"}, "Did you mean 'collapse'"),
        ({"source": "head"}, "'model' is missing"),
        ({"absolute": "everywhere"}, "expected one of input"),
        ({"seed": -1}, "from 0 to"),
        ({"x0": "1,2"}, "no parameter 'x0'"),
        ({"encoding": "fire:hidden=1000000"}, "at most 64"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        ask(**given)


def test_a_content_encoding_is_refused() -> None:
    with pytest.raises(BadEncoding, match="tables"):
        ask(encoding="cope")
