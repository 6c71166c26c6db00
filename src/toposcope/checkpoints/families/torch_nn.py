"""PyTorch's own modules: nn.Transformer, its encoder and decoder, and nn.MultiheadAttention, from a state dict.

A state dict holds tensors and nothing else, so what their code knows must be given or assumed:
* the number of heads: `num_heads` in a config.json beside the file, or --num-heads; it is never guessed
* whether norms stand before or after attention: `norm_first`; after, as is PyTorch's default, where it is not said
* the mask: decoders are causal and encoders are not, unless `causal` says otherwise
* the position table: a tensor whose name says so (`pos_encoder.pe`, `position_embedding.weight`, ...), or the one
  that `position_table` names; a sinusoid is known by its numbers, and other tensors that carry position are named
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.state_dict import with_unknown_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec, Skipped
from toposcope.core.errors import BadConfig, MissingTensor, UnknownFamily
from toposcope.encodings import NONE, Encoding
from toposcope.encodings.stored import table_encoding

HEADS = ("num_heads", "num_attention_heads", "nhead")
# a stack's name, the layer's number if there is one, and which attention of the layer it is
_PLACE = re.compile(r"(?P<stack>.*?)(?:(?P<number>\d+)\.)?(?P<attention>self_attn|multihead_attn)\.")
_NUMBERS = re.compile(r"(\d+)")
_POSITION = re.compile(
    r"(^|[._])(w?pe|pos|pos_?(enc|emb)\w*|position(s|al)?(_?(enc|emb)\w*)?)(\.(weight|pe|table|pos\w*|emb\w*|encoding))*$",
    re.IGNORECASE,
)
_SIDES = {
    "encoder": {"encoder", "enc", "src", "source", "input"},
    "decoder": {"decoder", "dec", "tgt", "trg", "target", "output"},
}


@dataclass(frozen=True)
class _Module:
    """One nn.MultiheadAttention: the prefix of its tensors, and its place in a Transformer layer, if it has one."""

    prefix: str
    stack: str  # the prefix of the stack, such as "transformer.encoder.layers."
    side: str  # "encoder" or "decoder"
    cross: bool
    frame: str | None  # the prefix of the Transformer layer whose norms stand beside it; None: there is none


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Every nn.MultiheadAttention in the file, encoder stacks before decoder stacks."""
    modules = _modules(source)
    tables = _position_tables(config, source, {_width(source, module) for module in modules})
    skipped: list[Skipped] = []
    encodings = {side: _positions(source, tables, side, skipped) for side in dict.fromkeys(m.side for m in modules)}
    names = _stack_names(modules)
    seen: Counter[tuple[str, bool]] = Counter()
    layers: list[LayerSpec] = []
    for module in modules:
        uneven = _uneven_sources(source, module)
        if uneven is not None:
            skipped.append(uneven)
            continue
        index = seen[module.stack, module.cross]
        seen[module.stack, module.cross] += 1
        encoding = NONE if module.cross else encodings[module.side]
        layers.append(_layer(config, source, module, names[module.stack], index, encoding))
    skipped += _extra_keys(source, modules)
    lengths = [encoding.input.length for encoding in encodings.values() if encoding.input is not None]
    spec = ModelSpec(
        family="torch",
        layers=tuple(layers),
        embedding=_token_embedding(source, tables, {layer.width for layer in layers}),
        context=lengths[0] if lengths else None,
        skipped=tuple(skipped),
    )
    return with_unknown_positions(spec, source, [module.stack for module in modules if module.frame])


def _modules(source: TensorSource) -> list[_Module]:
    names = set(source.names())
    found = []
    for prefix in sorted(
        {n.removesuffix(e) for e in ("in_proj_weight", "q_proj_weight") for n in names if n.endswith(e)}
    ):
        if f"{prefix}out_proj.weight" not in names:
            continue
        place = _PLACE.fullmatch(prefix)
        separate = f"{prefix}q_proj_weight" in names
        if place is None:
            found.append(_Module(prefix, _NUMBERS.split(prefix)[0], "encoder", separate, None))
            continue
        frame = prefix.removesuffix(f"{place['attention']}.")
        cross = place["attention"] == "multihead_attn"
        decoder = f"{frame}multihead_attn.out_proj.weight" in names
        framed = all(f"{frame}{part}.weight" in names for part in ("norm1", "norm2", "linear1", "linear2"))
        side = "decoder" if decoder else "encoder"
        found.append(_Module(prefix, place["stack"], side, cross or separate, frame if framed else None))
    if not found:
        seen = ", ".join(sorted(names)[:6])
        raise UnknownFamily(
            f"{source.path} holds no nn.MultiheadAttention (a tensor named like 'self_attn.in_proj_weight'). "
            f"It holds {seen}, ... Try another --family ('toposcope ls families')."
        )

    def order(module: _Module) -> tuple[bool, str, list[int], bool, str]:
        numbers = [int(n) for n in _NUMBERS.findall(module.prefix)]
        return module.side == "decoder", module.stack, numbers, module.cross, module.prefix

    return sorted(found, key=order)


def _stack_names(modules: Sequence[_Module]) -> dict[str, str]:
    """'encoder' and 'decoder' where there is one of each, else the prefix that tells several apart."""
    sides = {module.stack: module.side for module in modules}
    alone = {side for side, count in Counter(sides.values()).items() if count == 1}
    return {stack: side if side in alone else stack.rstrip(".") or side for stack, side in sides.items()}


def _width(source: TensorSource, module: _Module) -> int:
    shape = source.info(f"{module.prefix}out_proj.weight").shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise MissingTensor(
            f"tensor '{module.prefix}out_proj.weight' in {source.path} has shape {shape}; "
            "that of an nn.MultiheadAttention is square."
        )
    return shape[0]


def _layer(
    config: Config, source: TensorSource, module: _Module, stack: str, index: int, encoding: Encoding
) -> LayerSpec:
    width, heads = _width(source, module), _heads(config, source, module)
    norm_first = config.flag("norm_first", default=False)
    norm = _norm(config, source, module)
    at, bias = module.prefix, f"{module.prefix}in_proj_bias"
    layer = LayerSpec(
        stack=stack,
        index=index,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        scale=(width // heads) ** -0.5,
        causal=not module.cross and config.flag("causal", default=module.side == "decoder"),
        kind="cross" if module.cross else "self",
        encoding=encoding,
        qkv=Linear(f"{at}in_proj_weight", bias),
        o=Linear.at(f"{at}out_proj"),
        input_norm=norm if norm_first else None,
        residual_norm=None if norm_first else norm,
        warnings=_warnings(config, source, module),
    )
    if f"{at}q_proj_weight" not in source.names():
        return layer
    # keys and values of another width are kept apart, but all three biases still stand in one tensor
    return replace(
        layer,
        qkv=None,
        q=Linear(f"{at}q_proj_weight", bias, bias_part=(0, 3)),
        k=Linear(f"{at}k_proj_weight", bias, bias_part=(1, 3)),
        v=Linear(f"{at}v_proj_weight", bias, bias_part=(2, 3)),
        source_width=source.info(f"{at}k_proj_weight").shape[-1],
    )


def _heads(config: Config, source: TensorSource, module: _Module) -> int:
    width = _width(source, module)
    if not any(config.get(key) is not None for key in HEADS):
        raise BadConfig(
            f"{source.path} does not say how many heads a layer has, and a plain state dict cannot show it. "
            f"Give their number with --num-heads (a divisor of the width, {width})."
        )
    heads = config.integer(*HEADS)
    if width % heads:
        raise BadConfig(f"{heads} heads do not divide the width {width} of '{module.prefix}' in {source.path}.")
    return heads


def _norm(config: Config, source: TensorSource, module: _Module) -> NormSpec | None:
    """The norm of a Transformer layer that belongs to this attention: the second one in cross-attention."""
    if module.frame is None:
        return None
    name = f"{module.frame}norm{2 if module.prefix.endswith('multihead_attn.') else 1}"
    return NormSpec.at("layer", name, config.number("layer_norm_eps", default=1e-5))


def _warnings(config: Config, source: TensorSource, module: _Module) -> tuple[str, ...]:
    found = []
    if module.frame is None:
        found.append("no Transformer layer stands around this attention: its norms and its mask are not known.")
    else:
        if config.get("norm_first") is None:
            found.append("the file does not say where norms stand: taken as after attention (norm_first=False).")
        if not module.cross and config.get("causal") is None and config.get("model_type") is None:
            mask = "causal" if module.side == "decoder" else "without a mask"
            found.append(f"the file does not say what masks attention: taken as {mask}.")
    if f"{module.prefix}bias_k" in source.names():
        found.append("bias_k and bias_v add one key and value that belong to no token; they are left out.")
    return tuple(found)


def _uneven_sources(source: TensorSource, module: _Module) -> Skipped | None:
    """Keys and values of two different widths read two different things: no single source can stand for both."""
    names = tuple(f"{module.prefix}{part}_proj_weight" for part in "qkv")
    if not all(name in source.names() for name in names):
        return None
    k_in, v_in = (source.info(name).shape[-1] for name in names[1:])
    if k_in == v_in:
        return None
    return Skipped(
        module.prefix.rstrip("."), f"its keys read vectors of width {k_in} and its values of {v_in}", names
    )


def _extra_keys(source: TensorSource, modules: Sequence[_Module]) -> list[Skipped]:
    names = [f"{module.prefix}{part}" for module in modules for part in ("bias_k", "bias_v")]
    held = tuple(name for name in names if name in source.names())
    return [Skipped("bias_k, bias_v", "one more key and value that belong to no token", held)] if held else []


def _position_tables(config: Config, source: TensorSource, widths: set[int]) -> list[str]:
    """The tensors that can be tables of positions: named so, and of shape (n, d), (1, n, d) or (n, 1, d)."""
    named = config.get("position_table")
    if named is not None:
        if named not in source.names():
            raise MissingTensor(
                f"{source.path} holds no tensor '{named}', which {config.where} calls position_table."
            )
        return [str(named)]
    return sorted(name for name in source.names() if _POSITION.search(name) and _is_table(source, name, widths))


def _is_table(source: TensorSource, name: str, widths: set[int]) -> bool:
    shape = source.info(name).shape
    return shape[-1:] != () and shape[-1] in widths and (len(shape) == 2 or (len(shape) == 3 and 1 in shape[:2]))


def _positions(source: TensorSource, tables: Sequence[str], side: str, skipped: list[Skipped]) -> Encoding:
    """The table of this side: the only one there is, or the one whose name speaks of this side."""
    chosen = list(tables)
    if len(chosen) > 1:
        other = "decoder" if side == "encoder" else "encoder"
        chosen = [name for name in tables if _speaks_of(name, side) and not _speaks_of(name, other)]
    if len(chosen) > 1 or (tables and not chosen):
        skipped.append(
            Skipped(
                f"positions of the {side}",
                "several tensors could be its table; name one as 'position_table' in a config.json beside the file",
                tuple(tables),
            )
        )
        return NONE
    if not chosen:
        return NONE
    table = source.read(chosen[0])
    if table.ndim == 3:
        table = table[0] if table.shape[0] == 1 else table[:, 0]
    if table.ndim != 2:
        raise MissingTensor(
            f"the position table '{chosen[0]}' in {source.path} has shape {table.shape}; expected (n, width)."
        )
    return table_encoding(table, note=f"the table is the tensor '{chosen[0]}', as stored.")


def _speaks_of(name: str, side: str) -> bool:
    # 'pos_encoder' is a module that encodes positions, not one that belongs to the encoder
    words = re.sub(r"pos(ition(al)?)?_?(encoder|enc)", "", name.lower())
    return not _SIDES[side].isdisjoint(re.split(r"[._]", words))


def _token_embedding(source: TensorSource, tables: Sequence[str], widths: set[int]) -> str | None:
    """The one tensor that looks like a token embedding; None where there are several."""
    found = [
        name
        for name in source.names()
        if name.endswith(".weight") and "emb" in name.lower() and name not in tables and not _POSITION.search(name)
        if len(source.info(name).shape) == 2 and source.info(name).shape[-1] in widths
    ]
    return found[0] if len(found) == 1 else None


FAMILIES = (
    Family(
        "torch",
        ("nn.Transformer", "nn.TransformerEncoder", "nn.TransformerDecoder", "nn.MultiheadAttention"),
        describe,
        "PyTorch's nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder and nn.MultiheadAttention",
        ("self_attn.in_proj_weight", "in_proj_weight", "q_proj_weight"),
        container="torch",
    ),
)
