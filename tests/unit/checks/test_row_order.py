"""The order of a table's rows: shuffled, shifted, behind zeros, and read in order though it shows none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import toposcope
from toposcope.checks import Finding, check_model
from toposcope.checks.row_order import chained
from toposcope.checks.tables import look_at
from toposcope.encodings import sinusoidal

from .making import Tensors, bert, random_table


def wandering(rows: int = 256, width: int = 32, seed: int = 0) -> np.ndarray:
    """A table that wanders smoothly, its first row apart, as that of the first token is."""
    random = np.random.default_rng(seed)
    angle = np.arange(rows)[:, None] * random.uniform(0.02, 0.4, width) + random.uniform(0, 7, width)
    table = np.cos(angle) * random.uniform(0.5, 1, width) + 0.05 * random.standard_normal((rows, width))
    table[0] = 2 * random.standard_normal(width) * table.std()
    return table


def about(table: np.ndarray, id: str = "position-table") -> Finding:
    return next(finding for finding in look_at(table, (0,)) if finding.id == id)


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_rows(seed: int) -> None:
    table = wandering(seed=seed)
    assert about(table).status == "ok"
    shuffled = np.random.default_rng(seed).permutation(table)
    assert chained(shuffled) == pytest.approx(chained(table))
    finding = about(shuffled)
    assert (finding.status, finding.evidence["state"]) == ("fault", "shuffled")


def test_unordered_rows_without_a_chain_stay_open() -> None:
    random = np.random.default_rng(0)
    cloud = random.standard_normal((256, 3)) @ random.standard_normal((3, 32))
    assert chained(cloud) < 0.1
    assert about(cloud + 0.1 * random.standard_normal((256, 32))).status == "cannot_tell"


@pytest.mark.parametrize(("shift", "status"), [(0, "ok"), (1, "warning"), (5, "cannot_tell"), (-1, "cannot_tell")])
def test_shifted_rows(shift: int, status: str) -> None:
    assert about(np.roll(wandering(), shift, axis=0), "first-row").status == status


@pytest.mark.parametrize("leading", [1, 2])
def test_sinusoid_behind_zeros(leading: int) -> None:
    made = sinusoidal(32).input
    assert made is not None
    table = np.concatenate([np.zeros((leading, 32)), made.vectors(np.arange(100))])
    finding = about(table)
    assert (finding.status, finding.evidence["leading"]) == ("warning", leading)
    assert finding.evidence["sinusoid"] == "interleaved, base 10000, size 1"


def test_a_random_table_that_attention_reads_in_order(tmp_path: Path) -> None:
    """Rows that show no order of their own, and a first layer that looks one row back through them."""
    table = random_table(64, 32, std=0.5)

    def look_back(tensors: Tensors) -> None:
        centred = table - table.mean(axis=0)
        before = np.linalg.lstsq(centred[1:], centred[:-1], rcond=None)[0]
        q, k = (f"encoder.layer.0.attention.self.{part}.weight" for part in ("query", "key"))
        tensors[q] = before.T + 0.1 * tensors[q]
        tensors[k] = np.eye(32) + 0.1 * tensors[k]

    def state(path: Path) -> tuple[str, str]:
        with toposcope.load(path) as model:
            finding = check_model(model).find("position-table")
        assert finding is not None
        return finding.status, finding.evidence["state"]

    assert state(bert(tmp_path / "read", table, look_back)) == ("ok", "trained")
    assert state(bert(tmp_path / "fresh", table)) == ("cannot_tell", "random")
    assert state(bert(tmp_path / "small", table / 20)) == ("fault", "random")
