"""Sealed results: their own key, their own sum, and numbers in range."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runs.making import trained
from toposcope.core.errors import BadFile, NotFound
from toposcope.core.sealed import COUNT, SHARE, Number, fault, read_sealed, write_sealed
from toposcope.lab.result import EXPECTED


def test_a_sealed_result_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(NotFound):
        read_sealed(path, None)
    write_sealed(path, "aa", {**trained(), "key": "other", "sha256": "old", "words": "é\n"})
    found = read_sealed(path, "aa", EXPECTED)
    assert found.items() >= {**trained(), "key": "aa", "words": "é\n"}.items()
    write_sealed(tmp_path / "again.json", "aa", found)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    with pytest.raises(BadFile):
        read_sealed(path, "bb", EXPECTED)


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": 1.2},
        {"accuracy": -0.1},
        {"accuracy": None},
        {"accuracy": True},
        {"accuracy": "0.5"},
        {"loss": -1},
        {"steps": 2.5},
        {"steps": 10**400},
        {"finished": False},
        {"finished": 1},
        {"schema": "toposcope/train/1"},
        {"config": []},
        {"curve": {}},
        {"curve": [{"step": 0, "loss": 1.0, "accuracy": 7}]},
        {"hessian": [{"step": 0}]},
        {"ablation": 3},
        {"ablation": {**trained()["ablation"], "zero": [{"layer": 0, "accuracy": [2.0]}]}},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_true_are_refused_though_sealed(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_sealed(tmp_path / "result.json", "aa", trained())
    read_sealed(path, "aa", EXPECTED)
    write_sealed(path, "aa", trained(**change))
    with pytest.raises(BadFile):
        read_sealed(path, "aa", EXPECTED)


@pytest.mark.parametrize("change", [{"accuracy": 0.8749}, {"words": 1}, {"sha256": None}, {"key": "bb"}], ids=str)
def test_a_change_is_noticed(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_sealed(tmp_path / "result.json", "aa", trained())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadFile):
        read_sealed(path, None)


def test_what_is_missing_is_named() -> None:
    assert fault({}, {"a": COUNT}) == "a is missing"
    assert str(fault({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": SHARE}]})).startswith("a[1].b ")
    assert fault({"a": [None, 3], "b": 1}, {"a": [Number(missing=True)]}) is None
    assert fault(float("nan"), Number(), "x") is not None


def test_what_training_and_the_probe_write_is_what_is_expected(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs torch")
    from toposcope.lab.config import RunConfig
    from toposcope.lab.result import TrainResult
    from toposcope.lab.train import train
    from toposcope.runs.jobs import EXPECTED as BY_KIND
    from toposcope.runs.jobs import PROBE
    from toposcope.studies.language import probe
    from toposcope.studies.language.config import ProbeConfig

    sizes = {"steps": 2, "batch": 4, "width": 8, "layers": 1, "ff": 8}
    train(RunConfig("distance", "rope", heads=2, **sizes), tmp_path / "run")
    assert TrainResult.stored(tmp_path / "run") is not None
    train(RunConfig("distance", "rope", heads=2, ablation=False, **sizes), tmp_path / "lean")
    lean, whole = (TrainResult.stored(tmp_path / name) for name in ("lean", "run"))
    assert lean is not None
    assert whole is not None
    assert (lean.ablation, lean.curve, lean.loss) == (None, whole.curve, whole.loss)
    assert whole.ablation is not None
    assert lean.key != whole.key
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 8)
    config = ProbeConfig("free", text=str(text), other=str(text), windows=2, length=8, **sizes)
    probe.run(config, tmp_path / "probe")
    read_sealed(tmp_path / "probe" / "result.json", config.key(), BY_KIND[PROBE])
