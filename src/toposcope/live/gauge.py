"""What tells where tokens stand in a model: turned queries and keys, the stream that enters, what logits are given.

* `rotary`  queries and keys of the same content, at all layers that turn them
* `input`   queries and keys of the first layer, of one token, where position is added to the input
* `bias`    what is added to the logits, with no content at all
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from toposcope.checkpoints.view import Layer
from toposcope.live.ruler import BiasRuler, Ruler
from toposcope.live.stands import Stood, added_to_logits, biased, stood
from toposcope.live.subject import LiveSubject
from toposcope.live.watch import WatchedAttention
from toposcope.live.ways import Pass, Unreadable, Way, run

Kind = Literal["rotary", "input", "bias"]


@dataclass(frozen=True, eq=False)
class Gauge:
    """The rulers of one kind, by the number of the attention in a run of the model."""

    kind: Kind
    rulers: Mapping[int, tuple[Ruler, Ruler] | BiasRuler]

    def look(self, subject: LiveSubject, way: Way, numbers: Collection[int] | None = None) -> dict[int, list[Stood]]:
        """Where tokens stand in this way of running, by attention."""
        with _content(subject, self.kind, len(way.real_BT)):
            passes = run(subject, way)
        chosen = [number for number in self.rulers if numbers is None or number in numbers]
        return {number: self._read(way, passes, number) for number in chosen}

    def _read(self, way: Way, passes: Sequence[Pass], number: int) -> list[Stood]:
        ruler = self.rulers[number]
        try:
            if isinstance(ruler, BiasRuler):
                return biased(way, passes, number, ruler)
            return stood(way, passes, number, *ruler)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = "what is added to the logits" if isinstance(ruler, BiasRuler) else "queries and keys"
            raise Unreadable(f"{what} were seen in a layout that is not known here") from error


def gauges(subject: LiveSubject, known: int) -> list[Gauge]:
    """The gauges of a model, each made by one run over so many tokens.

    A layer that position does not move has no ruler, nor has one whose vectors are no numbers.
    """
    import torch

    eps = float(torch.finfo(subject.running.dtype).eps)
    found = []
    for kind, numbers in _numbers(subject.layers).items():
        if not numbers:
            continue
        with _content(subject, kind, 1):
            seen = subject.running.attentions(subject.text.ids(1, known))
        rulers = {number: _ruler(kind, seen[number], subject.layers[number], eps) for number in numbers}
        found.append(Gauge(kind, {number: ruler for number, ruler in rulers.items() if ruler is not None}))
    return found


def _numbers(layers: Mapping[int, Layer]) -> dict[Kind, list[int]]:
    """Which attentions each gauge reads."""
    own = [(number, layer) for number, layer in layers.items() if layer.spec.kind == "self"]
    first = {layer.spec.stack: number for number, layer in reversed(own) if layer.encoding.input is not None}
    return {
        "rotary": [number for number, layer in own if layer.encoding.rotary is not None],
        "input": sorted(first.values()),
        "bias": [number for number, layer in own if layer.encoding.bias is not None],
    }


def _ruler(kind: Kind, seen: WatchedAttention, layer: Layer, eps: float) -> tuple[Ruler, Ruler] | BiasRuler | None:
    if kind == "bias":
        added_HNM = added_to_logits(seen, 0)
        if added_HNM is None:
            return None
        bias = BiasRuler.of(added_HNM, layer.spec.causal, eps)
        return None if bias.still else bias
    query, key = Ruler.of(seen.query_BHNR, eps), Ruler.of(seen.key_BGMR, eps)
    if query is None or key is None or not (query.finite and key.finite) or (query.still and key.still):
        return None
    return query, key


def _content(subject: LiveSubject, kind: Kind, rows: int) -> AbstractContextManager[None]:
    """What enters the attentions: the text itself where position is added to it, else the same for all tokens."""
    return nullcontext() if kind == "input" else subject.content(rows, size=1.0 if kind == "rotary" else 0.0)
