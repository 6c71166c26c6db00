"""A journal survives what kills its writer, and is never continued with other numbers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.journal import Journal, key_of

ABOUT = {"model": "abc", "seed": 0, "options": {"b": 2, "a": 1}}


def test_entries_come_back_in_order_and_exactly(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "journal.jsonl"
    entries = [
        {"what": "0.1", "value": 0.1 + 0.2},
        {"what": "0.2", "value": None},
        {"what": "0.3", "value": [1e-300]},
    ]
    with Journal(path, ABOUT) as journal:
        for entry in entries:
            journal.add(entry)
    with Journal(path, {"options": {"a": 1, "b": 2}, "seed": 0, "model": "abc"}) as again:
        assert again.entries == entries
        again.add({"what": "0.4"})
    assert [json.loads(line).get("what") for line in path.read_text().splitlines()] == [
        None,
        "0.1",
        "0.2",
        "0.3",
        "0.4",
    ]


@given(cut=st.integers(0, 400))
def test_a_torn_end_costs_one_entry_at_most(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Whatever number of bytes reached the disk, the whole lines among them count and writing goes on."""
    path = tmp_path_factory.mktemp("torn") / "journal.jsonl"
    with Journal(path, ABOUT) as journal:
        for number in range(5):
            journal.add({"n": number})
    content = path.read_bytes()
    kept = content[: min(cut, len(content))]
    path.write_bytes(kept)
    whole = max(0, kept.count(b"\n") - 1)
    with Journal(path, ABOUT) as journal:
        assert journal.entries == [{"n": number} for number in range(whole)]
        journal.add({"n": 99})
    with Journal(path, ABOUT) as journal:
        assert journal.entries[-1] == {"n": 99}
        assert len(journal.entries) == whole + 1


def test_every_entry_is_on_the_disk_when_add_returns(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from toposcope.core.journal import Journal\n"
        "journal = Journal(sys.argv[1], {'seed': 0})\n"
        "[journal.add({'n': n}) for n in range(7)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "journal.jsonl"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Journal(path, {"seed": 0}) as journal:
        assert [entry["n"] for entry in journal.entries] == list(range(7))


def test_another_key_is_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, ABOUT).close()
    before = path.read_bytes()
    with pytest.raises(BadFile, match="--out") as refused:
        Journal(path, {**ABOUT, "seed": 1})
    assert "seed: 0" in str(refused.value)
    assert path.read_bytes() == before


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"format": "something else"}\n')
    with pytest.raises(BadFile, match="version"):
        Journal(path, ABOUT)
    path.write_text("a diary\nof mine\n")
    with pytest.raises(BadFile, match="line 1"):
        Journal(path, ABOUT)
    assert path.read_text() == "a diary\nof mine\n"


@pytest.mark.parametrize(
    "change",
    [('"n":1', '"n":2'), ('"n":1', '"n":NaN'), ('"n":1', '"m":1'), ('"sha256":"', '"sha256":"0'), ('"sha', '"')],
)
def test_a_changed_entry_is_refused_though_it_is_sound_json(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.add({"n": 1})
    text = path.read_text()
    head, entry = text.splitlines()
    path.write_text(f"{head}\n{entry.replace(*change)}\n")
    with pytest.raises(BadFile, match="line 2"):
        Journal(path, ABOUT)
    path.write_text(text)
    with Journal(path, ABOUT) as journal:
        assert journal.entries == [{"n": 1}]


def test_a_journal_without_sums_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, ABOUT).close()
    path.write_text(path.read_text().replace("journal/2", "journal/1"))
    with pytest.raises(BadFile, match="version"):
        Journal(path, ABOUT)


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.add({"n": 0})
        journal.add({"n": 1})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-3], lines[2]]) + "\n")
    with pytest.raises(BadFile, match="line 2"):
        Journal(path, ABOUT)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, ABOUT), pytest.raises(BadValue, match="another process"):
        Journal(path, ABOUT)
    Journal(path, ABOUT).close()


def test_numbers_that_are_none_are_not_written(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", ABOUT) as journal, pytest.raises(ValueError):
        journal.add({"value": float("nan")})


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFound, match="--out"):
        Journal(tmp_path / "file" / "journal.jsonl", ABOUT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_key_tells_what_differs_and_not_how_it_is_written() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})
