"""Tiny randomly initialised models of transformers, one for each way in which attention is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MLA = {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
GPT2_SIZES = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 64, **NO_TOKENS}
BLOOM_SIZES = {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, **NO_TOKENS}

BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4)
    ),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2_SIZES)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**{**SIZES, "pad_token_id": 0})),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**{**SIZES, "pad_token_id": 0}, embedding_size=16)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**BLOOM_SIZES)),
    "falcon": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=50, **NO_TOKENS)
    ),
    "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(d_model=32, n_layers=3, n_heads=4, vocab_size=50, **NO_TOKENS)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPT2_SIZES, rotary_dim=4)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50, decoder_start_token_id=0)
    ),
    "deepseek_v3": lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**SIZES, num_key_value_heads=4, **MLA)),
}
OWN_WAY = ("bloom", "falcon", "mpt", "gptj")  # they compute attention by themselves


def build(name: str, *, sharp: float = 4.0) -> Any:
    """A tiny model in evaluation mode, the same for the same name; `sharp` stretches weights so that heads differ."""
    torch.manual_seed(sum(map(ord, name)))
    model = BUILDERS[name]().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in key and "norm" not in key.lower():
                parameter.mul_(sharp)
    return model


def inputs(name: str, *, batch: int = 2, length: int = 17) -> dict[str, Any]:
    """Token numbers for a model of that name."""
    ids = torch.randint(3, 50, (batch, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "decoder_input_ids": ids} if name == "t5" else {"input_ids": ids}
