"""Faults in the files of real models are found or left open, never called in order; sound models raise nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import toposcope
from tests.planted.faults import FAULTS, IN_A_TABLE, IN_ROTARY, MINILM, SMOLLM2, Fault
from tests.planted.files import judged, plant, written
from tests.planted.models import HELD_BACK, Trained, trained
from toposcope.checkpoints.installed import find
from toposcope.core.errors import NotFound

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("planted")]
OPEN = {  # what these weights cannot tell
    "base lost: 10,000 by default",
    "base 10 times too large",
    "linear x 4 added",
    "context 131,072 without scaling",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in (SMOLLM2, MINILM):
        try:
            missing = find(name).path() is None
        except NotFound:
            missing = True
        if missing:
            pytest.skip(f"the package of {name} is not installed")
    return tmp_path_factory.mktemp("sound")


def test_there_are_42() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 42


@pytest.mark.sample(6)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault(fault: Fault, sound: Path, tmp_path: Path) -> None:
    result = judged(plant(fault, written(fault.model, sound), tmp_path / "planted"), fault.finding)
    assert result.outcome == ("cannot tell" if fault.name in OPEN else "found"), result.as_what
    if result.outcome == "found":
        assert result.as_what.removesuffix(": BadConfig").split()[-1] in fault.finding


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [SMOLLM2, MINILM])
def test_sound_files_raise_nothing(name: str, sound: Path) -> None:
    assert toposcope.check(written(name, sound)).worst == "ok"


@pytest.mark.sample(0.02)  # 20 seconds each: in full before a release
@pytest.mark.parametrize("model", HELD_BACK, ids=lambda model: model.name)
def test_models_of_the_laboratory(model: Trained, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = trained(model, tmp_path)
    assert toposcope.check(place).worst in ("ok", "cannot_tell")
    faults = IN_ROTARY if "rope" in model.encoding else IN_A_TABLE if model.encoding == "learned" else ()
    for fault in faults:
        result = judged(plant(fault, place, tmp_path / fault.name), fault.finding)
        assert result.outcome != "missed", fault.name
