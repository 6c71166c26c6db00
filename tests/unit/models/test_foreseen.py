"""How long a trace will take is said before it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.making import TEXT, write_llama_lm
from toposcope.core.progress import duration_range
from toposcope.models.ablation import ablate as ablation
from toposcope.models.ablation import foreseen
from toposcope.models.tracing import foreseen as tracing
from toposcope.models.tracing import trace as verb
from toposcope.models.tracing.foreseen import in_words, pace, seconds

SIZES: dict[str, Any] = {"dense_limit": 512, "parameters": 10**8, "slower": 1.0}


def test_it_grows_with_the_work() -> None:
    some = seconds(10, [256], **SIZES)
    assert seconds(20, [256], **SIZES) > some
    assert seconds(10, [256, 256], **SIZES) == pytest.approx(2 * some)
    assert seconds(10, [256], **{**SIZES, "slower": 3.0}) == pytest.approx(3 * some)
    assert seconds(10, [256], streams=2, **SIZES) > some
    assert seconds(10, [512], **{**SIZES, "dense_limit": 511}) < seconds(10, [512], **SIZES)
    assert pace(1) > 0


@pytest.mark.parametrize(
    ("value", "words"), [(3.2, "3 s"), (42, "40 s"), (89, "90 s"), (300, "5 min"), (7200, "2 h")]
)
def test_a_guess_has_one_digit(value: float, words: str) -> None:
    assert in_words(value) == words


def test_a_trace_that_is_slower_than_foretold_says_so_once_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(tracing.time, "perf_counter", lambda: now[0])
    left = tracing.TraceTime(30.0)
    assert left.high > left.low == 30
    assert left.look(0, 100) is None
    now[0] = 3.0
    assert left.look(1, 100) is None, "too early"
    now[0] = 20.0
    assert left.look(40, 100) is None, "50 s in all, as foretold"
    assert left.look(10, 100) == f"now about {duration_range(0.7 * 180, 180 / 0.7)} left"
    assert left.look(99, 100) is None, "about over"


@pytest.mark.parametrize("patience", [0.0, 1e9])
def test_only_what_takes_long_is_announced(
    tmp_path: Path, patience: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("transformers", reason="running a model needs transformers: pip install transformers")
    write_llama_lm(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 8)
    monkeypatch.setattr(verb, "PATIENCE", patience)
    with caplog.at_level(logging.INFO, logger="toposcope"):
        verb.trace(tmp_path, tmp_path / "text.txt", tokens=12, sequences=1, heads="0.1", logits="none", depth=True)
    told = [record for record in caplog.records if "1 head on 1 sequence" in record.message]
    assert len(told) == (1 if patience == 0 else 0)
    for record in told:
        assert "--depth" in record.message  # which is not in the estimate


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (20, 50, "20 to 50 s"),
        (41, 42, "40 s"),
        (50, 130, "50 s to 2 min"),
        (130, 300, "2 to 5 min"),
        (0.1, 3, "1 to 3 s"),
    ],
)
def test_a_range_names_its_unit_once(low: float, high: float, words: str) -> None:
    assert duration_range(low, high) == words


def test_the_time_left_is_told_after_the_first_sequence_and_again_when_it_was_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, done = [0.0], [0.0]
    monkeypatch.setattr(foreseen.time, "perf_counter", lambda: now[0])
    clock = foreseen.TimeLeft(100.0, 10.0, lambda: done[0])

    def at(time: float, work: float) -> int:
        now[0], done[0] = time, work
        clock.look()
        return len(caplog.records)

    with caplog.at_level(logging.INFO, logger="toposcope"):
        assert at(2.0, 5.0) == 0  # less than a sequence
        assert at(4.0, 10.0) == 1  # 36 s left
        assert at(20.0, 50.0) == 1  # as foretold
        assert at(60.0, 60.0) == 2  # 40 s left, in place of 16
        assert at(90.0, 99.0) == 2  # about over
    assert duration_range(0.8 * 36, 1.6 * 36) in caplog.records[0].getMessage()


def test_a_step_is_told_from_its_own_pace_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, done = [0.0], [1000.0]  # so much another step has done, of another kind
    monkeypatch.setattr(foreseen.time, "perf_counter", lambda: now[0])
    clock = foreseen.TimeLeft(100.0, 10.0, lambda: done[0], "Step 2 of 2")
    with caplog.at_level(logging.INFO, logger="toposcope"):
        now[0] = 60.0
        clock.look()
        assert not caplog.records, "nothing of this step has been timed"
        done[0] = 1020.0
        clock.look()
        clock.expect(10.0)
    (record,) = caplog.records
    assert record.getMessage().startswith("Step 2 of 2")
    assert duration_range(0.8 * 240, 1.6 * 240) in record.getMessage()
    assert clock.work == 30


def test_a_screen_has_two_steps_and_a_clock_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="running a model needs transformers: pip install transformers")
    write_llama_lm(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT * 8)
    clocks: list[tuple[str, float, float]] = []

    class Noted(foreseen.TimeLeft):
        def __init__(self, work: float, first: float, done: Callable[[], float], step: str = "") -> None:
            super().__init__(work, first, done, step)
            clocks.append((step, work, done()))

    monkeypatch.setattr(ablation, "TimeLeft", Noted)
    options: dict[str, Any] = {
        "tokens": 12,
        "sequences": 2,
        "mode": "screen",
        "only": "text",
        "out": tmp_path / "out",
    }
    ablation.ablate(tmp_path, tmp_path / "text.txt", **options)
    (first, estimating, before), (second, measuring, between) = clocks
    assert (before, first[:11], second[:11]) == (0.0, "Step 1 of 2", "Step 2 of 2")
    assert between == estimating > 0, "the first step foretells its own work, no more"
    assert measuring > 0
    clocks.clear()
    ablation.ablate(tmp_path, tmp_path / "text.txt", **options, sample=1)
    assert [step for step, work, _ in clocks if work] == [""], "one step where the estimates are kept"
