"""What the rules of a study can ask of its runs, by name: numbers of one run, and of a ladder of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.core.errors import BadConfig, did_you_mean
from toposcope.lab.result import ENOUGH, TrainResult
from toposcope.studies.language import outcome as bytes_models
from toposcope.studies.reproduce import evidence
from toposcope.studies.reproduce.evidence import RunMeasure
from toposcope.studies.reproduce.words import unit_of


@dataclass(frozen=True)
class StudyMeasure:
    """A measure under the name that rules have for it. `lower` is better where a ladder's best run is looked for;
    `ablation`: it is known only where heads were removed."""

    name: str
    of_run: RunMeasure[Any]
    lower: bool = True
    ablation: bool = False

    @property
    def unit(self) -> str:
        return unit_of(self.name)

    def __call__(self, run: Any) -> float | None:
        value = self.of_run.of(run)
        return None if value is None else value * self.of_run.scale


@dataclass(frozen=True)
class LadderMeasure:
    """A number of all runs of a ladder: (value of the setting, the run or None where it failed)."""

    name: str
    of: Callable[[Sequence[tuple[Any, Any]]], float | None]

    @property
    def unit(self) -> str:
        return unit_of(self.name)


def _lost(run: TrainResult, which: str) -> float | None:
    """The share of the skill that is lost with the worst one, or the worst two, of layer 0's heads."""
    found = run.ablation.pairs if run.ablation else ()
    if not found:
        return None
    skill = found[0].base - run.floor
    return None if skill < 0.1 else (found[0].base - min(getattr(found[0], which))) / skill


def _beyond_one(run: TrainResult) -> float | None:
    both, one = _lost(run, "accuracy"), _lost(run, "alone")
    return None if both is None or one is None else both - one


def _largest_rate(runs: Sequence[tuple[Any, Any]]) -> float | None:
    """log2 of the largest learning rate with which the task is learned; one less than the least where with none."""
    if not runs:
        return None
    learned = [rate for rate, run in runs if run is not None and (run.accuracy or 0.0) >= ENOUGH]
    return math.log2(max(learned)) if learned else math.log2(min(rate for rate, _ in runs)) - 1


def _log_time(run: Mapping[str, Any]) -> float | None:
    return None if run["time"] is None else math.log2(run["time"])


_SHUFFLED = RunMeasure[Mapping[str, Any]](
    "bits that a shuffled first half costs", "", lambda run: run.get("shuffled_cost"), digits=3
)
_PARAMETERS = RunMeasure[Any]("parameters", "", lambda run: float(run["parameters"]), digits=0)
_LOST_ONE = RunMeasure[TrainResult]("skill lost with one head", "", lambda run: _lost(run, "alone"))
_LOST_TWO = RunMeasure[TrainResult]("skill lost with two heads", "", lambda run: _lost(run, "accuracy"))
_BEYOND_ONE = RunMeasure[TrainResult]("skill lost with two heads beyond one", "", _beyond_one)
TRAIN: Mapping[str, StudyMeasure | LadderMeasure] = {
    each.name: each
    for each in (
        StudyMeasure("steps to 90 %", evidence.STEPS),
        StudyMeasure("accuracy", evidence.POINTS, lower=False),
        StudyMeasure("loss", RunMeasure[TrainResult]("loss", "nats", lambda run: run.loss, digits=3)),
        StudyMeasure("deposit", evidence.DEPOSIT, ablation=True),
        StudyMeasure("largest deposit", evidence.ANY_DEPOSIT, ablation=True),
        StudyMeasure("largest drop", evidence.DROP, ablation=True),
        StudyMeasure("lost with one head", _LOST_ONE, ablation=True),
        StudyMeasure("lost with two", _LOST_TWO, ablation=True),
        StudyMeasure("two beyond one", _BEYOND_ONE, ablation=True),
        StudyMeasure("logit ratio at the start", evidence.RHO_FIRST),
        StudyMeasure("logit ratio at the end", evidence.RHO_LAST),
        StudyMeasure("sharpness", evidence.SHARPNESS),
        LadderMeasure("largest learning rate", _largest_rate),
    )
}
BYTES: Mapping[str, StudyMeasure | LadderMeasure] = {
    each.name: each
    for each in (
        StudyMeasure("bits", bytes_models.BITS),
        StudyMeasure("bits of another text", bytes_models.OTHER),
        StudyMeasure("cosine", bytes_models.COSINE),
        StudyMeasure("rank", bytes_models.RANK, lower=False),
        StudyMeasure("noise", bytes_models.NOISE),
        StudyMeasure("longer", bytes_models.LONGER),
        StudyMeasure("shuffled", _SHUFFLED),
        StudyMeasure("parameters", _PARAMETERS),
    )
}

FLOW: Mapping[str, StudyMeasure | LadderMeasure] = {
    "time": StudyMeasure("time", RunMeasure[Mapping[str, Any]]("log2 of the time", "log2", _log_time, digits=2))
}


def find_measure(kind: str, name: str) -> StudyMeasure | LadderMeasure:
    """The measure of that name, of trained small models, of byte models, or of simulations."""
    known = {"train": TRAIN, "bytes": BYTES, "flow": FLOW}[kind]
    if name not in known:
        raise BadConfig(f"runs of kind '{kind}' have no measure '{name}'. {did_you_mean(name, known)}")
    return known[name]
