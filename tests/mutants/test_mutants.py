"""The mutation runner: it makes the changes it says, notices planted ones, and tells of tests that check nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import targets
from tests.mutants.mutate import Mutant, mutants, sample
from tests.mutants.targets import MODULES, ROOT, file_of

SOURCE = '''
"""Words."""
from __future__ import annotations

LIMIT = 3

def clipped(x: int, low: float = 0.5, *, strict: bool = False) -> float:
    """More words."""
    if x < low and not strict:
        raise ValueError(f"{x + 1} is too small")
    x = x * 2
    x += 1
    return -x
'''


def made(tmp_path: Path, source: str = SOURCE) -> list[list[Mutant]]:
    (tmp_path / "small.py").write_text(source)
    return mutants(tmp_path / "small.py", "small")


def test_every_kind_of_change_is_made_and_words_are_left_alone(tmp_path: Path) -> None:
    found = {(each.line, each.kind, each.before, each.after) for place in made(tmp_path) for each in place}
    assert found == {
        (5, "off by one", "LIMIT = 3", "LIMIT = 4"),
        (5, "off by one", "LIMIT = 3", "LIMIT = 2"),
        (7, "off by one", "0.5", "1.0"),
        (7, "flag", "False", "True"),
        (9, "condition", "x < low and not strict", "(not (x < low and (not strict)))"),
        (9, "logic", "x < low and not strict", "(x < low or not strict)"),
        (9, "comparison", "x < low and not strict", "(x <= low) and not strict"),
        (9, "condition", "x < low and not strict", "x < low and (strict)"),
        (10, "dropped", 'raise ValueError(f"{x + 1} is too small")', "pass"),
        (11, "dropped", "x = x * 2", "pass"),
        (11, "arithmetic", "x = x * 2", "x = (x / 2)"),
        (11, "off by one", "x = x * 2", "x = x * 3"),
        (11, "off by one", "x = x * 2", "x = x * 1"),
        (12, "dropped", "x += 1", "pass"),
        (12, "arithmetic", "x += 1", "x -= 1"),
        (12, "off by one", "x += 1", "x += 2"),
        (12, "off by one", "x += 1", "x += 0"),
        (13, "result", "return -x", "return None"),
        (13, "arithmetic", "return -x", "return (x)"),
    }


def test_a_mutant_is_the_module_with_one_change(tmp_path: Path) -> None:
    for place in made(tmp_path):
        for each in place:
            assert each.source != SOURCE
            compile(each.source, "small", "exec")
    by_name = {each.name: each for place in made(tmp_path) for each in place}
    known: dict[str, Any] = {}
    exec(by_name["small | clipped | x += 1 | x -= 1 | 0"].source, known)
    assert known["clipped"](4) == -7
    moved = {each.name for place in made(tmp_path, "\n\n" + SOURCE) for each in place}
    assert moved == set(by_name)  # names outlive moved lines


def test_a_sample_is_decided_by_its_seed() -> None:
    places = mutants(file_of("spectra.anova"), "spectra.anova")
    names = [[each.name for each in sample(places, 20, seed)] for seed in ("1", "1", "2")]
    assert names[0] == names[1] != names[2]
    assert len({each.line for each in sample(places, 200, "1")}) > 50
    assert len(sample(places, 10**6, "1")) == len(places)


def test_central_modules_exist_and_have_tests() -> None:
    for module in MODULES:
        assert file_of(module).is_file(), module
        assert targets.tests_of(module), module


def outcomes(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "tests.mutants", "--out", str(tmp_path / "out"), "--json", str(told), *options]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return list(json.loads(told.read_text())["mutants"])


@pytest.mark.slow
@pytest.mark.sample(0.25)
def test_good_tests_notice_and_empty_ones_do_not(tmp_path: Path) -> None:
    """A handful of mutants of a quick module: its own tests notice all of them, tests that look at nothing none."""
    before = file_of("encodings.absolute").read_bytes()
    chosen = ("--modules", "encodings.absolute", "--sample", "4", "--seed", "0", "--tests")
    own = outcomes(tmp_path, *chosen, str(ROOT / "tests" / "unit" / "encodings" / "test_absolute.py"))
    assert [row["outcome"] for row in own] == ["noticed"] * 4
    assert all(row["by"].startswith("tests/unit/encodings/test_absolute.py::") for row in own)
    blind = tmp_path / "test_blind.py"
    blind.write_text("import toposcope.encodings.absolute\n\n\ndef test_nothing():\n    pass\n")
    unseen = outcomes(tmp_path, *chosen, str(blind))
    assert {row["mutant"] for row in unseen} == {row["mutant"] for row in own}
    assert {row["outcome"] for row in unseen} == {"survived"}
    assert file_of("encodings.absolute").read_bytes() == before
