"""HunYuan: Llama whose queries and keys are normalised after they were rotated."""

from __future__ import annotations

from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec


def describe(family: str, config: Config, source: TensorSource) -> ModelSpec:
    """HunYuan: a 'dynamic' scaling with a fixed `alpha` stretches the base by alpha^(d / (d - 2)), at any length."""
    draft = Table(
        family=family,
        eps=1e-5,
        qk_norm=("self_attn.query_layernorm", "self_attn.key_layernorm"),
        qk_norm_after=True,
    ).draft(_stretched(config), source)
    return draft.spec(draft.rope())


def _stretched(config: Config) -> Config:
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    settings = config.part(key)
    kind = settings.get("rope_type", settings.get("type"))
    if kind != "dynamic" or not settings.get("alpha"):
        return config
    heads = config.integer("num_attention_heads")
    wide = config.integer("head_dim", default=max(config.integer("hidden_size") // heads, 3), least=3)
    base = settings.number("rope_theta", default=config.number("rope_theta", default=1e4))
    base *= settings.number("alpha") ** (wide / (wide - 2))
    return config.updated(rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": base})


FAMILIES = (
    Family(
        "hunyuan_v1_dense",
        ("hunyuan_v1_dense",),
        partial(describe, "hunyuan_v1_dense"),
        "HunYuan: norms after rotation",
    ),
    Family("hunyuan_v1_moe", ("hunyuan_v1_moe",), partial(describe, "hunyuan_v1_moe"), "HunYuan mixtures of experts"),
)
