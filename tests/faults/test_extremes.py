"""A sample of the extreme numbers and words that `tests.faults.extremes` gives to every command, or all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sampling
from tests.faults.extremes import Ground, cases, check, warm_up

CASES = 40  # of a sample
PARTS = sampling.count(1, 4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_extreme_values_end_in_an_answer_or_a_sentence(tmp_path: Path, part: int) -> None:
    ground = Ground(tmp_path)
    warm_up(ground)
    chosen = sampling.sample(list(cases(ground))[part::PARTS], CASES, of="extremes")
    assert check(chosen) == []
