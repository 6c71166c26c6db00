"""DeepSeek 2 and 3: multi-head latent attention, whose content comes from a latent and whose rotary key is shared."""

from __future__ import annotations

import math
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding, Pairing, rope_from_config, rope_settings

LATENT_EPS = 1e-6  # of the latent norms; the configuration's value is for the layer norms only


def describe_v2(config: Config, source: TensorSource) -> ModelSpec:
    """DeepSeek 2: rotary channels are paired with their neighbours."""
    return _describe("deepseek_v2", config, source, "interleaved")


def describe_v3(config: Config, source: TensorSource) -> ModelSpec:
    """DeepSeek 3: the same, but the configuration may choose the other pairing."""
    neighbours = config.flag("rope_interleave", default=True)
    return _describe("deepseek_v3", config, source, "interleaved" if neighbours else "half")


def _describe(family: str, config: Config, source: TensorSource, pairing: Pairing) -> ModelSpec:
    config = config.with_defaults(
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    content, turning = config.integer("qk_nope_head_dim", least=0), config.integer("qk_rope_head_dim")
    rank = config.integer("kv_lora_rank")
    query_rank = None if config["q_lora_rank"] is None else config.integer("q_lora_rank")
    # the file's own head_dim, where it has one, is the width of the rotary part alone
    sizes = config.updated(head_dim=content + turning, num_key_value_heads=None)
    draft = Table(family=family, marker="self_attn.kv_a_proj_with_mqa").draft(sizes, source)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        query = Linear.at(f"{at}self_attn.q_proj" if query_rank is None else f"{at}self_attn.q_b_proj")
        return replace(
            layer,
            scale=layer.scale * _yarn_gain(config),
            q=query,
            k=None,
            v=None,
            q_latent=None if query_rank is None else _latent(f"{at}self_attn.q_a", "proj", query_rank),
            kv_latent=_latent(f"{at}self_attn.kv_a", "proj_with_mqa", rank),
            kv_up=Linear.at(f"{at}self_attn.kv_b_proj"),
            shared_key=turning,
            value_dim=config.integer("v_head_dim"),
        )

    return draft.spec(_rotary(config, content, turning, pairing), vary)


def _latent(prefix: str, projection: str, rank: int) -> LatentSpec:
    norm = NormSpec.at("rms", f"{prefix}_layernorm", LATENT_EPS)
    return LatentSpec(Linear.at(f"{prefix}_{projection}"), norm, rank)


def _rotary(config: Config, content: int, turning: int, pairing: Pairing) -> Encoding:
    """The rotation of the last `turning` channels of each head."""
    made = rope_from_config(config, content + turning, pairing=pairing, channel_offset=content, rotary_dim=turning)
    return replace(
        made,
        name="mla",
        title=made.title.replace("RoPE", "MLA, decoupled RoPE", 1),
        citations=("deepseek2024v2", *made.citations),
    )


def _yarn_gain(config: Config) -> float:
    """What YaRN multiplies the softmax scale by: (0.1 m ln s + 1)^2 for a factor s and weight m = mscale_all_dim.

    Elsewhere YaRN multiplies the rotated vectors; here content channels count too, so it stands outside.
    """
    settings = rope_settings(config)
    weight, factor = settings.get("mscale_all_dim"), settings.get("factor")
    if not weight or factor is None or factor <= 1:
        return 1.0
    return float((0.1 * weight * math.log(factor) + 1.0) ** 2)


FAMILIES = (
    Family("deepseek_v2", ("deepseek_v2",), describe_v2, "DeepSeek 2: multi-head latent attention"),
    Family("deepseek_v3", ("deepseek_v3",), describe_v3, "DeepSeek 3 and R1: multi-head latent attention"),
)
