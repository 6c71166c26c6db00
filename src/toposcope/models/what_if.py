"""Another positional encoding on a running model: in all layers, in some, or in single heads.

    with encoding(model, "none", layers=[0]):
        model(input_ids=ids)

Inside the block queries and keys are turned back by the model's own rotation, turned by the new one, and attended
with the new bias; nothing is trained anew, and nothing in the model is changed. Positions added to the input are
replaced at the input, so they cannot be changed for some layers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from toposcope.checkpoints.view import Layer
from toposcope.encodings import NONE, Encoding, EncodingSpec, InputTable, LogitBias, Rotary, Sizes, parse
from toposcope.errors import BadEncoding, BadValue
from toposcope.models.content import ContentReader
from toposcope.models.instrument import Call, Instrument, attached
from toposcope.models.sites import Site, checked_heads, checked_site

Chosen = Mapping[int, tuple[int, ...]]  # layer -> the heads that are changed
TABLE_NAMES = ("wpe", "position_embeddings", "embed_positions", "position_embedding", "pos_embedding")
LONGEST = 1_000_000  # a model that claims no context is built for this one


@contextmanager
def encoding(
    model: Any,
    other: str | EncodingSpec | Encoding,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Iterator[Encoding]:
    """Run the model with another encoding for as long as the block lasts; gives the encoding that is put in.

    `other` is a name with parameters ("rope:base=500000"; what is not given is taken from the model's own rotation)
    or a record. `layers`, or single `heads` as (layer, head), limit where it acts.
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
            if own_input or first.input is not None:
                stack.enter_context(_other_input(instrument, first.input, own=own_input))
            if instrument.sites[0].route == "hooks":
                stack.enter_context(_without_interface(instrument, reader, chosen, first))
            else:
                change = _Change(reader, chosen, made)
                instrument.rewrites.append(change)
                stack.callback(instrument.rewrites.remove, change)
            yield first


def chosen_heads(
    instrument: Instrument, layers: Sequence[int] | None, heads: Sequence[tuple[int, int]] | None
) -> Chosen:
    """Which heads of which layers; cross-attention has no positions of its own and is left out unless named."""
    if heads is not None:
        found: dict[int, tuple[int, ...]] = {}
        for layer, head in heads:
            site = checked_site(instrument.sites, layer)
            if layers is None or layer in layers:
                found[layer] = (*found.get(layer, ()), *checked_heads(site, (head,)))
    else:
        numbers = range(len(instrument.sites)) if layers is None else layers
        sites = [checked_site(instrument.sites, number) for number in numbers]
        found = {site.number: tuple(range(site.heads)) for site in sites if not site.cross or layers is not None}
    if not found:
        raise BadValue("no head is left to change: the chosen heads lie outside the chosen layers.")
    return found


class _Change:
    """The rewrite of an instrument: attention under the new encoding in the chosen heads, the old one in the rest."""

    def __init__(self, reader: ContentReader, chosen: Chosen, made: Mapping[int, Encoding]) -> None:
        self.reader, self.chosen, self.made = reader, chosen, made

    def __call__(self, call: Call) -> Any | None:
        heads = self.chosen.get(call.site.number)
        if heads is None:
            return None
        own, new = self.reader.encoding(call.site), self.made[call.site.number]
        if call.sinks is not None:
            raise BadEncoding("heads with attention sinks cannot be given another encoding yet.")
        repeat = call.site.heads // call.key_BGMR.shape[1]
        k, v = (side.repeat_interleave(repeat, dim=1) for side in (call.key_BGMR, call.value_BGMV))
        at = _positions(self.reader.instrument, call.query_BHNR.shape[2])
        q = _turned(call.query_BHNR, own.rotary, new.rotary, at, heads, "query")
        k = _turned(k, own.rotary, new.rotary, at, heads, "key")
        return _attend(call, q, k, v, new.bias, heads, at)


def _turned(x_BHNR: Any, own: Rotary | None, new: Rotary | None, at_N: Any, heads: Sequence[int], side: Any) -> Any:
    """Queries or keys with the chosen heads turned back, and turned anew."""
    chosen = x_BHNR[:, list(heads)]
    if own is not None:
        chosen = turn(chosen, own, at_N, side, back=True)
    if new is not None:
        turning = [index for index, head in enumerate(heads) if new.turning_heads is None or head < new.turning_heads]
        turned = chosen.clone()
        turned[:, turning] = turn(chosen[:, turning], new, at_N, side)
        chosen = turned
    changed = x_BHNR.clone()
    changed[:, list(heads)] = chosen
    return changed


def turn(x_BHNR: Any, rotary: Rotary, at_N: Any, side: Any, *, back: bool = False) -> Any:
    """Turn torch vectors to their positions by the tables of an encoding (or back), in the precision they have."""
    import torch

    context = int(at_N.max()) + 1
    angle_NF = at_N[:, None] * rotary.frequencies(context) * (-1.0 if back else 1.0)
    size_NF = np.full_like(angle_NF, 1 / rotary.attention_factor if back else rotary.attention_factor)
    if rotary.decay_F is not None:
        sign = (-1.0 if side == "query" else 1.0) * (-1.0 if back else 1.0)
        size_NF = size_NF * np.exp(sign * at_N[:, None] * rotary.decay_F)
    cos, sin = (torch.from_numpy(part * size_NF).to(x_BHNR) for part in (np.cos(angle_NF), np.sin(angle_NF)))
    first, second = (torch.from_numpy(np.ascontiguousarray(rotary.pairs_F2[:, side_])) for side_ in (0, 1))
    a, b = x_BHNR[..., first], x_BHNR[..., second]
    turned = x_BHNR.clone()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    return turned


def _attend(call: Call, q: Any, k: Any, v: Any, bias: LogitBias | None, heads: Sequence[int], at_N: Any) -> Any:
    """The heads' outputs (B, N, H, V); where there is a bias, one head at a time, so that one table is in memory."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    plain = bias is None and call.bias is None and call.softcap is None
    if plain:
        mask = call.mask
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=call.causal, scale=call.scaling)
        return out.transpose(1, 2).contiguous()
    hidden = _hidden(call, q)
    new = None if bias is None else bias_tables(bias, at_N)
    outputs = []
    for head in range(q.shape[1]):
        logits = q[:, head] @ k[:, head].transpose(1, 2) * call.scaling
        if head in heads and new is not None:
            logits = logits + new(head).to(logits)
        elif head not in heads and call.bias is not None:
            logits = logits + call.bias[:, min(head, call.bias.shape[1] - 1)]
        if call.softcap is not None:
            logits = torch.tanh(logits / call.softcap) * call.softcap
        if hidden is not None:
            logits = logits + hidden[:, min(head, hidden.shape[1] - 1)]
        outputs.append(torch.softmax(logits, dim=-1) @ v[:, head])
    return torch.stack(outputs, dim=2)


def _hidden(call: Call, q: Any) -> Any | None:
    """What is added to the logits to hide keys: (B or 1, H or 1, N, M)."""
    import torch

    least = torch.finfo(q.dtype).min
    if call.mask is not None:
        if call.mask.dtype == torch.bool:
            return torch.zeros_like(call.mask, dtype=q.dtype).masked_fill(~call.mask, least)
        return call.mask
    if not call.causal:
        return None
    rows, columns = q.shape[2], call.key_BGMR.shape[2]
    return torch.full((1, 1, rows, columns), least, dtype=q.dtype).triu(1 + columns - rows)


def bias_tables(bias: LogitBias, at_N: Any) -> Any:
    """A function head -> table (N, N) as a torch tensor; an even Toeplitz bias is kept as one row of offsets."""
    import torch

    count = len(at_N)
    if bias.toeplitz and np.array_equal(at_N, np.arange(count)):
        row_HT = torch.from_numpy(bias.by_offset(np.arange(1 - count, count)))

        return lambda head: _toeplitz(row_HT[head], count)
    table_HNN = torch.from_numpy(bias.table(at_N, at_N))
    return lambda head: table_HNN[head]


def _toeplitz(row_T: Any, count: int) -> Any:
    """T[i, j] = row[i - j + n - 1]: a strided view of the reversed row, one step back for each row."""
    reversed_T = row_T.flip(0)  # entry s holds offset n - 1 - s, so T[i, j] = reversed[n - 1 - i + j]
    return reversed_T.unfold(0, count, 1).flip(0)


def _positions(instrument: Instrument, length: int) -> Any:
    given = instrument.position_ids
    if given is None:
        return np.arange(length, dtype=np.float64)
    rows = given if given.ndim == 2 else given[None]
    if len(rows) > 1 and bool((rows != rows[:1]).any()):
        raise BadValue("sequences of one batch have different positions; run them one at a time.")
    return np.asarray(rows[0].cpu().numpy(), dtype=np.float64)


# -------------------------------------------------------------- what is put in
def built(other: str | EncodingSpec | Encoding, reader: ContentReader, number: int) -> Encoding:
    """The new encoding for one layer, its pairs placed on the channels that turn in this model."""
    layer, own = reader.layers[number], reader.encoding(reader.instrument.sites[number])
    if isinstance(other, Encoding):
        new = other
    else:
        spec = parse(other) if isinstance(other, str) else other
        width = reader.instrument.model.get_input_embeddings().weight.shape[1]
        new = _like_own(spec, own).build(_sizes(layer, own, width, reader.view.spec.context))
    if not new.exact_tables:
        raise BadEncoding(
            f"'{new.name}' has parts that must be trained with the model; it cannot be put in afterwards."
        )
    if new.rotary is not None and own.rotary is not None and not isinstance(other, Encoding):
        pairs = own.rotary.pairs_F2[: len(new.rotary.pairs_F2)]
        new = replace(new, rotary=replace(new.rotary, pairs_F2=pairs, head_dim=own.rotary.head_dim))
    return new


def _like_own(spec: EncodingSpec, own: Encoding) -> EncodingSpec:
    """RoPE without a base means the model's own base: a scaling alone changes the scaling alone."""
    base = own.parameters.get("base")
    if spec.kind.parameter("base") is None or base is None or own.rotary is None or "base" in spec.parameters:
        return spec
    if spec.kind.mechanism != "rotary":
        return spec
    given = {**spec.parameters, "base": float(base)}
    return EncodingSpec(spec.name, tuple((p.name, given[p.name]) for p in spec.kind.parameters if p.name in given))


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
        if table is None:
            return torch.zeros_like(like)
        at_N = _positions(instrument, like.shape[-2])
        return torch.from_numpy(table.vectors(at_N)).to(like).expand_as(like)

    with ExitStack() as stack:
        if own:
            handle = modules[0].register_forward_hook(lambda module, args, output: vectors(output))
            stack.callback(handle.remove)
        else:
            for tokens in _token_embeddings(model):
                handle = tokens.register_forward_hook(lambda module, args, output: output + vectors(output))
                stack.callback(handle.remove)
        yield


def _token_embeddings(model: Any) -> list[Any]:
    """The modules that look tokens up: an encoder and a decoder have one each, with the same weights."""
    import torch

    table = model.get_input_embeddings().weight
    return [module for module in model.modules() if isinstance(module, torch.nn.Embedding) and module.weight is table]


# ------------------------------------------------- models with no interface
@contextmanager
def _without_interface(
    instrument: Instrument, reader: ContentReader, chosen: Chosen, new: Encoding
) -> Iterator[None]:
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
        for number in chosen:
            site: Site = instrument.sites[number]
            handle = site.module.register_forward_pre_hook(without, with_kwargs=True)
            stack.callback(handle.remove)
        yield
