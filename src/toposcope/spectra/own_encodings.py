"""The encodings that a model's layers have, as `spectrum` asks about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadEncoding
from toposcope.core.ranges import show_range
from toposcope.encodings import Encoding, Sizes
from toposcope.encodings.changed import rebuilt
from toposcope.spectra.beyond import Beyond, beyond_training


@dataclass(frozen=True, eq=False)
class OwnEncoding:
    """One encoding of a model: `name` says of which layers, `layer` is the first of them.

    `trained` is the context of training as far as the files tell: the original one of a scaling, or the claimed one.
    """

    name: str
    layer: LayerSpec
    trained: int | None

    @property
    def encoding(self) -> Encoding:
        return self.layer.encoding

    def sizes(self, context: int) -> Sizes:
        """The sizes that another encoding in its place is built for."""
        rotary = self.encoding.rotary
        turning = self.layer.head_dim if rotary is None else rotary.channels
        return Sizes(self.layer.width, self.layer.heads, turning, context, causal=self.layer.causal)

    def beyond(self, context: int, trained: int, *, assumed: bool, head: int) -> Beyond:
        """What is new to the model at `context`; layers with a window see no farther than that reaches."""
        scaled = _scaling(self.encoding) != "default"
        original = self.encoding.parameters.get("original_context")
        after_training = scaled and not (isinstance(original, int) and trained > original)
        before = _unscaled(self.encoding) if after_training else self.encoding
        seen = context if self.layer.reach is None else min(context, self.layer.reach + 1)
        met = beyond_training(self.encoding, before, seen, trained, assumed=assumed, head=head)
        windowed = seen < context and met.reason == "within"
        return replace(met, context=context, reason="window" if windowed else met.reason)


def own_encodings(model: Model, name: str) -> tuple[OwnEncoding, ...]:
    """Every encoding of the model's self-attention, each with the layers that have it; images are left aside."""
    layers: dict[tuple[Any, ...], list[int]] = {}
    for layer in model.layers:
        spec = layer.spec
        if spec.kind == "self" and spec.stack != "vision":
            layers.setdefault((spec.stack, spec.encoding.title, spec.reach), []).append(layer.number)
    if not layers:
        raise BadEncoding(f"{name} has no self-attention over a text, and so no encoding to ask about.")
    found = []
    for numbers in layers.values():
        spec = model.layers[numbers[0]].spec
        title = name if len(layers) == 1 else f"{name} layers {show_range(numbers)}"
        scaled = _scaling(spec.encoding) != "default"
        original = spec.encoding.parameters.get("original_context") if scaled else None
        found.append(OwnEncoding(title, spec, original if isinstance(original, int) else model.spec.context))
    return tuple(found)


def _scaling(encoding: Encoding) -> str:
    return str(encoding.parameters.get("scaling", "default"))


def _unscaled(encoding: Encoding) -> Encoding:
    """The same rotation before it was stretched; the proportional one, a layout of its own, loses its factor only."""
    kind = "proportional" if _scaling(encoding) == "proportional" else "default"
    changes: Mapping[str, Any] = {"scaling": kind, "factor": None, "attention_factor": None}
    rotary = rebuilt(encoding, **changes)
    if rotary is None:
        raise BadEncoding(f"what {encoding.title} was before it was stretched cannot be told. Say --trained N.")
    return replace(encoding, rotary=rotary)
