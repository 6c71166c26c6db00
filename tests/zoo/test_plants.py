"""Every plant is a bug of its kind: it shows where its report says, and does not where the report says so."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.zoo.plants import PLANTS, Plant
from tests.zoo.runs import SELF, WAYS, difference
from toposcope.live.bugs import BUGS

SHOWS, SAME, GROWTH = 1e-3, 1e-5, 10.0  # of the outputs' spread


def test_every_bug_is_planted_three_times_three() -> None:
    assert {plant.bug for plant in PLANTS} == {bug.key for bug in BUGS}
    for bug in BUGS:
        mine = [plant for plant in PLANTS if plant.bug == bug.key]
        assert len({plant.architecture for plant in mine}) >= 3, bug.key
        assert min(Counter(plant.architecture for plant in mine).values()) >= 3, bug.key
    assert len({str(plant) for plant in PLANTS}) == len(PLANTS)


@pytest.mark.sample(4, of="plants")
@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_a_plant_is_what_it_says(plant: Plant) -> None:
    ways = (*plant.differs, *plant.agrees, *(("near",) if plant.grows else ()))
    sound = {way: WAYS[way](plant.sound()) for way in ways if way in WAYS}
    self_sound = {way: float(SELF[way](plant.sound()).abs().max()) for way in ways if way in SELF}
    off = {}
    for way in ways:
        broken = plant.sound()
        with plant.plant(broken):
            off[way] = (
                difference(sound[way], WAYS[way](broken)) if way in WAYS else float(SELF[way](broken).abs().max())
            )
    assert all(value < 1e-3 for value in self_sound.values()), self_sound
    assert all(off[way] > SHOWS for way in plant.differs), off
    assert all(off[way] < (SAME if way in WAYS else 1e-3) for way in plant.agrees), off
    if plant.grows:
        assert off["far"] > GROWTH * off["near"], off
