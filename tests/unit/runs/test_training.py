"""`toposcope.train` as a function: its result, what it leaves, and what it gives back when called again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import toposcope
from tests.unit.runs.making import shows_itself
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.sealed import read_sealed, write_sealed
from toposcope.lab.ablation import ablate_lab
from toposcope.lab.result import TrainResult

SETTINGS = {"steps": 6, "width": 16, "layers": 2, "heads": 2, "ff": 16, "batch": 4}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(store: Path) -> TrainResult:
    return toposcope.train("distance", "rope", settings=SETTINGS, store=store)


def test_a_run_is_a_result(run: TrainResult, tmp_path: Path) -> None:
    assert run.finished
    text = shows_itself(run, tmp_path)
    assert run.key in text
    assert list(run.frame()["step"]) == [point.step for point in run.curve]
    assert len(run.frame("spectra")) == len(run.spectra) > 0


def test_the_same_call_gives_what_is_there_and_the_file_is_the_same_result(run: TrainResult, store: Path) -> None:
    threads = torch.get_num_threads()
    told: list[tuple[str, int, int]] = []
    written = [f"{name}={value}" for name, value in SETTINGS.items()]
    again = toposcope.train(
        "distance", "rope", settings=written, store=store, progress=lambda *each: told.append(each)
    )
    assert (run.trained_now, again.trained_now, told) == (True, False, [])
    assert torch.get_num_threads() == threads
    stored = toposcope.read(store / run.key / "result.json")
    assert isinstance(stored, TrainResult)
    for each in (again, stored):
        assert (each.key, each.curve, each.ablation, each.seconds) == (run.key, run.curve, run.ablation, run.seconds)
    assert stored.directory is None
    assert again.directory == run.directory == str(store / run.key)


def test_progress_names_the_run_and_its_accuracy(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    settings = {**SETTINGS, "probes": False, "task.between": 3}
    run = toposcope.train(
        "distance", "none", settings=settings, out=tmp_path, progress=lambda *each: told.append(each)
    )
    assert (run.config["task_options"], run.config["probes"]) == ([["between", 3]], False)
    assert [(done, total) for _, done, total in told] == [(step, 6) for step in range(1, 7)]
    assert {what.partition(": ")[0] for what, _, _ in told} == {"distance, none, seed 0"}


@pytest.mark.parametrize("schema", ["toposcope/train/1", "toposcope/train/3"])
def test_a_result_in_another_format_is_refused_or_made_again(
    run: TrainResult, store: Path, tmp_path: Path, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = read_sealed(store / run.key / "result.json", run.key)
    place = tmp_path / run.key
    toposcope.train("distance", "rope", settings={**SETTINGS, "probes": True}, out=place)
    write_sealed(place / "result.json", run.key, {**data, "schema": schema})
    with pytest.raises(BadFile, match=r"format \d"):
        toposcope.train("distance", "rope", settings=SETTINGS, out=place)
    with pytest.raises(BadFile, match=r"format \d"):
        toposcope.read(place / "result.json")
    with caplog.at_level(logging.WARNING, "toposcope.runs"):
        again = toposcope.train("distance", "rope", settings=SETTINGS, store=tmp_path)
    assert again.trained_now
    assert (again.curve, again.ablation) == (run.curve, run.ablation)
    assert "format" in caplog.text
    assert (place / "result.refused.json").exists()


def test_a_changed_file_is_no_result(run: TrainResult, store: Path, tmp_path: Path) -> None:
    text = (store / run.key / "result.json").read_text()
    (tmp_path / "r.json").write_text(text.replace('"finished": true', '"finished": false'))
    with pytest.raises(BadFile, match="changed"):
        toposcope.read(tmp_path / "r.json")


def test_what_a_store_holds_is_a_result(run: TrainResult, store: Path, tmp_path: Path) -> None:
    listed = toposcope.list_runs(store)
    assert [(row.key, row.status) for row in listed.runs] == [(run.key, "done")]
    assert toposcope.list_runs(store, status="failed").runs == ()
    assert listed.rows()[0]["summary.accuracy"] == run.accuracy
    assert run.key[:8] in shows_itself(listed, tmp_path, figure=False)
    one = toposcope.show_run(run.key[:6], store)
    assert one.result is not None
    assert one.result["accuracy"] == run.accuracy
    assert run.key in shows_itself(one, tmp_path, figure=False)
    with pytest.raises(BadValue, match="'done'"):
        toposcope.list_runs(store, status="don")


def test_a_model_without_each_head_is_a_result(run: TrainResult, tmp_path: Path) -> None:
    found = ablate_lab(f"{run.directory}/model", sentences=64)
    assert (found.task, found.ablation.sentences, len(found.heads)) == ("distance", 64, 2 * 2 * 2)
    assert found.rows()[0] == {
        "layer": 0, "head": 0, "method": "zero", "accuracy": found.ablation.zero[0].accuracy[0]
    }  # fmt: skip
    shows_itself(found, tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"settings": {"step": 3}}, {"settings": {"steps": "few"}}, {"quirks": ["none-such"]}, {"seed": -1}]
)
def test_wrong_settings_are_refused_before_anything_is_made(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        toposcope.train("distance", "rope", store=tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()
