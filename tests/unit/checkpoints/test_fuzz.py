"""Thousands of damaged files: each is read in full or refused with a sentence, in little memory and little time."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import sampling
from tests.unit.checkpoints.making import (
    gguf_bytes,
    gguf_pair,
    gguf_string,
    gguf_tensor,
    safetensors_bytes,
    safetensors_of,
)
from toposcope.checkpoints.gguf_file import GgufFile
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.errors import ToposcopeError

FILES = sampling.count(200, 2_000)  # of each format read directly, and a quarter of them through the front door
SLOWEST = 5.0  # seconds of processor time for a file of a few kilobytes: far above a reading, far below a hang
Mutation = Callable[[np.random.Generator, bytes], bytes]

HUGE = [0, 1, 2, 7, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def flip_bits(rng: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def flip_early_bits(rng: np.random.Generator, content: bytes) -> bytes:
    """Where headers are."""
    return flip_bits(rng, content[:200]) + content[200:]


def truncate(rng: np.random.Generator, content: bytes) -> bytes:
    return content[: int(rng.integers(len(content)))]


def insert(rng: np.random.Generator, content: bytes) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + rng.bytes(int(rng.integers(1, 40))) + content[at:]


def delete(rng: np.random.Generator, content: bytes) -> bytes:
    at = int(rng.integers(len(content)))
    return content[:at] + content[at + int(rng.integers(1, 40)) :]


def repeat(rng: np.random.Generator, content: bytes) -> bytes:
    first, second = sorted(int(at) for at in rng.integers(len(content), size=2))
    return content[:second] + content[first:second] + content[second:]


def write_huge_number(rng: np.random.Generator, content: bytes) -> bytes:
    """Eight bytes somewhere become a number that a count or a length should not be."""
    at = int(rng.integers(max(1, len(content) - 8)))
    return content[:at] + struct.pack("<Q", pick(rng, HUGE)) + content[at + 8 :]


def header_length(rng: np.random.Generator, content: bytes) -> bytes:
    (length,) = struct.unpack_from("<Q", content)
    new = pick(
        rng, [*HUGE, length - 1, length + 1, length + int(rng.integers(-50, 50)), len(content), len(content) - 8]
    )
    return struct.pack("<Q", max(0, new)) + content[8:]


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def edit_header(rng: np.random.Generator, content: bytes) -> bytes:
    """Replace one value of the JSON header by something of another kind, size or sign."""
    header, data = split(content)
    strange = [None, True, -1, 1.5, "F32", "BF16", "I64", "", "é", [], {}, [[]], [0, 0], [2**40, 2**40], *HUGE]
    entry = header[pick(rng, list(header))]
    field = pick(rng, list(entry))
    if isinstance(entry[field], list) and entry[field] and rng.random() < 0.6:
        entry[field][int(rng.integers(len(entry[field])))] = pick(rng, strange)
    elif rng.random() < 0.1:
        del entry[field]
    else:
        entry[field] = pick(rng, strange)
    return safetensors_bytes(header, data)


def swap_offsets(rng: np.random.Generator, content: bytes) -> bytes:
    header, data = split(content)
    first, second = (pick(rng, [name for name in header if name != "__metadata__"]) for _ in range(2))
    header[first]["data_offsets"], header[second]["data_offsets"] = (
        header[second]["data_offsets"],
        header[first]["data_offsets"],
    )
    return safetensors_bytes(header, data)


def overlap_offsets(rng: np.random.Generator, content: bytes) -> bytes:
    header, data = split(content)
    entry = header[pick(rng, [name for name in header if name != "__metadata__"])]
    shift = int(rng.integers(-16, 17))
    entry["data_offsets"] = [at + shift for at in entry["data_offsets"]]
    return safetensors_bytes(header, data)


def safetensors_seeds(*, codes: bool = True) -> list[bytes]:
    """Sound files; without `codes` none of numbers that the front door refuses to take for weights."""
    rng = np.random.default_rng(1)
    kinds: dict[str, Any] = {
        "F32": np.float32,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F64": np.float64,
        "I64": np.int64,
        "U8": np.uint8,
    }
    if not codes:
        kinds = {kind: kinds[kind] for kind in ("F32", "F16", "BF16", "F64")}
    seeds = []
    for count in (1, 3, len(kinds)):
        arrays = {
            f"layers.{number}.w": (kind, np.asarray(rng.integers(0, 9, size=(4, number + 1))).astype(dtype))
            for number, (kind, dtype) in enumerate(list(kinds.items())[:count])
        }
        content = safetensors_of(arrays)
        header, data = split(content)
        seeds.append(safetensors_bytes({"__metadata__": {"format": "pt"}, **header}, data))
    return seeds


def gguf_seeds(*, codes: bool = True) -> list[bytes]:
    rng = np.random.default_rng(2)
    pairs = [
        gguf_pair("general.architecture", 8, gguf_string("llama")),
        gguf_pair("general.alignment", 4, struct.pack("<I", 32)),
        gguf_pair("llama.rope.freq_base", 6, struct.pack("<f", 1e5)),
        gguf_pair("flag", 7, b"\x01"),
        gguf_pair("numbers", 9, struct.pack("<IQ", 5, 4) + struct.pack("<4i", 1, 2, 3, 4)),
        gguf_pair("tokens", 9, struct.pack("<IQ", 8, 3) + b"".join(gguf_string(text) for text in ("a", "bc", ""))),
        gguf_pair("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 0, 2) + b"12"),
    ]
    seeds = []
    for names in (
        ["F32"],
        ["Q4_1", "F16", "BF16"],
        ["Q8_0", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_XS", "TQ1_0", "F64", *(["I8"] if codes else [])],
    ):
        tensors, data = [], b""
        for number, name in enumerate(names):
            kind = gguf.GGMLQuantizationType[name]
            block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            tensors.append(gguf_tensor(f"blk.{number}.w", [256, 2], kind.value, len(data)))
            stored = rng.integers(0, 60, size=512 // block_size * block_bytes, dtype=np.uint8).tobytes()
            data += stored + b"\0" * (-len(stored) % 32)
        seeds.append(gguf_bytes(pairs, tensors, data))
    return seeds


ANYWHERE: list[Mutation] = [flip_bits, flip_early_bits, truncate, insert, delete, repeat, write_huge_number]


def read_all(path: Path, opener: Callable[[Path], Any]) -> None:
    source = opener(path)
    for value in source.metadata.values():
        if not isinstance(value, str | int | float):
            list(value)
    for name in source.names():
        shape = source.info(name).shape
        assert source.read(name).shape == shape
    source.close()


def outcome(path: Path, opener: Callable[[Path], Any]) -> str:
    """'read', or the class of the refusal; anything but a sentence to the user is a failure of the test."""
    size = path.stat().st_size
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    start = time.process_time()
    try:
        read_all(path, opener)
        found, message = "read", ""
    except ToposcopeError as error:
        found, message = type(error).__name__, str(error)
    taken = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    # Decoding one block of a quantisation takes its tables; beyond them memory follows the size of the file.
    assert peak - before < (4 << 20) + 64 * size, f"{size} bytes of file took {peak - before} bytes of memory"
    assert taken < SLOWEST
    assert "\n" not in message
    assert len(message) < 1000 + len(str(path))
    return found


def fuzz(
    tmp_path: Path,
    seeds: list[bytes],
    mutations: list[Mutation],
    opener: Callable[[Path], Any],
    name: str,
    files: int,
) -> Counter[str]:
    for number, content in enumerate(seeds):  # the seeds themselves are sound, and fill the caches of the packages
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(content)
        read_all(path, opener)
    counts: Counter[str] = Counter()

    @settings(
        max_examples=files, derandomize=True, database=None, deadline=None, phases=[Phase.generate, Phase.explain]
    )
    @given(st.integers(0, 2**64 - 1))
    def one(draw: int) -> None:
        rng = np.random.default_rng(draw)
        content = pick(rng, seeds)
        for _ in range(1 if rng.random() < 0.7 else 2):
            try:
                content = pick(rng, mutations)(rng, content or b"\0")
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error):
                continue  # the second mutation may not understand what the first one left
        path = tmp_path / f"mutant.{name}"
        path.write_bytes(content)
        counts[outcome(path, opener)] += 1

    tracemalloc.start()
    try:
        one()
    finally:
        tracemalloc.stop()
    print(f"{name}: {files} files: {dict(counts)}")
    return counts


def test_damaged_safetensors(tmp_path: Path) -> None:
    mutations = [*ANYWHERE, header_length, edit_header, edit_header, swap_offsets, overlap_offsets]
    counts = fuzz(tmp_path, safetensors_seeds(), mutations, SafetensorsFile, "safetensors", FILES)
    assert counts["BadFile"] > FILES // 2
    assert counts["read"] > FILES // 20  # damage to the numbers alone cannot be seen
    assert counts.total() == FILES


def test_damaged_gguf(tmp_path: Path) -> None:
    counts = fuzz(tmp_path, gguf_seeds(), ANYWHERE, GgufFile, "gguf", FILES)
    assert counts["BadFile"] > FILES // 4
    assert counts["read"] > FILES // 20
    assert counts.total() == FILES


@pytest.mark.parametrize("name", ["safetensors", "gguf"])
def test_damaged_files_through_the_front_door(tmp_path: Path, name: str) -> None:
    """The same through `open_checkpoint`, which looks at the first bytes and at the name."""
    seeds = safetensors_seeds(codes=False) if name == "safetensors" else gguf_seeds(codes=False)
    counts = fuzz(tmp_path, seeds, ANYWHERE, lambda path: open_checkpoint(path).source, name, FILES // 4)
    assert counts.total() == FILES // 4


@pytest.mark.parametrize("name", ["safetensors", "gguf"])
def test_every_truncation_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"m.{name}"
    if name == "safetensors":
        content, opener = safetensors_seeds()[0], SafetensorsFile
    else:
        content, opener = gguf_bytes((), [gguf_tensor("w", [8])], bytes(32)), GgufFile
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ToposcopeError):
            opener(path)
