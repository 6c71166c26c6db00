"""Another positional encoding on a running model: in all layers, in some, or in single heads.

    with swap_encoding(model, "none", layers=[0]):
        model(input_ids=ids)

Inside the block queries and keys are turned back by the model's own rotation, turned by the new one, and attended
with the new bias; nothing is trained anew, and nothing in the model is changed. Positions added to the input are
replaced at the input, so they cannot be changed for some layers only.

A text gives the same numbers whole, token by token with a cache, in chunks, beside padding, and in `generate`. The
cache holds what the model itself puts there; where its keys stand is kept beside it (`positions`). What has no one
answer is refused: caches filled outside of the block, caches that drop tokens or round them, and scalings that choose
frequencies by the length of the text, as soon as that choice changes on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toposcope.checkpoints.view import Layer
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.ranges import parse_heads, parse_range, written_heads, written_layers
from toposcope.encodings import NONE, Encoding, EncodingSpec, InputTable, Sizes, parse
from toposcope.encodings.changed import like_own
from toposcope.models.attend import attend, middle, there, turn
from toposcope.models.content import ContentReader, precision, rounding
from toposcope.models.instrument import Call, Instrument, attached
from toposcope.models.positions import Array, Places, one_length
from toposcope.models.sites import Site, checked_heads, checked_site

Chosen = Mapping[int, tuple[int, ...]]  # layer -> the heads that are changed
TABLE_NAMES = ("wpe", "position_embeddings", "embed_positions", "position_embedding", "pos_embedding")
LONGEST = 1_000_000  # a model that claims no context is built for this one


@dataclass(frozen=True, eq=False)
class Swap:
    """What is put into one layer: an encoding, and what no encoding says.

    `scaling` replaces the factor on all logits; `by_position` gives frequencies (B, N, F) to positions (B, N), where
    tokens of one text turn by different ones.
    """

    encoding: Encoding
    scaling: float | None = None
    by_position: Callable[[Array], Array] | None = None


@contextmanager
def swap_encoding(
    model: Any,
    other: str | EncodingSpec | Encoding,
    *,
    layers: str | int | Sequence[int] | None = None,
    heads: str | Sequence[tuple[int, int]] | None = None,
) -> Iterator[Encoding]:
    """Run the model with another encoding for as long as the block lasts; gives the encoding that is put in.

    `other` is a name with parameters ("rope:base=500000"; what is not given is taken from the model's own rotation)
    or a record. `layers` ([0, 1] or "0-1"), or single `heads` ([(3, 2)] or "3.2"), limit where it acts. For a model
    in half precision the encoding that is given back says in its notes what is rounded.
    """
    with attached(model) as instrument:
        reader = ContentReader.of(instrument)
        chosen = chosen_heads(instrument, layers, heads)
        everywhere = all(
            len(chosen.get(site.number, ())) == site.heads for site in instrument.sites if not site.cross
        )
        made = {number: built(other, reader, number) for number in chosen}
        first = next(iter(made.values()))
        own_input = any(reader.layers[number].encoding.input is not None for number in chosen)
        if (own_input or first.input is not None) and not everywhere:
            raise BadValue(
                "positions that are added to the input reach every layer: they cannot be changed in some layers or "
                "heads only. Leave out layers and heads."
            )
        with ExitStack() as stack:
            if instrument.sites[0].route == "hooks":
                stack.enter_context(_without_interface(instrument, chosen, first))
            else:
                swaps = {number: Swap(each) for number, each in made.items()}
                stack.enter_context(instrument.rewriting(_Change(reader, chosen, swaps), chosen))
            if own_input or first.input is not None:
                stack.enter_context(_other_input(instrument, first.input, own=own_input))
            yield _with_precision(first, instrument.model)


@contextmanager
def swapped(model: Any, swaps: Mapping[int, Swap]) -> Iterator[None]:
    """Run the model with something else in each of these layers; pairs lie as `ContentReader.encoding` has them."""
    with attached(model) as instrument:
        reader = ContentReader.of(instrument)
        if instrument.sites[0].route == "hooks":
            raise BadEncoding(
                f"{type(instrument.model).__name__} computes attention by itself, outside transformers' attention "
                "interface: no other rotation can be put in."
            )
        chosen = chosen_heads(instrument, sorted(swaps), None)
        with instrument.rewriting(_Change(reader, chosen, swaps), chosen):
            yield


def _with_precision(put_in: Encoding, model: Any) -> Encoding:
    """The encoding, which says what a model in half precision rounds."""
    dtype = next(model.parameters()).dtype
    if dtype.itemsize >= 4:
        return put_in
    note = (
        f"the model runs in {precision(dtype)}: its queries and keys carry the rounding of its own rotation, up to "
        f"{rounding(dtype):.1e} of their largest entry. Attention is computed in float32 and rounded once."
    )
    return replace(put_in, notes=(*put_in.notes, note))


def chosen_heads(
    instrument: Instrument, layers: str | int | Sequence[int] | None, heads: str | Sequence[tuple[int, int]] | None
) -> Chosen:
    """Which heads of which layers; cross-attention has no positions of its own and is left out unless named."""
    numbers = parse_range(written_layers(layers), len(instrument.sites))
    if heads is not None:
        found: dict[int, tuple[int, ...]] = {}
        for layer, head in parse_heads(written_heads(heads) or ""):
            site = checked_site(instrument.sites, layer)
            if layer in numbers:
                found[layer] = (*found.get(layer, ()), *checked_heads(site, (head,)))
    else:
        sites = [instrument.sites[number] for number in numbers]
        found = {site.number: tuple(range(site.heads)) for site in sites if not site.cross or layers is not None}
    if not found:
        raise BadValue("no head is left to change: the chosen heads lie outside the chosen layers.")
    return found


class _Change:
    """The rewrite of an instrument: attention under the new encoding in the chosen heads, the old one in the rest."""

    def __init__(self, reader: ContentReader, chosen: Chosen, swaps: Mapping[int, Swap]) -> None:
        self.reader, self.chosen, self.swaps = reader, chosen, swaps

    def __call__(self, call: Call) -> Any | None:
        heads = self.chosen.get(call.site.number)
        if heads is None:
            return None
        new = self.swaps[call.site.number]
        if new.scaling is not None:
            call = replace(call, scaling=new.scaling)
        at = self.reader.instrument.places(call)
        repeat = call.site.heads // call.key_BGMR.shape[1]
        q, k, v = (_single(side) for side in (call.query_BHNR, call.key_BGMR, call.value_BGMV))
        k, v = (side.repeat_interleave(repeat, dim=1) for side in (k, v))
        q, k = self._turned(q, "query", at[0], at, call.site), self._turned(k, "key", at[1], at, call.site)
        return attend(call, q, k, v, new.encoding.bias, heads, at).to(call.query_BHNR.dtype)

    def _turned(self, x_BHNR: Any, side: Any, here: Places, at: tuple[Places, Places], site: Site) -> Any:
        """Queries or keys with the chosen heads turned back, and turned anew."""
        heads, own, swap = self.chosen[site.number], self.reader.encoding(site).rotary, self.swaps[site.number]
        new = swap.encoding.rotary
        whole = heads == tuple(range(x_BHNR.shape[1]))
        chosen = x_BHNR if whole else x_BHNR[:, list(heads)]
        if own is not None:
            frequencies_F = self.reader.own_frequencies(own, at[1].own_lengths)
            chosen = turn(chosen, own, here.own_BM, side, frequencies_F, back=True)
        if new is not None:
            turning = [
                index for index, head in enumerate(heads) if new.turning_heads is None or head < new.turning_heads
            ]
            if swap.by_position is not None:
                frequencies = swap.by_position(here.text_BM)
            else:
                frequencies = one_length(new, at[1].text_lengths)
            turned = chosen.clone()
            turned[:, turning] = turn(chosen[:, turning], new, here.text_BM, side, frequencies, origin=middle(*at))
            chosen = turned
        if whole:
            return chosen
        changed = x_BHNR.clone()
        changed[:, list(heads)] = chosen
        return changed


def _single(tensor: Any) -> Any:
    """A tensor in float32 or better."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


# -------------------------------------------------------------- what is put in
def built(other: str | EncodingSpec | Encoding, reader: ContentReader, number: int) -> Encoding:
    """The new encoding for one layer, its pairs placed on the channels that turn in this model."""
    layer, own = reader.layers[number], reader.encoding(reader.instrument.sites[number])
    if isinstance(other, Encoding):
        new = other
    else:
        spec = other if isinstance(other, EncodingSpec) else parse(other)
        width = reader.instrument.model.get_input_embeddings().weight.shape[1]
        new = like_own(spec, own).build(_sizes(layer, own, width, reader.view.spec.context))
    if not new.exact_tables:
        raise BadEncoding(
            f"'{new.name}' has parts that must be trained with the model; it cannot be put in afterwards."
        )
    if new.rotary is not None and own.rotary is not None and not isinstance(other, Encoding):
        pairs = own.rotary.pairs_F2[: len(new.rotary.pairs_F2)]
        new = replace(new, rotary=replace(new.rotary, pairs_F2=pairs, head_dim=own.rotary.head_dim))
    return new


def _sizes(layer: Layer, own: Encoding, width: int, context: int | None) -> Sizes:
    turning = layer.spec.head_dim if own.rotary is None else own.rotary.channels
    return Sizes(width, layer.spec.heads, turning, context or LONGEST, causal=layer.spec.causal)


# -------------------------------------------------------------- at the input
@contextmanager
def _other_input(instrument: Instrument, table: InputTable | None, *, own: bool) -> Iterator[None]:
    """Replace the model's own position vectors, or add some where it has none."""
    import torch

    model = instrument.model
    modules = [
        module
        for name, module in model.named_modules()
        if (name.rsplit(".", 1)[-1] in TABLE_NAMES and isinstance(module, torch.nn.Embedding))
        or type(module).__name__ == "InputPosition"  # the laboratory's
    ]
    if own and len(modules) != 1:
        raise BadEncoding(
            f"{type(model).__name__} has {len(modules)} tables of positions where one was expected; they cannot be "
            "replaced."
        )

    def vectors(like: Any) -> Any:
        """p, one row for each token, in as many rows of the batch as stand differently."""
        if table is None or instrument.running is None:
            return torch.zeros_like(like)
        at_BN = instrument.running.queries(like.shape[-2]).text_BM
        found_BND = there(np.stack([table.vectors(at_N) for at_N in at_BN]), like)
        return found_BND.expand_as(like) if len(at_BN) == 1 else found_BND

    def tokens_only(module: Any, args: Any, kwargs: Any) -> None:
        running = instrument.running
        if running is not None and running.outermost and running.given.get("inputs_embeds") is not None:
            raise BadValue(
                "positions are added where tokens are looked up: give the model input_ids, no inputs_embeds."
            )

    with ExitStack() as stack:
        if own:
            handles = [modules[0].register_forward_hook(lambda module, args, output: vectors(output))]
        else:
            handles = [
                tokens.register_forward_hook(lambda module, args, output: output + vectors(output))
                for tokens in _token_embeddings(model)
            ]
            handles += [part.register_forward_pre_hook(tokens_only, with_kwargs=True) for part in instrument.stacks]
        for handle in handles:
            stack.callback(handle.remove)
        yield


def _token_embeddings(model: Any) -> list[Any]:
    """The modules that look tokens up: an encoder and a decoder have one each, with the same weights."""
    import torch

    table = model.get_input_embeddings().weight
    return [module for module in model.modules() if isinstance(module, torch.nn.Embedding) and module.weight is table]


# ------------------------------------------------- models with no interface
@contextmanager
def _without_interface(instrument: Instrument, chosen: Chosen, new: Encoding) -> Iterator[None]:
    """Switch position off where a model computes attention by itself: its bias becomes 0, its rotation none."""
    name = type(instrument.model).__name__
    whole = all(len(heads) == instrument.sites[number].heads for number, heads in chosen.items())
    if not (new.mechanisms == NONE.mechanisms and whole):
        raise BadEncoding(
            f"{name} computes attention by itself, outside transformers' attention interface: of other encodings "
            "only 'none', for whole layers, can be put in."
        )

    def without(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        import torch

        instrument.known_past()
        changed = dict(kwargs)
        for key in ("alibi", "position_bias"):
            if changed.get(key) is not None:
                changed[key] = torch.zeros_like(changed[key])
        if changed.get("position_embeddings") is not None:
            cos, sin = changed["position_embeddings"]
            changed["position_embeddings"] = (torch.ones_like(cos), torch.zeros_like(sin))
        elif changed.get("position_ids") is not None:  # GPT-J, CodeGen: turned by angles of 0
            changed["position_ids"] = torch.zeros_like(changed["position_ids"])
        if not changed.keys() & {"alibi", "position_bias", "position_embeddings", "position_ids"}:
            raise BadEncoding(f"the positions of {name} were not found among what its attention is given.")
        return args, changed

    with ExitStack() as stack:
        stack.enter_context(instrument.rewriting(None, chosen))  # a cache knows what it was filled under
        for number in chosen:
            site: Site = instrument.sites[number]
            handle = site.module.register_forward_pre_hook(without, with_kwargs=True)
            stack.callback(handle.remove)
        yield
