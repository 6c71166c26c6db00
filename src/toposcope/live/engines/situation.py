"""What a known bug is made from, a model's encodings as it runs, and what it becomes: a way to run the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding
from toposcope.models.content import ContentReader
from toposcope.models.instrument import attached
from toposcope.models.swap_encoding import Swap, swapped

Positions = Callable[[int], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Simulation:
    """One way to have a bug: something else in some layers, or other positions for so many tokens."""

    bug: str
    variant: str
    swaps: Mapping[int, Swap] = field(default_factory=dict)
    positions: Positions | None = None

    @contextmanager
    def put_into(self, model: Any) -> Iterator[None]:
        """The bug is there inside the block; other positions must be given to the model by whoever calls it."""
        if not self.swaps:
            yield
            return
        with swapped(model, self.swaps):
            yield


@dataclass(frozen=True)
class NotSimulated:
    """A known bug that was not tried on this model, and why."""

    bug: str
    why: str


@dataclass(frozen=True, eq=False)
class Situation:
    """What a bug is made from: the encodings of self-attention as the model runs them, and the texts.

    `longest` is the length of the longest text; `parts_at` is where the other engine was seen to part, None where
    it does from the beginning or never. `takes_positions`: whether the model can be told where its tokens stand.
    """

    encodings: Mapping[int, Encoding]
    sliding: frozenset[int]
    scales: Mapping[int, float]
    widths: Mapping[int, int]
    longest: int
    parts_at: int | None = None
    takes_positions: bool = True

    @property
    def rotating(self) -> dict[int, Encoding]:
        return {number: each for number, each in self.encodings.items() if each.rotary is not None}


def situation(model: Any, *, longest: int, parts_at: int | None = None) -> Situation:
    """The situation of a loaded model; a `BadConfig` where its encoding is not known or not what it does."""
    with attached(model) as instrument:
        reader = ContentReader.of(instrument)
        layers = {layer.number: layer for layer in reader.layers if layer.spec.kind == "self"}
        return Situation(
            encodings={number: reader.encoding(instrument.sites[number]) for number in layers},
            sliding=frozenset(number for number, layer in layers.items() if layer.spec.reach is not None),
            scales={number: layer.spec.scale for number, layer in layers.items()},
            widths={number: layer.spec.head_dim for number, layer in layers.items()},
            longest=longest,
            parts_at=parts_at,
            takes_positions="position_ids" in inspect.signature(instrument.model.forward).parameters,
        )
