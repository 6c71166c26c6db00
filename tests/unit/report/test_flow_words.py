"""The words for what the picture of a flow shows, against what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

import toposcope
from toposcope.dynamics.flow import Flow
from toposcope.report.blocks import Page, Pairs
from toposcope.report.views import flow as view
from toposcope.report.views.flow_words import gist, of_norms


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
