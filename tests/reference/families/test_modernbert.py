from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertModel

import toposcope
from toposcope.core.errors import BadConfig

from .encoders import TINY, reconfigured
from .harness import check_self_attention

SMALL = {**TINY, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}


def base(model: nn.Module) -> nn.Module:
    return getattr(model, "model", model)


def check(saved: Path, setting: str, model: nn.Module, **options: Any) -> None:
    check_self_attention(
        saved,
        "modernbert",
        setting,
        model,
        lambda m: base(m).layers,
        outputs=lambda m: [layer.attn for layer in base(m).layers],
        **options,
    )


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("window beyond the text", ModernBertModel, {}),
        ("with a head", ModernBertForMaskedLM, {"local_attention": 6}),
        ("window 6", ModernBertModel, {"local_attention": 6}),
        ("odd window 5", ModernBertModel, {"local_attention": 5}),
        ("biases", ModernBertModel, {"attention_bias": True, "norm_bias": True}),
        ("large norm eps", ModernBertModel, {"norm_eps": 0.1}),
        ("global every 2", ModernBertModel, {"global_attn_every_n_layers": 2, "local_attention": 4}),
        (
            "own layer types",
            ModernBertModel,
            {
                "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
                "local_attention": 4,
            },
        ),
        ("old bases", ModernBertModel, {"global_rope_theta": 300.0, "local_rope_theta": 20.0}),
        (
            "nested bases",
            ModernBertModel,
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
                }
            },
        ),
    ],
)
def test_modernbert(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, setting, kind(ModernBertConfig(**{**SMALL, **options})))


@pytest.mark.parametrize(
    ("setting", "written"),
    [
        ("file with old keys", {"global_rope_theta": 300.0, "local_rope_theta": 20.0}),
        ("file with default bases", {}),
        ("file with one layer type", {"rope_parameters": {"full_attention": {"rope_theta": 77.0}}}),
        (
            "file with both",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}, "global_rope_theta": 88.0},
        ),
    ],
)
def test_configurations_as_they_are_on_disk(saved: Path, setting: str, written: dict[str, Any]) -> None:
    """Files keep only what was written into them; transformers fills the rest when it reads them."""
    dropped = ("rope_parameters", "layer_types", "local_attention", "norm_eps")
    load = reconfigured(lambda config: {**{k: v for k, v in config.items() if k not in dropped}, **written})
    check(saved, setting, ModernBertModel(ModernBertConfig(**{**SMALL, **written})), load=load)


def test_first_layer_has_no_norm_and_windows_are_told(saved: Path) -> None:
    ModernBertModel(ModernBertConfig(**SMALL, local_attention=8)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        assert [layer.spec.placement for layer in ours.layers] == ["none", "pre", "pre", "pre"]
        assert [layer.spec.reach for layer in ours.layers] == [None, 4, 4, None]
        assert not ours.skipped


def test_unknown_layer_type_is_refused(saved: Path) -> None:
    ModernBertModel(ModernBertConfig(**SMALL)).save_pretrained(saved)
    load = reconfigured(lambda config: {**config, "layer_types": ["chunked_attention"] * 4})
    with pytest.raises(BadConfig, match="chunked_attention"):
        load(saved)
