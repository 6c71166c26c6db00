"""Do small models learn what they should? (theory-spectra, test 13: laptop size, seed 0)"""

from __future__ import annotations

import pytest

from toposcope.lab.config import RunConfig
from toposcope.lab.result import TrainResult
from toposcope.lab.train import TEST_SENTENCES, train

pytestmark = [pytest.mark.slow, pytest.mark.sample(1, of="models that learn")]


def trained(encoding: str, steps: int | None, place: pytest.TempPathFactory) -> TrainResult:
    config = RunConfig("distance", encoding, steps=steps, probes=False)
    return train(config, place.mktemp("smoke"))


def test_rope_learns_the_distance_in_300_steps(tmp_path_factory: pytest.TempPathFactory) -> None:
    rope = trained("rope", 300, tmp_path_factory)
    assert rope.accuracy is not None
    assert rope.accuracy >= 0.99


def test_without_position_only_what_the_length_tells_is_learned(tmp_path_factory: pytest.TempPathFactory) -> None:
    """At the profile's own 400 steps: less than 3 points below the floor, and above it by no more than chance.

    The theory note measured 23.2 % after 300 steps with another initialisation; ours has come to 21.4 % by then and
    still rises.
    """
    none = trained("none", None, tmp_path_factory)
    assert none.floor == pytest.approx(0.2444, abs=1e-4)
    assert none.accuracy is not None
    error = (none.floor * (1 - none.floor) / TEST_SENTENCES) ** 0.5
    assert none.floor - 0.03 < none.accuracy < none.floor + 3 * error
    assert none.ablation is not None
    assert all(layer.di is None for layer in none.ablation.zero)  # nothing to deposit
