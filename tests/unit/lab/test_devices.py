"""Training and ablation of small models on a device that is not the CPU (a pretended one)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import toposcope
from toposcope.core.errors import BadValue
from toposcope.core.fields import plain
from toposcope.lab.config import RunConfig

torch = pytest.importorskip("torch", reason="training needs torch: pip install torch")

from tests.devices import AWAY, pretended  # noqa: E402 - needs torch
from toposcope.lab.ablation import ablation_map  # noqa: E402
from toposcope.lab.load import load_model  # noqa: E402
from toposcope.lab.model import Transformer  # noqa: E402
from toposcope.lab.running import own_task, sentences  # noqa: E402
from toposcope.lab.train import train  # noqa: E402
from toposcope.models.device import memory_told  # noqa: E402
from toposcope.runs import driver, on_ray  # noqa: E402

SMALL: dict[str, Any] = {"steps": 4, "batch": 8, "width": 16, "layers": 2, "heads": 2, "ff": 16}


def numbers(result: Any) -> dict[str, Any]:
    found = plain(result)
    return {name: value for name, value in found.items() if "seconds" not in name and name not in ("device",)}


@pytest.mark.sample(1, of="training elsewhere")
@pytest.mark.parametrize(
    ("task", "encoding"),
    [("distance", "rope"), ("copy", "t5"), ("count", "learned"), ("distance", "mla"), ("previous", "pope")],
)
def test_training_meets_no_tensor_of_another_device(tmp_path: Path, task: str, encoding: str) -> None:
    """Stopped, and resumed there; then the same numbers to the bit, since they lie in the same memory."""
    config = RunConfig(task=task, encoding=encoding, **SMALL)
    ours = train(config, tmp_path / "here")
    with pretended():
        half = train(config, tmp_path / "there", device=AWAY, stop_after=2)
        theirs = train(config, tmp_path / "there", device=AWAY)
        model = load_model(tmp_path / "there" / "model").to(AWAY)
        batch = sentences(own_task(tmp_path / "there" / "model", model), 32)
        again = ablation_map(model, batch.to(AWAY), 0.1)
    assert not half.finished
    assert (ours.device, theirs.device) == ("cpu", AWAY)
    assert numbers(theirs) == numbers(ours)
    assert plain(again) == plain(ablation_map(load_model(tmp_path / "here" / "model"), batch, 0.1))


def test_a_run_that_moves_names_both_devices(tmp_path: Path) -> None:
    config = RunConfig(task="copy", encoding="none", probes=False, **SMALL)
    with pretended():
        train(config, tmp_path, device=AWAY, stop_after=2)
    assert train(config, tmp_path).device == f"{AWAY}, then cpu"


def test_a_device_that_is_not_there_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    for asked in ("cuda", "gpu"):
        with pytest.raises(BadValue, match=asked):
            toposcope.train("copy", "rope", device=asked, out=tmp_path / "run")
        with pytest.raises(BadValue, match=asked):
            toposcope.sweep("copy", "rope", seeds=1, device=asked, store=tmp_path / "store")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "asked",
    [
        {"gpus_per_run": 1.0},
        {"gpus_per_run": 1.0, "device": "cuda"},
        {"gpus_per_run": 0.5, "engine": "ray"},
        {"gpus_per_run": 0.0, "engine": "ray", "device": "cuda"},
        {"engine": "ray", "device": "mps"},
    ],
)
def test_gpus_are_dealt_out_by_ray_alone(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        driver.run_jobs([], tmp_path, steps={}, **asked)


@pytest.mark.parametrize(
    ("resources", "threads", "gpus", "room"),
    [
        ({"CPU": 8.0}, 2, 0.0, 4),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 1.0, 2),
        ({"CPU": 8.0, "GPU": 2.0}, 1, 0.25, 8),
        ({"CPU": 2.0, "GPU": 2.0}, 1, 0.25, 2),
        ({"CPU": 1.0}, 4, 0.0, 1),
    ],
)
def test_as_many_runs_as_cores_and_gpus_take(
    resources: dict[str, float], threads: int, gpus: float, room: int
) -> None:
    assert on_ray.room_for_runs(resources, threads, gpus) == room


def test_a_cluster_without_gpus_is_told() -> None:
    with pytest.raises(BadValue, match="--gpus-per-run"):
        on_ray.room_for_runs({"CPU": 4.0}, 1, 0.5)


def test_memory_of_a_training_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Transformer, "forward", full)
    monkeypatch.setattr(Transformer, "embedded", full)
    with pytest.raises(BadValue), memory_told(None):
        train(RunConfig(task="copy", encoding="rope", **SMALL), tmp_path)
