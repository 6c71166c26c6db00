"""What is recovered from tiny models of transformers, in three precisions; and what is said of broken ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from toposcope.checkpoints.live import view
from toposcope.checks import Finding
from toposcope.core.errors import BadConfig, BadValue
from toposcope.live.judge import judge
from toposcope.live.matching import matched
from toposcope.live.precision import precision
from toposcope.live.recover import Recovery, recover
from toposcope.live.running import Running

hf = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 50,
    "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
BASE = {"rope_theta": 5e5}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.2, 2.0, 3.0, 5.0],
    "original_max_position_embeddings": 64,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 8, "q_lora_rank": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 6, "v_head_dim": 5,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}  # fmt: skip
DEPTHS = {"mscale": 1.0, "mscale_all_dim": 1.0}


def llama(**rope: Any) -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters={**BASE, **rope}))


def _latent(**rope: Any) -> Any:
    settings = {"rope_theta": 1e4, "rope_type": "default", **rope}
    return hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(**SIZES, num_key_value_heads=4, **LATENT, rope_parameters=settings)
    )


def _axes() -> Any:
    settings = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    text = hf.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLTextConfig(
        **SIZES, num_key_value_heads=2, rope_parameters=settings
    )
    return hf.models.qwen2_vl.modeling_qwen2_vl.Qwen2VLTextModel(text)


TURNING: dict[str, Callable[[], Any]] = {
    "plain": lambda: llama(rope_type="default"),
    "llama3": lambda: llama(**LLAMA3),
    "yarn": lambda: llama(**YARN),
    "longrope": lambda: llama(**LONG),
    "partial": lambda: hf.GPTNeoXForCausalLM(
        hf.GPTNeoXConfig(**SIZES, rope_parameters={"rope_type": "default", **BASE, "partial_rotary_factor": 0.5})
    ),
    "latent": _latent,
    "latent, yarn": lambda: _latent(**YARN, **DEPTHS),
    "interleaved": lambda: hf.CohereForCausalLM(hf.CohereConfig(**SIZES)),
}
OTHER: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=64)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**{**SIZES, "pad_token_id": 0})),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50, decoder_start_token_id=0)
    ),
}
ANGLES = {"float32": 1e-3, "bfloat16": 6e-3, "float16": 2e-3}  # radians; float32 rounds angles of 500 rad


def made(build: Callable[[], Any], dtype: str = "float32") -> Any:
    """The model as from_pretrained(dtype=...) gives it: the frequencies stay in float32."""
    torch.manual_seed(7)
    model = build().eval()
    for parameter in model.parameters():
        parameter.data = (parameter.data + 0.2 * torch.randn(parameter.shape)).to(getattr(torch, dtype))
    return model


def found(model: Any) -> tuple[Recovery, list[Finding]]:
    recovered = recover(Running(model))
    return recovered, judge(recovered, view(model))


def right(findings: list[Finding]) -> Any:
    """The evidence of what was verified, where nothing is wrong."""
    assert not [each for each in findings if each.status in ("fault", "warning")]
    return next(each for each in findings if each.status == "ok").evidence


@pytest.mark.parametrize("dtype", list(ANGLES))
@pytest.mark.parametrize("kind", TURNING)
def test_rotations_are_recovered_and_right(kind: str, dtype: str) -> None:
    recovered, findings = found(made(TURNING[kind], dtype))
    said = right(findings)
    assert recovered.mode == "positions"
    assert recovered.context == 512
    assert said["pairs"] > said["slow"]
    assert said["largest_error"] <= ANGLES[dtype]
    assert said["scales"] == 3
    if dtype == "float32":
        assert said["frequency_error"] <= 3e-7
        assert said["scale_error"] <= 5e-5


@pytest.mark.parametrize("kind", TURNING)
def test_pairs_are_found_without_being_told(kind: str) -> None:
    model = made(TURNING[kind])
    recovered = recover(Running(model), logits=False)
    rotary = view(model).layers[0].encoding.rotary
    assert rotary is not None
    truth = np.sort(rotary.frequencies(recovered.context))
    for seen in recovered.layers:
        for _, side in seen.sides:
            assert side is not None
            assert not len(side.partners.alone)
            assert np.sort(np.abs(side.frequency_F)) == pytest.approx(truth, rel=1e-5, abs=1e-7)
            assert (np.abs(np.sort(np.abs(side.frequency_F)) - truth) <= 4 * side.error_F.max()).all()


@pytest.mark.parametrize("dtype", list(ANGLES))
@pytest.mark.parametrize("kind", OTHER)
def test_what_does_not_turn_is_right_as_well(kind: str, dtype: str) -> None:
    _, findings = found(made(OTHER[kind], dtype))
    said = right(findings)
    assert said["pairs"] == 0
    assert (said["biases"] > 0) == (kind in ("bloom", "t5"))
    assert (said["inputs"] > 0) == (kind in ("gpt2", "bert"))


def test_several_axes_are_one_for_words() -> None:
    said = right(found(made(_axes))[1])
    assert said["pairs"] == 24
    assert said["frequency_error"] <= 3e-7


def test_slow_pairs_are_counted_not_called_right() -> None:
    model = made(lambda: llama(rope_type="default", rope_theta=1e9), "bfloat16")
    slow = next(each for each in found(model)[1] if each.id == "live-fit-slow")
    assert slow.status == "cannot_tell"
    assert slow.evidence["slow"] > 0


# ------------------------------------------------------------------ what is wrong
def _set(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = change(module.inv_freq.clone())


@pytest.mark.parametrize("dtype", list(ANGLES))
@pytest.mark.parametrize(
    ("bug", "build", "change"),
    [
        ("theta-lost", TURNING["plain"], lambda w: 1e4 ** (-torch.arange(4) / 4)),
        ("scaling-dropped", TURNING["llama3"], lambda w: 5e5 ** (-torch.arange(4) / 4)),
        ("rotated-twice", TURNING["partial"], lambda w: 2 * w),
        ("frequencies-uninitialised", TURNING["plain"], lambda w: w * torch.nan),
        ("frequencies-uninitialised", TURNING["latent"], lambda w: w * 0),
        (None, TURNING["plain"], lambda w: w * 0.3),
    ],
)
def test_what_is_wrong(bug: str | None, build: Any, change: Any, dtype: str) -> None:
    model = made(build, dtype)
    _set(model, change)
    faults = [each for each in found(model)[1] if each.status == "fault"]
    assert len(faults) == 1  # for all layers
    assert faults[0].evidence["bug"] == bug
    assert faults[0].layers == (0, 1, 2)


def test_the_whole_model_cast_is_a_matter_of_precision() -> None:
    model = made(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**SIZES, "max_position_embeddings": 4096})))
    model.to(torch.bfloat16)
    fault = next(each for each in found(model)[1] if each.status == "fault")
    assert fault.evidence["bug"] == "frequencies-rounded"
    assert fault.evidence["probe"] == "precision"
    assert 10 < fault.evidence["since"] < 4096


def test_one_layer_that_differs_is_the_only_one_named() -> None:
    model = made(TURNING["plain"])
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def faster(*given: Any, position_embeddings: Any, **options: Any) -> Any:
        cos, sin = position_embeddings
        return forward(*given, position_embeddings=(2 * cos * cos - 1, 2 * sin * cos), **options)

    attention.forward = faster
    faults = [each for each in found(model)[1] if each.status == "fault"]
    assert [each.layers for each in faults] == [(1,)]
    assert faults[0].evidence["bug"] == "rotated-twice"


def test_position_ids_that_are_ignored_are_told_from_a_lack_of_rotation() -> None:
    model = made(TURNING["plain"])
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, torch.arange(x.shape[1])[None].expand(len(x), -1))
    recovered, findings = found(model)
    assert recovered.ignored
    faults = [each for each in findings if each.status == "fault"]
    assert len(faults) == 1
    assert faults[0].title == "position_ids are ignored"


def test_beyond_the_context() -> None:
    model = made(TURNING["plain"])
    running = Running(model)
    recovered = recover(running)
    far = precision(running, recovered, view(model))
    assert {each.status for each in far} <= {"ok", "cannot_tell"}
    assert next(each for each in far if each.status == "ok").evidence["positions"] == 131072
    rotary = model.model.rotary_emb
    forward = rotary.forward  # positions in bfloat16: right up to 256
    rotary.forward = lambda x, position_ids: forward(x, position_ids.to(torch.bfloat16).float())
    near = recover(running, top=200)
    assert not [each for each in judge(near, view(model)) if each.status == "fault"]
    warned = precision(running, near, view(model))
    assert {each.status for each in warned if each.status != "cannot_tell"} == {"warning"}
    assert any(
        "positions rounded to bfloat16" in str(each.evidence["seen"]) for each in warned if "seen" in each.evidence
    )


# ------------------------------------------------------------------ running
def test_the_model_is_left_as_it_was() -> None:
    model = made(TURNING["plain"])
    before = model(torch.arange(4, 12)[None]).logits.detach().clone()
    chosen = model.config._attn_implementation
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    recover(Running(model))
    assert model.config._attn_implementation == chosen
    assert hooks == sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert torch.equal(model(torch.arange(4, 12)[None]).logits, before)


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(BadConfig, match="training mode"):
        Running(llama())
    with pytest.raises(BadValue, match="token ids"):
        Running(torch.nn.Linear(2, 2).eval())
    with pytest.raises(BadConfig, match="no attention"):
        recover(
            Running(hf.MambaForCausalLM(hf.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=50)).eval())
        )


def test_a_model_that_takes_no_positions_is_given_sequences() -> None:
    recovered = recover(Running(made(TURNING["plain"])), mode="constant")
    assert recovered.mode == "constant"
    assert len(recovered.positions_P) == 64
    side = recovered.layers[0].query
    assert side is not None
    assert side.frequency_F[0] == pytest.approx(1, rel=1e-6)


def test_layers_are_matched_by_name_whatever_wraps_them() -> None:
    model = made(OTHER["t5"])
    layers = view(model).layers
    modules = [each.module for each in recover(Running(model), logits=False).layers]
    pairs = matched(modules, layers)
    assert [layer.number for _, layer in pairs] == list(range(len(layers)))
    for number, layer in pairs:
        assert ("EncDec" in modules[number]) == (layer.spec.kind == "cross")
        assert modules[number].startswith(layer.spec.stack)
    assert matched([f"wrapped.{each}" for each in modules], layers) == pairs
    assert matched(["a.0", "b.1"], layers) == []
