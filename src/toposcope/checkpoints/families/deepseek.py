"""DeepSeek 2 and 3: multi-head latent attention, whose content comes from a latent and whose rotary key is shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.llama import growing
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, ModelSpec, NormSpec, Skipped
from toposcope.encodings import NONE, Encoding, Pairing, rope_from_config, rope_settings

LATENT_EPS = 1e-6  # of the latent norms; the configuration's value is for the layer norms only


SIZES = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LARGE = {**SIZES, "qk_nope_head_dim": 192, "v_head_dim": 256, "rms_norm_eps": 1e-5}
MISTRAL4 = {**SIZES, "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_nope_head_dim": 64}
_MISTRAL4_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def describe_v2(config: Config, source: TensorSource) -> ModelSpec:
    """DeepSeek 2: rotary channels are paired with their neighbours."""
    return _describe("deepseek_v2", config.with_defaults(**SIZES), source, "interleaved")


def describe_v3(family: str, sizes: Mapping[str, Any], config: Config, source: TensorSource) -> ModelSpec:
    """DeepSeek 3: the same, but the configuration may choose the other pairing."""
    neighbours = config.flag("rope_interleave", default=True)
    return _describe(family, config.with_defaults(**sizes), source, "interleaved" if neighbours else "half")


def describe_mistral4(config: Config, source: TensorSource) -> ModelSpec:
    """Mistral 4: DeepSeek 3 under other sizes; a file that says nothing of rotation means YaRN."""
    if not any(config.get(key) for key in ("rope_parameters", "rope_scaling")):
        config = config.updated(rope_parameters=_MISTRAL4_YARN)
    return describe_v3("mistral4", MISTRAL4, config, source)


def describe_indexed(family: str, sizes: Mapping[str, Any], config: Config, source: TensorSource) -> ModelSpec:
    """DeepSeek 3.2 and GLM 5: an indexer chooses by content which keys a query sees, once there are many."""
    config = config.with_defaults(index_topk=2048, **sizes)
    spec = _describe(family, config, source, "interleaved")
    seen = config.integer("index_topk")
    warning = (
        f"beyond {seen} tokens a query sees only the {seen} keys that an indexer chooses, which is left out here"
    )
    layers = tuple(replace(layer, warnings=(*layer.warnings, warning)) for layer in spec.layers)
    indexer = tuple(sorted(name for name in source.names() if ".indexer." in name))
    skipped = (
        (Skipped("the indexer", "it chooses keys by their content, not by position", indexer),) if indexer else ()
    )
    return replace(spec, layers=layers, skipped=spec.skipped + skipped)


def describe_kimi_linear(config: Config, source: TensorSource) -> ModelSpec:
    """Kimi Linear: among linear layers latent attention, of which nothing turns."""
    config = config.with_defaults(rms_norm_eps=1e-5, **{**SIZES, "q_lora_rank": None})
    return _describe("kimi_linear", config, source, None, some=True)


def _describe(
    family: str, config: Config, source: TensorSource, pairing: Pairing | None, *, some: bool = False
) -> ModelSpec:
    """`pairing` None: nothing turns; `some`: only some layers are attention."""
    content, turning = config.integer("qk_nope_head_dim", least=0), config.integer("qk_rope_head_dim")
    rank = config.integer("kv_lora_rank")
    query_rank = None if config["q_lora_rank"] is None else config.integer("q_lora_rank")
    # the file's own head_dim, where it has one, is the width of the rotary part alone
    sizes = config.updated(head_dim=content + turning, num_key_value_heads=None)
    draft = Table(family=family, marker="self_attn.kv_a_proj_with_mqa", some=some).draft(sizes, source)

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

    if pairing is None:
        return draft.spec(NONE, vary)
    return draft.spec(growing(_rotary(config, content, turning, pairing), config), vary)


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
    Family(
        "deepseek_v3",
        ("deepseek_v3", "kimi_k2"),
        partial(describe_v3, "deepseek_v3", SIZES),
        "DeepSeek 3 and R1, Kimi K2: multi-head latent attention",
    ),
    Family(
        "kimi_linear",
        ("kimi_linear",),
        describe_kimi_linear,
        "Kimi Linear: latent attention without position among linear layers",
    ),
    Family("axk1", ("axk1",), partial(describe_v3, "axk1", SIZES), "A.X K1: built like DeepSeek 3"),
    Family("youtu", ("youtu",), partial(describe_v3, "youtu", SIZES), "Youtu: built like DeepSeek 3"),
    Family(
        "glm4_moe_lite",
        ("glm4_moe_lite",),
        partial(describe_v3, "glm4_moe_lite", {**LARGE, "q_lora_rank": 768}),
        "GLM 4.7 Flash: built like DeepSeek 3",
    ),
    Family(
        "mistral4",
        ("mistral4",),
        describe_mistral4,
        "Mistral 4: latent attention, queries grow with their position",
    ),
    Family(
        "deepseek_v32",
        ("deepseek_v32",),
        partial(describe_indexed, "deepseek_v32", SIZES),
        "DeepSeek 3.2: exact up to the indexer's top-k",
    ),
    Family(
        "glm_moe_dsa",
        ("glm_moe_dsa",),
        partial(describe_indexed, "glm_moe_dsa", {**LARGE, "q_lora_rank": 2048}),
        "GLM 5: latent attention, exact up to the indexer's top-k",
    ),
)
