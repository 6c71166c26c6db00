from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

import toposcope
from toposcope.checkpoints.attention import attention

from .encoders import TINY, TINY_IMAGE, image, reconfigured, renaming
from .harness import (
    array,
    check_output,
    check_self_attention,
    compare,
    far_from_uniform,
    randomise,
    watch_inputs,
    watch_outputs,
)

# the image tower is wider, deeper and has other heads, so that no setting can be taken from the wrong tower
IMAGE: dict[str, Any] = {**TINY_IMAGE, "hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
TEXT: dict[str, Any] = {**TINY, "eos_token_id": 63, "bos_token_id": 62, "layer_norm_eps": 1e-3}


def tower(model: nn.Module, stack: str) -> nn.Module:
    return getattr(model, f"{stack}_model", model)


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", CLIPTextModel, {}),
        ("with projection", CLIPTextModelWithProjection, {}),
        ("two heads", CLIPTextModel, {"num_attention_heads": 2}),
    ],
)
def test_text_alone(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check_self_attention(
        saved,
        "clip_text",
        setting,
        kind(CLIPTextConfig(**{**TEXT, **options})),
        lambda m: tower(m, "text").encoder.layers,
        outputs=lambda m: [layer.self_attn for layer in tower(m, "text").encoder.layers],
        position_module=lambda m: tower(m, "text").embeddings.position_embedding,
        stack="text",
    )


@pytest.mark.parametrize(
    ("setting", "kind"), [("bare", CLIPVisionModel), ("projected", CLIPVisionModelWithProjection)]
)
def test_vision_alone(saved: Path, setting: str, kind: Any) -> None:
    check_self_attention(
        saved,
        "clip_vision",
        setting,
        kind(CLIPVisionConfig(**IMAGE)),
        lambda m: tower(m, "vision").encoder.layers,
        outputs=lambda m: [layer.self_attn for layer in tower(m, "vision").encoder.layers],
        position_module=lambda m: tower(m, "vision").embeddings.position_embedding,
        stack="vision",
        inputs=image(),
    )


def check_both(saved: Path, setting: str, load: Any = toposcope.load) -> None:
    config = CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=16, attn_implementation="eager")
    model = CLIPModel(config).eval()
    randomise(model)
    model.save_pretrained(saved)
    blocks = {stack: list(tower(model, stack).encoder.layers) for stack in ("text", "vision")}
    entering = {stack: watch_inputs(blocks[stack]) for stack in blocks}
    added = {stack: watch_outputs([block.self_attn for block in blocks[stack]]) for stack in blocks}
    positions: dict[str, list[torch.Tensor]] = {"text": [], "vision": []}
    for stack, found in positions.items():
        tower(model, stack).embeddings.position_embedding.register_forward_hook(
            lambda m, args, out, found=found: found.append(out.detach())
        )
    with torch.no_grad():
        out = model(input_ids=torch.arange(52, 64)[None], **image(), output_attentions=True)
    with load(saved) as ours:
        assert ours.family == "clip"
        assert [layer.spec.stack for layer in ours.layers] == ["text"] * 3 + ["vision"] * 3
        assert not ours.skipped
        assert ours.spec.context == 64
        for stack in blocks:
            theirs = [array(layer[0]) for layer in out[f"{stack}_model_output"].attentions]
            mine = [layer for layer in ours.layers if layer.spec.stack == stack]
            assert any(far_from_uniform(probabilities) for probabilities in theirs)
            for i, (layer, probabilities) in enumerate(zip(mine, theirs, strict=True)):
                x = array(entering[stack][i][0][0])
                compare("clip", f"{setting}: {stack}", attention(layer, x), probabilities)
                check_output(layer, x, array(added[stack][i][0][0]))
            table = mine[0].encoding.input
            assert table is not None
            used = array(positions[stack][0])[0]
            np.testing.assert_allclose(table.vectors(np.arange(len(used))), used, atol=1e-6)


def test_both_towers(saved: Path) -> None:
    check_both(saved, "both")


def test_both_towers_under_a_prefix(saved: Path) -> None:
    check_both(saved, "prefix", renaming(lambda name: f"clip.{name}"))


def test_settings_of_2022(saved: Path) -> None:
    """Old files hold each tower's settings twice, and the second copy counts."""

    def old(config: dict[str, Any]) -> dict[str, Any]:
        wrong = {"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
        twice = {f"{part}_config_dict": config[f"{part}_config"] for part in ("text", "vision")}
        return {**config, "text_config": wrong, "vision_config": wrong, **twice}

    check_both(saved, "settings twice", reconfigured(old))


def test_omitted_settings_have_their_defaults(saved: Path) -> None:
    config = CLIPConfig(
        text_config={**TEXT, "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 1},
        vision_config={**IMAGE, "hidden_size": 96, "num_attention_heads": 12, "num_hidden_layers": 1},
    )
    CLIPModel(config).save_pretrained(saved)

    def brief(config: dict[str, Any]) -> dict[str, Any]:
        for part in ("text_config", "vision_config"):
            config[part] = {key: config[part][key] for key in ("hidden_size", "num_hidden_layers")}
        return config

    with reconfigured(brief)(saved) as ours:
        assert [layer.spec.heads for layer in ours.layers] == [8, 12]


def test_a_classifier_holds_the_image_tower_only(saved: Path) -> None:
    config = CLIPConfig(text_config=TEXT, vision_config=IMAGE, num_labels=3)
    CLIPForImageClassification(config).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        assert [layer.spec.stack for layer in ours.layers] == ["vision"] * 3
        assert ours.spec.context == 10


def test_one_tower_is_found_in_a_file_with_both(saved: Path) -> None:
    CLIPModel(CLIPConfig(text_config=TEXT, vision_config=IMAGE)).save_pretrained(saved)
    load = reconfigured(lambda config: {**config["vision_config"], "model_type": "clip_vision_model"})
    with load(saved) as ours:
        assert {layer.spec.stack for layer in ours.layers} == {"vision"}
        assert ours.layers[0].head(0).q.shape == (8, 48)
