"""Samples are decided by their seed, cover everything in time, and leave nothing out where all is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import conftest, sampling

SUITE = """
import pytest

@pytest.mark.sample(2)
@pytest.mark.parametrize("n", range(6))
def test_some(n): ...

@pytest.mark.sample(0.001)
def test_seldom(): ...

def test_always(): ...
"""


def with_seed(monkeypatch: pytest.MonkeyPatch, seed: int, *, everything: bool = False) -> None:
    monkeypatch.setattr(sampling, "ALL", everything)
    monkeypatch.setattr(sampling, "SEED", seed)


def test_a_sample_is_decided_by_its_seed_and_all_are_drawn_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (1, 1, *range(40)):
        with_seed(monkeypatch, seed)
        found.append(sampling.sample("abcdefgh", 3, of="letters"))
    assert found[0] == found[1]
    assert all(len(each) == 3 and each == sorted(each) for each in found)
    assert {letter for each in found for letter in each} == set("abcdefgh")
    with_seed(monkeypatch, 1, everything=True)
    assert sampling.sample("abcdefgh", 3, of="letters") == list("abcdefgh")


def test_a_share_of_one_thing_is_drawn_sometimes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    for seed in range(200):
        with_seed(monkeypatch, seed)
        drawn += len(sampling.sample("a", 0.25, of="letters"))
    assert 25 < drawn < 80


@pytest.mark.parametrize("everything", [False, True])
def test_properties_are_tried_on_fewer_examples(monkeypatch: pytest.MonkeyPatch, everything: bool) -> None:
    with_seed(monkeypatch, 0, everything=everything)
    seen: list[int] = []

    @settings(max_examples=200, database=None)
    @given(st.integers())
    def holds(number: int) -> None:
        seen.append(number)

    item: Any = SimpleNamespace(obj=holds)
    for _ in range(3):  # as many cases of one test
        conftest._fewer_examples(item)
    holds()
    assert len(seen) == (200 if everything else 25)


@pytest.mark.parametrize(
    ("said", "asked", "count"),
    [("all", "test_suite.py", 8), ("7", "test_suite.py", 3), ("7", "test_suite.py::test_some", 6)],
)
def test_what_is_drawn_is_run(tmp_path: Path, said: str, asked: str, count: int) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sample(n)\n    slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", asked]
    environment = {**os.environ, sampling.VARIABLE: said, "PYTHONPATH": str(sampling.ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
    assert f"{sampling.VARIABLE}={said}:" in done.stdout
