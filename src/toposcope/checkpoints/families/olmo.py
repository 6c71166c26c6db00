"""OLMo 1-3: LayerNorm without parameters at first, then norms of queries, keys and attention's output alone."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import SLIDING, Table, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config

OLMO = Table(family="olmo")
# nothing before attention; one norm over all queries, one over all keys, one on what attention adds
OLMO2 = Table(
    family="olmo2",
    eps=1e-5,
    input_norm=None,
    output_norm="post_attention_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    qk_norm_over="layer",
)
# a norm before attention, and one over all queries, one over all keys
OLMOE = Table(family="olmoe", eps=1e-5, qk_norm=("self_attn.q_norm", "self_attn.k_norm"), qk_norm_over="layer")
FLEX_OLMO = replace(OLMO2, family="flex_olmo", eps=1e-6, rope={"default_base": 5e5})
OLMO3 = replace(OLMO2, family="olmo3", defaults={"sliding_window": 4096})


def describe_olmo(config: Config, source: TensorSource) -> ModelSpec:
    """OLMo 1: Llama with a LayerNorm that has neither gain nor bias, and perhaps clipped projections."""
    norm = NormSpec("layer", 1e-5)  # fixed by the architecture, whatever the configuration says
    draft, warnings = OLMO.draft(config, source), clipped(config)
    return draft.spec(draft.rope(), lambda layer, at: replace(layer, input_norm=norm, warnings=warnings))


def describe_olmoe(config: Config, source: TensorSource) -> ModelSpec:
    """OLMoE: a mixture of experts with normed queries and keys, perhaps clipped."""
    draft, warnings = OLMOE.draft(config, source), clipped(config)
    return draft.spec(draft.rope(), lambda layer, at: replace(layer, warnings=warnings))


def clipped(config: Config, key: str = "clip_qkv") -> tuple[str, ...]:
    """The remark on projections that are clipped, which the linear view leaves out."""
    if config.get(key) is None:
        return ()
    return (f"queries, keys and values are clipped to {config.number(key):g} from zero, which is left out here",)


def describe_olmo3(config: Config, source: TensorSource) -> ModelSpec:
    """OLMo 3: OLMo 2 with three sliding layers to each full one; only the full ones stretch their rotation."""
    draft = OLMO3.draft(config, source)
    reach, kinds = window_reach(draft.config), layer_kinds(draft.config, every(4))
    # the older generation's scaling is for the full layers alone
    settings = {kind: draft.config.updated(rope_scaling=None) if kind == SLIDING else draft.config for kind in kinds}
    encodings = {
        kind: rope_from_config(
            settings[kind], draft.sizes.head_dim, layer_type=kind, default_base=5e5, whole_heads=True
        )
        for kind in settings
    }

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        return replace(layer, encoding=encodings[kind], reach=reach if kind == SLIDING else None)

    return draft.spec(encodings[kinds[0]], vary)


FAMILIES = (
    Family("olmo", ("olmo",), describe_olmo, "OLMo 1: LayerNorm without parameters"),
    Family(
        "olmo2", ("olmo2",), OLMO2.describe, "OLMo 2: a norm after attention, none before; normed queries and keys"
    ),
    Family("olmoe", ("olmoe",), describe_olmoe, "OLMoE: OLMo as a mixture of experts, queries and keys normed"),
    Family("flex_olmo", ("flex_olmo",), FLEX_OLMO.describe, "FlexOlmo: OLMo 2 as a mixture of experts"),
    Family("olmo3", ("olmo3",), describe_olmo3, "OLMo 3: OLMo 2 with sliding windows"),
)
