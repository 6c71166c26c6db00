"""A checkpoint is walked through one layer at a time: peak memory does not grow with its depth."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.streaming import ALLOWANCE, WIDTH, peak_and_seconds, write_checkpoint


@pytest.mark.slow
def test_a_model_of_7b_shape_needs_less_than_one_layer_in_float64(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, layers=4)
    peak, _ = peak_and_seconds(tmp_path)
    assert peak <= 4 * WIDTH * WIDTH * 8 + ALLOWANCE
