"""A scan in sentences: what is certified stands first, a guess says what it is worth and what measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.report import making
from toposcope.report import read_results
from toposcope.report.blocks import Command, Page
from toposcope.report.drawing import page_of
from toposcope.report.views.scan_words import NAMED, answer, more, summary
from toposcope.scanning.result import ScanResult
from toposcope.spectra.of_heads import FAST_ON_SMOLLM2


@pytest.fixture
def scanned(tmp_path: Path) -> ScanResult:
    making.scanned(tmp_path)
    (result,) = read_results([tmp_path / "scan.json"])
    assert isinstance(result, ScanResult)
    return result


def commands(page: Page) -> list[Command]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, Command)]


def test_what_is_certified_comes_before_the_guess(scanned: ScanResult) -> None:
    first, *_, last = answer(scanned)
    total = len(scanned.heads)
    assert f"of {total} cases" in first
    best = max(scanned.heads, key=lambda head: head.fast_share or 0.0)
    assert f"{best.layer}.{best.head} (" in last
    assert all(f"{head.layer}.{head.head} (" not in first for head in scanned.heads)
    assert f"{FAST_ON_SMOLLM2.hits} of its first {FAST_ON_SMOLLM2.top}" in last  # how often it was right
    assert last.count("%)") == min(NAMED, sum(head.fast_share is not None for head in scanned.heads))
    assert summary(scanned) == [*answer(scanned), *more(scanned)]


def test_the_command_that_measures_the_guess_is_printed_with_it(scanned: ScanResult) -> None:
    (line,) = [each.line for each in commands(page_of([scanned])) if each.line.startswith("toposcope trace")]
    assert line.endswith("--text random")
    assert scanned.provenance.subjects[0].path in line


def test_without_rotation_nothing_is_guessed(scanned: ScanResult) -> None:
    bare = replace(scanned, heads=tuple(replace(head, fast_share=None) for head in scanned.heads))
    assert answer(bare) == answer(scanned)[:-1]
    assert not commands(page_of([bare]))
