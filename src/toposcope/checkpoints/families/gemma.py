"""Gemma 1-3: norm gains stored minus one, a scale of its own, sandwich norms, windows with their own rotary base."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import FULL, SLIDING, decoder, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec, Skipped
from toposcope.core.errors import BadConfig
from toposcope.encodings import rope_from_config


def describe_gemma(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma: Llama whose norms multiply by 1 + gain."""
    config = config.with_defaults(num_key_value_heads=16, head_dim=256)
    eps = config.number("rms_norm_eps", default=1e-6)
    return decoder(
        "gemma", config, source, lambda layer, at: replace(layer, input_norm=_norm(f"{at}input_layernorm", eps))
    )


def describe_gemma2(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 2: norms on both sides of attention, capped logits, every other layer slides."""
    config = config.with_defaults(
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
    )
    softcap = None if config["attn_logit_softcapping"] is None else _positive(config, "attn_logit_softcapping")
    reach, kinds = window_reach(config), layer_kinds(config, every(2))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            _sandwich(config, layer, at),
            softcap=softcap,
            reach=reach if kinds[layer.index] == SLIDING else None,
        )

    return decoder("gemma2", config, source, vary)


def describe_gemma3(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 3, text: normed queries and keys; five sliding layers with a short rotary base to one with a long one."""
    inner = config.part("text_config") if config.get("text_config") else config
    inner = inner.with_defaults(
        hidden_size=2304,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        sliding_window_pattern=6,
        max_position_embeddings=131_072,
        rope_local_base_freq=1e4,
    )
    eps = inner.number("rms_norm_eps", default=1e-6)
    kinds = layer_kinds(inner, every(inner.integer("sliding_window_pattern")))
    causal = not inner.flag("use_bidirectional_attention", default=False)
    reach = window_reach(inner)
    if reach is not None and not causal:
        reach = (reach + 1) // 2  # an embedding model's window stands around the token, half to each side
    bases = {SLIDING: 1e4, FULL: 1e6}
    encodings = {
        kind: rope_from_config(inner, inner.integer("head_dim"), layer_type=kind, default_base=bases[kind])
        for kind in set(kinds)
    }

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        return replace(
            _sandwich(inner, layer, at),
            q_norm=_norm(f"{at}self_attn.q_norm", eps),
            k_norm=_norm(f"{at}self_attn.k_norm", eps),
            encoding=encodings[kind],
            reach=reach if kind == SLIDING else None,
            causal=causal,
        )

    # the vision tower has layers with a q_proj too, but no norm of queries
    marker = "self_attn.q_norm.weight"
    spec = decoder("gemma3", inner, source, vary, encoding=encodings[kinds[0]], marker=marker)
    vision = tuple(sorted(name for name in source.names() if "vision_tower." in name))
    if vision:
        spec = replace(spec, skipped=(Skipped("the vision tower", "only the text part is read", vision),))
    return spec


def _sandwich(config: Config, layer: LayerSpec, at: str) -> LayerSpec:
    """What Gemma 2 and 3 share: a norm before and one after attention, and a scale that is not the head's width."""
    eps = config.number("rms_norm_eps", default=1e-6)
    return replace(
        layer,
        scale=_positive(config, "query_pre_attn_scalar") ** -0.5,
        input_norm=_norm(f"{at}input_layernorm", eps),
        output_norm=_norm(f"{at}post_attention_layernorm", eps),
    )


def _positive(config: Config, key: str) -> float:
    value = config.number(key)
    if value <= 0:
        raise BadConfig(f"'{key}' in {config.where} is {value:g}; expected a number above 0.")
    return value


def _norm(prefix: str, eps: float) -> NormSpec:
    return NormSpec.at("rms", prefix, eps, offset=1.0)


FAMILIES = (
    Family("gemma", ("gemma",), describe_gemma, "Gemma 1: norm gains stored minus one"),
    Family("gemma2", ("gemma2",), describe_gemma2, "Gemma 2: sandwich norms, capped logits, alternating windows"),
    Family(
        "gemma3",
        ("gemma3", "gemma3_text"),
        describe_gemma3,
        "Gemma 3 (the text part): normed queries and keys, two rotary bases",
    ),
)
