"""Damaged files of every way to quantise, and settings that make no sense: one sentence each, and little memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.quantised.make import HERE
from tests.unit.checkpoints.making import safetensors_bytes
from tests.unit.checkpoints.test_fuzz import ANYWHERE, FILES, edit_header, flip_bits, fuzz, pick, split
from toposcope.checkpoints.quantised import QuantisedSource, dequantised
from toposcope.checkpoints.safetensors_file import SafetensorsFile

STRANGE = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    5,
    2**40,
    0.5,
    "",
    "group",
    "x" * 300,
    [],
    [0, 0],
    [1, 2**40],
    {},
    {"a": []},
]


def flip_numbers(rng: np.random.Generator, content: bytes) -> bytes:
    """Only what the tensors hold: descriptions among them."""
    header, data = split(content)
    return safetensors_bytes(header, flip_bits(rng, data))


def swap_tensors(rng: np.random.Generator, content: bytes) -> bytes:
    """One tensor under the name of another."""
    header, data = split(content)
    first, second = (pick(rng, [name for name in header if name != "__metadata__"]) for _ in range(2))
    header[first], header[second] = header[second], header[first]
    return safetensors_bytes(header, data)


def drop_tensor(rng: np.random.Generator, content: bytes) -> bytes:
    header, data = split(content)
    name = pick(rng, [name for name in header if name not in ("__metadata__", "reference")])
    header[f"gone.{name}"] = header.pop(name)
    return safetensors_bytes(header, data)


def reshape(rng: np.random.Generator, content: bytes) -> bytes:
    """The same numbers in another shape."""
    header, data = split(content)
    entry = header[pick(rng, [name for name in header if name != "__metadata__"])]
    count = int(np.prod(entry["shape"], dtype=int))
    entry["shape"] = pick(rng, [[count], [1, count], [count, 1], entry["shape"][::-1], [count, 1, 1]])
    return safetensors_bytes(header, data)


def edit_settings(rng: np.random.Generator, content: bytes) -> bytes:
    """Something else at a random place of the configuration."""
    header, data = split(content)
    said = json.loads(header["__metadata__"]["settings"])
    place: Any = said
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = pick(rng, keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        place[key] = pick(rng, STRANGE)
        break
    header["__metadata__"]["settings"] = json.dumps(said)
    return safetensors_bytes(header, data)


def opened(path: Path) -> QuantisedSource:
    source = SafetensorsFile(path)
    try:
        said = json.loads(source.metadata["settings"])
    except (KeyError, ValueError):
        said = None
    return dequantised(source, {"quantization_config": said})


def test_damaged_quantised_files(tmp_path: Path) -> None:
    seeds = [path.read_bytes() for path in sorted(HERE.glob("*.safetensors"))]
    mutations = [
        *ANYWHERE,
        edit_header,
        flip_numbers,
        swap_tensors,
        drop_tensor,
        reshape,
        edit_settings,
        edit_settings,
    ]
    counts = fuzz(tmp_path, seeds, mutations, opened, "safetensors", FILES)
    assert counts["BadFile"] > FILES // 4
    assert counts["BadConfig"] > 0
    assert counts["read"] > FILES // 20
