"""Context managers for a loaded model: see its attention, or take heads out, for as long as the block lasts.

with ablated(model, layer=3, head=2):
    model(input_ids=ids)
with captured(model) as trace:
    model(input_ids=ids)
trace[3].query_BHNR
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from toposcope.core.errors import BadValue
from toposcope.core.ranges import parse_range, written_layers
from toposcope.models.instrument import Call, attached
from toposcope.models.sites import Site, checked_heads, checked_site

Replacement = Callable[[Site, Any], Any]  # the outputs (B, N, H, V) -> what stands in for them


@contextmanager
def ablated(model: Any, layer: int, head: int | Sequence[int], *, by: Any = 0.0) -> Iterator[None]:
    """Replace the output of one head (or several of one layer) before the output projection, and nothing else.

    `by` is 0, or a tensor that broadcasts to (B, N, heads, V): the head's mean, or its output on other data.
    """
    heads = (head,) if isinstance(head, int) else tuple(head)
    with attached(model) as instrument:
        site = checked_site(instrument.sites, layer)
        chosen = list(checked_heads(site, heads))

        def edit(here: Site, output_BNHV: Any) -> Any:
            if here is not site:
                return output_BNHV
            changed = output_BNHV.clone()
            changed[:, :, chosen] = by if isinstance(by, int | float) else by.to(changed)
            return changed

        instrument.edits.append(edit)
        try:
            yield
        finally:
            instrument.edits.remove(edit)


@contextmanager
def ablated_rows(model: Any, rows: Sequence[Mapping[int, tuple[Sequence[int], Any]]]) -> Iterator[None]:
    """Replace other heads in each row of a batch: by row, layer -> its heads and what stands in for them."""
    with attached(model) as instrument:
        for row in rows:
            for layer, (heads, _) in row.items():
                checked_heads(checked_site(instrument.sites, layer), tuple(heads))

        def edit(here: Site, output_BNHV: Any) -> Any:
            mine = [(row, each[here.number]) for row, each in enumerate(rows) if here.number in each]
            if not mine:
                return output_BNHV
            changed = output_BNHV.clone()
            for row, (heads, by) in mine:
                changed[row : row + 1, :, list(heads)] = by if isinstance(by, int | float) else by.to(changed)
            return changed

        instrument.edits.append(edit)
        try:
            yield
        finally:
            instrument.edits.remove(edit)


@contextmanager
def gated(model: Any, gates: Sequence[Any]) -> Iterator[None]:
    """Multiply each head's output by a number: one tensor of H gates per layer, which may ask for gradients."""
    with attached(model) as instrument:
        sizes = [site.heads for site in instrument.sites]
        if [len(gate) for gate in gates] != sizes:
            raise BadValue(f"gates for layers of {[len(gate) for gate in gates]} heads given; the model has {sizes}.")

        def edit(site: Site, output_BNHV: Any) -> Any:
            return output_BNHV * gates[site.number][:, None].to(output_BNHV)

        instrument.edits.append(edit)
        try:
            yield
        finally:
            instrument.edits.remove(edit)


@dataclass(frozen=True, eq=False)
class Captured:
    """One attention as it was: queries and keys after rotation, values, and the heads' outputs. Tensors, detached.

    Queries, keys and values are None for models that hide them.
    """

    layer: int
    query_BHNR: Any | None
    key_BGMR: Any | None
    value_BGMV: Any | None
    output_BNHV: Any
    scaling: float


@dataclass(eq=False)
class Trace:
    """What `captured` has seen: the last forward pass, by layer."""

    by_layer: dict[int, Captured] = field(default_factory=dict)

    def __getitem__(self, layer: int) -> Captured:
        if layer not in self.by_layer:
            seen = f"layers {sorted(self.by_layer)}" if self.by_layer else "nothing: the model has not run yet"
            raise BadValue(f"layer {layer} was not captured; there is {seen}.")
        return self.by_layer[layer]

    def __len__(self) -> int:
        return len(self.by_layer)


@contextmanager
def captured(model: Any, layers: str | int | Sequence[int] | None = None) -> Iterator[Trace]:
    """Keep queries, keys, values and outputs of the layers (all by default) of each forward pass in the block."""
    trace = Trace()
    with attached(model) as instrument:
        wanted = set(parse_range(written_layers(layers), len(instrument.sites)))

        def note(call: Call, output: Any) -> None:
            number = call.site.number
            if number in wanted:
                parts = (call.query_BHNR, call.key_BGMR, call.value_BGMV, output)
                q, k, v, out = (None if part is None else part.detach() for part in parts)
                trace.by_layer[number] = Captured(number, q, k, v, out, call.scaling)

        instrument.observers.append(note)
        try:
            yield trace
        finally:
            instrument.observers.remove(note)
