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

from toposcope.core import saved
from toposcope.core.errors import BadFile, BadValue
from toposcope.lab import train as loop
from toposcope.lab.batches import accuracy
from toposcope.lab.config import RunConfig
from toposcope.lab.model import ModelConfig, Transformer
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
    kept: list[int] = []
    save = saved.save

    def noting(place: Path, state: dict[str, Any]) -> None:
        kept.append(state["step"])
        save(place, state)

    monkeypatch.setattr(saved, "save", noting)
    train(replace(SMALL, steps=120, batch=2, probes=False), tmp_path, stop_after=stop_after)
    assert kept == expected


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
    assert unwatched.gradients == unwatched.spectra == unwatched.hessian == ()
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
    with pytest.raises(BadValue, match="another run"):
        train(other, straight)
    train(SMALL, tmp_path, stop_after=1)
    with pytest.raises(BadValue, match="another run"):
        train(other, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(BadFile, match=r"checkpoint\.pt"):
        train(SMALL, tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "toposcope/train/1"}'])
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(BadFile, match=r"result\.json"):
        train(SMALL, tmp_path)


def test_a_diverging_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"1e\+30"):
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


PLAIN = replace(SMALL, steps=7, lr=0.003, dropout=0.0, probes=False)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Transformer]:
    """The models that are made while a test runs."""
    models: list[Transformer] = []

    class Kept(Transformer):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(config)
            models.append(self)

    monkeypatch.setattr(loop, "Transformer", Kept)
    return models


@pytest.mark.parametrize(
    "changes",
    [{}, {"batch": 1}, {"seed": 3}, {"encoding": "rope", "variant": "published", "dropout": 0.2, "batch": 16}],
)
def test_training_is_the_plain_loop_on_padded_batches(
    tmp_path: Path, made: list[Transformer], changes: dict[str, Any]
) -> None:
    """AdamW on the mean cross entropy of what is asked, clipped, by the schedule; chance from streams of its own."""
    config = replace(PLAIN, **changes)
    losses: list[float] = []
    train(config, tmp_path, report=lambda step, steps, loss, accuracy: losses.append(loss))
    task, settings = config.make_task(), config.settings
    model = Transformer(config.model()).train()
    torch.manual_seed(16 * config.seed + 4)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=tuple(settings["betas"]), weight_decay=settings["weight_decay"]
    )
    generator = torch.Generator().manual_seed(16 * config.seed + 1)
    expected = []
    for step in range(7):
        batch = task.generate(settings["batch"], generator)
        labels = batch.labels.reshape(-1)
        if config.switches.skip_class_zero:
            labels = labels.masked_fill(labels == 0, -100)
        scores = model(batch.ids_BN, batch.lengths_B)
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 0.003 * schedule(step, 7)
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    for ours, theirs in zip(made[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("passes", [2, 3])
def test_a_batch_in_several_passes_gives_the_same_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[Transformer], passes: int
) -> None:
    losses: dict[int, list[float]] = {1: [], passes: []}
    asked: list[int] = []
    parts = loop.parts
    monkeypatch.setattr(loop, "parts", lambda batch, count: (asked.append(count), parts(batch, count))[1])
    for count in losses:
        monkeypatch.setattr(loop, "parts_worth", lambda *_, count=count: 2 * count)
        monkeypatch.setattr(loop, "passes_worth", lambda *_, count=count: count)
        asked.clear()
        train(PLAIN, tmp_path / str(count), report=lambda step, steps, loss, _, to=losses[count]: to.append(loss))
        assert set(asked) == {count}
    assert losses[passes] == pytest.approx(losses[1], rel=1e-4)
    for ours, theirs in zip(made[0].parameters(), made[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("variant", ["described", "published"])
def test_the_final_numbers_are_those_of_the_whole_test(
    tmp_path: Path, made: list[Transformer], variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a model that sees padding: what it is tested on is padded as what it was trained on."""
    monkeypatch.setattr(loop, "parts_worth", lambda *_: 3)
    config = replace(PLAIN, encoding="rope", variant=variant, steps=15)
    found = train(config, tmp_path)
    model, task = made[0], config.make_task()
    assert model.sees_padding is (variant == "published")
    test = loop.Evaluator(config, task, model, 1).test
    right, loss = accuracy(model, test)
    assert (found.accuracy, found.loss) == (pytest.approx(right), pytest.approx(loss, rel=1e-5))
    assert found.ablation is not None
    assert found.accuracy == pytest.approx(found.ablation.base)
    assert found.curve[-1].accuracy != found.curve[0].accuracy
    assert (found.floor, found.prior, found.ceiling) == (task.floor, task.prior, task.ceiling.value)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert (found.step, found.steps, found.finished) == (15, 15, True)


def test_what_a_run_looks_at_is_fixed() -> None:
    """2048 sentences for the end, the first 256 for the curve, a few of the probes' own stream."""
    task = SMALL.make_task()
    evaluator = loop.Evaluator(SMALL, task, Transformer(SMALL.model()), 1)
    test = task.generate(2048, torch.Generator().manual_seed(16 * SMALL.seed + 2))
    for name in ("ids_BN", "lengths_B", "labels"):
        assert torch.equal(getattr(evaluator.test, name), getattr(test, name))
        assert torch.equal(getattr(evaluator.glance, name), getattr(test, name)[:256])
    curved = task.generate(16, torch.Generator().manual_seed(16 * SMALL.seed + 3))
    assert torch.equal(evaluator.curved.ids_BN, curved.ids_BN)
    assert len(evaluator.sentences) == 4
    assert evaluator.moments == moments(40, 20)
    assert evaluator.sharp == moments(40, 5)
    assert loop.Evaluator(replace(SMALL, probes=False), task, evaluator.model, 1).sharp == frozenset()
    other = replace(SMALL, seed=1)
    assert not torch.equal(loop.fixed_sentences(other, task, 64).ids_BN, test.ids_BN[:64])


def test_time_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes 10, a glance 1000 and the end 5000: a step's time, a probe's, and all of them the run's."""
    now = 0.0
    config = replace(PLAIN, steps=30)
    task = type(config.make_task())
    generate, measured = task.generate, loop.accuracy

    def slow(self: Any, count: int, generator: torch.Generator) -> Any:
        nonlocal now
        now += 10.0 if count == 8 else 0.0
        return generate(self, count, generator)

    def slower(model: Any, batch: Any, **options: Any) -> Any:
        nonlocal now
        now += 1000.0 if len(batch.ids_BN) == 256 else 5000.0
        return measured(model, batch, **options)

    monkeypatch.setattr(task, "generate", slow)
    monkeypatch.setattr(loop, "accuracy", slower)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now)
    seen: list[float | None] = []
    first = train(config, tmp_path, stop_after=10, report=lambda step, steps, loss, right: seen.append(right))
    glances = len([right for right in seen if right is not None])
    assert glances == len(moments(30, 20) & set(range(10)))
    assert first.seconds == pytest.approx(10 * 10 + 1000 * glances)
    found = train(config, tmp_path)
    assert found.probe_seconds == pytest.approx(1000 * 20)
    assert found.seconds == pytest.approx(30 * 10 + 1000 * 20 + 5000)
    assert found.seconds_per_sample == pytest.approx(10 / 8)


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocabulary": 12, "classes": 5, "length": 10, "kv_heads": 2, "ff": 300, "layers": 6},
        {"vocabulary": 12, "classes": 5, "length": 10, "head_dim": 32, "ff": 8, "layers": 6},
        {"vocabulary": 900, "classes": 700, "length": 800, "ff": 8, "layers": 1},
    ],
)
def test_the_memory_foreseen_is_that_of_weights_and_a_batch(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]
) -> None:
    """Sixteen bytes a weight, for itself, its gradient and two moments; and the stream and MLP of a batch."""
    asked: list[float] = []
    monkeypatch.setattr(loop, "require_memory", lambda needed, *_: asked.append(needed))
    config = ModelConfig(encoding="learned", width=64, heads=8, **sizes)
    weights = sum(p.numel() for p in Transformer(config).parameters())
    loop._require_memory(config, 0)
    loop._require_memory(config, 1000)
    assert asked[0] == pytest.approx(16 * weights, rel=0.03)
    assert asked[1] - asked[0] == pytest.approx(4 * 1000 * sizes["length"] * (2 * 64 + sizes["ff"]))


def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(needed: float, what: str, advice: str) -> None:
        raise BadValue(advice)

    monkeypatch.setattr(loop, "require_memory", refuse)
    monkeypatch.setattr(loop, "Transformer", lambda *_: pytest.fail("it was made"))
    with pytest.raises(BadValue, match="smaller sizes"):
        train(PLAIN, tmp_path, report=lambda *_: pytest.fail("it began"))


def test_a_result_that_is_there_clears_the_checkpoint_away(tmp_path: Path) -> None:
    done = train(replace(PLAIN, steps=2), tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"left behind")
    assert train(replace(PLAIN, steps=2), tmp_path) == done
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_checkpoint_of_a_step_that_is_none_of_the_run_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(PLAIN, tmp_path, stop_after=3)
    state = saved.restore(tmp_path, ())
    assert state is not None
    for step, right in ((8, False), (-1, False), (7, True)):
        monkeypatch.setattr(saved, "restore", lambda place, parts, step=step: {**state, "step": step})
        if right:
            assert train(PLAIN, tmp_path, stop_after=1).step == 7
        else:
            with pytest.raises(BadFile):
                train(PLAIN, tmp_path, stop_after=1)


def test_reports_come_after_every_step_with_the_accuracy_of_the_curve(tmp_path: Path) -> None:
    told: list[tuple[int, int, float, float | None]] = []
    config = replace(PLAIN, steps=30)
    found = train(config, tmp_path, report=lambda *each: told.append(each))
    assert [(step, steps) for step, steps, _, _ in told] == [(step, 30) for step in range(1, 31)]
    curve = {entry.step: entry for entry in found.curve}
    assert set(curve) == moments(30, 20)
    for step, _, loss, right in told:
        if step - 1 in curve:
            assert (curve[step - 1].loss, curve[step - 1].accuracy) == (loss, right)
        else:
            assert right is None


def test_moments_and_schedule_of_short_runs() -> None:
    assert moments(5, 1) == {0}
    assert moments(5, 2) == {0, 4}
    assert [schedule(step, 2) for step in range(2)] == pytest.approx([1.0, 1.0])
    assert [schedule(step, 4, warm_up=0.5) for step in range(4)] == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert [schedule(step, 1000) for step in (0, 59, 60, 530)] == pytest.approx([1 / 60, 1.0, 1.0, 0.5])


def test_a_batch_that_asks_nothing_teaches_nothing(
    tmp_path: Path, made: list[Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Evaluator, "counted", lambda _, batch: replace(batch, labels=0 * batch.labels - 1))
    losses: list[float] = []
    train(replace(PLAIN, steps=2), tmp_path, stop_after=2, report=lambda step, steps, loss, _: losses.append(loss))
    assert losses == [0.0, 0.0]


@pytest.mark.parametrize("name", ["checkpoint.pt", "result.json"])
def test_a_link_in_the_place_of_what_is_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFile, match="link"):
        train(PLAIN, tmp_path / "run")
    assert (tmp_path / "elsewhere").read_text() == "precious"
