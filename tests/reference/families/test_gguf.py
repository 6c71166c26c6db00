"""GGUF files of every architecture we read, written here as llama.cpp's converter writes them.

The names of the tensors come from the gguf package's own table and the changes to them are stated below, so neither
is taken from the adapters. Where transformers can read such a file, it reads the very same one as a second reference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file
from torch import nn

import toposcope
from toposcope.checkpoints.attention import attention, project
from toposcope.checkpoints.view import Layer
from toposcope.core.errors import BadConfig, MissingTensor, ToposcopeError, UnknownFamily

from .harness import array, compare, far_from_uniform, randomise, watch_inputs

Change = Callable[[Any, str, np.ndarray], Mapping[str, np.ndarray]]  # config, name, tensor -> what is stored
Q8 = gguf.GGMLQuantizationType.Q8_0
OUTPUTS = (
    "self_attn.o_proj",
    "attention.output.dense",
    "attn.c_proj",
    "attn.out_proj",
    "self_attention.dense",
)
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
}
ROPE_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}


# What the converter does to each architecture's tensors.


def as_is(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    return {name: tensor}


def adjacent_pairs(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Llama: within a head, channels m and m + r/2 become 2m and 2m + 1."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return {name: tensor}
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return {name: halves.swapaxes(1, 2).reshape(tensor.shape)}


def gain_plus_one(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    return {name: tensor + 1 if name.endswith("norm.weight") else tensor}


def out_in(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """GPT-2 keeps its matrices as (in, out)."""
    return {name: tensor.T if re.search(r"\.c_(attn|proj|fc)\.weight", name) else tensor}


def bloom_stacked(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """BLOOM keeps query, key and value of each head together."""
    if "query_key_value" in name:
        by_head = tensor.reshape(config.n_head, 3, -1, *tensor.shape[1:])
        tensor = by_head.swapaxes(0, 1).reshape(tensor.shape)
    return {name.removeprefix("transformer."): tensor}


def falcon_stacked(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Falcon keeps the queries of a group with their one key and value."""
    if "query_key_value" not in name:
        return {name: tensor}
    wide = config.hidden_size // config.num_attention_heads
    groups = config.num_kv_heads if config.new_decoder_architecture or not config.multi_query else 1
    by_group = tensor.reshape(groups, -1, wide, config.hidden_size)
    parts = by_group[:, :-2], by_group[:, -2], by_group[:, -1]
    return {name: np.concatenate([part.reshape(-1, config.hidden_size) for part in parts])}


def without_reserved_positions(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    return {name: tensor[config.pad_token_id + 1 :] if "position_embeddings" in name else tensor}


def keys_and_values_apart(config: Any, name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """DeepSeek since 2025: a matrix per head for the keys, transposed, and one for the values."""
    if not name.endswith("kv_b_proj.weight"):
        return {name: tensor}
    both = tensor.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = np.split(both, [config.qk_nope_head_dim], axis=1)
    return {name.replace("kv_b", "k_b"): keys.swapaxes(1, 2), name.replace("kv_b", "v_b"): values}


# What it writes into the header.


def decoder_facts(config: Any) -> dict[str, Any]:
    """The settings that most architectures have, under GGUF's names."""
    rope = getattr(config, "rope_parameters", None) or {}
    facts = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", None),
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "rope.freq_base": rope.get("rope_theta"),
        "vocab_size": config.vocab_size,
    }
    if getattr(config, "head_dim", None) and config.head_dim != config.hidden_size // config.num_attention_heads:
        facts |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    return facts


def moe_facts(config: Any) -> dict[str, Any]:
    return decoder_facts(config) | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }


def llama_facts(config: Any) -> dict[str, Any]:
    return decoder_facts(config) | {"rope.dimension_count": config.head_dim}


def gemma_facts(config: Any) -> dict[str, Any]:
    widths = {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    return decoder_facts(config) | widths


def gemma2_facts(config: Any) -> dict[str, Any]:
    return gemma_facts(config) | {
        "attention.sliding_window": config.sliding_window,
        "attn_logit_softcapping": config.attn_logit_softcapping,
    }


def gemma3_facts(config: Any) -> dict[str, Any]:
    full = config.rope_parameters["full_attention"]
    facts = gemma_facts(config) | {
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": full["rope_theta"],
    }
    if full["rope_type"] == "linear":
        facts |= {"rope.scaling.type": "linear", "rope.scaling.factor": full["factor"]}
    return facts


def phi3_facts(config: Any) -> dict[str, Any]:
    share = config.rope_parameters.get("partial_rotary_factor", 1.0)
    original = config.rope_parameters.get("original_max_position_embeddings", config.max_position_embeddings)
    stretch = config.max_position_embeddings / original
    facts = decoder_facts(config) | {
        "rope.dimension_count": int(share * config.hidden_size) // config.num_attention_heads,
        "rope.scaling.original_context_length": original,
        "attention.sliding_window": config.sliding_window or 0,
    }
    if "long_factor" in config.rope_parameters:
        facts["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(stretch) / math.log(original))
    return facts


def encoder_facts(config: Any) -> dict[str, Any]:
    return decoder_facts(config) | {
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "attention.causal": False,
    }


def gpt2_facts(config: Any) -> dict[str, Any]:
    return decoder_facts(config) | {
        "feed_forward_length": 4 * config.hidden_size,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def falcon_facts(config: Any) -> dict[str, Any]:
    return decoder_facts(config) | {
        "rope.freq_base": None,  # the converter leaves it to llama.cpp's default
        "attention.head_count_kv": config.num_kv_heads if config.new_decoder_architecture else 1,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def mpt_facts(config: Any) -> dict[str, Any]:
    return {
        "block_count": config.n_layers,
        "context_length": config.max_seq_len,
        "embedding_length": config.d_model,
        "attention.head_count": config.n_heads,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.max_alibi_bias": float(config.attn_config.alibi_bias_max),
        "attention.clamp_kqv": config.attn_config.clip_qkv,
    }


def deepseek_facts(config: Any) -> dict[str, Any]:
    """As before the split of keys and values: plain attention over unfolded latents."""
    rope = config.rope_parameters
    facts = decoder_facts(config) | {
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
    }
    if rope["rope_type"] == "yarn":
        facts |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if "mscale_all_dim" in rope else None,
        }
    return facts


def deepseek_apart_facts(config: Any) -> dict[str, Any]:
    """The plain widths are those of the latent, which all heads share; the heads' own have names of their own."""
    return deepseek_facts(config) | {
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
    }


# Writing, reading and comparing.


@dataclass(frozen=True)
class Case:
    """One architecture in one setting: the model, and how the converter writes it."""

    architecture: str
    setting: str
    model: Callable[[], nn.Module]
    layers: Callable[[nn.Module], Sequence[nn.Module]]
    facts: Callable[[Any], dict[str, Any]]
    change: Change = as_is
    further: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings beyond those that `facts` takes from the config
    tensors: Mapping[str, Sequence[float]] = field(default_factory=dict)  # beside the model's own
    reload: Mapping[str, Any] | None = None  # how transformers is to load the file, where it can
    length: int = 12
    warns: str | None = None

    def __str__(self) -> str:
        return f"{self.architecture}, {self.setting}"


def stored_tensors(model: nn.Module, folder: Path, architecture: str, change: Change) -> dict[str, np.ndarray]:
    """The model's saved tensors, changed and named as the converter does."""
    model.save_pretrained(folder)
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, 64)
    found: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        expert = re.fullmatch(r"(.*\.experts)\.\d\.(\w+\.weight)", name)
        if expert:
            experts.setdefault(f"{expert[1]}.{expert[2]}", []).append(tensor)
        else:
            found |= change(model.config, name, tensor)
    found |= {name: np.stack(each) for name, each in experts.items()}
    named = {names.get_name(name, (".weight", ".bias")): value.squeeze() for name, value in found.items()}
    assert None not in named, f"gguf has no name for one of {sorted(found)}"
    return named


def write_gguf(
    path: Path,
    architecture: str,
    facts: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    name: str = "tiny",
    quantised: bool = False,
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in facts.items():
        if value is not None:
            add[type(value)](f"{architecture}.{key}", value)
    for key, value in tensors.items():
        value = np.ascontiguousarray(value, dtype=np.float32)
        if quantised and value.ndim > 1:
            writer.add_tensor(key, quantize(value, Q8), raw_dtype=Q8)
        else:
            writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def written(case: Case, folder: Path, **options: Any) -> tuple[Path, nn.Module]:
    """A random model of the case and the GGUF file made from it."""
    torch.manual_seed(0)
    model = case.model().eval()
    randomise(model)
    tensors = stored_tensors(model, folder / "saved", case.architecture, case.change)
    tensors |= {name: np.array(values, dtype=np.float32) for name, values in case.tensors.items()}
    path = folder / "model.gguf"
    write_gguf(path, case.architecture, case.facts(model.config) | dict(case.further), tensors, **options)
    return path, model


@dataclass(frozen=True)
class Run:
    """What each layer of their model saw, and its attention."""

    inputs: list[np.ndarray]
    probabilities: list[np.ndarray]
    mixed: list[np.ndarray]  # the values of all heads, mixed by their attention: what the output projection reads
    added: list[np.ndarray]  # what it makes of them


def run(model: nn.Module, layers: Sequence[nn.Module], length: int = 12) -> Run:
    seen = watch_inputs(layers)
    outputs = [next(part for name, part in layer.named_modules() if name in OUTPUTS) for layer in layers]
    mixed = watch_inputs(outputs)
    added: list[torch.Tensor] = []
    for module in outputs:
        module.register_forward_hook(lambda *call: added.append(call[2].detach()))
    ids = torch.randint(3, 64, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = [array(layer[0]) for layer in model(input_ids=ids, output_attentions=True).attentions]
    assert len(theirs) == len(seen)
    assert any(far_from_uniform(layer) for layer in theirs), "attention is nearly uniform: the case proves nothing"
    one = [[array(calls[0]).reshape(length, -1) for calls in watched] for watched in (seen, mixed)]
    return Run(one[0], theirs, one[1], [array(call).reshape(length, -1) for call in added])


def check(path: Path, name: str, setting: str, theirs: Run) -> None:
    with toposcope.load(path) as ours:
        assert ours.family == name.replace(":", "-")
        assert ours.skipped == ()
        assert len(ours.layers) == len(theirs.inputs)
        for i, layer in enumerate(ours.layers):
            x = theirs.inputs[i]
            compare(name, setting, attention(layer, x), theirs.probabilities[i])
            mixed = theirs.probabilities[i] @ project(layer, x)[2]
            np.testing.assert_allclose(np.hstack(mixed), theirs.mixed[i], atol=1e-5)
            bias = layer.weights.o_bias_D
            added = sum(heads @ o.T for heads, o in zip(mixed, layer.weights.o_HDV, strict=True))
            np.testing.assert_allclose(added if bias is None else added + bias, theirs.added[i], atol=1e-5)


def build(kind: str, config: str, *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    settings = getattr(hf, config)(**({**TINY, **options}), attn_implementation="eager")
    return lambda: getattr(hf, kind)(settings, **dict(arguments))


def blocks(name: str) -> Callable[[nn.Module], Sequence[nn.Module]]:
    return lambda model: list(model.get_submodule(name))


def llama(setting: str, *, facts: Any = llama_facts, **options: Any) -> Case:
    rest = {key: options.pop(key) for key in ("further", "tensors", "reload", "change", "warns") if key in options}
    model = build("LlamaForCausalLM", "LlamaConfig", **options)
    return Case("llama", setting, model, blocks("model.layers"), facts, **{"change": adjacent_pairs, **rest})


def llama3_divisors() -> list[float]:
    """By what llama3 scaling divides the frequency of each pair; the converter stores this, not its settings."""
    config = hf.LlamaConfig(**TINY, rope_parameters=LLAMA3)
    scaled, _ = hf.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1e4 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    divisors = (plain / scaled.double()).tolist()
    assert max(divisors) > 7.9
    assert min(divisors) < 1.1
    return divisors


GEMMA2 = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 4,
    "attn_logit_softcapping": 2.0,
    "num_hidden_layers": 3,
}
GEMMA3 = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 4,
    "num_hidden_layers": 7,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
DEEPSEEK = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 2,
    "num_key_value_heads": 4,
}
DEEPSEEK_YARN = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 2}
PHI_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
    "original_max_position_embeddings": 16,
    "rope_theta": 1e4,
}
FACTORS = {
    "rope_factors_short.weight": PHI_LONG["short_factor"],
    "rope_factors_long.weight": PHI_LONG["long_factor"],
}

qwen2 = partial(Case, "qwen2", layers=blocks("model.layers"), facts=decoder_facts)
qwen3 = partial(Case, "qwen3", layers=blocks("model.layers"), facts=decoder_facts)
gemma2 = partial(Case, "gemma2", layers=blocks("model.layers"), facts=gemma2_facts, change=gain_plus_one)
gemma3 = partial(Case, "gemma3", layers=blocks("model.layers"), facts=gemma3_facts, change=gain_plus_one)
phi3 = partial(Case, "phi3", layers=blocks("model.layers"), facts=phi3_facts)
falcon = partial(Case, "falcon", layers=blocks("transformer.h"), facts=falcon_facts, change=falcon_stacked)
deepseek = partial(Case, "deepseek2", layers=blocks("model.layers"), facts=deepseek_facts)
deepseek_apart = partial(deepseek, facts=deepseek_apart_facts, change=keys_and_values_apart)
deepseek_v2 = partial(build, "DeepseekV2ForCausalLM", "DeepseekV2Config")
deepseek_v3 = partial(build, "DeepseekV3ForCausalLM", "DeepseekV3Config")
mpt = partial(Case, "mpt", layers=blocks("transformer.blocks"), facts=mpt_facts)
mpt_model = partial(build, "MptForCausalLM", "MptConfig", d_model=32, n_heads=4, n_layers=2, max_seq_len=64)
gemma2_model = partial(build, "Gemma2ForCausalLM", "Gemma2Config")
gemma3_model = partial(build, "Gemma3ForCausalLM", "Gemma3TextConfig")
phi3_model = partial(build, "Phi3ForCausalLM", "Phi3Config", pad_token_id=0, original_max_position_embeddings=16)
falcon_model = partial(build, "FalconForCausalLM", "FalconConfig")

CASES = [
    llama("plain", reload={}),
    llama("GQA", num_key_value_heads=2, reload={}),
    llama("head_dim 16", head_dim=16, reload={}),
    llama("biases", num_key_value_heads=2, attention_bias=True, reload={"attention_bias": True}),
    llama(
        "keys per layer",
        num_key_value_heads=2,
        further={"attention.head_count_kv": [2, 2], "attention.head_count": [4, 4]},
    ),
    llama(
        "linear",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        further={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    llama(
        "linear, old key",
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        further={"rope.scale_linear": 4.0},
    ),
    llama("yarn", rope_parameters=YARN, further=ROPE_YARN),
    llama(
        "yarn, betas",
        rope_parameters={**YARN, "beta_fast": 4.0, "beta_slow": 0.5},
        further=ROPE_YARN | {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5},
    ),
    llama(
        "yarn, growth taken back",
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        further=ROPE_YARN | {"rope.scaling.yarn_log_multiplier": 0.5},
    ),
    llama("scaling off", further={"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    llama("llama3", rope_parameters=LLAMA3, tensors={"rope_freqs.weight": llama3_divisors()}),
    Case(
        "llama",
        "Mistral with a window",
        build("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=4),
        blocks("model.layers"),
        llama_facts,
        adjacent_pairs,
        further={"attention.sliding_window": 4},
    ),
    qwen2("plain", build("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2), reload={}),
    qwen2(
        "yarn",
        build("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2, rope_parameters=YARN),
        further=ROPE_YARN,
    ),
    Case(
        "qwen2moe",
        "plain",
        build("Qwen2MoeForCausalLM", "Qwen2MoeConfig", **EXPERTS, shared_expert_intermediate_size=16),
        blocks("model.layers"),
        moe_facts,
        reload={"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    qwen3(
        "head_dim 16",
        build("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=16),
        reload={"head_dim": 16},
    ),
    Case(
        "qwen3moe",
        "plain",
        build("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **EXPERTS, head_dim=16),
        blocks("model.layers"),
        moe_facts,
        reload={"moe_intermediate_size": 16},
    ),
    Case(
        "gemma",
        "head_dim 16",
        build("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=16),
        blocks("model.layers"),
        gemma_facts,
        gain_plus_one,
    ),
    gemma2(
        "window, cap",
        gemma2_model(**GEMMA2),
        reload={"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
        warns="attention scale",
    ),
    gemma2(
        "27B's scale",
        gemma2_model(**{**GEMMA2, "num_hidden_layers": 46, "query_pre_attn_scalar": 8}),
        warns="1/sqrt(8)",
    ),
    gemma3("window, two bases", gemma3_model(**GEMMA3), reload={"query_pre_attn_scalar": 16}),
    gemma3("stretched full layers", gemma3_model(**GEMMA3, rope_parameters=GEMMA3_ROPE)),
    gemma3(
        "pattern and local base stated",
        gemma3_model(
            **{**GEMMA3, "num_hidden_layers": 4},
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        ),
        further={"attention.sliding_window_pattern": 2, "rope.freq_base_swa": 300.0},
    ),
    gemma3(
        "layers listed",
        gemma3_model(
            **{**GEMMA3, "num_hidden_layers": 3},
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
        further={"attention.sliding_window_pattern": [False, True, False]},
    ),
    gemma3(
        "27B's scale",
        gemma3_model(**{**GEMMA3, "num_hidden_layers": 62, "query_pre_attn_scalar": 8}),
        warns="1/sqrt(8)",
    ),
    phi3("GQA", phi3_model(num_key_value_heads=2, sliding_window=None), reload={"pad_token_id": 0}),
    phi3("window", phi3_model(num_key_value_heads=4, sliding_window=4), warns="llama.cpp shows each token all"),
    phi3("longrope, short", phi3_model(sliding_window=None, rope_parameters=PHI_LONG), tensors=FACTORS),
    phi3("longrope, long", phi3_model(sliding_window=None, rope_parameters=PHI_LONG), tensors=FACTORS, length=20),
    phi3(
        "half of the head",
        phi3_model(sliding_window=None, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ),
    Case(
        "bert",
        "BERT",
        build("BertModel", "BertConfig", ("add_pooling_layer", False)),
        blocks("encoder.layer"),
        encoder_facts,
    ),
    Case(
        "bert",
        "RoBERTa",
        build("RobertaModel", "RobertaConfig", ("add_pooling_layer", False)),
        blocks("encoder.layer"),
        encoder_facts,
        without_reserved_positions,
    ),
    Case(
        "nomic-bert",
        "plain",
        build("NomicBertModel", "NomicBertConfig", ("add_pooling_layer", False), head_dim=8),
        blocks("layers"),
        encoder_facts,
    ),
    Case(
        "gpt2",
        "plain",
        build("GPT2LMHeadModel", "GPT2Config"),
        blocks("transformer.h"),
        gpt2_facts,
        out_in,
        reload={},
    ),
    Case(
        "bloom",
        "4 heads",
        build("BloomForCausalLM", "BloomConfig"),
        blocks("transformer.h"),
        gpt2_facts,
        bloom_stacked,
        reload={},
    ),
    Case(
        "bloom",
        "6 heads",
        build("BloomForCausalLM", "BloomConfig", hidden_size=48, num_attention_heads=6),
        blocks("transformer.h"),
        gpt2_facts,
        bloom_stacked,
    ),
    mpt("4 heads", mpt_model()),
    mpt("6 heads", mpt_model(d_model=48, n_heads=6)),
    mpt("clipped", mpt_model(attn_config={"clip_qkv": 1000.0}), warns="clipped to 1000"),
    falcon("multi-query", falcon_model(multi_query=True), reload={"multi_query": True}),
    falcon(
        "groups, two norms",
        falcon_model(new_decoder_architecture=True, num_kv_heads=2),
    ),
    deepseek("V2 Lite", deepseek_v2(**{**DEEPSEEK, "q_lora_rank": None})),
    deepseek("V2, yarn", deepseek_v2(**DEEPSEEK, rope_parameters=DEEPSEEK_YARN)),
    deepseek("V3", deepseek_v3(**DEEPSEEK)),
    deepseek("V3, yarn", deepseek_v3(**DEEPSEEK, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0})),
    deepseek_apart("V2, keys apart", deepseek_v2(**DEEPSEEK, rope_parameters=DEEPSEEK_YARN)),
    deepseek_apart("V3, keys apart", deepseek_v3(**{**DEEPSEEK, "q_lora_rank": None})),
    deepseek(
        "V3, yarn without a multiplier",
        deepseek_v3(**DEEPSEEK, rope_parameters=YARN),
        warns="yarn_log_multiplier",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_equals_theirs(case: Case, tmp_path: Path) -> None:
    path, model = written(case, tmp_path)
    check(path, f"gguf:{case.architecture}", case.setting, run(model, case.layers(model), case.length))
    with toposcope.load(path) as ours:
        for layer in ours.layers:
            assert case.warns is None or any(case.warns in warning for warning in layer.spec.warnings)


@pytest.mark.parametrize("case", [case for case in CASES if case.reload is not None], ids=str)
def test_attention_equals_that_of_the_file_as_transformers_loads_it(case: Case, tmp_path: Path) -> None:
    """The file itself is the reference: were it written against the conventions, their loader would not read it."""
    path, model = written(case, tmp_path)
    loaded = reloaded(path, case.reload or {})
    for name, parameter in model.state_dict().items():
        if "experts" not in name:
            torch.testing.assert_close(loaded.state_dict()[name], parameter, rtol=0, atol=1e-6, msg=name)
    check(
        path,
        f"gguf:{case.architecture}",
        f"{case.setting} (loaded by transformers)",
        run(loaded, case.layers(loaded)),
    )


def reloaded(path: Path, options: Mapping[str, Any]) -> nn.Module:
    return hf.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()


def test_quantised(tmp_path: Path) -> None:
    """Eight bits: equal to a model with the dequantised weights, and to the file as transformers loads it."""
    case = llama("Q8_0", num_key_value_heads=2)
    path, model = written(case, tmp_path, quantised=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                rounded = dequantize(quantize(parameter.numpy(), Q8), Q8)
                assert not np.array_equal(rounded, parameter.numpy())
                parameter.copy_(torch.from_numpy(rounded))
    check(path, "gguf:llama", "Q8_0", run(model, case.layers(model)))
    loaded = reloaded(path, {})
    check(path, "gguf:llama", "Q8_0 (loaded by transformers)", run(loaded, case.layers(loaded)))


def test_llama_in_one_fused_tensor(tmp_path: Path) -> None:
    """llama.cpp also reads any architecture's projections from one tensor, stacked."""
    case = llama("fused", num_key_value_heads=2, attention_bias=True)
    path, model = written(case, tmp_path)
    tensors = stored_tensors(model, tmp_path / "saved", "llama", adjacent_pairs)
    for block in range(2):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{block}.attn_{part}.{kind}") for part in "qkv"]
            tensors[f"blk.{block}.attn_qkv.{kind}"] = np.concatenate(parts)
    write_gguf(path, "llama", llama_facts(model.config), tensors)
    check(path, "gguf:llama", "fused", run(model, case.layers(model)))


def find(architecture: str, setting: str) -> Case:
    return next(case for case in CASES if (case.architecture, case.setting) == (architecture, setting))


def misread(layer: Layer, x: np.ndarray, **changed: Any) -> np.ndarray:
    """Attention of the layer with something in its description wrong."""
    return attention(Layer(layer.number, replace(layer.spec, **changed), layer._weights_of), x)


@pytest.mark.parametrize(
    ("case", "mistake"),
    [
        (find("llama", "GQA"), lambda spec: {"ggml_permuted": False}),
        (find("qwen2", "plain"), lambda spec: {"ggml_permuted": True}),
        (find("gemma2", "window, cap"), lambda spec: {"input_norm": replace(spec.input_norm, offset=1.0)}),
        (find("gemma2", "window, cap"), lambda spec: {"softcap": None}),
        (find("gemma3", "window, two bases"), lambda spec: {"k_norm": replace(spec.k_norm, offset=1.0)}),
        (find("bloom", "4 heads"), lambda spec: {"layout": "per_head"}),
        (find("falcon", "groups, two norms"), lambda spec: {"layout": "grouped"}),
        (
            find("falcon", "groups, two norms"),
            lambda spec: {"input_norm": replace(spec.input_norm, weight="blk.0.attn_norm.weight")},
        ),
        (find("deepseek2", "V3, yarn"), lambda spec: {"scale": spec.head_dim**-0.5}),
    ],
    ids=lambda value: str(value) if isinstance(value, Case) else "wrong",
)
def test_each_convention_matters(case: Case, mistake: Callable[[Any], dict[str, Any]], tmp_path: Path) -> None:
    """The comparisons above can fail: reading a file without one of its conventions gives another attention."""
    path, model = written(case, tmp_path)
    theirs = run(model, case.layers(model))
    with toposcope.load(path) as ours:
        layer = ours.layers[0]
        wrong = misread(layer, theirs.inputs[0], **mistake(layer.spec))
    assert np.abs(wrong - theirs.probabilities[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("case", "table"),
    [
        (find("bert", "BERT"), lambda model: model.embeddings.position_embeddings.weight),
        (find("bert", "RoBERTa"), lambda model: model.embeddings.position_embeddings.weight[2:]),
        (find("gpt2", "plain"), lambda model: model.transformer.wpe.weight),
    ],
    ids=lambda value: str(value) if isinstance(value, Case) else "table",
)
def test_learned_positions(case: Case, table: Callable[[Any], torch.Tensor], tmp_path: Path) -> None:
    path, model = written(case, tmp_path)
    theirs = array(table(model))
    with toposcope.load(path) as ours:
        ours_table = ours.layers[0].encoding.input
        assert ours_table is not None
        np.testing.assert_array_equal(ours_table.vectors(np.arange(len(theirs))), theirs)


@pytest.mark.parametrize(
    ("case", "placement", "causal"),
    [
        (find("llama", "plain"), "pre", True),
        (find("gemma3", "window, two bases"), "sandwich", True),
        (find("bert", "BERT"), "post", False),
        (find("nomic-bert", "plain"), "post", False),
    ],
    ids=str,
)
def test_norms_and_masks(case: Case, placement: str, causal: bool, tmp_path: Path) -> None:
    path, _ = written(case, tmp_path)
    with toposcope.load(path) as ours:
        layer = ours.layers[0]
        assert (layer.spec.placement, layer.spec.causal) == (placement, causal)
        assert layer.weights.q_HRD.shape == (4, layer.spec.head_dim, 32)
        assert ours.token_embedding() is not None


def test_mpt_takes_the_stated_slopes(tmp_path: Path) -> None:
    """transformers' MPT ignores alibi_bias_max; llama.cpp and the models' own code do not."""
    path, _ = written(replace(find("mpt", "4 heads"), further={"attention.max_alibi_bias": 4.0}), tmp_path)
    with toposcope.load(path) as ours:
        bias = ours.layers[0].encoding.bias
        assert bias is not None
        np.testing.assert_allclose(bias.by_offset([1.0])[:, 0], [-0.5, -0.25, -0.125, -0.0625])


def test_mistral_says_that_its_window_is_lost(tmp_path: Path) -> None:
    case = llama("Mistral", num_key_value_heads=2)
    path, _ = written(case, tmp_path, name="Mistral 7B v0.1")
    with toposcope.load(path) as ours:
        assert ours.layers[0].spec.reach is None
        assert any("Mistral" in warning for warning in ours.layers[0].spec.warnings)


def test_a_config_beside_the_file_is_not_its_own(tmp_path: Path) -> None:
    path, _ = written(find("llama", "GQA"), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_head": 1}')
    with toposcope.load(path) as ours:
        assert ours.family == "gguf-llama"
        assert ours.layers[0].spec.heads == 4


def read_all(path: Path) -> None:
    with toposcope.load(path) as ours:
        for layer in ours.layers:
            layer.weights


@pytest.mark.parametrize(
    ("further", "error", "message"),
    [
        ({"attention.head_count": None}, BadConfig, "'llama.attention.head_count'"),
        ({"attention.head_count": "four"}, BadConfig, "'llama.attention.head_count' .*'four'"),
        ({"attention.head_count_kv": 3}, BadConfig, "4 heads .*3 "),
        ({"attention.head_count_kv": [2]}, BadConfig, "'llama.attention.head_count_kv' .*layer 1"),
        ({"attention.layer_norm_rms_epsilon": None}, BadConfig, "layer_norm_rms_epsilon"),
        ({"block_count": 0}, BadConfig, "'llama.block_count' .* 0"),
        ({"rope.dimension_count": 4}, BadConfig, "'llama.rope.dimension_count' .*heads"),
        ({"rope.freq_base": True}, BadConfig, "'llama.rope.freq_base' .*number"),
        ({"rope.scaling.type": "magic"}, BadConfig, "'llama.rope.scaling.type' .* 'magic'"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}, BadConfig, "never negative"),
        ({"rope.scaling.type": "longrope"}, MissingTensor, "rope_factors_long.weight"),
        ({"block_count": 3}, MissingTensor, "blk.2.attn_"),
        ({"attention.key_length": 12}, BadConfig, "rope.dimension_count"),
        ({"rope.dimension_count": 7}, BadConfig, r"'llama\.rope\.\*' .*pairs"),
        ({"rope.freq_base": 0.5}, BadConfig, r"'llama\.rope\.\*' .*than 1"),
    ],
)
def test_damaged_settings_are_named(
    further: dict[str, Any], error: type[ToposcopeError], message: str, tmp_path: Path
) -> None:
    path, _ = written(llama("damaged", num_key_value_heads=2, further=further), tmp_path)
    with pytest.raises(error, match=message) as caught:
        read_all(path)
    assert "model.gguf" in str(caught.value)


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "lama", {"block_count": 1}, {"token_embd.weight": np.zeros((2, 2))})
    with pytest.raises(UnknownFamily, match=r"general\.architecture") as caught:
        toposcope.load(path)
    assert all(each in str(caught.value) for each in ("model.gguf", "'lama'", "'llama'"))
