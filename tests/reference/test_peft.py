"""Base and adapter, merged as they are read, against the model that PEFT itself merges."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

import toposcope
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadFile, BadValue, MissingTensor
from toposcope.models.load import load_reference

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "rsLoRA": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "rsDoRA": {"use_dora": True, "use_rslora": True},
}


def llama(**options: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 2, **options}))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=48, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def neox() -> Any:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES))


def phi3() -> Any:
    return Phi3ForCausalLM(Phi3Config(**SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2))


def bert() -> Any:
    return BertForMaskedLM(BertConfig(**SIZES))


MODELS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "llama": (llama, QKVO),
    "gpt2": (gpt2, ["c_attn", "c_proj"]),
    "gpt_neox": (neox, ["query_key_value", "attention.dense"]),
    "phi3": (phi3, ["qkv_proj", "o_proj"]),
    "bert": (bert, ["query", "key", "value", "attention.output.dense"]),
}


def trained(model: Any, targets: list[str] | str, place: Path, **options: Any) -> None:
    """Save a base, an adapter with nothing left at its first value, and the two as PEFT merges them."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(place / "base")
    options.setdefault("fan_in_fan_out", isinstance(model, GPT2LMHeadModel))
    tuned = get_peft_model(model, LoraConfig(**{"r": 3, "lora_alpha": 7, "target_modules": targets, **options}))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if parameter.requires_grad:
                drawn = torch.randn_like(parameter) * 0.2
                parameter.copy_(drawn.abs() + 0.3 if "magnitude" in name else drawn)
    tuned.save_pretrained(place / "adapter", safe_serialization=options.get("safe", True))
    tuned.merge_and_unload().save_pretrained(place / "merged")


def assert_same_heads(ours: Model, theirs: Model, *, tolerance: float = 1e-6) -> None:
    assert len(ours.layers) == len(theirs.layers) > 0
    for one, two in zip(ours.layers, theirs.layers, strict=True):
        for mine, yours in zip(one.heads, two.heads, strict=True):
            for part in ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias"):
                a, b = getattr(mine, part), getattr(yours, part)
                assert (a is None) == (b is None)
                if a is not None:
                    assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()), part
        for name in ("input_norm", "residual_norm"):
            a, b = getattr(one.weights, name), getattr(two.weights, name)
            if a is not None and a.bias is not None:
                assert np.allclose(a.bias, b.bias, atol=tolerance)
        if (bias := two.weights.o_bias_D) is not None:
            assert np.allclose(one.weights.o_bias_D, bias, atol=tolerance)


def assert_merged(place: Path) -> Model:
    ours = toposcope.load(place / "base", adapter=place / "adapter")
    with ours, toposcope.load(place / "merged") as theirs, toposcope.load(place / "base") as base:
        assert_same_heads(ours, theirs)
        table, other = ours.token_embedding(), theirs.token_embedding()
        if table is not None and other is not None:
            assert np.allclose(table, other, atol=1e-6)
        assert all(np.abs(ours.layers[0].heads[i].q - base.layers[0].heads[i].q).max() > 0.01 for i in range(4))
    return ours


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", MODELS)
def test_heads_are_those_of_the_merged_model(family: str, kind: str, tmp_path: Path) -> None:
    make, targets = MODELS[family]
    trained(make(), targets, tmp_path, **KINDS[kind])
    ours = assert_merged(tmp_path)
    assert ours.family == family
    assert not any("trained on" in remark for remark in ours.remarks)


@pytest.mark.parametrize(
    "options",
    [
        {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"^model.layers.1.self_attn.q_proj": 16, "v_proj": 2}},
        {"alpha_pattern": {r"layers\.[0-9]+\.self_attn\.k_proj": 3}, "use_rslora": True},
        {"layers_to_transform": [0]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"bias": "lora_only"},
        {"modules_to_save": ["input_layernorm"]},
        {"target_modules": [*QKVO, "embed_tokens"]},
        {"target_modules": [*QKVO, "embed_tokens"], "use_dora": True},
        {"target_modules": "all-linear"},
        {"trainable_token_indices": [3, 7]},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal", "r": 4},
    ],
    ids=str,
)
def test_settings_of_an_adapter(options: dict[str, Any], tmp_path: Path) -> None:
    targets = options.pop("target_modules", QKVO)
    with pytest.warns() if "embed_tokens" in targets else nullcontext():
        trained(llama(), targets, tmp_path, **options)
    assert_merged(tmp_path)


@pytest.mark.parametrize("bias", ["all", "lora_only"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox"])
def test_biases_that_were_trained(family: str, bias: str, tmp_path: Path) -> None:
    make, targets = MODELS[family]
    trained(make(), targets, tmp_path, bias=bias)
    assert_merged(tmp_path)


@pytest.mark.filterwarnings("ignore:Adapter 'default'")  # PEFT takes its own biases for damaged tensors
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}], ids=str)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_biases_of_the_adapter_itself(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    make, targets = MODELS[family]
    trained(make(), targets, tmp_path, lora_bias=True, **options)
    assert_merged(tmp_path)


@pytest.mark.filterwarnings("ignore:Adapter 'default'")
def test_a_bias_where_the_base_has_none(tmp_path: Path) -> None:
    """PEFT cannot merge this one; what its map does is compared instead."""
    model = llama()
    model.save_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match="lora_bias"):
        tuned = get_peft_model(model, LoraConfig(r=3, target_modules=QKVO, lora_bias=True)).eval()
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2) if parameter.requires_grad else None
    tuned.save_pretrained(tmp_path / "adapter")
    x = torch.randn(5, 32)
    theirs = tuned.base_model.model.model.layers[1].self_attn.q_proj(x).detach().numpy()
    with toposcope.load(tmp_path / "base", adapter=tmp_path / "adapter") as ours:
        for head in ours.layers[1].heads:
            mine = x.numpy() @ head.q.T + head.q_bias
            assert np.allclose(mine, theirs[:, head.head * 8 : head.head * 8 + 8], atol=1e-6)


def test_an_adapter_that_torch_saved(tmp_path: Path) -> None:
    trained(llama(), QKVO, tmp_path)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()
    assert_merged(tmp_path)


def test_a_base_without_its_prefix(tmp_path: Path) -> None:
    """The adapter is of GPT2LMHeadModel ('transformer.h.0'), the file of GPT2Model ('h.0')."""
    trained(gpt2(), ["c_attn"], tmp_path)
    GPT2LMHeadModel.from_pretrained(tmp_path / "base").transformer.save_pretrained(tmp_path / "base")
    assert_merged(tmp_path)


def test_an_adapter_of_the_bare_model(tmp_path: Path) -> None:
    """The adapter is of LlamaModel ('layers.0'), the file of LlamaForCausalLM ('model.layers.0')."""
    whole = llama()
    whole.save_pretrained(tmp_path / "base")
    tuned = get_peft_model(whole.model, LoraConfig(r=3, target_modules=QKVO))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2) if "lora_" in name else None
    tuned.save_pretrained(tmp_path / "adapter")
    tuned.merge_and_unload()
    whole.save_pretrained(tmp_path / "merged")
    assert_merged(tmp_path)


def test_a_base_in_half_precision_is_merged_without_rounding(tmp_path: Path) -> None:
    trained(llama(), QKVO, tmp_path)
    base = LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    base.save_pretrained(tmp_path / "base")
    merged = PeftModel.from_pretrained(base.float(), tmp_path / "adapter").merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert_merged(tmp_path)


def test_multihead_attention_of_torch_is_refused(tmp_path: Path) -> None:
    """PEFT 0.21 adds the part of its out_proj twice, so no merged model could be called the right one."""
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 40), 2, enable_nested_tensor=False)
    (tmp_path / "base").mkdir()
    torch.save(model.state_dict(), tmp_path / "base" / "model.pt")
    tuned = get_peft_model(model, LoraConfig(r=3, target_modules=["self_attn"]))
    tuned.save_pretrained(tmp_path / "adapter")
    with pytest.raises(MissingTensor, match=r"self_attn\.lora_A"):
        toposcope.load(tmp_path / "base", adapter=tmp_path / "adapter", num_heads=4)


def test_a_model_in_memory_with_its_adapter_says_what_to_do(tmp_path: Path) -> None:
    tuned = get_peft_model(llama(), LoraConfig(r=3, target_modules=QKVO))
    for model in (tuned, tuned.base_model.model):
        with pytest.raises(BadValue, match="merge_and_unload"):
            toposcope.inspect(model)
    assert toposcope.inspect(tuned.merge_and_unload()).family == "llama"


def test_an_adapter_beside_a_model_is_not_run_with_it_unasked(tmp_path: Path) -> None:
    """transformers would do so as soon as peft is installed."""
    trained(llama(), QKVO, tmp_path)
    (tmp_path / "adapter" / "adapter_config.json").rename(tmp_path / "base" / "adapter_config.json")
    with pytest.raises(BadFile, match="adapter"):
        load_reference(tmp_path / "base")
