"""Estimates from a sample of layers: unbiased, with intervals that hold what they promise on planted populations."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import scipy.stats

from toposcope.core.errors import BadValue
from toposcope.scanning.sample import LayerSample, draw, estimates, most_unseen, sample_size

LAYERS, HEADS, ROUNDS = 80, 64, 300


def population(kind: str) -> np.ndarray:
    """How many heads of each layer have the verdict."""
    random = np.random.default_rng(1)
    depth = np.linspace(0, 1, LAYERS)
    if kind == "trend":
        return random.binomial(HEADS, 0.1 + 0.5 * depth)
    if kind == "waves":
        return random.binomial(HEADS, np.clip(0.3 + 0.25 * np.sin(6 * depth), 0, 1))
    if kind == "whole layers":
        return HEADS * (random.random(LAYERS) < 0.3)
    if kind == "clusters":
        return random.binomial(HEADS, random.beta(0.5, 1.5, LAYERS))
    if kind == "first layers":
        return np.where(np.arange(LAYERS) < 8, HEADS, 0)
    counts = np.zeros(LAYERS, dtype=int)
    counts[random.choice(LAYERS, 4, replace=False)] = HEADS // 2
    return counts


def found(counts: np.ndarray, sample: LayerSample) -> dict[str, float]:
    verdicts = {i: ["diverges"] * int(counts[i]) + ["converges"] * int(HEADS - counts[i]) for i in sample.layers}
    result = estimates(sample, dict.fromkeys(range(len(counts)), HEADS), verdicts)
    unseen = {"estimate": 0.0, "low": 0.0, "high": HEADS * result.unseen_verdict_in_at_most_layers}
    counted = result.counts.get("diverges")
    return unseen if counted is None else vars(counted)


@pytest.mark.parametrize("count", [8, 12, 20])
@pytest.mark.parametrize("kind", ["trend", "waves", "whole layers", "clusters", "first layers", "rare"])
def test_intervals_cover_the_truth(kind: str, count: int) -> None:
    counts = population(kind)
    rows = [found(counts, draw(range(LAYERS), count, seed)) for seed in range(ROUNDS)]
    covered = np.mean([row["low"] <= counts.sum() <= row["high"] for row in rows])
    assert covered >= 0.92  # 0.95 less two standard errors of 300 rounds
    assert np.mean([row["high"] - row["low"] for row in rows]) < 0.8 * LAYERS * HEADS  # and say something


def test_the_estimate_is_unbiased_over_all_samples_there_are() -> None:
    counts = np.array([3, 9, 4, 40, 60, 7])
    strata = ((0, 1, 2), (3, 4, 5))
    pairs = [[(a, b) for a in part for b in part if a < b] for part in strata]
    values = [found(counts, LayerSample(strata, drawn))["estimate"] for drawn in product(*pairs)]
    assert len(values) == 9
    assert np.mean(values) == pytest.approx(counts.sum())


def test_a_sample_is_spread_over_the_depth_and_repeats_with_its_seed() -> None:
    sample = draw(range(80), 12, 5)
    assert sample == draw(range(80), 12, 5) != draw(range(80), 12, 6)
    assert [number for part in sample.strata for number in part] == list(range(80))
    assert [len(part) for part in sample.drawn] == [2] * 6
    assert all(set(drawn) <= set(part) for part, drawn in zip(sample.strata, sample.drawn, strict=True))
    assert len(set(sample.layers)) == 12
    assert [len(part) for part in draw(range(80), 7, 0).drawn] == [3, 2, 2]


@pytest.mark.parametrize("total", [1, 2, 3, 5, 8])
def test_a_sample_of_all_layers_is_no_estimate(total: int) -> None:
    counts = np.arange(total) * 3
    sample = draw(range(total), 99, 0)
    assert sample.layers == list(range(total))
    row = found(counts, sample)
    if counts.sum():
        assert row["low"] == row["estimate"] == row["high"] == counts.sum()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_bounds_that_are_certain_hold_the_interval(count: int) -> None:
    counts = population("clusters")
    for seed in range(50):
        sample = draw(range(LAYERS), count, seed)
        row = found(counts, sample)
        if "seen" in row:
            assert row["seen"] == sum(counts[sample.layers]) == row["at_least"]
            assert row["at_most"] == row["seen"] + HEADS * (LAYERS - count)
            assert row["at_least"] <= row["low"] <= row["estimate"] <= row["high"] <= row["at_most"]
    if count == 1:
        assert (row["low"], row["high"]) != (row["estimate"], row["estimate"])


@pytest.mark.parametrize("text", ["sample:", "sample:0", "sample:-3", "sample:x", "sample", "sample:3,4"])
def test_what_is_no_sample_is_said(text: str) -> None:
    with pytest.raises(BadValue, match=re.escape(f"'{text}'")):
        sample_size(text)
    assert sample_size("0-3") is sample_size(None) is None
    assert sample_size(" Sample:12 ") == 12


@pytest.mark.parametrize(("total", "drawn"), [(2, 1), (30, 4), (80, 12), (80, 80), (400, 20)])
def test_what_may_be_unseen_is_the_hypergeometric_bound(total: int, drawn: int) -> None:
    others = np.arange(total - drawn + 1)
    likely = scipy.stats.hypergeom.pmf(0, total, others, drawn) >= 0.05
    assert most_unseen(total, drawn) == others[likely].max()
