"""A part of the extreme numbers and words that `tests.faults.extremes` gives to every command."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.extremes import Ground, cases, check, warm_up

CASES = 60


@pytest.mark.timeout(600)
def test_extreme_values_end_in_an_answer_or_a_sentence(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    warm_up(ground)
    chosen = [case for case in cases(ground) if "spectrum" not in case.name or "--context" not in case.name]
    assert check(random.Random(0).sample(chosen, CASES)) == []
