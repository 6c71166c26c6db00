"""GLM 4: half of each head rotates, neighbours paired; the 0414 models add a norm after attention."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import Variation, decoder
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec, NormSpec
from toposcope.encodings import rope_from_config

EPS = 1.5625e-07


def describe_glm(config: Config, source: TensorSource) -> ModelSpec:
    """GLM 4 as first released."""
    return _describe("glm", config, source, None)


def describe_glm4(config: Config, source: TensorSource) -> ModelSpec:
    """GLM 4 of April 2025: what attention adds is normalised first."""
    eps = config.number("rms_norm_eps", default=EPS)
    return _describe(
        "glm4",
        config,
        source,
        lambda layer, at: replace(layer, output_norm=NormSpec.at("rms", f"{at}post_self_attn_layernorm", eps)),
    )


def _describe(family: str, config: Config, source: TensorSource, vary: Variation | None) -> ModelSpec:
    config = config.with_defaults(num_key_value_heads=2, head_dim=128, rms_norm_eps=EPS)
    encoding = rope_from_config(config, config.integer("head_dim"), pairing="interleaved", default_partial=0.5)
    return decoder(family, config, source, vary, encoding=encoding)


FAMILIES = (
    Family("glm", ("glm",), describe_glm, "GLM 4: half of each head rotates, neighbours paired"),
    Family("glm4", ("glm4",), describe_glm4, "GLM 4 (0414): the same with a norm after attention"),
)
