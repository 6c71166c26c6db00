"""The figures that `scan` and docs/trace.md print of SmolLM2, measured again: bench/patterns.py made them."""

from __future__ import annotations

import importlib.util

import pytest
from bench.patterns import Found, against, ranking, smollm2

from toposcope.core.errors import NotFound
from toposcope.models.load import locate, read_text
from toposcope.models.tracing.result import TraceResult
from toposcope.spectra.of_heads import FAST_ON_SMOLLM2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-patterns")]


@pytest.fixture(scope="module")
def traced() -> tuple[TraceResult, TraceResult]:
    """On wiki, and on random tokens."""
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running SmolLM2 needs {package}: pip install {package}")
    try:
        locate("smollm2")
        read_text("wiki")
    except NotFound as missing:
        pytest.skip(str(missing))
    return smollm2()


def test_what_scan_says_of_its_ranking_is_what_is_measured(traced: tuple[TraceResult, TraceResult]) -> None:
    found, stated = ranking("smollm2", traced[0]), FAST_ON_SMOLLM2
    assert found["auc"] == pytest.approx(stated.auc, abs=5e-4)
    assert [found[name] for name in ("heads", "previous", "top", "hits")] == [
        stated.heads, stated.previous, stated.top, stated.hits,
    ]  # fmt: skip


def test_random_tokens_find_the_heads_of_the_text(traced: tuple[TraceResult, TraceResult]) -> None:
    rows: dict[str, Found] = {row.pattern: row for row in against("SmolLM2", *traced)}
    for pattern in ("previous", "induction"):
        assert rows[pattern].recall == 1
        assert (rows[pattern].precision or 0) > 0.6
        assert (rows[pattern].auc or 0) > 0.99
    assert (rows["first"].recall or 0) < 0.7  # where a head rests depends on the text
    both = {head.name for head in traced[0].heads if {"first", "induction"} <= set(head.names)}
    assert both == {head.name for head in traced[0].named("induction")}  # each of them rests on the first token
