"""`check_module` on other people's attention modules: each is diagnosed rightly, and none is called faulty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BloomConfig,
    CohereConfig,
    DeepseekV3Config,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedModel,
    T5Config,
)
from transformers.models.bert.modeling_bert import BertAttention
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor
from transformers.models.cohere.modeling_cohere import CohereAttention, CohereRotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from toposcope.live.module.check import ModuleCheckResult, check_module

WIDTH = 64


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lively(module: nn.Module) -> nn.Module:
    """Weights of ordinary size, so that attention is not uniform."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return module.eval()


def causal_mask(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    return torch.zeros(1, 1, n, n, dtype=x.dtype).masked_fill(hidden, torch.finfo(x.dtype).min)


def clean(report: ModuleCheckResult) -> None:
    assert report.counts["fault"] == 0, [finding.title for finding in report.faults]
    assert report.counts["warning"] == 0, [finding.title for finding in report.findings]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_multihead_attention(batch_first: bool, bias: bool) -> None:
    report = check_module(nn.MultiheadAttention(WIDTH, 4, batch_first=batch_first, bias=bias, dropout=0.2))
    clean(report)
    assert (report.position, report.causal) == ("none", False)


def test_multihead_attention_with_keys_that_are_no_tokens() -> None:
    report = check_module(nn.MultiheadAttention(WIDTH, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True))
    clean(report)
    assert report.position == "none"


def test_multihead_attention_fed_in_the_wrong_order() -> None:
    module = nn.MultiheadAttention(WIDTH, 4, batch_first=False)
    report = check_module(module, call=lambda m, x: m(x, x, x, need_weights=False)[0])
    found = report.find("batch-axis")
    assert found is not None
    assert found.status == "fault"
    assert found.evidence["acts"] == "samples"


def rotary_call(rotary: nn.Module) -> Callable[..., Any]:
    """How transformers calls its rotary layers: sines and cosines are made outside."""

    def call(module: Any, x: torch.Tensor, positions: torch.Tensor) -> Any:
        tables = rotary(x, positions[None].expand(len(x), -1))
        return module(x, position_embeddings=tables, attention_mask=causal_mask(x))

    return call


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_llama(implementation: str) -> None:
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=2, attn_implementation=implementation
    )
    report = check_module(
        lively(LlamaAttention(config, 0)),
        call=rotary_call(LlamaRotaryEmbedding(config)),
        causal=True,
        expects="relative",
    )
    clean(report)
    assert (report.position, report.causal) == ("relative", True)
    assert {"rotation", "shift", "offset-zero"} <= {finding.id for finding in report.findings}
    rotation = report.find("rotation")
    assert rotation is not None
    assert rotation.evidence["pairing"] == "half"


def test_llama_in_float64() -> None:
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=4, attn_implementation="eager")
    report = check_module(lively(LlamaAttention(config, 0)).double(), call=rotary_call(LlamaRotaryEmbedding(config)))
    clean(report)
    assert report.position == "relative"


@pytest.mark.parametrize("scaling", ["yarn", "llama3", "linear"])
def test_llama_with_scaling(scaling: str) -> None:
    parameters = {"rope_type": scaling, "factor": 4.0, "rope_theta": 1e4}
    if scaling != "linear":
        parameters["original_max_position_embeddings"] = 64
    if scaling == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters=parameters,
        attn_implementation="eager",
    )
    report = check_module(lively(LlamaAttention(config, 0)), call=rotary_call(LlamaRotaryEmbedding(config)))
    clean(report)
    assert report.position == "relative"


def test_cohere_interleaved() -> None:
    config = CohereConfig(hidden_size=WIDTH, num_attention_heads=4, attn_implementation="eager")
    report = check_module(lively(CohereAttention(config, 0)), call=rotary_call(CohereRotaryEmbedding(config)))
    clean(report)
    rotation = report.find("rotation")
    assert rotation is not None
    assert rotation.evidence["pairing"] == "interleaved"


def test_gpt_neox_partial() -> None:
    config = GPTNeoXConfig(hidden_size=WIDTH, num_attention_heads=2, rotary_pct=0.5, attn_implementation="eager")
    report = check_module(lively(GPTNeoXAttention(config, 0)), call=rotary_call(GPTNeoXRotaryEmbedding(config)))
    clean(report)
    assert report.position == "relative"


def test_gptj_interleaved() -> None:
    config = GPTJConfig(n_embd=WIDTH, n_head=2, rotary_dim=16, n_positions=2048, attn_implementation="eager")

    def call(module: Any, x: torch.Tensor, positions: torch.Tensor) -> Any:
        return module(x, position_ids=positions[None].expand(len(x), -1), attention_mask=causal_mask(x))

    report = check_module(lively(GPTJAttention(config, 0)), call=call, width=WIDTH)
    clean(report)
    assert (report.position, report.causal) == ("relative", True)
    rotation = report.find("rotation")
    assert rotation is not None
    assert rotation.evidence["pairing"] == "interleaved"


def test_deepseek_mla() -> None:
    config = DeepseekV3Config(
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        attn_implementation="eager",
    )
    report = check_module(
        lively(DeepseekV3Attention(config, 0)), call=rotary_call(DeepseekV3RotaryEmbedding(config)), width=WIDTH
    )
    clean(report)
    assert report.position == "relative"


def test_bert_has_no_position_inside() -> None:
    config = BertConfig(hidden_size=WIDTH, num_attention_heads=4, attn_implementation="eager")
    report = check_module(lively(BertAttention(config, layer_idx=0)))
    clean(report)
    assert (report.position, report.causal) == ("none", False)


def test_gpt2_has_no_position_inside() -> None:
    config = GPT2Config(n_embd=WIDTH, n_head=4, attn_implementation="eager")
    report = check_module(
        lively(GPT2Attention(config, layer_idx=0)), width=WIDTH, call=lambda m, x: m(x, attention_mask=causal_mask(x))
    )
    clean(report)
    assert (report.position, report.causal) == ("none", True)


def test_bloom_alibi() -> None:
    config = BloomConfig(hidden_size=WIDTH, n_head=4, attn_implementation="eager")

    def call(module: Any, x: torch.Tensor) -> Any:
        alibi = build_alibi_tensor(torch.ones(x.shape[:2]), 4, x.dtype)
        return module(x, residual=torch.zeros_like(x), alibi=alibi, attention_mask=causal_mask(x))

    report = check_module(lively(BloomAttention(config, 0)), call=call)
    clean(report)
    assert (report.position, report.causal) == ("relative", True)
    assert report.find("logit-bias") is not None


@pytest.mark.parametrize("decoder", [False, True])
def test_t5(decoder: bool) -> None:
    config = T5Config(d_model=WIDTH, num_heads=4, d_kv=16, is_decoder=decoder)
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)

    def call(module: Any, x: torch.Tensor) -> Any:
        return module(x, mask=causal_mask(x) if decoder else None)

    report = check_module(lively(module), call=call, width=WIDTH)
    clean(report)
    assert (report.position, report.causal) == ("relative", decoder)
    assert report.find("logit-bias") is not None


def test_whole_model_adds_absolute_positions() -> None:
    """A GPT-2 from embeddings to states: its table is added inside, so position is absolute."""
    from transformers import GPT2Model

    config = GPT2Config(n_embd=WIDTH, n_head=4, n_layer=1, vocab_size=8, n_positions=64, attn_implementation="eager")
    model: PreTrainedModel = lively(GPT2Model(config))
    report = check_module(model, width=WIDTH, call=lambda m, x: m(inputs_embeds=x).last_hidden_state)
    clean(report)
    assert (report.position, report.causal) == ("absolute", True)
