"""Which checkpoint is this? Told by content: by the hashes of what is read of it, and by nothing else.

A checkpoint is recognised in two steps. `identity` is had at once: what the headers, the configuration and the tables
of positions say. Weights are looked at when they are used: whoever keeps a result keeps the lines of the ledger with
it (name, shape and sha256 of each tensor behind it), and `difference` compares them with what is there now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import ROWS
from toposcope.checkpoints.source import TensorSource, headers
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadFile
from toposcope.encodings.record import Encoding

_SAMPLED = 48  # positions at which the tables of an encoding are looked at


def identity(model: Model, context: int | None = None) -> dict[str, str]:
    """Hashes of all that decides how the weights are read; the weights themselves are in the ledger.

    `tensors`: name, shape, type and size of every tensor; `config`: the configuration, or a GGUF file's settings;
    `tables`: the tensors that were read to describe the model; `described`: how its family's adapter understands it,
    with the encoding of every layer as numbers. Names, places and dates of files are no part of it.
    """
    source = model.source
    infos = sorted(headers(source, stored=True), key=lambda info: info.name)
    settings = {key: value for key, value in source.metadata.items() if _is_short(value)}
    return {
        "tensors": fingerprint([(info.name, info.shape, info.dtype, info.nbytes) for info in infos]),
        "config": fingerprint([source.format, model.config, settings]),
        "tables": model.tables,
        "described": fingerprint(model.spec, context or model.spec.context),
    }


def difference(source: TensorSource, lines: Mapping[str, str]) -> str | None:
    """The first tensor that is not as these lines of a ledger say, by name; None where all are."""
    known = set(source.names())
    for key, line in lines.items():
        name, _, rows = key.partition(ROWS)
        if name not in known:
            return name
        if key not in source.ledger.lines and rows:
            chosen = np.array([int(row) for row in rows.split(",")], dtype=np.intp)
            if chosen.min() < 0 or chosen.max() >= source.info(name).shape[0]:
                return name
            source.read_rows(name, chosen)
        elif key not in source.ledger.lines:
            source.read(name)
        if source.ledger.lines.get(key) != line:
            return name
    return None


def fingerprint(value: Any, context: int | None = None) -> str:
    """The sha256 of a value made of plain values, arrays, dataclasses and encodings, to the last bit of its numbers.

    Mappings count without their order. Of an encoding the tables count, at positions up to `context`.
    """
    total = hashlib.sha256()
    _feed(total, value, context or 4096)
    return total.hexdigest()


def _feed(total: Any, value: Any, context: int) -> None:
    if value is None or type(value) in (str, bool, int, float):  # most are: asked first, and nothing else of them
        _feed_word(total, value)
        return
    if isinstance(value, Encoding):
        value = _numbers(value, context)
    if isinstance(value, np.ndarray):
        total.update(f"array {value.dtype.str} {value.shape}\n".encode())
        total.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        total.update(f"{type(value).__name__} ".encode())
        _feed(total, named, context)
    elif isinstance(value, Mapping):
        total.update(f"mapping {len(value)}\n".encode())
        for key in sorted(value, key=str):
            _feed(total, str(key), context)
            _feed(total, value[key], context)
    elif isinstance(value, list | tuple):
        total.update(f"list {len(value)}\n".encode())
        for entry in value:
            _feed(total, entry, context)
    else:
        _feed_word(total, value.item() if isinstance(value, np.generic) else value)


def _feed_word(total: Any, value: Any) -> None:
    words = repr(value).encode("utf-8", "surrogatepass")
    total.update(f"{len(words)} ".encode() + words + b"\n")


def _numbers(encoding: Encoding, context: int) -> dict[str, Any]:
    """What an encoding is, whoever brought it: its parameters, and its tables at positions near and far."""
    found: dict[str, Any] = {
        "name": encoding.name,
        "parameters": encoding.parameters,
        "exact_tables": encoding.exact_tables,
        "notes": encoding.notes,
        "query_scale": encoding.query_scale,
    }
    if not encoding.exact_tables:
        return found
    at = np.unique(np.geomspace(1, max(context, 2), _SAMPLED).astype(int)) - 1
    if (rotary := encoding.rotary) is not None:
        found["rotary"] = [
            rotary.head_dim,
            rotary.pairs_F2,
            rotary.pairing,
            rotary.attention_factor,
            rotary.decay_F,
            rotary.turning_heads,
            rotary.frequencies(),
            rotary.frequencies(context),
        ]
    if (bias := encoding.bias) is not None:
        found["bias"] = [bias.heads, bias.toeplitz, bias.table(at, at)]
    if (table := encoding.input) is not None:
        inside = at if table.length is None else at[at < table.length]
        found["input"] = [table.width, table.length, table.vectors(inside)]
    return found


def _is_short(value: Any) -> bool:
    """Whether a setting is there to be read at once: a vocabulary is not, and decides nothing here."""
    return value is None or isinstance(value, bool | int | float | str | list | dict)


def refuse_difference(source: TensorSource, lines: Mapping[str, str], what: str, advice: str) -> None:
    """Raise unless every tensor behind a kept result is what it was."""
    name = difference(source, lines)
    if name is not None:
        raise BadFile(
            f"{what} is of another checkpoint: tensor '{name}' differs from that in {source.path}. {advice}"
        )
