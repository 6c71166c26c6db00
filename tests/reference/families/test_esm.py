from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import EsmConfig, EsmForMaskedLM, EsmModel

import toposcope
from toposcope.checkpoints.attention import attention
from toposcope.core.errors import BadConfig

from .encoders import TINY, reconfigured, renaming
from .harness import array, check_self_attention, compare, randomise, watch_inputs

SMALL = {**TINY, "pad_token_id": 1, "mask_token_id": 2}


def base(model: nn.Module) -> nn.Module:
    return getattr(model, "esm", model)


def check(saved: Path, setting: str, model: nn.Module, **options: Any) -> None:
    check_self_attention(
        saved,
        "esm",
        setting,
        model,
        lambda m: base(m).encoder.layer,
        outputs=lambda m: [layer.attention.output.dense for layer in base(m).encoder.layer],
        **options,
    )


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("rotary", EsmModel, {"position_embedding_type": "rotary"}),
        ("rotary with a head", EsmForMaskedLM, {"position_embedding_type": "rotary"}),
        ("rotary base 50", EsmModel, {"position_embedding_type": "rotary", "rope_theta": 50.0}),
        ("rotary causal", EsmModel, {"position_embedding_type": "rotary", "is_decoder": True}),
        ("token dropout", EsmModel, {"position_embedding_type": "rotary", "token_dropout": True}),
    ],
)
def test_rotary(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, setting, kind(EsmConfig(**{**SMALL, **options})))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("learned", {}),
        ("learned, pad_token_id 0", {"pad_token_id": 0}),
        ("norm first", {"emb_layer_norm_before": True}),
    ],
)
def test_learned(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = EsmModel(EsmConfig(**{**SMALL, **options}))
    check(saved, setting, model, position_module=lambda m: base(m).embeddings.position_embeddings)


def test_todays_norm_names(saved: Path) -> None:
    """save_pretrained writes gamma and beta for this family; files of other makers have weight and bias."""
    load = renaming(
        lambda name: name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("Norm.beta", "Norm.bias")
    )
    check(saved, "weight and bias", EsmModel(EsmConfig(**SMALL, position_embedding_type="rotary")), load=load)


def test_stored_frequencies_count(saved: Path) -> None:
    """Old files keep the frequencies in every layer, rounded to half precision; the model runs with those."""
    model = EsmModel(EsmConfig(**SMALL, position_embedding_type="rotary")).eval()
    rounded = model.rotary_embeddings.inv_freq.half()
    model.rotary_embeddings.inv_freq.copy_(rounded.float())

    def load(path: Path) -> toposcope.Model:
        file = path / "model.safetensors"
        tensors = {name: tensor for name, tensor in load_file(file).items() if not name.endswith("inv_freq")}
        for i in range(3):
            tensors[f"encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq"] = rounded.clone()
        save_file(tensors, file)
        return toposcope.load(path)

    check(saved, "stored frequencies", model, load=load)
    with toposcope.load(saved) as ours:
        rotary = ours.layers[0].encoding.rotary
        assert rotary is not None
        exact = 1e4 ** -(np.arange(4) / 4)
        assert np.abs(rotary.frequencies() / exact - 1).max() > 1e-5
        assert any("inv_freq" in note for note in ours.layers[0].encoding.notes)


def test_frequencies_follow_the_base_where_none_are_stored(saved: Path) -> None:
    model = EsmModel(EsmConfig(**SMALL, position_embedding_type="rotary", rope_theta=70.0))

    def load(path: Path) -> toposcope.Model:
        file = path / "model.safetensors"
        save_file({name: tensor for name, tensor in load_file(file).items() if "inv_freq" not in name}, file)
        return toposcope.load(path)

    check(saved, "computed frequencies", model, load=load)


def test_cross_attention_turns_too(saved: Path) -> None:
    options = {**SMALL, "position_embedding_type": "rotary", "is_decoder": True, "add_cross_attention": True}
    model = EsmModel(EsmConfig(**options)).eval()
    randomise(model)
    model.save_pretrained(saved)
    entering = watch_inputs([layer.crossattention for layer in model.encoder.layer])
    seen: list[torch.Tensor] = []
    for layer in model.encoder.layer:
        layer.crossattention.self.register_forward_hook(lambda *a: seen.append(a[2][1].detach()))
    memory = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        model(torch.arange(3, 12)[None], encoder_hidden_states=memory, output_attentions=True)
    with toposcope.load(saved) as ours:
        crossing = [layer for layer in ours.layers if layer.spec.kind == "cross"]
        assert len(crossing) == len(seen) == 3
        for layer, calls, theirs in zip(crossing, entering, seen, strict=True):
            mine = attention(layer, array(calls[0][0]), array(memory[0]))
            compare("esm", "cross-attention", mine, array(theirs[0]))


def test_an_unknown_kind_of_position_is_refused(saved: Path) -> None:
    EsmModel(EsmConfig(**SMALL)).save_pretrained(saved)
    load = reconfigured(lambda config: {**config, "position_embedding_type": "relative_key"})
    with pytest.raises(BadConfig, match="relative_key"):
        load(saved)
