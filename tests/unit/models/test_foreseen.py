"""How long a trace will take is said before it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.making import TEXT, write_llama_lm
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
    told = [record for record in caplog.records if record.message.startswith("about ")]
    assert len(told) == (1 if patience == 0 else 0)
    for record in told:
        assert "1 head, 1 sequence;" in record.message
        assert "--depth" in record.message  # which is not in the estimate
