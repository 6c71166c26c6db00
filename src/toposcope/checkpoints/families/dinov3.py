"""DINOv3 and Sapiens 2: image encoders whose patches are turned by row and column."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings.rotary_plane import centred_rope

DINOV3 = Table(
    family="dinov3_vit",
    stack="vision",
    causal=False,
    defaults={"num_hidden_layers": 12, "hidden_size": 384, "num_attention_heads": 6, "rope_theta": 100.0},
    grouped=False,
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    context=(),
    layer="layer.{}.",
    linear=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
    norm="layer",
    input_norm="norm1",
    embedding=None,
)
SAPIENS2 = replace(
    DINOV3,
    family="sapiens2",
    defaults={"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "rope_theta": 100.0},
    eps_keys=("rms_norm_eps",),
    eps=1e-6,
    layer="blocks.{}.",
    linear=("attn.wq", "attn.wk", "attn.wv", "attn.proj"),
    norm="rms",
    input_norm="ln1",
    qk_norm=("attn.q_norm", "attn.k_norm"),
    qk_norm_if=("use_qk_norm", True),
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """DINOv3: a class token, registers, then the patches; layer scale is each layer's output gain."""
    draft = DINOV3.draft(config, source)
    encoding = centred_rope(draft.sizes.head_dim, base=draft.config.number("rope_theta"))
    return draft.spec(encoding, lambda layer, at: replace(layer, output_gain=f"{at}layer_scale1.lambda1"))


def describe_sapiens2(config: Config, source: TensorSource) -> ModelSpec:
    """The same with queries and keys normed, and in its middle layers fewer heads of keys."""
    draft = SAPIENS2.draft(config, source)
    encoding = centred_rope(draft.sizes.head_dim, base=draft.config.number("rope_theta"))
    listed = draft.config.listed("num_key_value_heads_per_layer", draft.sizes.layers)
    groups = _groups(draft) if listed is None else listed

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        count = groups[layer.index]
        if type(count) is not int or count < 1 or layer.heads % count:
            raise BadConfig(
                f"'num_key_value_heads_per_layer' in {config.where} names {count!r} for {layer.heads} heads."
            )
        return replace(layer, kv_heads=count, output_gain=f"{at}attn.gamma.weight")

    return draft.spec(encoding, vary)


def _groups(draft: Draft) -> list[int]:
    """Each layer's heads of keys where a file does not list them: all in the first and last, fewer between them."""
    config, layers, heads = draft.config, draft.sizes.layers, draft.sizes.heads
    first = config.integer("num_first_full_attention_layers", default=8, least=0)
    last = config.integer("num_last_full_attention_layers", default=8, least=0)
    few = config.integer("num_key_value_attention_heads", default=8)
    return [heads if index < first or index >= layers - last else few for index in range(layers)]


FAMILIES = (
    Family("dinov3_vit", ("dinov3_vit",), describe, "DINOv3: ViT with rotation by row and column"),
    Family("sapiens2", ("sapiens2",), describe_sapiens2, "Sapiens 2: DINOv3 with normed queries and keys"),
)
