"""Texts as bytes, part of them held out, and windows cut from them.

Shape suffixes: B windows, N bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from toposcope.checkpoints.installed import find_text
from toposcope.core.errors import BadValue, NotFound
from toposcope.core.untrusted import TEXT, read_bytes
from toposcope.lab.tasks import NOTHING_ASKED, Batch
from toposcope.studies.language import sotu

MASK = 256  # the number that stands for a byte which is asked for
VOCABULARY, CLASSES = 257, 256
MASKED = 0.15
HELD_SHARE = 0.2  # of a text that has no years, its end


@dataclass(frozen=True, eq=False)
class ByteText:
    """A text in two parts. `digest` names its bytes."""

    name: str
    trained: np.ndarray
    held: np.ndarray
    digest: str


@cache
def find(name: str) -> ByteText:
    """'sotu' (split by years), an installed text ('wiki'), or a file; the last fifth of these is held out."""
    if name == "sotu":
        trained, held = sotu.split(sotu.find())
    else:
        content = read_bytes(_path(name), most=TEXT)
        edge = round(len(content) * (1 - HELD_SHARE))
        trained, held = content[:edge], content[edge:]
    digest = hashlib.sha256(trained + b"\0" + held).hexdigest()[:16]
    return ByteText(name, np.frombuffer(trained, np.uint8), np.frombuffer(held, np.uint8), digest)


def _path(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix or len(path.parts) > 1:
        raise NotFound(f"there is no text file {name}. Give a file, 'sotu', or an installed text such as 'wiki'.")
    return find_text(name)


def windows(text: np.ndarray, count: int, length: int, generator: torch.Generator) -> Tensor:
    """(B, N) bytes from random places; the same state of the generator gives the same windows."""
    if len(text) < length:
        raise BadValue(f"a text of {len(text)} bytes has no window of {length}. Give a longer text.")
    starts_B = torch.randint(len(text) - length + 1, (count,), generator=generator)
    places_BN = starts_B[:, None] + torch.arange(length)
    return torch.from_numpy(text[places_BN.numpy()].astype(np.int64))


def asked_next(bytes_BN: Tensor) -> Batch:
    """Every byte but the first is asked for, at the byte before it."""
    return _batch(bytes_BN[:, :-1], bytes_BN[:, 1:])


def asked_masked(bytes_BN: Tensor, generator: torch.Generator) -> Batch:
    """Some bytes are hidden and asked for."""
    hidden_BN = torch.rand(bytes_BN.shape, generator=generator) < MASKED
    return _batch(bytes_BN.masked_fill(hidden_BN, MASK), bytes_BN.masked_fill(~hidden_BN, NOTHING_ASKED))


def disturbed(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """The batch with that share of what is read replaced by random bytes; what is asked stays."""
    ids_BN = batch.ids_BN
    hit_BN = (torch.rand(ids_BN.shape, generator=generator) < share) & (ids_BN != MASK)
    random_BN = torch.randint(CLASSES, ids_BN.shape, generator=generator)
    return _batch(torch.where(hit_BN, random_BN, ids_BN), batch.labels)


def _batch(ids_BN: Tensor, labels_BN: Tensor) -> Batch:
    return Batch(ids_BN, torch.full((len(ids_BN),), ids_BN.shape[1]), labels_BN)
