"""The file of log-probabilities that any engine can write: what is read, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toposcope.core.errors import BadFile, NotFound
from toposcope.live.engines.logprobs import read_log_probabilities

GOOD = {"ids": [5, 9, 2], "logprobs": [None, -2.5, -0.25]}


def written(place: Path, *rows: Any) -> Path:
    path = place / "b.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_texts_and_numbers(tmp_path: Path) -> None:
    found = read_log_probabilities(written(tmp_path, GOOD, "", {"ids": [1, 2], "logprobs": [None, -1]}))
    assert [ids.tolist() for ids in found.texts] == [[5, 9, 2], [1, 2]]
    assert np.array_equal(found.values[0], [-2.5, -0.25])
    assert found.dtype is None
    assert found.engine == "b.jsonl"


def test_a_first_line_about_the_engine(tmp_path: Path) -> None:
    found = read_log_probabilities(written(tmp_path, {"engine": "mine 1.2", "dtype": "bfloat16"}, GOOD))
    assert (found.engine, found.dtype, len(found.texts)) == ("mine 1.2", "bfloat16", 1)


@pytest.mark.parametrize(
    "row",
    [
        "[1, 2]",
        "{",
        '{"ids": [5, 9], "logprobs": [null, NaN]}',
        '{"ids": [5, 9], "logprobs": [null, -Infinity]}',
        '{"ids": [5, 9], "logprobs": [null, -1e999]}',
        {"ids": [5, 9], "logprobs": [None, None]},
        {"ids": [5, 9], "logprobs": [None]},
        {"ids": [5], "logprobs": [None]},
        {"ids": [5, 9], "logprobs": [None, 0.5]},
        {"ids": [5, 9], "logprobs": [None, True]},
        {"ids": [5, -9], "logprobs": [None, -1.0]},
        {"ids": [5, 2**40], "logprobs": [None, -1.0]},
        {"ids": [5, 9.5], "logprobs": [None, -1.0]},
        {"ids": "59", "logprobs": [None, -1.0]},
        {"ids": [5, 9]},
        {"ids": [5, 9], "logprobs": ["a", -1.0]},
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_what_is_refused(row: Any, after: bool, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as told:
        read_log_probabilities(written(tmp_path, *([GOOD] if after else []), row))
    assert f"line {2 if after else 1}" in str(told.value)


@pytest.mark.parametrize("rows", [[], [{"engine": "x"}], [{"dtype": "int3"}, GOOD]])
def test_files_without_texts(rows: list[Any], tmp_path: Path) -> None:
    with pytest.raises(BadFile):
        read_log_probabilities(written(tmp_path, *rows))


def test_too_many_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.live.engines.logprobs.MOST_TEXTS", 2)
    with pytest.raises(BadFile):
        read_log_probabilities(written(tmp_path, *[GOOD] * 4))


def test_too_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.live.engines.logprobs.MOST_TOKENS", 4)
    with pytest.raises(BadFile):
        read_log_probabilities(written(tmp_path, GOOD, GOOD))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_log_probabilities(tmp_path / "b.jsonl")
