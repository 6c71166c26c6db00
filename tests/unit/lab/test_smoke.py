"""Do small models learn what they should? (theory-spectra, test 13: laptop size, 300 steps, seed 0)"""

from __future__ import annotations

import pytest

from toposcope.lab.config import RunConfig
from toposcope.lab.result import TrainResult
from toposcope.lab.train import train

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lab-smoke")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    place = tmp_path_factory.mktemp("smoke")
    return {
        encoding: train(RunConfig("distance", encoding, steps=300, probes=False), place / encoding)
        for encoding in ("rope", "none")
    }


def test_rope_learns_the_distance(trained: dict[str, TrainResult]) -> None:
    assert trained["rope"].accuracy is not None
    assert trained["rope"].accuracy >= 0.99


def test_without_position_nothing_is_learned_beyond_the_length(trained: dict[str, TrainResult]) -> None:
    none = trained["none"]
    assert none.floor == pytest.approx(0.2444, abs=1e-4)
    assert none.accuracy is not None
    assert none.accuracy < none.floor + 0.03


def test_without_position_what_the_length_tells_is_learned(trained: dict[str, TrainResult]) -> None:
    none = trained["none"]
    assert none.accuracy is not None
    assert none.accuracy > none.floor - 0.03
