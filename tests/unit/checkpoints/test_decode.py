"""Stored numbers become floats that hold them, and what was read is hashed on the way."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from toposcope.checkpoints import decode as module
from toposcope.checkpoints.decode import (
    Ledger,
    allocate,
    decode,
    element_count,
    parts_of,
    refuse_nonfinite,
    sound_name,
)
from toposcope.checkpoints.source import TensorInfo
from toposcope.core.errors import BadFile, BadWeights

PATH = Path("model.bin")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def info(shape: tuple[int, ...], name: str = "w") -> TensorInfo:
    return TensorInfo(name, shape, "?", 0)


# ------------------------------------------------------------------ decoding
@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (np.float32, np.float32),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (ml_dtypes.float8_e5m2, np.float32),
        (np.float64, np.float64),
        (np.int8, np.float64),
        (np.uint8, np.float64),
        (np.int64, np.float64),
        (np.bool_, np.float64),
    ],
)
def test_every_stored_number_is_held_exactly(stored: Any, wanted: Any) -> None:
    raw = np.array([[0, 1, 1], [1, 0, 1]]).astype(stored)
    if raw.dtype == np.float64:
        raw = raw / 3  # no float32 holds it
    ledger = Ledger()
    found = decode([raw[:1], raw[1:]], raw.dtype, info((2, 3)), PATH, ledger)
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, raw.astype(np.float64))
    assert ledger.lines == {"w": f"w\0002,3\0{sha(raw.tobytes())}\n"}  # in parts or at once: the same bytes


def test_whole_numbers_beyond_single_precision_are_kept() -> None:
    raw = np.array([2**24 + 1, -(2**53)], dtype=np.int64)
    assert decode([raw], raw.dtype, info((2,)), PATH, Ledger()).tolist() == [2**24 + 1, -(2**53)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told_with_its_place(dtype: Any, wrong: float) -> None:
    raw = np.zeros((4, 3), dtype=dtype)
    raw[2, 1] = wrong
    ledger = Ledger()
    with pytest.raises(BadWeights, match=r"\(2, 1\)"):
        decode([raw[:1], raw[1:3], raw[3:]], raw.dtype, info((4, 3)), PATH, ledger)
    assert not ledger.lines


def test_the_first_of_several_is_told() -> None:
    block = np.array([[1.0, np.inf], [np.nan, 1.0]])
    with pytest.raises(BadWeights, match=r"\(3, 1\)"):
        refuse_nonfinite(block, 6, info((9, 2)), PATH)
    with pytest.raises(BadWeights, match=r"\(\)"):
        refuse_nonfinite(np.array(np.nan), 0, info(()), PATH)
    refuse_nonfinite(np.zeros((2, 2)), 0, info((2, 2)), PATH)


def test_a_number_without_axes_and_an_array_without_numbers() -> None:
    for raw in (np.array(2.5), np.zeros((0, 3)), np.zeros((3, 0))):
        found = decode(parts_of(raw), raw.dtype, info(raw.shape), PATH, Ledger())
        assert found.shape == raw.shape
        np.testing.assert_array_equal(found, raw)


def test_arrays_are_cut_into_blocks_of_whole_rows() -> None:
    rows = np.arange(3 * 2**17).reshape(-1, 2)
    parts = list(parts_of(rows))
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert [part.size for part in parts] == [2**18, 2**17]  # in the processor's cache
    wide = np.zeros((3, 2**18 + 1), dtype=np.int8)
    assert [part.shape for part in parts_of(wide)] == [(1, 2**18 + 1)] * 3  # a row at least
    assert sum(len(part) for part in parts_of(np.zeros((2, 0)))) == 2
    long = np.zeros((2**18 + 1, 1), dtype=np.int8)
    assert [len(part) for part in parts_of(long)] == [2**18, 1]
    assert [part.shape for part in parts_of(np.array(1.0))] == [()]


def test_memory_that_is_not_there_is_told_in_gigabytes() -> None:
    for shape, dtype in (((2**26, 2**22), np.float32), ((2**25, 2**22), np.float64)):
        with pytest.raises(BadFile, match="1048576"):
            allocate(shape, dtype, info(shape), PATH)
    assert allocate((2, 3), np.float32, info((2, 3)), PATH).dtype == np.float32


# ------------------------------------------------------------------ names and shapes
def test_names_can_be_shown() -> None:
    assert sound_name("a")
    assert sound_name("a" * 1024)
    for wrong in ("", "a" * 1025, "a\nb", "a\x1b[2J", "a\0b"):
        assert not sound_name(wrong)


def test_shapes_that_an_array_can_have() -> None:
    assert element_count(()) == 1
    assert element_count((3, 4, 5)) == 60
    assert element_count((3, 0, 5)) == 0
    assert element_count((2,) * 32) == 2**32
    assert element_count((2**60,)) == 2**60
    assert element_count((2**30, 2**30)) == 2**60
    for wrong in ((1,) * 33, (-1,), (3, -1), (-1, -1), (2**60 + 1,), (2**30, 2**30, 2), (0, 2**61), (2**61, 0)):
        assert element_count(wrong) is None


# ------------------------------------------------------------------ ledgers
def test_a_digest_is_that_of_the_sorted_lines() -> None:
    ledger = Ledger()
    ledger.add("b", (2, 3), "22")
    ledger.add("a", (), "11")
    assert ledger.digest() == sha(b"a\0\00011\nb\0002,3\00022\n")
    other = Ledger()
    other.add("a", (), "11")
    other.add("c", (1,), "33")
    assert ledger.digest(other) == sha(b"a\0\00011\nb\0002,3\00022\nc\0001\00033\n")
    assert other.digest(ledger) == ledger.digest(other) != ledger.digest()
    assert Ledger(ledger.lines).digest() == ledger.digest()
    assert Ledger().digest() == sha(b"")
    odd = Ledger()
    odd.add("\ud800", (1,), "44")  # half a character, as a hostile file may name it
    assert odd.digest() != Ledger().digest()


def test_a_ledger_copies_what_it_is_given() -> None:
    lines = {"a": "a\0\00011\n"}
    Ledger(lines).add("b", (), "22")
    assert list(lines) == ["a"]


def test_rows_count_while_their_tensor_is_not_read_whole() -> None:
    stored = np.arange(6, dtype=np.float32).reshape(2, 3)
    ledger = Ledger()
    ledger.add_rows("w", np.array([4, 7]), stored)
    which = sha(np.array([4, 7], dtype="<i8").tobytes())[:16]
    assert dict(ledger.lines) == {"w\n4,7": f"w\n{which}\0002,3\0{sha(stored.tobytes())}\n"}
    some = ledger.digest()
    assert some == sha(ledger.lines["w\n4,7"].encode())
    ledger.add_rows("w", np.array([4, 7], dtype=np.int32), np.asfortranarray(stored))  # the same rows again
    assert ledger.digest() == some
    ledger.add_rows("w", np.array([7, 4]), stored[::-1])
    assert ledger.digest() != some
    ledger.add("w", (9, 3), "11")
    whole = Ledger()
    whole.add("w", (9, 3), "11")
    assert ledger.digest() == whole.digest()
    whole.add_rows("v", np.array([0]), stored[:1])  # rows of another tensor still count
    assert ledger.digest() != whole.digest()


def test_a_file_that_changes_between_two_readings_is_refused() -> None:
    ledger = Ledger()
    ledger.add("w", (2,), "11")
    ledger.add("w", (2,), "11")
    for shape, content in (((2,), "22"), ((3,), "11")):
        with pytest.raises(BadFile, match="'w'"):
            ledger.add("w", shape, content)
    stored = np.ones((1, 2))
    ledger.add_rows("v", np.array([3]), stored)
    with pytest.raises(BadFile, match="'v'"):
        ledger.add_rows("v", np.array([3]), 2 * stored)
    learner = Ledger()
    learner.learn(ledger.lines)
    assert learner.digest() == ledger.digest()
    with pytest.raises(BadFile):
        learner.learn({"w": "something else"})


def test_what_is_read_within_a_block_is_noted_also_if_read_before() -> None:
    ledger = Ledger()
    ledger.add("before", (), "00")
    with ledger.noted() as outer:
        ledger.add("first", (), "11")
        with ledger.noted() as inner:
            ledger.add("before", (), "00")
        ledger.add("last", (), "22")
    ledger.add("after", (), "33")
    assert list(inner) == ["before"]
    assert list(outer) == ["first", "before", "last"]
    assert outer["last"] == ledger.lines["last"]
    with pytest.raises(RuntimeError), ledger.noted():
        raise RuntimeError
    ledger.add("once more", (), "44")  # nobody listens any longer
    assert not ledger._listening


def test_small_floats_are_known_by_name() -> None:
    assert module.SMALL_FLOATS["bfloat16"] == np.dtype(ml_dtypes.bfloat16)
    assert module.SMALL_FLOATS["float8_e4m3fn"].itemsize == 1
