"""StableLM: the plain decoder with LayerNorm, a quarter of each head rotating, and perhaps a norm for every head."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import decoder
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config


def describe_stablelm(config: Config, source: TensorSource) -> ModelSpec:
    """StableLM 1 and 2; the largest normalises queries and keys with a tensor per head."""
    eps = config.number("layer_norm_eps", default=1e-5)
    normed = config.flag("qk_layernorm", default=False)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer,
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            q_norm=NormSpec("layer", eps, f"{at}self_attn.q_layernorm.norms.{{head}}.weight") if normed else None,
            k_norm=NormSpec("layer", eps, f"{at}self_attn.k_layernorm.norms.{{head}}.weight") if normed else None,
        )

    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_partial=0.25)
    return decoder("stablelm", config, source, vary, encoding=encoding)


FAMILIES = (Family("stablelm", ("stablelm",), describe_stablelm, "StableLM 1 and 2: LayerNorm, partial rotation"),)
