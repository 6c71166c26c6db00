"""Paired differences, the words they allow, the claims they decide, and the page; against numbers made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from toposcope.studies.language import groups
from toposcope.studies.language.outcome import BITS, CLAIMS, Found, claims, kept, numbers, rows, word
from toposcope.studies.language.page import tables
from toposcope.studies.reproduce.result import ProbeTable


def result(cell: str, seed: int, bits: float, **more: Any) -> dict[str, Any]:
    row = {
        "layer": 0, "head": 0, "verdict": "converges", "rule": "T6", "scope": "all_tokens", "exact": True,
        "margin": 0.1, "alpha": -0.2, "omega": -3.0, "n_pos": 1, "n_neg": 3, "n_zero": 0,
    }  # fmt: skip
    base = {
        "key": f"{cell}-{seed}-key", "config": {"cell": cell, "seed": seed}, "bits_held": bits,
        "bits_other": bits + 1, "accuracy": 0.4, "noise_cost": 0.1, "longer_cost": None, "cosine": [0.1, 0.5],
        "rank": [9.0, 5.0],
        "radial": [-1.0, 2.0], "dispersion": [0.0, 0.0], "heads": [row], "layers": [row], "promised": None,
        "promise_held": None, "added": None, "parameters": 100, "redundant": 0, "step_seconds": 0.1 + seed / 100,
    }  # fmt: skip
    return {**base, **more}


def found(**bits: list[float]) -> Found:
    """Runs of the group 'causal', seeds 0, 1, ...; cells with '_' for '-'."""
    made = [result(cell.replace("_", "-"), s, value) for cell, some in bits.items() for s, value in enumerate(some)]
    return Found({"causal": made})


def test_a_difference_is_paired_by_seed() -> None:
    one, other = [3.0, 3.5, 2.9, 3.3], [2.9, 3.45, 2.75]
    made = found(full_nd=one, full_pd=other).difference("causal", "full-nd", "full-pd", BITS)
    assert made is not None
    theirs = stats.ttest_rel(one[:3], other).confidence_interval(0.95)
    assert (made.low, made.high) == pytest.approx((theirs.low, theirs.high))
    assert made.n == 3
    assert len(made.runs) == 6
    assert found(full_nd=one).difference("causal", "full-nd", "full-pd", BITS) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([-0.1, -0.11, -0.12], "better"),
        ([0.1, 0.11, 0.12], "worse"),
        ([0.1, -0.1, 0.05], "undecided"),
        ([9.0], "undecided"),
    ],
)
def test_one_seed_or_an_interval_around_zero_decides_nothing(values: list[float], said: str) -> None:
    runs = found(free=[3.0] * len(values), full_pd=[3.0 + value for value in values])
    assert word(runs.difference("causal", "full-pd", "free", BITS)) == said
    row = next(each for each in rows(runs) if each.cell == "full-pd")
    assert row.says == said
    assert row.less.mean == pytest.approx(np.mean(values))


def test_a_claim_holds_fails_or_stays_open() -> None:
    def verdict(worse: list[float]) -> str:
        runs = found(full_pd=[3.0] * len(worse), full_nd=[3.0 + value for value in worse])
        return next(each.verdict for each in claims(runs) if each.id == "convergence hurts: causal")

    assert verdict([0.1, 0.11, 0.12]) == "holds"
    assert verdict([-0.1, -0.11, -0.12]) == "does not hold"
    assert verdict([0.1, -0.2, 0.3]) == "not at this scale"
    assert verdict([0.5]) == "not at this scale"
    assert {each.verdict for each in claims(Found({}))} == {"not measured here"}


def test_the_diagonal_must_beat_its_control_too() -> None:
    def verdict(control: float) -> str:
        cells = {"free": 3.0, "slice": 2.8, "control": control}
        made = [result(cell, s, value + s / 1000) for cell, value in cells.items() for s in range(3)]
        said = claims(Found({"heads": made}))
        return next(each.verdict for each in said if each.id == "the diagonal helps: slice")

    assert verdict(2.9) == "holds"
    assert verdict(2.7) == "does not hold"


def test_a_lost_promise_is_said_with_its_run() -> None:
    good = result("full-nd", 0, 3.0, promised="converges", promise_held=True)
    bad = result("full-nd", 1, 3.0, promised="converges", promise_held=False)
    assert kept(Found({"causal": [good]})).verdict == "holds"
    said = kept(Found({"causal": [good, bad]}))
    assert said.verdict == "does not hold"
    assert said.runs == (bad["key"][:8],)
    assert rows(Found({"causal": [good, bad]}))[0].held == 1


def test_rows_carry_what_was_measured() -> None:
    runs = found(free=[3.0, 3.2], full_nd=[3.1, 3.2])
    free, held = rows(runs)
    assert free.less is None
    assert free.slower == held.slower == 1.0
    assert held.negative_heads == 0.75
    assert held.radial.mean == 0.5
    assert held.cosine.mean == 0.5
    assert held.longer is None
    assert held.verdicts == ("converges (T6, all_tokens)",)
    assert held.runs == ("full-nd-0-key", "full-nd-1-key")


def test_every_number_names_its_runs() -> None:
    listed = numbers(found(full_pd=[3.0, 3.1], full_nd=[3.1, 3.3]))
    decisive = [each for each in listed if each.claim == "convergence hurts: causal" and each.decides]
    assert [each.mean for each in decisive] == pytest.approx([0.15])
    assert set(decisive[0].runs) == {f"full-{sign}-{seed}-key" for sign in ("pd", "nd") for seed in (0, 1)}


def test_the_tables_show_intervals_and_words() -> None:
    runs = found(free=[3.0, 3.2, 3.1], full_nd=[3.1, 3.3, 3.21])
    sizes = {"width": 64, "layers": 2, "length": 64, "steps": 200, "batch": 16}
    text = tables(ProbeTable("demo", 6, sizes, tuple(rows(runs))))
    assert "### causal" in text
    row = next(line for line in text.splitlines() if "+0.103" in line)
    assert "± 0.014" in row
    assert "worse" in row
    assert "### heads" not in text


def test_the_grid_pairs_seeds_and_names_real_cells() -> None:
    named = {cell for group in groups.GROUPS for cell in group.cells}
    assert {"free", "control", "slice", "uniform", "head-nd", "layer-pd", "full-half"} <= named
    assert all(claim.rule for claim in CLAIMS)
    assert groups.SIZES["full"].seeds >= 8
    assert all(group.base in group.cells for group in groups.GROUPS)
