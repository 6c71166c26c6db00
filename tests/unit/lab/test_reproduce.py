"""Claims judged on planted evidence: the rules, the statistics, and that every number leads to its runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.unit.runs.making import shows_itself, trained
from toposcope.core.errors import BadValue
from toposcope.core.statistics import interval
from toposcope.lab.result import TrainResult
from toposcope.studies.reproduce.claims import ahead, apart, below, beyond
from toposcope.studies.reproduce.coupling import CLAIMS, SIZES, find_size, grid
from toposcope.studies.reproduce.evidence import (
    ACCURACY,
    ANY_DEPOSIT,
    DEPOSIT,
    DROP,
    RHO_FIRST,
    RHO_LAST,
    SHARPNESS,
    STEPS,
    Estimate,
    Evidence,
)
from toposcope.studies.reproduce.outcome import judged_claims, numbers, table
from toposcope.studies.reproduce.page import page
from toposcope.studies.reproduce.result import ClaimVerdict, ReproduceResult

NOISE = np.random.default_rng(0)
KEYS = itertools.count()


def planted(variant: str, task: str, encoding: str, seed: int, **changes: Any) -> TrainResult:
    """A finished run's result with chosen numbers."""
    values = {"accuracy": 0.9, "deposit": 0.1, "rho": 1.0, "sharp": 10.0, "learned": 200, **changes}
    base = trained()
    layers = [
        {
            **base["ablation"]["zero"][0],
            "layer": n,
            "di": None if values["deposit"] is None else values["deposit"] / (n + 1),
            "d_max": 0.3,
            "head": 1,
        }
        for n in range(2)
    ]
    ratios = [[[values["rho"], None], [values["rho"]]], [[0.5, 0.7], [0.6]]]
    sharp = (values["sharp"], 10 * values["sharp"], -1.0)
    told = {
        "key": f"{next(KEYS):016x}",
        "config": {"variant": variant, "task": task, "encoding": encoding, "seed": seed},
        "accuracy": values["accuracy"] + 0.001 * seed,
        "curve": [
            {"step": at, "loss": 1.0, "accuracy": 0.95 if at >= values["learned"] else 0.3}
            for at in range(0, 400, 20)
        ],
        "spectra": [{"step": 0, "rho": rho, "erank_ratio": rho} for rho in ratios],
        "hessian": [{"step": 0, "value": value, "residual": 0.0} for value in sharp],
        "ablation": {**base["ablation"], "zero": layers, "mean": layers},
    }
    return TrainResult.from_dict(trained(**told))


def world(say: Callable[[str, str, str], dict[str, Any]], seeds: int = 3) -> Evidence:
    """A result for every run of the demo grid; `say` gives its numbers from variant, task and encoding."""
    runs = []
    for config in grid(SIZES["demo"], range(seeds)):
        place = (config.variant, config.task, config.encoding)
        changes = say(*place)
        jitter = 0.002 * float(NOISE.standard_normal())
        runs.append(planted(*place, config.seed, **{**changes, "accuracy": changes.get("accuracy", 0.9) + jitter}))
    return Evidence(runs)


def as_claimed(variant: str, task: str, encoding: str) -> dict[str, Any]:
    """A world in which every claim that can be measured is true."""
    if task == "count":
        return {"accuracy": {"rope": 0.7, "alibi": 0.4, "rope@heads:0": 0.7}.get(encoding, 0.95)}
    accuracy = {"none": 0.25, "alibi": 0.27, "t5": 0.5, "sinusoidal": 0.8, "learned": 0.8, "rope@layers:1-": 0.6}
    return {
        "accuracy": accuracy.get(encoding, 0.97),
        "deposit": {"rope": 0.8, "rope@heads:0": 0.99, "none": None, "alibi": None}.get(encoding, 0.1),
        "rho": 0.6,
        "sharp": 1.0 if encoding == "rope" else 20.0,
        "learned": 100 if encoding == "rope" else 300,
    }


def test_a_world_as_claimed_makes_every_claim_hold() -> None:
    records = judged_claims(CLAIMS, world(as_claimed))
    verdicts = {record.id: record.verdict for record in records}
    assert verdicts.pop("convergence hurts") == ClaimVerdict.UNMEASURED
    assert set(verdicts.values()) == {"holds"}, verdicts
    assert len(verdicts) == len(CLAIMS) - 1


def test_a_world_turned_round_makes_them_fail() -> None:
    def opposite(variant: str, task: str, encoding: str) -> dict[str, Any]:
        if task == "count":
            return {"accuracy": {"rope": 0.99, "alibi": 0.995}.get(encoding, 0.5)}
        return {
            "accuracy": {"rope": 0.6, "rope@heads:0": 0.5}.get(encoding, 0.9),
            "deposit": {"rope": 0.05}.get(encoding, 0.7),
            "rho": 1.8,
            "sharp": 30.0 if encoding == "rope" else 1.0,
            "learned": 380 if encoding == "rope" else 40,
        }

    verdicts = {record.id: record.verdict for record in judged_claims(CLAIMS, world(opposite))}
    verdicts.pop("convergence hurts")
    assert verdicts.pop("timing matters") == "not at this scale"  # nothing can refute it
    assert set(verdicts.values()) == {"does not hold"}, verdicts


def test_a_world_without_differences_decides_nothing() -> None:
    flat = world(lambda *_: {"deposit": 0.5, "accuracy": 0.9})
    verdicts = {record.id: record.verdict for record in judged_claims(CLAIMS, flat)}
    for name in ("rope ahead", "rope pays on count", "mla mitigates", "timing matters", "contraction speeds up"):
        assert verdicts[name] == "not at this scale", name
    one = {record.id: record.verdict for record in judged_claims(CLAIMS, world(as_claimed, seeds=1))}
    assert "holds" not in one.values()


def test_a_model_without_skill_has_no_deposit_to_judge() -> None:
    def unskilled(variant: str, task: str, encoding: str) -> dict[str, Any]:
        return {"deposit": None, "accuracy": 0.26}

    verdicts = {record.id: record.verdict for record in judged_claims(CLAIMS, world(unskilled))}
    assert verdicts["single-head deposit"] == "not at this scale"
    assert verdicts["mla mitigates"] == "not measured here"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.1, 0.3, ("holds", "does not hold", "holds")),
        (-0.3, -0.1, ("does not hold", "holds", "holds")),
        (-0.1, 0.3, ("not at this scale", "not at this scale", "not at this scale")),
    ],
)
def test_rules_by_their_words(low: float, high: float, words: tuple[str, str, str]) -> None:
    one = Estimate("x", "", (low + high) / 2, (high - low) / 2, 3, ("k",))
    assert (ahead([one]).verdict, below([one], 0.0).verdict, apart([one]).verdict) == words
    assert beyond([one], 0.0).verdict == words[0]
    sure = Estimate("y", "", 5.0, 0.1, 3, ("m",))
    both = ahead([sure, one, None])
    assert both.verdict == words[0]  # the weakest decides
    assert both.runs == ("m", "k")
    assert ahead([None]).verdict is ClaimVerdict.UNMEASURED


def test_differences_are_paired_as_in_the_paired_t_test() -> None:
    first, second = [0.91, 0.95, 0.99, 0.90], [0.80, 0.86, 0.87, 0.83]
    runs = [
        replace(planted("described", "count", name, 0), accuracy=value, config=_config(name, seed))
        for name, values in (("rope", first), ("none", second))
        for seed, value in enumerate(values)
    ]
    runs.append(planted("described", "count", "rope", 9))  # a seed that the other lacks
    found = Evidence(runs).difference("described", "count", "rope", "none", ACCURACY)
    assert found is not None
    theirs = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((100 * theirs.low, 100 * theirs.high))
    assert (found.n, len(found.runs)) == (4, 8)
    mean, half = interval(first)
    low, high = stats.t.interval(0.95, 3, np.mean(first), stats.sem(first))
    assert (mean, half) == pytest.approx(((low + high) / 2, (high - low) / 2))


def _config(encoding: str, seed: int) -> dict[str, Any]:
    return {"variant": "described", "task": "count", "encoding": encoding, "seed": seed}


def test_measures_of_a_run() -> None:
    run = planted("described", "distance", "rope", 0, deposit=0.8, rho=0.7, sharp=10.0, learned=130)
    assert DEPOSIT.of(run) == 0.8
    assert ANY_DEPOSIT.of(run) == 0.8
    assert DROP.of(run) == 0.3
    assert (RHO_FIRST.of(run), RHO_LAST.of(run)) == (0.7, 0.6)  # medians; a head without content is left out
    assert SHARPNESS.of(run) == pytest.approx(
        1.5
    )  # mean of log10 10 and log10 100; the negative one has no logarithm
    assert STEPS.of(run) == 140
    assert STEPS.of(replace(run, curve=())) == 400  # never learned: all its steps
    blind = replace(run, ablation=None, spectra=(), hessian=())
    assert [each.of(blind) for each in (DEPOSIT, ANY_DEPOSIT, RHO_LAST, SHARPNESS)] == [None] * 4


def test_every_number_leads_to_its_runs(tmp_path: Path) -> None:
    evidence = world(as_claimed)
    keys = {run.key for cell in evidence.cells() for run in evidence.of(*cell).values()}
    told = numbers(CLAIMS, evidence)
    assert len(told) > 60
    assert all(each.runs and set(each.runs) <= keys and each.n == 3 for each in told)
    claims, cells = judged_claims(CLAIMS, evidence), table(evidence)
    assert {key for cell in cells for key in cell.runs} == keys
    result = ReproduceResult(
        what="coupling", size="demo", seeds=3, profile="laptop-s", runs_done=len(keys), claims=tuple(claims),
        cells=tuple(cells), numbers=tuple(told),
    )  # fmt: skip
    shows_itself(result, tmp_path)
    text = page(result)
    assert set(re.findall(r"`([0-9a-f]{8})`", text)) == {key[:8] for key in keys}
    assert text.count("\n### ") == len(CLAIMS)
    assert re.search(r"\| published \| distance \| rope \|", text)
    assert re.search(r"\| described \| distance \| none \| .* \| 92\.64", text) is None
    assert re.search(r"\| described \| distance \| rope \| .* \| 92\.64 \| 0\.80 ± 0\.00 \| 0\.40", text)
    assert re.search(r"\| described \| distance \| none \| .* \| - \| - \|", text)  # no skill, no deposit


def test_the_grid_is_the_sweep_and_a_little_more() -> None:
    demo = grid(SIZES["demo"], [0, 1])
    assert len({config.key() for config in demo}) == len(demo) == 2 * 28
    assert {config.variant for config in demo} == {"described", "published"}
    assert all(config.probes for config in demo)
    assert {config.profile for config in grid(SIZES["full"], [0])} == {"laptop-m", "published"}
    with pytest.raises(BadValue, match="'dem'"):
        find_size("dem")
