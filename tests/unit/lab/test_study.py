"""Studies by their rules: the files that come with Toposcope, planted effects found, and what is refused."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from toposcope.cli import reproduce as command
from toposcope.core.errors import BadConfig, BadValue, ToposcopeError
from toposcope.core.paired import PairedQuestion, answered
from toposcope.lab.config import RunConfig
from toposcope.report.drawing import page_of
from toposcope.report.kinds import read
from toposcope.studies.language.config import ProbeConfig
from toposcope.studies.reproduce import study
from toposcope.studies.reproduce.page import page
from toposcope.studies.reproduce.planted import equal_arms, handicapped, self_test
from toposcope.studies.reproduce.reproduce import reproduce
from toposcope.studies.reproduce.result import ClaimVerdict, ReproduceResult
from toposcope.studies.reproduce.rules import COMMITTED, DIRECTORY, find_rules, parse_rules, study_names

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "studies"
RULES = b"""
title = "Planted"
kind = "bytes"
about = "Two arms, a ladder and a dose."
[settings]
width = 8
[size.demo]
seeds = 8
seconds = 1
[[arm]]
name = "{cell}"
each = { cell = ["free", "head-pd"] }
series = "cells"
[[arm]]
name = "rates"
settings = { cell = "free" }
ladder = { lr = [0.001, 0.002] }
[[arm]]
name = "{loops} times"
each = { loops = [2, 4, 8] }
settings = { cell = "free" }
series = "deep"
[[claim]]
id = "one"
claim = "c"
released = "r"
change = "x"
[[claim]]
id = "two"
claim = "c"
released = "r"
change = "x"
needs = "any"
[[question]]
claim = "one"
name = "pd less free"
measure = "bits"
of = { head-pd = 1, free = -1 }
direction = "above"
bound = 0.05
[[question]]
claim = "two"
name = "slope"
measure = "bits"
slope = { arms = ["2 times", "4 times", "8 times"], doses = [1, 2, 3] }
direction = "above"
[[question]]
claim = "two"
name = "slope over cosine"
measure = "bits"
slope = { arms = ["2 times", "4 times", "8 times"], dose = "cosine" }
direction = "below"
decides = false
[[question]]
claim = "two"
name = "rates less free"
measure = "bits"
of = { rates = 1, free = -1 }
direction = "apart"
bound = 0.05
decides = false
[[picture]]
title = "depth"
measure = "bits"
x = "loops"
series = ["deep"]
[[picture]]
title = "dose"
measure = "bits"
x = "cosine"
series = ["deep", "cells"]
"""


@pytest.fixture(autouse=True)
def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of byte models without the texts, which need not be there."""
    monkeypatch.setattr("toposcope.studies.language.config.find", lambda name: type("Text", (), {"digest": name}))


def planted(effect: float, slope: float = 0.1) -> study.StudyOutcome:
    """The outcome of runs with these differences: pd less free, and bits for each doubling."""
    rules = parse_rules(RULES, "planted", "planted.toml")
    runs = study.placed(rules, rules.size("demo"), range(8))
    noise, results = np.random.default_rng(0), {}
    for each in runs:
        config = each.config
        assert isinstance(config, ProbeConfig)
        bits = 2 + 0.3 * each.seed + 0.01 * noise.standard_normal() + effect * (each.arm == "head-pd")
        bits += slope * np.log2(config.loops) + 0.5 * (config.lr == 0.001)
        results[config.key()] = {"key": config.key(), "bits_held": bits, "cosine": [0.1 * config.loops]}
    return study.judged(rules, study.StudyRuns(rules, runs, results))


@pytest.mark.parametrize(
    ("effect", "outcome"), [(0.2, ClaimVerdict.HOLDS), (-0.2, ClaimVerdict.FAILS), (0.0, ClaimVerdict.EQUIVALENT)]
)
def test_a_planted_effect_is_found_and_none_where_there_is_none(effect: float, outcome: ClaimVerdict) -> None:
    found = planted(effect)
    first, slope, over, rates = found.answers
    assert (first.outcome, first.n, len(first.values), len(first.runs)) == (outcome, 8, 8, 16)
    assert first.mean == pytest.approx(effect, abs=0.02)  # seeds differ by far more: they are paired
    assert (slope.outcome, slope.mean) == (ClaimVerdict.HOLDS, pytest.approx(0.1, abs=0.01))
    assert over.mean == pytest.approx(0.3, abs=0.05)  # 0.2 bits more for 0.6 of cosine, bent
    assert (rates.outcome, len(rates.runs)) == (ClaimVerdict.EQUIVALENT, 24)  # the better rung; both are named
    assert found.family == 2
    rules = parse_rules(RULES, "planted", "planted.toml")
    claims = study.claims_of(rules, rules.size("demo"), found)
    assert [claim.verdict for claim in claims] == [outcome, ClaimVerdict.HOLDS]
    smaller = replace(rules.size("demo"), settings={"steps": 2})  # not the study that the rules are about
    assert {claim.verdict for claim in study.claims_of(rules, smaller, found)} == {ClaimVerdict.UNMEASURED}
    for tried in found.self_tests:
        assert tried.found_in_equal_arms is not None
        assert tried.found_in_equal_arms <= 1
        assert tried.power == pytest.approx(0.8)
    deep = [point for point in found.points if point.picture == "depth"]
    assert [point.x for point in deep] == [2, 4, 8]
    assert [point.x for point in found.points if point.picture == "dose"] == pytest.approx([0.1, 0.1, 0.2, 0.4, 0.8])


def test_the_page_says_by_which_rules() -> None:
    found = planted(0.2)
    rules = parse_rules(RULES, "planted", "planted.toml")
    claims, numbers = study.claims_of(rules, rules.size("demo"), found), study.numbers_of(found)
    result = ReproduceResult(
        what="planted", size="demo", seeds=8, claims=tuple(claims), study=found, numbers=tuple(numbers)
    )
    text = page(result)
    assert hashlib.sha256(RULES).hexdigest() in text
    assert ReproduceResult.from_dict(result.as_dict()).study == found
    drawn = page_of([result])
    assert {"effects-bits", "picture-depth", "picture-dose", "questions", "self-tests"} <= {
        name.replace("_", "-") for name in drawn.tables
    }


def test_a_missing_run_is_left_out_and_a_failed_rung_is_not_taken() -> None:
    rules = parse_rules(RULES, "planted", "planted.toml")
    runs = study.placed(rules, rules.size("demo"), range(2))
    results = {
        each.config.key(): {"bits_held": 1.0 if each.rung == 0.002 else 2.0, "cosine": [0.0]}
        for each in runs
        if not (each.seed == 1 and each.rung == 0.002) and not (each.arm == "free" and each.seed == 0)
    }
    kept = study.StudyRuns(rules, runs, results)
    assert kept.values("bits", ["rates"]) == {"rates": {0: 2.0, 1: 2.0}}
    assert study.by_seed(rules.asked[0], kept) == {1: 0.0}


# ----------------------------------------------------------------- self-test
def test_equal_arms_and_a_handicap() -> None:
    """In numbers that spread as a normal distribution does, and in shuffles of arms that differ by much."""
    values = np.random.default_rng(1).standard_normal(12).tolist()
    assert equal_arms(values, PairedQuestion(), shuffles=400) <= 0.08 * 400
    assert equal_arms(values, PairedQuestion()) == equal_arms([value + 3 for value in values], PairedQuestion()) <= 1
    tried = self_test("q", values, PairedQuestion())
    assert tried.handicap is not None
    assert tried.found_low is not None
    assert tried.found_high is not None
    assert tried.power == pytest.approx(0.8)
    assert tried.found_low - 0.05 <= 0.8 <= tried.found_high + 0.05
    assert handicapped(values, PairedQuestion(), 0.0, trials=200) <= 0.09 * 200
    assert handicapped(values, PairedQuestion(), 5 * tried.handicap, trials=50) == 50
    assert self_test("q", [0.0, 0.0], PairedQuestion()).found is None


# --------------------------------------------------------------------- rules
@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_run(name: str) -> None:
    """Names, settings and measures are known, and no two arms are the same runs."""
    rules = find_rules(name)
    assert set(rules.sizes) == {"demo", "full"}
    for size in rules.sizes.values():
        runs = study.placed(rules, size, [0])
        assert len({each.config.key() for each in runs}) == len(runs) == len(study.study_jobs(runs))
    assert all(each.question.bound or each.question.at for each in rules.asked if each.decides)


def test_arms_are_as_large_as_they_are_said_to_be() -> None:
    for name in ("refinements", "mla"):
        rules = find_rules(name)
        sizes = {each.arm: study.parameters(each.config) for each in study.placed(rules, rules.size("full"), [0])}
        for arm in rules.arms.values():
            if arm.parameters_of:
                assert abs(sizes[arm.name] / sizes[arm.parameters_of] - 1) < 0.002


@pytest.mark.parametrize(("name", "removes"), [("mla", True), ("deposit", True), ("timing", False)])
def test_heads_are_removed_where_a_question_needs_it(name: str, removes: bool, tmp_path: Path) -> None:
    """A run of the store that has it already is taken all the same."""
    rules = find_rules(name)
    configs = [each.config for each in study.placed(rules, rules.size("full"), [0])]
    assert all(isinstance(each, RunConfig) and each.ablation == removes for each in configs)
    first = configs[0]
    assert isinstance(first, RunConfig)
    there = replace(first, ablation=True)
    (tmp_path / there.key()).mkdir()
    (tmp_path / there.key() / "result.json").touch()
    again = [each.config for each in study.placed(rules, rules.size("full"), [0], tmp_path)]
    assert again == [there, *configs[1:]]


@pytest.mark.parametrize("name", study_names())
def test_rules_are_those_that_were_committed(name: str) -> None:
    known = tomllib.loads(COMMITTED.read_text())[name]
    content = (DIRECTORY / f"{name}.toml").read_bytes()
    assert known["sha256"] == hashlib.sha256(content).hexdigest()
    assert find_rules(name).commit == known["commit"]
    try:
        place = f"{known['commit']}:{(DIRECTORY / f'{name}.toml').relative_to(ROOT)}"
        there = subprocess.run(["git", "show", place], cwd=ROOT, capture_output=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        pytest.skip("the history is not there")
    assert there == content


def changed(old: bytes, new: bytes) -> bytes:
    assert RULES.count(old) >= 1
    return RULES.replace(old, new, 1)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"title = 3",
        changed(b'kind = "bytes"', b'kind = "other"'),
        changed(b'direction = "above"', b'direction = "up"'),
        changed(b'direction = "above"', b'direction = "above"\nmeasured = "twice"'),
        changed(b"bound = 0.05", b"bound = nan"),
        changed(b"head-pd = 1", b"head-nd = 1"),
        changed(b"head-pd = 1", b'head-pd = "all"'),
        changed(b'measure = "bits"', b'measure = "bytes"'),
        changed(b"width = 8", b"widht = 8"),
        changed(b"width = 8", b'width = "wide"'),
        changed(b"doses = [1, 2, 3]", b"doses = [1, 2]"),
        changed(b'id = "one"', b'id = "three"'),
        changed(b"lr = [0.001, 0.002]", b"lr = 0.001"),
        changed(b"each = { loops = [2, 4, 8] }", b"each = { loops = [] }"),
        changed(b'x = "cosine"', b'x = "nothing"'),
    ],
)
def test_rules_that_make_no_sense_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises((BadConfig, BadValue)):
        reproduce(str(path), store=tmp_path / "runs")


@pytest.mark.parametrize("asked", [{"what": "deposits"}, {"what": "deposit", "size": "huge"}, {"what": "no.toml"}])
def test_unknown_studies_and_sizes(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError):
        reproduce(**asked, store=tmp_path)


def test_the_command_and_its_page_name_every_study() -> None:
    (argument,) = get_type_hints(command.run, include_extras=True)["what"].__metadata__
    table = (ROOT / "docs/reproduce.md").read_text()
    for name in study_names():
        assert name in argument.help
        rules = find_rules(name)
        size = rules.size("full")
        count = size.seeds * len(study.placed(rules, size, [0]))
        assert re.search(rf"^\| `{name}` \|.*\| {count} \|$", table, re.MULTILINE)


@pytest.mark.parametrize("file", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_what_a_kept_study_says_follows_from_its_numbers(file: Path) -> None:
    """Those that docs/studies.md speaks of: run whole, by the rules as they are, judged as they would be now."""
    kept = read(file)
    assert isinstance(kept, ReproduceResult)
    assert kept.study is not None
    rules = find_rules(kept.what)
    assert (kept.size, kept.study.rules_sha256, kept.study.rules_commit) == ("full", rules.sha256, rules.commit)
    runs = study.placed(rules, rules.sizes["full"], range(kept.seeds))
    assert kept.runs_done == len(study.study_jobs(runs))
    assert not kept.skipped
    configs = [each.config for each in runs]  # those of training were all kept with their heads removed, or without
    keys = {each.key() for each in configs}
    keys |= {replace(each, ablation=True).key() for each in configs if isinstance(each, RunConfig)}
    for decides in (True, False):
        asked = [each for each in rules.asked if each.decides == decides]
        said = [each for each in kept.study.answers if each.decides == decides]
        again = answered([(each.values, one.question) for each, one in zip(said, asked, strict=True)])
        for each, new in zip(said, again, strict=True):
            assert (each.outcome, each.n) == (new.outcome, len(each.seeds))
            assert (each.mean, each.p) == (pytest.approx(new.mean), pytest.approx(new.p))
            assert each.runs
            assert rules.kind == "bytes" or set(each.runs) <= keys  # those hold texts that are not here in tests
    for each in kept.study.self_tests:  # without any spread there is nothing to shuffle, and no power is stated
        assert (each.found_in_equal_arms is None) == (each.power is None)
        assert each.found_in_equal_arms is None or each.found_in_equal_arms <= 1


def test_every_outcome_has_words() -> None:
    from toposcope.report.views import reproduce as view

    assert set(view._WORDS) == set(view._MEANING) == {str(each) for each in ClaimVerdict}
