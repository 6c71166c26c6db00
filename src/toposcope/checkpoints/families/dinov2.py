"""DINOv2: a ViT that multiplies what attention adds by a learned vector (layer scale)."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, find_root
from toposcope.checkpoints.families.vit import patch_positions, projections
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """A class token, then the patches; layer scale is each layer's output gain."""
    config = config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    root = find_root(source, "encoder.layer.0.norm1.weight")
    sizes = Sizes.of(config)
    eps = config.number("layer_norm_eps", default=1e-6)
    encoding = patch_positions(source, f"{root}embeddings.position_embeddings", "the class token")

    def layer(i: int) -> LayerSpec:
        at = f"{root}encoder.layer.{i}."
        q, k, v, o = projections(source, at)
        return LayerSpec(
            stack="vision",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            encoding=encoding,
            input_norm=NormSpec.at("layer", f"{at}norm1", eps),
            output_gain=f"{at}layer_scale1.lambda1",
            q=q,
            k=k,
            v=v,
            o=o,
        )

    return ModelSpec(
        family="dinov2",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        context=None if encoding.input is None else encoding.input.length,
    )


FAMILIES = (Family("dinov2", ("dinov2",), describe, "DINOv2: ViT with layer scale"),)
