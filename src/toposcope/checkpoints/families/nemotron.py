"""Nemotron: the plain decoder with LayerNorm gains stored minus one and half of each head rotating."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import decoder
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config


def describe_nemotron(config: Config, source: TensorSource) -> ModelSpec:
    """Nemotron 3 and 4, and Minitron."""
    eps = config.number("norm_eps", default=1e-5)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(layer, input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps, offset=1.0))

    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_partial=0.5)
    return decoder("nemotron", config, source, vary, encoding=encoding)


FAMILIES = (Family("nemotron", ("nemotron",), describe_nemotron, "Nemotron: LayerNorm stored minus one"),)
