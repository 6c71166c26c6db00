"""Training: the same weights bit for bit, whether killed, resumed, or watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from toposcope.core.errors import BadFile, BadValue
from toposcope.lab import train as loop
from toposcope.lab.config import RunConfig
from toposcope.lab.result import TrainResult
from toposcope.lab.train import moments, schedule, train

SMALL = RunConfig("distance", "t5", steps=40, batch=8, width=16, heads=2, ff=16, layers=1, dropout=0.1)
MEASURED = ("curve", "gradients", "spectra", "hessian", "accuracy", "loss")


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model" / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without interruption."""
    directory = tmp_path_factory.mktemp("straight")
    train(SMALL, directory)
    return directory


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(straight: Path, tmp_path: Path) -> None:
    half = train(SMALL, tmp_path, stop_after=20)
    assert (half.finished, half.step, half.accuracy) == (False, 20, None)
    assert TrainResult.stored(tmp_path) is None
    torch.manual_seed(99)  # what others draw meanwhile is no concern
    done, whole = train(SMALL, tmp_path), TrainResult.stored(straight)
    assert done.finished
    assert whole is not None
    assert all(getattr(done, name) == getattr(whole, name) for name in MEASURED)
    assert same(straight, tmp_path)


def test_a_killed_run_goes_on_from_its_last_checkpoint(straight: Path, tmp_path: Path) -> None:
    script = (
        "import json, os, signal, sys\n"
        "from toposcope.lab import train as loop\n"
        "from toposcope.lab.config import RunConfig\n"
        "loop.SAVE_EVERY = 20\n"
        "def report(step, steps, loss, accuracy):\n"
        "    if step == 27:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "loop.train(RunConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], report=report)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, json.dumps(SMALL.as_dict()), str(tmp_path)], check=False, env=dict(os.environ)
    )
    assert ended.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt"]
    steps: list[int] = []
    done = train(SMALL, tmp_path, report=lambda step, *_: steps.append(step))
    whole = TrainResult.stored(straight)
    assert steps[0] == 21
    assert whole is not None
    assert all(getattr(done, name) == getattr(whole, name) for name in MEASURED)
    assert same(straight, tmp_path)


@pytest.mark.parametrize(("stop_after", "expected"), [(None, [50, 100, 120]), (100, [50, 100]), (49, [49])])
def test_every_fiftieth_step_is_saved_and_the_last_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int | None, expected: list[int]
) -> None:
    """What a kill can cost is fifty steps; a run of any length leaves its last step behind."""
    saved: list[int] = []
    keep = loop.save

    def noting(place: Path, state: dict[str, Any]) -> None:
        saved.append(state["step"])
        keep(place, state)

    monkeypatch.setattr(loop, "save", noting)
    train(replace(SMALL, steps=120, batch=2, probes=False), tmp_path, stop_after=stop_after)
    assert saved == expected


def test_each_step_takes_the_rate_of_the_schedule_and_clipped_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    sizes: list[float] = []

    class Noting(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            rates.extend({group["lr"] for group in self.param_groups})
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            sizes.append(float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))))
            return super().step(closure)

    monkeypatch.setattr(loop.torch.optim, "AdamW", Noting)
    config = replace(SMALL, steps=12, lr=0.002, probes=False)
    train(config, tmp_path)
    assert rates == pytest.approx([0.002 * schedule(step, 12) for step in range(12)])
    assert 0 < max(sizes) <= loop.CLIP * (1 + 1e-4)


def test_the_time_of_all_sessions_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(next(clock)))
    short = replace(SMALL, steps=6, probes=False)
    train(replace(short, seed=1), tmp_path / "before")  # so that no session begins at 0
    began = next(clock)
    first = train(short, tmp_path / "two", stop_after=3)
    between = next(clock)
    second = train(short, tmp_path / "two")
    assert 0.5 * (between - began) < first.seconds < between - began
    assert 0.5 * (next(clock) - between) < second.seconds - first.seconds < next(clock) - between
    assert second.seconds_per_sample > 0
    whole = train(short, tmp_path / "one")
    assert whole.seconds_per_sample == pytest.approx(second.seconds_per_sample)  # a step is a step


def test_probes_do_not_change_the_training(straight: Path, tmp_path: Path) -> None:
    unwatched = train(replace(SMALL, probes=False), tmp_path)
    assert unwatched.gradients == unwatched.spectra == unwatched.hessian == []
    assert same(straight, tmp_path)


def test_a_finished_run_is_not_repeated(straight: Path) -> None:
    before = (straight / "result.json").stat().st_mtime_ns
    again = train(SMALL, straight, report=lambda *_: pytest.fail("it trained again"))
    assert again == TrainResult.stored(straight)
    assert (straight / "result.json").stat().st_mtime_ns == before


def test_the_result_says_what_was_measured(straight: Path) -> None:
    result = json.loads((straight / "result.json").read_text())
    assert result["schema"] == "toposcope/train/2"
    assert result["key"] == SMALL.key()
    assert RunConfig.from_dict(result["config"]) == SMALL
    assert [entry["step"] for entry in result["curve"]] == sorted(moments(40, 20))
    assert len(result["gradients"]) == len(result["spectra"]) == 20
    assert len(result["hessian"]) == 5
    assert [len(result["gradients"][0]["heads"][name][0]) for name in "qkvo"] == [2, 2, 2, 2]
    assert 0 < result["probe_seconds"] < result["seconds"]
    assert result["floor"] == pytest.approx(0.2444, abs=1e-4)
    assert sorted(path.name for path in straight.iterdir()) == ["model", "result.json"]


def test_a_directory_belongs_to_one_run(straight: Path, tmp_path: Path) -> None:
    other = replace(SMALL, seed=1)
    with pytest.raises(BadValue, match="holds another run"):
        train(other, straight)
    train(SMALL, tmp_path, stop_after=1)
    with pytest.raises(BadValue, match="holds another run"):
        train(other, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(BadFile, match=r"checkpoint\.pt is damaged"):
        train(SMALL, tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "toposcope/train/1"}'])
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(BadFile, match=r"result\.json"):
        train(SMALL, tmp_path)


def test_a_diverging_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="smaller learning rate than 1e"):
        train(replace(SMALL, lr=1e30, probes=False), tmp_path)


def test_the_schedule_warms_up_and_ends_at_nothing() -> None:
    rates = [schedule(step, 100) for step in range(100)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert rates[6] == 1.0
    assert rates[53] == pytest.approx(0.5)
    assert all(later <= earlier for earlier, later in pairwise(rates[6:]))
    assert 0 < rates[-1] < 1e-3
    assert schedule(0, 1) == 1.0


def test_moments_go_from_the_first_step_to_the_last() -> None:
    assert sorted(moments(400, 5)) == [0, 100, 200, 299, 399]
    assert moments(1, 20) == {0}
    assert len(moments(10, 20)) == 10


def test_seeds_and_sources_of_chance_are_apart() -> None:
    draws = {
        tuple(torch.rand(3, generator=loop.stream(seed, which)).tolist()) for seed in range(3) for which in (1, 2, 3)
    }
    assert len(draws) == 9


def test_no_source_of_chance_is_another() -> None:
    """Were two the same, a run would be tested on sentences it was trained on."""
    assert len({loop.TRAINING, loop.TEST, loop.PROBE, loop.DROPOUT}) == 4
    task = SMALL.make_task()
    first = task.generate(64, loop.stream(SMALL.seed, loop.TRAINING))
    assert not torch.equal(loop.fixed_sentences(SMALL, task, 64).ids_BN, first.ids_BN)


def test_the_caller_keeps_its_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(replace(SMALL, steps=2, probes=False), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_class_zero_is_skipped_by_the_quirk_but_not_for_mla() -> None:
    for encoding, skipped in (("rope", True), ("mla", False)):
        config = replace(SMALL, encoding=encoding, quirks=("skip_class_zero",))
        evaluator = loop.Evaluator(config, config.make_task(), loop.Transformer(config.model()), 1)
        assert bool((evaluator.test.labels == 0).any()) is not skipped
