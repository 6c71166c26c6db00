"""A study by its rules: the runs it needs, each arm's numbers seed by seed, and what the questions come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadConfig
from toposcope.core.paired import ERROR_RATE, answered, contrast, together
from toposcope.core.statistics import interval
from toposcope.lab.config import RunConfig
from toposcope.lab.parameters import trained_parameters
from toposcope.lab.result import NAME
from toposcope.lab.settings import from_settings
from toposcope.runs.grid import jobs as train_jobs
from toposcope.runs.jobs import COLLAPSE, PROBE, Job
from toposcope.studies.collapse import CollapseConfig
from toposcope.studies.language.config import ProbeConfig
from toposcope.studies.reproduce.measures import LadderMeasure, StudyMeasure, find_measure
from toposcope.studies.reproduce.planted import self_test
from toposcope.studies.reproduce.result import (
    ClaimNumber,
    ClaimVerdict,
    ReproducedClaim,
    StudyAnswer,
    StudyOutcome,
    StudyPoint,
)
from toposcope.studies.reproduce.rules import Slope, StudyArm, StudyAsked, StudyClaim, StudyRules, StudySize

Config = RunConfig | ProbeConfig | CollapseConfig
Values = dict[str, dict[int, float | None]]
SHORT_KEY = 8


@dataclass(frozen=True)
class PlacedRun:
    """One run of a study: its arm, seed and place on the arm's ladder (None where it has none)."""

    arm: str
    seed: int
    rung: Any
    config: Config


def placed(rules: StudyRules, size: StudySize, seeds: Sequence[int], store: str | Path = "") -> list[PlacedRun]:
    """All runs, seed by seed: the whole table is there after the first, and every further one sharpens it.

    Where no question needs it, no head is removed after training, but for runs that the store has already.
    """
    measures = _measures(rules)
    lean = rules.kind == "train" and not any(getattr(each, "ablation", False) for each in measures)
    shaped = {name: _shaped(rules, size, arm) for name, arm in rules.arms.items()}
    found = []
    for seed in seeds:
        for name, arm in rules.arms.items():
            setting, values = arm.ladder or ("", (None,))
            for rung in values:
                given = {} if rung is None else {setting: rung}
                config = _config(rules.kind, {**shaped[name], **given, "seed": seed})
                if lean and isinstance(config, RunConfig) and not (Path(store) / config.key() / NAME).exists():
                    config = replace(config, ablation=False)
                found.append(PlacedRun(name, seed, rung, config))
    return found


def _measures(rules: StudyRules) -> list[StudyMeasure | LadderMeasure]:
    """All that is asked of runs; complains about an unknown measure before anything is trained."""
    doses = [each.slope.dose for each in rules.asked if each.slope and each.slope.dose]
    axes = [picture.x for picture in rules.pictures if any(place is None for _, _, place in picture.arms)]
    named = [each.measure for each in rules.asked] + [picture.measure for picture in rules.pictures]
    return [find_measure(rules.kind, name) for name in (*named, *doses, *axes)]


def _shaped(rules: StudyRules, size: StudySize, arm: StudyArm) -> dict[str, Any]:
    """The settings of an arm: the study's, its own, then the size's."""
    asked = {**rules.settings, **arm.settings, **size.settings}
    if arm.parameters_of is None:
        return asked
    other = rules.arms[arm.parameters_of]
    if other.parameters_of is not None:
        raise BadConfig(f"the arm '{arm.name}' is as large as '{other.name}', which is itself as large as another.")
    return {**asked, "parameters": parameters(_config(rules.kind, _shaped(rules, size, other)))}


def _config(kind: str, settings: Mapping[str, Any]) -> Config:
    asked = dict(settings)
    if kind == "bytes":
        return from_settings(ProbeConfig, asked)
    if kind == "flow":
        return from_settings(CollapseConfig, asked)
    options = asked.pop("task_options", {})
    if not isinstance(options, Mapping):
        raise BadConfig(f"task_options of a study are a table, got {options!r:.60}.")
    return from_settings(RunConfig, {**asked, "task_options": tuple(options.items())})


def parameters(config: Config) -> int:
    """How many numbers a run trains."""
    if isinstance(config, CollapseConfig):
        return 0
    from toposcope.lab.model import Transformer
    from toposcope.studies.language.cells import build

    if isinstance(config, ProbeConfig):
        return trained_parameters(build(config.held, config.model()).model)
    return trained_parameters(Transformer(config.model()))


def study_jobs(runs: Iterable[PlacedRun]) -> list[Job]:
    """The runs as jobs, each once."""
    configs = {each.config.key(): each.config for each in runs}
    trained = train_jobs(config for config in configs.values() if isinstance(config, RunConfig))
    others = {key: config for key, config in configs.items() if not isinstance(config, RunConfig)}
    kinds = {key: PROBE if isinstance(config, ProbeConfig) else COLLAPSE for key, config in others.items()}
    return [*trained, *(Job(key, kinds[key], config.as_dict()) for key, config in others.items())]


class StudyRuns:
    """The finished runs of a study, by arm and seed."""

    def __init__(self, rules: StudyRules, runs: Sequence[PlacedRun], results: Mapping[str, Any]) -> None:
        self.rules, self._results = rules, results
        self._by: dict[str, dict[int, list[PlacedRun]]] = {name: {} for name in rules.arms}
        for each in runs:
            self._by[each.arm].setdefault(each.seed, []).append(each)

    def values(self, measure: str, arms: Iterable[str]) -> Values:
        """The measure of each arm, seed by seed; on a ladder that of the rung whose mean is best."""
        found = find_measure(self.rules.kind, measure)
        return {arm: self._ladder(found, arm) if isinstance(found, LadderMeasure) else self._plain(found, arm)
                for arm in arms}  # fmt: skip

    def _ladder(self, measure: LadderMeasure, arm: str) -> dict[int, float | None]:
        return {
            seed: measure.of([(each.rung, self._results.get(each.config.key())) for each in runs])
            for seed, runs in self._by[arm].items()
            if any(each.config.key() in self._results for each in runs)
        }

    def _plain(self, measure: StudyMeasure, arm: str) -> dict[int, float | None]:
        by_rung: dict[Any, dict[int, float | None]] = {}
        for seed, runs in self._by[arm].items():
            for each in runs:
                result = self._results.get(each.config.key())
                by_rung.setdefault(each.rung, {})[seed] = None if result is None else measure(result)
        sign = 1.0 if measure.lower else -1.0
        return min(by_rung.values(), key=lambda values: sign * _mean(values, worst=sign * math.inf), default={})

    def keys(self, arms: Iterable[str], seeds: Iterable[int]) -> tuple[str, ...]:
        """Every finished run of these arms and seeds, ladders with all their rungs."""
        chosen = set(seeds)
        named = [
            each.config.key()
            for arm in dict.fromkeys(arms)
            for seed, runs in self._by[arm].items()
            if seed in chosen
            for each in runs
        ]
        return tuple(key for key in dict.fromkeys(named) if key in self._results)


def _mean(values: Mapping[int, float | None], worst: float) -> float:
    """A rung on which a run failed, or has no number, is the worst."""
    known = [value for value in values.values() if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else worst


def by_seed(asked: StudyAsked, runs: StudyRuns) -> dict[int, float]:
    """What a question is about, a number for each seed."""
    if asked.slope is None:
        return contrast(runs.values(asked.measure, asked.of), asked.of)
    return _slopes(asked.measure, asked.slope, runs)


def _slopes(measure: str, slope: Slope, runs: StudyRuns) -> dict[int, float]:
    """The least-squares slope through the arms, for each seed that has them all."""
    ys = runs.values(measure, slope.arms)
    doses = None if slope.dose is None else runs.values(slope.dose, slope.arms)
    found = {}
    for seed in sorted(set.intersection(*(set(each) for each in ys.values()))):
        y = [ys[arm][seed] for arm in slope.arms]
        x = list(slope.doses) if doses is None else [doses[arm].get(seed) for arm in slope.arms]
        pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
        if len(pairs) < len(slope.arms):
            continue
        middle = math.fsum(a for a, _ in pairs) / len(pairs)
        square = math.fsum((a - middle) ** 2 for a, _ in pairs)
        if square > 0:
            found[seed] = math.fsum((a - middle) * b for a, b in pairs) / square
    return found


def judged(rules: StudyRules, runs: StudyRuns) -> StudyOutcome:
    """Every question answered: those that decide as one family, those beside them as another."""
    values = [by_seed(each, runs) for each in rules.asked]
    answers: list[StudyAnswer] = []
    for decides in (True, False):
        chosen = [(each, found) for each, found in zip(rules.asked, values, strict=True) if each.decides == decides]
        said = answered([(list(found.values()), each.question) for each, found in chosen])
        for (each, found), answer in zip(chosen, said, strict=True):
            arms = each.slope.arms if each.slope else tuple(each.of)
            answers.append(
                StudyAnswer(
                    claim=each.claim,
                    name=each.name,
                    measure=each.measure,
                    unit=find_measure(rules.kind, each.measure).unit,
                    decides=decides,
                    direction=each.question.direction,
                    at=each.question.at,
                    bound=each.question.bound,
                    **{**vars(answer), "outcome": ClaimVerdict(answer.outcome)},
                    seeds=tuple(found),
                    values=tuple(found.values()),
                    runs=runs.keys(arms, found),
                )
            )
    strictest = ERROR_RATE / max(1, sum(each.decides for each in rules.asked))
    tests = tuple(
        self_test(f"{each.name}, {each.measure}", list(found.values()), each.question, rate=strictest)
        for each, found in zip(rules.asked, values, strict=True)
        if each.decides and len(found) > 1
    )
    return StudyOutcome(
        name=rules.name,
        title=rules.title,
        about=rules.about,
        rules_sha256=rules.sha256,
        rules_commit=rules.commit,
        family=sum(each.decides for each in rules.asked),
        answers=tuple(answers),
        points=tuple(_points(rules, runs)),
        self_tests=tests,
    )


def _points(rules: StudyRules, runs: StudyRuns) -> Iterable[StudyPoint]:
    """The arms of the pictures: a mean over seeds with its interval, at its place."""
    for picture in rules.pictures:
        names = [name for name, _, _ in picture.arms]
        ys = runs.values(picture.measure, names)
        unplaced = [name for name, _, x in picture.arms if x is None]
        xs = runs.values(picture.x, unplaced) if unplaced else {}
        for name, series, place in picture.arms:
            known = {seed: value for seed, value in ys[name].items() if value is not None}
            at = [value for value in xs.get(name, {}).values() if value is not None]
            if not known or (place is None and not at):
                continue
            x = math.fsum(at) / len(at) if place is None else place
            mean, half = interval(list(known.values()))
            yield StudyPoint(
                picture.title, picture.measure, picture.x, series, name, x, mean, half, len(known),
                runs.keys([name], known),
            )  # fmt: skip


def claims_of(rules: StudyRules, size: StudySize, found: StudyOutcome) -> list[ReproducedClaim]:
    """Each claim with its outcome; a size with other settings than the study's only shows how it is done."""
    return [_claim(claim, found, judge=not size.settings) for claim in rules.claims]


def _claim(claim: StudyClaim, found: StudyOutcome, *, judge: bool) -> ReproducedClaim:
    mine = [each for each in found.answers if each.claim == claim.id]
    deciding = [each for each in mine if each.decides]
    said = together([each.paired for each in deciding], claim.needs)
    keys = {key for each in mine for key in each.runs}
    return ReproducedClaim(
        id=claim.id,
        claim=claim.claim,
        released_code=claim.released,
        measured=tuple(str(each) if each.decides else f"(beside: {each})" for each in mine),
        verdict=ClaimVerdict(said) if judge else ClaimVerdict.UNMEASURED,
        rule=f"{claim.needs} of {len(deciding)}: " + "; ".join(each.rule for each in deciding),
        runs=tuple(sorted(key[:SHORT_KEY] for key in keys)),
        before=claim.before or None,
        change=claim.change or None,
    )


def numbers_of(found: StudyOutcome) -> list[ClaimNumber]:
    """Every number with the keys of its runs."""
    return [
        ClaimNumber(each.claim, "described", each.decides, f"{each.name}, {each.measure}", each.unit, each.mean,
                    each.half, each.n, each.runs)
        for each in found.answers
        if each.mean is not None
    ]  # fmt: skip
