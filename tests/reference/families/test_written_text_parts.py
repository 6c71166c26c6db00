"""Models of several inputs: the text part as published files nest it, for every type that is read by its text part.

transformers reads the whole configuration, and the text part that it takes from it is built, saved under the prefix
of published files and compared.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

import toposcope
from tests.architectures import inputs, randomise
from tests.architectures.compare import differences
from tests.architectures.record import record
from toposcope.checkpoints.families.multimodal import TEXT_TYPES

from .harness import COVERED, TOLERANCE
from .test_written_settings import DECODERS, LATENT, TOWER
from .written import SIZES

PREFIXES = ("language_model.model.", "model.language_model.")
OF_TYPE = {kind: options for kind, _, options in DECODERS}  # the last of each type, which says most
OLD = {"num_key_value_heads": 2, "rope_theta": 300.0}
UNLIKE: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gemma": {**OLD, "head_dim": 16},
    "gemma3_text": {**OLD, "head_dim": 16, "sliding_window": 5, "rope_local_base_freq": 100.0},
    "granite": {**OLD, "attention_multiplier": 0.2, "residual_multiplier": 0.3},
    "cohere2": {**OLD, "sliding_window": 5},
    "exaone4": {**OLD, "sliding_window": 5, "sliding_window_pattern": 4},
    "lfm2": OF_TYPE["lfm2"],
}
AXES = {"mrope_section": [2, 1, 1]}
MROPE = {"num_key_value_heads": 2, "rope_theta": 300.0, "rope_scaling": {"type": "mrope", **AXES}}
TURNS = {"num_key_value_heads": 2, "rope_theta": 300.0, "rope_scaling": {"rope_type": "default", **AXES}}
MANY = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
UNLIKE |= {
    "deepseek_v3": {"rope_theta": 300.0, **LATENT},
    "qwen2_vl_text": MROPE,
    "qwen2_5_vl_text": MROPE,
    "qwen2_5_omni_text": TURNS,
    "qwen3_omni_moe_text": {**TURNS, **MANY, "head_dim": 8},
    "qwen3_vl_moe_text": {**TURNS, **MANY},
    "qwen3_vl_text": {**TURNS, "head_dim": 8},
}
CLASSES = {  # that no list of transformers names
    "emu3_text_model": "Emu3TextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
}
NAMED = {"kimi_k25": "kimi_k2", "exaone4_5": "exaone4_5_text"}  # under the name that published files have, always


def _text(kind: str, named: bool) -> dict[str, Any]:
    inner = TEXT_TYPES[kind]
    options = UNLIKE.get(inner) or OF_TYPE.get(inner) or OLD
    return {**SIZES, **options, **({"model_type": NAMED.get(kind, inner)} if named or kind in NAMED else {})}


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("kind", sorted(TEXT_TYPES))
def test_text_part(tmp_path: Path, kind: str, named: bool) -> None:
    inner = TEXT_TYPES[kind]
    written = json.dumps({"model_type": kind, "text_config": _text(kind, named)})
    (tmp_path / "config.json").write_text(written)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = AutoConfig.from_pretrained(tmp_path).get_text_config()
        made = getattr(transformers, CLASSES[inner])._from_config if inner in CLASSES else AutoModel.from_config
        model = made(text, attn_implementation="eager").float().eval()
        randomise(model)
        model.save_pretrained(tmp_path)
        noted = record(model, inputs(model, 2, 21, 3))
    (tmp_path / "config.json").write_text(written)
    file, prefix = tmp_path / "model.safetensors", PREFIXES[len(kind) % len(PREFIXES)]
    tensors = {prefix + name.removeprefix("model."): each for name, each in load_file(file).items()}
    save_file({**tensors, TOWER: torch.ones(4, 4)}, file, {"format": "pt"})
    with toposcope.load(tmp_path) as ours:
        found, missing = differences(ours, model, noted, 2)
        assert not missing
        assert len({each.at for each in found}) == len(noted.attended) > 0
        COVERED.append((ours.family, f"in {kind}", max(each.attention for each in found)))
        assert max(each.attention for each in found) <= TOLERANCE
        assert max(each.output or 0.0 for each in found) <= TOLERANCE
        assert any(TOWER in each.tensors for each in ours.skipped)
