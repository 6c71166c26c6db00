"""GGUF files, as llama.cpp's converter writes them: one row of a table for each architecture.

The converter changes what it stores: Llama's query and key rows are re-ordered so that rotary pairs are adjacent,
Gemma's norm gains have their 1 added, fused projections are stacked as queries, keys, values whatever their original
order, and GPT-2's are transposed. A file is read as the model it was converted from; where it cannot say something
that the model has, or llama.cpp runs it differently, the layers carry a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, LayerSizes, learned_table
from toposcope.checkpoints.families.gguf_facts import GgufFacts, rotation
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE, Encoding, alibi, rope

POSITIONS = "position_embd.weight"
BLOOM_BIAS = 8.0  # llama.cpp has it in its code, not in the file

Vary = Callable[
    [GgufFacts, LayerSpec, str], LayerSpec
]  # the plain layer and its prefix 'blk.3.' -> the family's layer


@dataclass(frozen=True)
class Architecture:
    """What tells one architecture's files from another's."""

    about: str
    positions: Callable[[GgufFacts, LayerSizes], Encoding]
    norm: Literal["rms", "layer"] = "rms"
    encoder: bool = False  # sees both sides, and its norms stand after the addition
    permuted: bool = False
    normed_heads: bool = False  # queries and keys have norms
    vary: Vary | None = None


def describe(name: str, config: Config, source: TensorSource) -> ModelSpec:
    """Describe a file by its row of the table. All settings stand in the file itself; `config` is not used."""
    row, facts = ARCHITECTURES[name], GgufFacts(source)
    with facts.blamed():
        encoding = row.positions(facts, facts.sizes(0))
    if row.permuted and encoding.rotary is not None and encoding.rotary.channels != encoding.rotary.head_dim:
        raise BadConfig(
            f"'{facts.key('rope.dimension_count')}' in {source.path} is {encoding.rotary.channels}; "
            f"this architecture rotates whole heads, {encoding.rotary.head_dim} channels."
        )
    return ModelSpec(
        family=f"gguf-{name}",
        layers=tuple(_layer(row, facts, i, encoding) for i in range(facts.layers)),
        embedding="token_embd.weight",
        context=facts.context,
        accounted=tuple(_before_the_mlp(facts)) if name == "falcon" else (),
    )


def _layer(row: Architecture, facts: GgufFacts, index: int, encoding: Encoding) -> LayerSpec:
    at, sizes, eps = f"blk.{index}.", facts.sizes(index), facts.eps(row.norm)
    fused = facts.has(f"{at}attn_qkv.weight")
    layer = sizes.layer(
        stack="encoder" if row.encoder else "decoder",
        index=index,
        value_dim=facts.value_dim(sizes),
        scale=_stated_scale(facts) or sizes.head_dim**-0.5,
        causal=facts.flag("attention.causal", default=not row.encoder),
        encoding=encoding,
        q=None if fused else Linear.at(f"{at}attn_q"),
        k=None if fused else Linear.at(f"{at}attn_k"),
        v=None if fused else Linear.at(f"{at}attn_v"),
        qkv=Linear.at(f"{at}attn_qkv") if fused else None,
        o=Linear.at(f"{at}attn_output"),
        input_norm=None if row.encoder else NormSpec.at(row.norm, f"{at}attn_norm", eps),
        residual_norm=NormSpec.at(row.norm, f"{at}attn_output_norm", eps) if row.encoder else None,
        q_norm=NormSpec.at(row.norm, f"{at}attn_q_norm", eps) if row.normed_heads else None,
        k_norm=NormSpec.at(row.norm, f"{at}attn_k_norm", eps) if row.normed_heads else None,
        ggml_permuted=row.permuted,
        warnings=_warnings(facts),
    )
    return layer if row.vary is None else row.vary(facts, layer, at)


def _stated_scale(facts: GgufFacts) -> float:
    return facts.number("attention.scale", default=0.0)


def _warnings(facts: GgufFacts) -> tuple[str, ...]:
    """What the file states and the view of weights leaves out."""
    found = []
    limit = facts.number("attention.clamp_kqv", default=0.0)
    if limit > 0:
        found.append(f"queries, keys and values are clipped to {limit:g} from zero, which is left out here")
    if facts.number("attention.temperature_scale", default=0.0):
        found.append("queries grow with their position (attention.temperature_scale), which is left out here")
    if facts.get("rope.scaling.yarn_attn_factor") is not None:
        found.append("rope.scaling.yarn_attn_factor is not used: as in llama.cpp, it is computed from the factor")
    return tuple(found)


def _rotary(facts: GgufFacts, sizes: LayerSizes) -> Encoding:
    """Halves of the head turn together, once Llama's re-ordering is undone."""
    turning = facts.integer("rope.dimension_count", default=sizes.head_dim)
    return rope(sizes.head_dim, rotary_dim=turning, pairing="half", **rotation(facts))


def _learned(facts: GgufFacts, sizes: LayerSizes) -> Encoding:
    return learned_table(facts.source, POSITIONS)


def _bloom_bias(facts: GgufFacts, sizes: LayerSizes) -> Encoding:
    return alibi(sizes.heads, max_bias=BLOOM_BIAS)


def _mpt_positions(facts: GgufFacts, sizes: LayerSizes) -> Encoding:
    """ALiBi, or a learned table in its place."""
    most = facts.number("attention.max_alibi_bias", default=0.0)
    if most > 0:
        return alibi(sizes.heads, max_bias=most)
    return _learned(facts, sizes) if facts.has(POSITIONS) else NONE


def _llama(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    """Mistral's files are Llama's; its window is lost on the way unless a converter wrote it down."""
    window = facts.window()
    name = str(facts.config.get("general.name", "")).lower()
    if window == 0 and "mistral" in name:
        return replace(
            layer,
            warnings=(*layer.warnings, "GGUF does not say whether Mistral's layers slide; they are read as full"),
        )
    return replace(layer, reach=window - 1 if window else None)


def _mpt(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    """Some MPT models norm all queries together, and all keys."""
    if not facts.has(f"{at}attn_q_norm.weight"):
        return layer
    q_norm, k_norm = (NormSpec.at("layer", f"{at}attn_{part}_norm", facts.eps("layer")) for part in "qk")
    return replace(layer, q_norm=q_norm, k_norm=k_norm, qk_norm_over="layer")


def _falcon(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    """Where a block has two norms the second feeds attention, the first the feed-forward part beside it."""
    if not facts.has(f"{at}attn_norm_2.weight"):
        return layer
    return replace(layer, input_norm=NormSpec.at("layer", f"{at}attn_norm_2", facts.eps("layer")))


def _before_the_mlp(facts: GgufFacts) -> Iterator[str]:
    """Falcon's norms that are called attention's and stand before the feed-forward part."""
    for index in range(facts.layers):
        if facts.has(f"blk.{index}.attn_norm_2.weight"):
            yield from (f"blk.{index}.attn_norm.weight", f"blk.{index}.attn_norm.bias")


def _phi3(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    window = facts.window()
    if window == 0:
        return layer
    warning = f"the window of {window} tokens is the model's; llama.cpp shows each token all before it"
    return replace(layer, reach=window - 1, warnings=(*layer.warnings, warning))


def _gemma2(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    """Norms on both sides of attention, capped logits, every other layer slides."""
    layer = _sandwich(facts, layer, at, largest=46)
    cap = facts.number("attn_logit_softcapping", default=50.0)
    slides = facts.slides(layer.index, period=2)
    window = facts.window(default=4096)
    return replace(
        layer,
        softcap=cap if cap > 0 else None,
        reach=window - 1 if window and slides else None,
        encoding=_local_rotary(facts, layer) if slides and facts.get("rope.freq_base_swa") else layer.encoding,
    )


def _gemma3(facts: GgufFacts, layer: LayerSpec, at: str) -> LayerSpec:
    """Five sliding layers with a short rotary base, never stretched, to one that sees all."""
    layer = _sandwich(facts, layer, at, largest=62)
    window = facts.window()
    if window == 0 or not facts.slides(layer.index, period=6):
        return layer
    return replace(layer, reach=window - 1, encoding=_local_rotary(facts, layer))


def _local_rotary(facts: GgufFacts, layer: LayerSpec) -> Encoding:
    base = facts.number("rope.freq_base_swa", default=10_000.0)
    turning = facts.integer("rope.dimension_count", default=layer.head_dim)
    with facts.blamed():
        return rope(layer.head_dim, rotary_dim=turning, **rotation(facts, base=base, stretched=False))


def _sandwich(facts: GgufFacts, layer: LayerSpec, at: str, *, largest: int) -> LayerSpec:
    """Gemma 2 and 3; the scale is not in the file, and llama.cpp tells the largest model by its number of layers."""
    divisor = layer.width // layer.heads if facts.layers == largest else layer.head_dim
    warning = f"GGUF does not hold Gemma's attention scale; 1/sqrt({divisor}) is taken, as llama.cpp does"
    return replace(
        layer,
        scale=divisor**-0.5,
        output_norm=NormSpec.at("rms", f"{at}post_attention_norm", facts.eps("rms")),
        warnings=(*layer.warnings, warning),
    )


ARCHITECTURES = {
    "llama": Architecture(
        "Llama 1-3, Mistral, SmolLM and models built like them", _rotary, permuted=True, vary=_llama
    ),
    "qwen2": Architecture("Qwen 2", _rotary),
    "qwen2moe": Architecture("Qwen 2 with experts", _rotary),
    "qwen3": Architecture("Qwen 3: normed queries and keys", _rotary, normed_heads=True),
    "qwen3moe": Architecture("Qwen 3 with experts", _rotary, normed_heads=True),
    "gemma": Architecture("Gemma 1", _rotary),
    "gemma2": Architecture("Gemma 2: sandwich norms, capped logits, alternating windows", _rotary, vary=_gemma2),
    "gemma3": Architecture("Gemma 3: two rotary bases", _rotary, normed_heads=True, vary=_gemma3),
    "phi3": Architecture("Phi 3 and 4: fused projections, LongRoPE", _rotary, vary=_phi3),
    "bert": Architecture("BERT and RoBERTa: learned positions", _learned, norm="layer", encoder=True),
    "nomic-bert": Architecture("Nomic BERT: BERT with rotary positions", _rotary, norm="layer", encoder=True),
    "gpt2": Architecture("GPT-2: learned positions", _learned, norm="layer"),
    "bloom": Architecture("BLOOM: ALiBi", _bloom_bias, norm="layer"),
    "mpt": Architecture("MPT: ALiBi or learned positions", _mpt_positions, norm="layer", vary=_mpt),
    "falcon": Architecture("Falcon: rotary positions, few keys", _rotary, norm="layer", vary=_falcon),
}

FAMILIES = tuple(
    Family(f"gguf-{name}", (name,), partial(describe, name), f"GGUF of {row.about}", container="gguf")
    for name, row in ARCHITECTURES.items()
)
