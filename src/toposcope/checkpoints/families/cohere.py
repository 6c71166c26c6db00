"""Command models by Cohere: parallel blocks, LayerNorm, neighbours paired; some layers may have no position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import SLIDING, Draft, Table, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE

# perhaps with LayerNorm on queries and keys, a gain for each channel of each head
COHERE = Table(
    family="cohere",
    norm="layer",
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    qk_norm_if=("use_qk_norm", False),
    rope={"pairing": "interleaved", "default_base": 5e5},
)
COHERE2 = replace(
    COHERE,
    family="cohere2",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    qk_norm=None,
    rope={"pairing": "interleaved"},
)

COHERE2_MOE = replace(COHERE2, family="cohere2_moe", defaults={**COHERE2.defaults, "head_dim": 128})


def describe_cohere2(config: Config, source: TensorSource) -> ModelSpec:
    """Command R7B and A: sliding layers rotate, full layers have no position at all."""
    draft = COHERE2.draft(config, source)
    return _alternating(draft, every(draft.config.integer("sliding_window_pattern")))


def describe_cohere2_moe(config: Config, source: TensorSource) -> ModelSpec:
    """Mixtures of experts: the first layers may be dense, with a pattern of their own; the norm may be an RMSNorm.

    Where the pattern of dense layers is 1, all of these are full, and rotate nevertheless.
    """
    plain = config.get("rms_norm_eps") is None
    table = COHERE2_MOE if plain else replace(COHERE2_MOE, norm="rms", eps_keys=("rms_norm_eps",))
    draft = table.draft(config, source)
    count = config.integer("first_k_dense_replace", default=0, least=0)
    pattern = config.integer("prefix_dense_sliding_window_pattern", default=1)
    first, then = every(pattern), every(draft.config.integer("sliding_window_pattern"))
    listed = config.listed("mlp_layer_types", draft.sizes.layers)
    dense = range(count) if listed is None else [index for index, kind in enumerate(listed) if kind == "dense"]
    return _alternating(
        draft,
        lambda index: first(index) if index < count else then(index - count),
        turning=frozenset(dense if pattern == 1 else ()),
    )


def _alternating(draft: Draft, sliding: Callable[[int], bool], *, turning: frozenset[int] = frozenset()) -> ModelSpec:
    """Layers that slide rotate; of the others those that `turning` names."""
    reach, kinds = window_reach(draft.config), layer_kinds(draft.config, sliding)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        slides = kinds[layer.index] == SLIDING and reach is not None
        turns = slides or layer.index in turning
        return replace(layer, encoding=layer.encoding if turns else NONE, reach=reach if slides else None)

    return draft.spec(draft.rope(), vary)


FAMILIES = (
    Family("cohere", ("cohere",), COHERE.describe, "Command R: LayerNorm, neighbours paired"),
    Family("cohere2", ("cohere2",), describe_cohere2, "Command R7B and A: full layers without position"),
    Family("cohere2_moe", ("cohere2_moe",), describe_cohere2_moe, "the same as a mixture of experts"),
)
