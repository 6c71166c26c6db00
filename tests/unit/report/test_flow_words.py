"""The words for what the picture of a flow shows, against what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import toposcope
from toposcope.dynamics.agreement import fold
from toposcope.dynamics.flow import Flow
from toposcope.dynamics.observables import OBSERVABLES
from toposcope.dynamics.regime import Verdict
from toposcope.dynamics.trajectory import Status
from toposcope.report.blocks import Page, Pairs
from toposcope.report.verdicts import word
from toposcope.report.views import flow as view
from toposcope.report.views.flow_words import (
    ENDED,
    MEANINGS,
    badge,
    certified,
    firm,
    gist,
    next_steps,
    of_norms,
    scope,
    seen,
    setup,
    why,
)


@pytest.fixture(scope="module")
def measured() -> Flow:
    return toposcope.flow(preset="clusters", tokens=6, horizon=0.1).flows[0]


def changed(flow: Flow, **ends: tuple[float, float]) -> Flow:
    """The same flow with other values at its start and end."""
    seen = dict(flow.observables)
    for name, (first, last) in ends.items():
        seen[name] = (first, *seen[name][1:-1], last)
    return replace(flow, observables=seen)


SAME = {"norm_max": (2.0, 2.0), "norm_min": (1.0, 1.0), "cosine_mean": (0.1, 0.1), "clusters": (6.0, 6.0)}


@pytest.mark.parametrize(
    ("ends", "there", "absent"),
    [
        ({}, ["6 clusters", "0.10"], ["-fold", "gather", "turn"]),
        (
            {"cosine_mean": (0.7, 0.999), "norm_max": (1.0, 248.0), "norm_min": (1.0, 200.0)},
            ["one direction", "grows 248-fold"],
            ["smallest"],
        ),
        ({"cosine_mean": (0.1, 0.5)}, ["towards", "0.50"], ["one direction", "-fold"]),
        ({"cosine_mean": (0.5, 0.1)}, ["away from", "0.10"], ["towards"]),
        ({"clusters": (6.0, 2.0)}, ["gather in 2 clusters (6"], ["spread"]),
        ({"clusters": (16.0, 15.0)}, ["15 clusters"], ["gather"]),  # one of sixteen is no crowd
        ({"clusters": (1.0, 4.0)}, ["spread over 4 clusters (1"], ["gather"]),
        ({"norm_max": (2.0, 0.0), "norm_min": (1.0, 0.0)}, ["largest norm goes to 0"], ["-fold"]),
        ({"norm_max": (14.0, 1.0), "norm_min": (2.0, 0.1)}, ["falls 14-fold"], ["smallest"]),
        ({"norm_max": (1.0, 3.0), "norm_min": (1.0, 0.25)}, ["grows 3-fold", "smallest falls 4-fold"], []),
        (
            {"cosine_mean": (0.1, float("nan")), "norm_max": (0.0, 0.0), "norm_min": (0.0, 0.0)},
            ["6 clusters"],
            ["nan", "-fold"],
        ),
    ],
)
def test_the_gist_is_what_was_measured(
    measured: Flow, ends: dict[str, tuple[float, float]], there: list[str], absent: list[str]
) -> None:
    words = gist(changed(measured, **{**SAME, **ends}))
    assert all(word in words for word in there), words
    assert not any(word in words for word in absent), words


def test_a_verdict_of_growth_beside_tokens_that_gather_is_explained(measured: Flow) -> None:
    gathered = changed(measured, **{**SAME, "clusters": (6.0, 2.0)})
    assert gathered.verdict is not None
    assert gathered.verdict.verdict == "diverges"
    assert of_norms(gathered)
    assert of_norms(changed(measured, **SAME)) is None
    assert of_norms(replace(gathered, verdict=None)) is None


@pytest.mark.parametrize(
    ("rule", "robust", "there", "absent"),
    [
        ("T5", True, ["8.8%", "survives"], []),
        ("T5", False, ["8.8%", "far"], ["survives"]),
        ("T3a", False, ["symmetric", "not known"], ["8.8%", "survives changes"]),
        ("T5", None, [], ["8.8%", "rounding"]),
    ],
)
def test_a_verdict_says_whether_it_survives_the_rounding_of_stored_weights(
    measured: Flow, rule: str, robust: bool | None, there: list[str], absent: list[str]
) -> None:
    assert measured.verdict is not None
    error = None if robust is None else 0.0875
    found = replace(measured.verdict, rule=rule, margin=0.0014, robust=robust, storage_error=error)
    flow = replace(measured, verdict=found)
    words = firm(flow)
    assert words is not None
    assert "0.14%" in words
    assert bool(scope(flow)) is (robust is False)  # said before the theorem, not after it
    assert all(word in words for word in there), words
    assert not any(word in words for word in absent), words


def test_directions_that_grow_are_told_and_tokens_on_them_only_where_they_came_there() -> None:
    V, x0 = np.diag([1.0, 0.1, -1.0]), np.array([[0.1, 1.0, 1.0], [0.2, -1.0, 0.5], [0.1, 0.5, -1.0]])
    result = toposcope.flow(W=np.eye(3), V=V, start=x0, causal=True)
    (flow,) = result.flows
    assert flow.leading is not None
    assert (flow.leading.directions, flow.leading.width) == (1, 3)
    assert flow.leading.share_at_start < 0.1 < 0.9 < flow.leading.share_at_end
    words = why(result, flow)
    assert words is not None
    assert "2 of the 3" in words
    there = replace(flow, leading=replace(flow.leading, share_at_start=0.8))
    assert len(why(result, there) or "") < len(words)
    assert why(result, replace(flow, verdict=None)) is None
    assert why(result, replace(there, verdict=replace(flow.verdict, n_pos=3, n_neg=0))) is None  # the theorem says so
    page = " ".join(str(result).split())
    assert all(said.rstrip(".") in page for said in (setup(result), seen(flow), words, certified(flow)))


def test_clusters_among_growing_distances_say_that_those_grow_too(measured: Flow) -> None:
    gathered = {**SAME, "clusters": (6.0, 2.0)}
    grown = {"norm_max": (1.0, 200.0), "norm_min": (1.0, 200.0), "distance_mean": (1.0, 9.0)}
    words = gist(changed(measured, **{**gathered, **grown}))
    assert "but less" in words
    assert "(9-fold)" in words
    faster = gist(changed(measured, **{**gathered, **grown, "distance_mean": (1.0, 16189.0)}))
    assert "(about 16,000-fold)" in faster
    assert "less" not in faster
    assert "distance" not in gist(changed(measured, **gathered, distance_mean=(1.0, 0.5)))
    apart = changed(measured, **gathered, distance_mean=(1.0, 1.4))  # two ends of a sphere: no norm has grown
    assert "distance" not in gist(apart)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (6.44, "6.4"),
        (99.4, "99"),
        (99.7, "99.7"),
        (185.2, "185"),
        (1e4, "10,000"),
        (16189, "about 16,000"),
        (1e6, "1e6"),
    ],
)
def test_factors_have_no_more_digits_than_they_are_worth(factor: float, words: str) -> None:
    assert fold(factor) == words


def test_the_first_sentence_names_preset_mask_and_encoding_once_each() -> None:
    collapse = setup(toposcope.flow(preset="collapse", horizon=0.1))
    assert collapse.startswith("Preset collapse")
    assert collapse.count("no mask") == 1
    assert collapse.count("ositional encoding") == 1
    causal = setup(toposcope.flow(preset="explode", horizon=0.1, encoding="alibi", causal=True))
    assert "ALiBi" in causal
    assert "causal mask" in causal


def test_a_run_that_used_up_its_evaluations_says_how_far_it_was_to_go() -> None:
    result = toposcope.flow(preset="collapse", max_evaluations=40)
    words = seen(result.flows[0])
    assert result.flows[0].status is Status.EXHAUSTED
    assert all(number in words for number in ("100", "40", "80"))


def test_the_next_step_of_a_preset_is_a_change_of_it() -> None:
    lines = [step.line for step in next_steps(toposcope.flow(preset="helix", horizon=0.1))]
    assert lines == ["toposcope flow --preset helix --add-diagonal 1"]
    assert not next_steps(toposcope.flow(W=np.eye(2), V=-np.eye(2), tokens=2, horizon=0.1))


def test_every_series_is_described() -> None:
    assert set(MEANINGS) == {each.name for each in OBSERVABLES}


def test_what_is_seen_says_how_the_run_ended(measured: Flow) -> None:
    assert set(ENDED) == set(Status)
    assert measured.status is Status.HORIZON
    moving = ENDED[Status.HORIZON].split("{t}")[0]
    assert moving in seen(measured)
    assert moving in seen(toposcope.flow(preset="clusters", tokens=6, horizon=0.1).flows[0])
    for status in set(Status) - {Status.HORIZON}:
        assert moving not in seen(replace(measured, status=status))


def test_a_verdict_names_who_grows_and_from_which_starts(measured: Flow) -> None:
    found = measured.verdict
    assert found is not None
    kinds = [
        replace(found, verdict=verdict, rule="T5", scope=who)
        for verdict, who in (
            (Verdict.NOT_CONVERGENT, "first_token"),
            (Verdict.NOT_CONVERGENT, "consensus"),
            (Verdict.DIVERGES, "first_token"),
        )
    ]
    titles = [badge(replace(measured, verdict=each)) for each in kinds]
    assert len(set(titles)) == 3
    assert all(word(each.verdict) in title for each, title in zip(kinds, titles, strict=True))
    assert "first-token" not in titles[1]  # without a mask no token is the first
    for verdict in Verdict:
        none = replace(found, verdict=verdict, rule=None, scope=None)
        assert "Thm" not in badge(replace(measured, verdict=none)) + certified(replace(measured, verdict=none))


def test_the_reason_of_a_preset_is_told_of_the_preset_as_it_is() -> None:
    assert toposcope.flow(preset="helix", horizon=0.1).why
    assert not toposcope.flow(preset="helix", horizon=0.1, diagonal=1).why
    assert not toposcope.flow(preset="helix", horizon=0.1, encoding="none").why
    assert not toposcope.flow(preset="helix", horizon=0.1, start=np.eye(2)).why


def test_a_preset_has_a_title_no_cloud_and_no_output_matrix() -> None:
    result = toposcope.flow(preset="c1", horizon=1)
    assert result.provenance.options["cloud"] is None
    assert "V O" not in str(result)
    page = Page(title="")
    view.view(result, page)
    assert page.title == "Flow of preset c1"
    (card,) = [block for section in page.sections for block in section.blocks if isinstance(block, Pairs)]
    assert dict(card.items)["margin"].endswith("of V")
    both = Page(title="")
    view.view_several([result, result], both)
    assert both.title == ""


def test_a_preset_that_was_changed_says_so_and_offers_that_change_no_more() -> None:
    own = toposcope.flow(preset="collapse", tokens=4, horizon=0.1)
    changed = toposcope.flow(preset="collapse", tokens=4, horizon=0.1, causal=True)
    assert "causal mask" in setup(changed)
    assert "causal mask" not in setup(own)
    assert [step.line for step in next_steps(own)] == ["toposcope flow --preset collapse --causal"]
    assert "--causal" not in " ".join(step.line for step in next_steps(changed))
