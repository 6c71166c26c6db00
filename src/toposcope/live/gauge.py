"""What tells where tokens stand in a model: turned queries and keys, the stream that enters, or what logits are given.

* `rotary`  queries and keys of the same content, at all layers that turn them
* `input`   queries and keys of the first layer, of one token, where position is added to the input
* `bias`    what is added to the logits, with no content at all
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.live.content import given_content
from toposcope.live.ruler import BiasRuler, Ruler
from toposcope.live.running import Running
from toposcope.live.stands import Stood, added_to_logits, biased, stood
from toposcope.live.watch import Attention
from toposcope.live.ways import Pass, Text, Way, run

Kind = Literal["rotary", "input", "bias"]


@dataclass(frozen=True, eq=False)
class Gauge:
    """The rulers of one kind, by the number of the attention in a run of the model."""

    kind: Kind
    rulers: Mapping[int, tuple[Ruler, Ruler] | BiasRuler]
    modules: tuple[str, ...]  # of all attentions, in the order of a run
    still: tuple[int, ...]  # layers that have nothing to read: position moves nothing there

    def content(self, running: Running, rows: int) -> AbstractContextManager[None]:
        return _content(running, self.kind, self.modules, rows)

    def look(
        self, running: Running, text: Text, way: Way, numbers: Collection[int] | None = None
    ) -> dict[int, list[Stood]]:
        """Where tokens stand in this way of running, by layer."""
        with self.content(running, len(way.real_BT)):
            passes = run(running, text, way, len(self.modules))
        return {
            number: self._read(way, passes, number) for number in self.rulers if numbers is None or number in numbers
        }

    def _read(self, way: Way, passes: Sequence[Pass], number: int) -> list[Stood]:
        ruler = self.rulers[number]
        if isinstance(ruler, BiasRuler):
            return biased(way, passes, number, ruler)
        return stood(way, passes, number, *ruler)


def gauges(running: Running, text: Text, layers: Sequence[Layer], modules: Sequence[str], known: int) -> list[Gauge]:
    """The gauges of a model, each made by one run over so many tokens."""
    return list(_gauges(running, text, layers, tuple(modules), known))


def _gauges(
    running: Running, text: Text, layers: Sequence[Layer], modules: tuple[str, ...], known: int
) -> Iterator[Gauge]:
    import torch

    eps = float(torch.finfo(running.dtype).eps)
    for kind, numbers in _numbers(layers).items():
        if not numbers:
            continue
        with _content(running, kind, modules, 1):
            seen = running.attentions(text.ids_BT(np.ones((1, known), dtype=bool)))
        rulers: dict[int, tuple[Ruler, Ruler] | BiasRuler] = {}
        for number in numbers:
            made = _ruler(kind, seen[number], layers[number], eps)
            if made is not None:
                rulers[number] = made
        yield Gauge(kind, rulers, modules, tuple(each for each in numbers if each not in rulers))


def _numbers(layers: Sequence[Layer]) -> dict[Kind, list[int]]:
    """Which layers each gauge reads."""
    own = [(number, layer) for number, layer in enumerate(layers) if layer.spec.kind == "self"]
    first = {layer.spec.stack: number for number, layer in reversed(own) if layer.encoding.input is not None}
    return {
        "rotary": [number for number, layer in own if layer.encoding.rotary is not None],
        "input": sorted(first.values()),
        "bias": [number for number, layer in own if layer.encoding.bias is not None],
    }


def _ruler(kind: Kind, seen: Attention, layer: Layer, eps: float) -> tuple[Ruler, Ruler] | BiasRuler | None:
    if kind == "bias":
        added_HNM = added_to_logits(seen, 0)
        if added_HNM is None:
            return None
        bias = BiasRuler.of(added_HNM, layer.spec.causal, eps)
        return None if bias.still else bias
    query, key = Ruler.of(seen.query_BHNR, eps), Ruler.of(seen.key_BGMR, eps)
    return None if query.still and key.still else (query, key)


def _content(running: Running, kind: Kind, modules: Collection[str], rows: int) -> AbstractContextManager[None]:
    if kind == "input":
        return nullcontext()
    return given_content(running.model, set(modules), [0] * rows, sizes=1.0 if kind == "rotary" else 0.0)


def matched(model: Model, attentions: Sequence[Attention]) -> list[Layer] | None:
    """The layers of the description behind the attentions of one run, in their order; None where they do not match."""
    for layers in (model.layers, [layer for layer in model.layers if layer.spec.stack not in ("vision", "audio")]):
        if len(layers) == len(attentions):
            return list(layers)
    return None


def first_run(running: Running, text: Text, **more: Any) -> list[Attention]:
    """The attentions of a short text."""
    return running.attentions(text.ids_BT(np.ones((1, 6), dtype=bool)), **more)
