from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import NomicBertConfig, NomicBertForMaskedLM, NomicBertModel

import toposcope

from .encoders import TINY, check_post_norm, reconfigured


def base(model: nn.Module) -> nn.Module:
    return getattr(model, "nomic_bert", model)


def check(saved: Path, setting: str, model: nn.Module, **options: Any) -> None:
    check_post_norm(
        saved,
        "nomic_bert",
        setting,
        model,
        lambda m: base(m).layers,
        outputs=lambda m: [layer.self_attn for layer in base(m).layers],
        after=lambda m: [layer.mlp for layer in base(m).layers],
        **options,
    )


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", NomicBertModel, {}),
        ("with a head", NomicBertForMaskedLM, {}),
        ("head_dim 16", NomicBertModel, {"head_dim": 16}),
        ("base 50", NomicBertModel, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
        (
            "dynamic, beyond",
            NomicBertModel,
            {
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0},
                "max_position_embeddings": 8,
            },
        ),
    ],
)
def test_nomic_bert(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, setting, kind(NomicBertConfig(**{**TINY, **options})))


def test_separate_projections(saved: Path) -> None:
    """The names the model has in memory, as a plain safetensors of its state dict keeps them."""
    from safetensors.torch import save_file

    model = NomicBertModel(NomicBertConfig(**TINY))

    def load(path: Path) -> toposcope.Model:
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, path / "model.safetensors")
        return toposcope.load(path)

    check(saved, "separate", model, load=load)


def nomic_keys(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The configuration as Nomic's own code writes it, with GPT-2's names."""
    return {
        "model_type": "nomic_bert",
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "n_positions": 64,
        "layer_norm_epsilon": config["layer_norm_eps"],
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_base": 1000,
        "rotary_emb_interleaved": False,
        **options,
    }


def test_a_file_that_leaves_out_its_base(saved: Path) -> None:
    load = reconfigured(lambda config: {key: value for key, value in config.items() if key != "rope_parameters"})
    check(saved, "no rope_parameters", NomicBertModel(NomicBertConfig(**TINY)), load=load)


def test_nomics_own_configuration(saved: Path) -> None:
    check(saved, "n_embd, n_head", NomicBertModel(NomicBertConfig(**TINY)), load=reconfigured(nomic_keys))


def test_nomics_scaling_factor_is_dynamic(saved: Path) -> None:
    options = {
        **TINY,
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0},
        "max_position_embeddings": 8,
    }
    load = reconfigured(lambda config: nomic_keys(config, rotary_scaling_factor=2, max_trained_positions=8))
    check(saved, "rotary_scaling_factor", NomicBertModel(NomicBertConfig(**options)), load=load)


def test_prenorm_partial_and_interleaved_are_read(saved: Path) -> None:
    NomicBertModel(NomicBertConfig(**TINY)).save_pretrained(saved)
    settings = {"prenorm": True, "rotary_emb_fraction": 0.5, "rotary_emb_interleaved": True}
    with reconfigured(lambda config: nomic_keys(config, **settings))(saved) as ours:
        layer = ours.layers[0]
        assert layer.spec.placement == "pre"
        assert layer.encoding.rotary is not None
        assert layer.encoding.rotary.channels == 4
        assert layer.encoding.rotary.pairing == "interleaved"
