"""`toposcope.flow` as a library user meets it: what flows, where it starts, and what a result can do."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import numpy as np
import pytest

import toposcope
from tests.unit.tiny import write_llama
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.fields import plain
from toposcope.dynamics import Trajectory, Verdict, simulate
from toposcope.dynamics.flow import FlowResult
from toposcope.dynamics.observables import OBSERVABLES
from toposcope.dynamics.theorems import theorem
from toposcope.dynamics.trajectory import Status
from toposcope.report.kinds import document


@pytest.fixture(scope="module")
def compared() -> FlowResult:
    """Three encodings on the same tokens."""
    return toposcope.flow(preset="clusters", tokens=4, horizon=2.0, encoding=["none", "alibi", "rope:base=500"])


def test_a_flow_is_what_simulate_gives_with_a_verdict_beside_it() -> None:
    W, V, x0 = np.eye(3), -np.eye(3), np.random.default_rng(0).standard_normal((5, 3))
    found = toposcope.flow(W=W, V=V, start=x0, horizon=3.0)
    alone = simulate(W, V, x0, horizon=3.0)
    (flow,) = found.flows
    assert flow.status is alone.status
    assert flow.evaluations == alone.evaluations
    assert flow.observables["time"] == tuple(alone.times)
    for name, values in alone.observables.items():
        np.testing.assert_array_equal(flow.observables[name], values)
    assert flow.verdict is not None
    assert (flow.verdict.verdict, flow.verdict.rule, flow.verdict.scope) == (Verdict.CONVERGES, "T6", "all_tokens")
    assert flow.encoding == "none"
    assert found.provenance.options["W"] == "array (3, 3)"


def test_a_result_prints_saves_frames_and_draws(compared: FlowResult, tmp_path: Path) -> None:
    assert max(map(len, str(compared).splitlines())) <= 80
    saved = compared.save(tmp_path / "flow.json")
    assert toposcope.read(saved) == compared
    jsonschema.validate(compared.as_dict(), document("flow"))
    assert list(compared.frame()["encoding"]) == ["none", "alibi", "rope:base=500"]
    moments = compared.frame("observables")
    assert list(moments.columns) == ["encoding", "time", *(each.name for each in OBSERVABLES)]
    assert len(moments) == sum(len(flow.observables["time"]) for flow in compared.flows)
    last = moments[moments["encoding"] == "alibi"].iloc[-1]
    assert last["norm_max"] == compared.flows[1].observables["norm_max"][-1]
    header, *rows = compared.csv().splitlines()
    assert header.split(",") == list(compared.tables()["flows"])
    assert len(rows) == 3
    assert "<script" not in compared._repr_html_()
    assert "Security-Policy" in compared.html()
    pytest.importorskip("vl_convert")
    text = compared.figure(tmp_path / "f.svg").read_text()
    assert all(f">{name}</text>" in text for name in ("alibi", "Cosine between tokens"))


def test_a_single_token_has_no_pairs_and_is_read_back_equal(tmp_path: Path) -> None:
    found = toposcope.flow(preset="c1", horizon=1.0)
    assert plain(found)["flows"][0]["observables"]["cosine_mean"][0] is None
    assert toposcope.read(found.save(tmp_path / "one.json")) == found
    assert max(map(len, str(found).splitlines())) <= 80
    assert "<script" not in found._repr_html_()


def test_a_result_of_an_earlier_format_says_so(compared: FlowResult) -> None:
    old = {**compared.as_dict(), "schema": "toposcope/flow/1"}
    with pytest.raises(BadFile, match="format 1"):
        toposcope.report.kinds.from_dict(old)


@pytest.mark.parametrize("part", [{"head": "1.3"}, {"head": (1, 3)}, {"layer": 2}, {"stack": True}])
def test_parts_of_a_model(tmp_path: Path, part: dict[str, object]) -> None:
    path = write_llama(tmp_path / "m")
    told: list[tuple[str, int, int]] = []
    found = toposcope.flow(
        path, tokens=3, horizon=0.5, progress=lambda *each: told.append(each), save=tmp_path / "f.npz", **part
    )
    assert found.provenance.subjects[0].family == "llama"
    assert found.flows[0].tokens == 3
    assert told[0] == ("flow", 0, 200)  # the flow, and that without position
    assert told[-1] == ("flow", 200, 200)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    kept = Trajectory.load(tmp_path / "f.npz")
    assert tuple(kept.times) == found.flows[0].observables["time"]
    assert kept.settings == {
        name: value for name, value in plain(found.flows[0].settings).items() if name in kept.settings
    }
    with toposcope.load(path) as model:
        again = toposcope.flow(model, tokens=3, horizon=0.5, **part)  # type: ignore[arg-type]
    assert plain(again.flows) == plain(found.flows)


def test_tokens_by_number_and_from_rows_of_numbers(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m")
    words, numbers = (toposcope.flow(path, layer=0, horizon=0.1, token_ids=ids) for ids in ("3,1,2", [3, 1, 2]))
    assert plain(words.flows) == plain(numbers.flows)
    with toposcope.load(path) as model:
        rows = np.asarray(model.token_embedding())[[3, 1, 2]]
    started = toposcope.flow(path, layer=0, horizon=0.1, start=rows)
    assert plain(started.flows[0].observables) == plain(words.flows[0].observables)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "collapse", "W": np.eye(2), "V": np.eye(2)},
        {"W": np.eye(2)},
        {"preset": "collapse", "stack": True},
        {"preset": "collapse", "token_ids": np.array([1, 2])},
        {"preset": "collapse", "diagonal": "some"},
        {"preset": "collapse", "diagonal": 1e60},
        {"preset": "collapse", "encoding": ["none", "alibi"], "save": "x.npz"},
        {"W": "text", "V": [["x"]]},
        {"W": np.eye(2), "V": [["x", 1], [0, 1]]},
    ],
)
def test_what_cannot_flow_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(toposcope.ToposcopeError):
        toposcope.flow(**options)  # type: ignore[arg-type]


def test_own_is_the_encoding_of_a_preset() -> None:
    plain_one, own, none = toposcope.flow(preset="helix", horizon=1.0, encoding=["own", "OWN ", "none"]).flows
    assert plain(own.observables) == plain(plain_one.observables) != plain(none.observables)
    assert plain(toposcope.flow(preset="helix", horizon=1.0).flows[0].observables) == plain(own.observables)


def test_movies_show_one_flow(compared: FlowResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BadValue, match="one flow"):
        compared.movie(tmp_path / "x.gif")
    with pytest.raises(BadValue, match=r"\.gif"):
        compared.movie(tmp_path / "x.mp4")
    still = toposcope.flow(W=np.eye(2), V=-np.eye(2), start=np.zeros((2, 2)))
    assert still.flows[0].status is Status.CONVERGED
    with pytest.raises(BadValue, match="animate"):
        still.movie(tmp_path / "x.gif")


def test_theorems_are_told_by_name() -> None:
    assert theorem("T5") == "first-token growth (Thm 5)"
    assert theorem("T3a").endswith("(Thm 3a)")
    assert theorem("T5", Verdict.NOT_CONVERGENT, "first_token") == theorem("T5")
    assert theorem("T5", Verdict.NOT_CONVERGENT, "consensus") != theorem("T5")  # without a mask no token is the first
    assert theorem("T9") == "Thm 9"
    assert theorem("T8", Verdict.BOUNDED) != theorem("T8", Verdict.DIVERGES_ABOVE)


def test_what_position_changes_is_what_two_runs_give() -> None:
    found = toposcope.flow(preset="helix")
    (flow,) = found.flows
    bare = toposcope.flow(preset="helix", encoding="none").flows[0]
    assert found.without_position is not None
    assert plain(found.without_position.observables) == plain(bare.observables)
    told = flow.position_effect
    assert told is not None
    assert told.time == flow.end == bare.end
    for both, name in ((told.clusters, "clusters"), (told.cosine, "cosine_mean")):
        assert (both.with_position, both.without) == (flow.observables[name][-1], bare.observables[name][-1])
    for both, name in ((told.growth, "norm_max"), (told.distance, "distance_mean")):
        for value, one in ((both.with_position, flow), (both.without, bare)):
            assert value == pytest.approx(one.observables[name][-1] / one.observables[name][0])
    assert (told.clusters.with_position, told.clusters.without) == (12, 1)
    assert told.halved_at.with_position is None
    half = told.halved_at.without
    assert half is not None
    known = [(t, n) for t, n in zip(bare.observables["time"], bare.observables["clusters"], strict=True) if n > 0]
    assert max(t for t, n in known if n > 6) < half <= min(t for t, n in known if n <= 6)
    assert set(found.frame("observables")["encoding"]) == {"own", "none"}


def test_the_run_without_position_has_all_else_as_the_flow_had_it(tmp_path: Path) -> None:
    found = toposcope.flow(
        write_llama(tmp_path / "m"), head="1.3", tokens=4, horizon=0.5, diagonal="auto", norms="off", causal=False
    )
    bare = found.without_position
    assert bare is not None
    mine, theirs = plain(found.flows[0].settings), plain(bare.settings)
    assert {name for name in mine if mine[name] != theirs[name]} == {"encoding"}
    assert mine["diagonal"] > 0
    assert bare.observables["norm_max"][0] == found.flows[0].observables["norm_max"][0]


def test_position_is_compared_where_there_is_some_and_not_twice(compared: FlowResult) -> None:
    assert compared.without_position is None  # it is among those that were asked for
    assert [flow.position_effect is not None for flow in compared.flows] == [False, True, True]
    still = toposcope.flow(preset="clusters", tokens=4, horizon=2.0, encoding=["alibi", "rope:base=500"])
    assert still.without_position is not None
    assert plain(still.without_position.observables) == plain(compared.flows[0].observables)
    assert [each.position_effect for each in still.flows] == [each.position_effect for each in compared.flows[1:]]
    left_out = toposcope.flow(preset="helix", horizon=1.0, position_effect=False)
    assert left_out.without_position is left_out.flows[0].position_effect is None
    for encoding in ((), "none", "own"):
        without = toposcope.flow(preset="collapse", tokens=3, horizon=1.0, encoding=encoding)
        assert without.without_position is without.flows[0].position_effect is None


def test_two_runs_of_unlike_length_are_compared_where_the_shorter_ends() -> None:
    found = toposcope.flow(preset="clusters", tokens=6, encoding="sinusoidal")
    (flow,), bare = found.flows, found.without_position
    told = flow.position_effect
    assert bare is not None
    assert told is not None
    assert flow.status is Status.GREW  # a larger start, so that it has grown later
    assert told.time == min(flow.end, bare.end)
    assert told.cosine_at_start.with_position != told.cosine_at_start.without  # the vectors are in the start
    shorter, longer = (flow, bare) if flow.end <= bare.end else (bare, flow)
    at = np.interp(told.time, longer.observables["time"], np.log(longer.observables["norm_max"]))
    grown = float(np.exp(at)) / longer.observables["norm_max"][0]
    values = {flow.encoding: told.growth.with_position, bare.encoding: told.growth.without}
    assert values[longer.encoding] == pytest.approx(grown)
    assert values[shorter.encoding] == pytest.approx(
        shorter.observables["norm_max"][-1] / shorter.observables["norm_max"][0]
    )


def test_tolerance_and_growth_are_chosen_by_what_flows(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m")
    chosen: dict[str, tuple[float, float]] = {}
    for name, part in (("head", {"head": "1.3"}), ("layer", {"layer": 1}), ("stack", {"stack": True})):
        used = toposcope.flow(path, tokens=3, horizon=0.1, **part).flows[0].settings  # type: ignore[arg-type]
        chosen[name] = (used.rtol, used.growth_cap)
    assert chosen == {"head": (1e-4, 1e4), "layer": (1e-4, 100.0), "stack": (1e-4, 1e4)}
    preset = toposcope.flow(preset="c1", horizon=0.1).flows[0].settings
    assert (preset.rtol, preset.growth_cap) == (1e-6, 1e4)
    given = toposcope.flow(path, layer=1, tokens=3, horizon=0.1, rtol=1e-5, growth_cap=7.0).flows[0].settings
    assert (given.rtol, given.growth_cap) == (1e-5, 7.0)
