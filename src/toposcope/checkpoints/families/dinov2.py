"""DINOv2: a ViT that multiplies what attention adds by a learned vector (layer scale)."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, with_note
from toposcope.checkpoints.families.vit import RENAMED, VIT, patch_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec

DINOV2 = replace(VIT, family="dinov2", eps=1e-6, input_norm="norm1", marker="norm1")


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """A class token, then the patches; layer scale is each layer's output gain."""
    newer = replace(DINOV2, linear=RENAMED)
    draft = (newer if replace(newer, marker=None).found(source) else DINOV2).draft(config, source)
    return draft.spec(
        patch_positions(source, f"{draft.root}embeddings.position_embeddings", "the class token"),
        lambda layer, at: replace(layer, output_gain=f"{at}layer_scale1.lambda1"),
    )


def describe_with_registers(config: Config, source: TensorSource) -> ModelSpec:
    """The same with registers, which come in after the class token when positions were added already."""
    spec = describe(config, source)
    note = "registers stand after the class token, without position."
    layers = tuple(replace(layer, encoding=with_note(layer.encoding, note)) for layer in spec.layers)
    return replace(spec, family="dinov2_with_registers", layers=layers)


FAMILIES = (
    Family("dinov2", ("dinov2",), describe, "DINOv2: ViT with layer scale"),
    Family(
        "dinov2_with_registers",
        ("dinov2_with_registers",),
        describe_with_registers,
        "DINOv2 with registers",
    ),
)
