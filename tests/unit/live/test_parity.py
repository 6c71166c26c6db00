"""Where tokens stand in every way of running: sound models have no fault, planted ones are found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.live.tiny_models import DTYPES, GPT2, around, cast, rotary, seeded
from toposcope.checkpoints.live import view
from toposcope.checks import Finding
from toposcope.live.parity import parity
from toposcope.live.ruler import NOWHERE, BiasRuler, Ruler
from toposcope.live.running import Running

hf = pytest.importorskip("transformers")
SOUND: dict[str, Callable[[], Any]] = {
    "llama": rotary,
    "longrope of 32": lambda: rotary(
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
            "short_factor": [1.0] * 4, "long_factor": [9.0] * 4,
        }
    ),
    "window": lambda: rotary("Mistral", sliding_window=5),
    "partial": lambda: rotary("GPTNeoX", rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "layers without position": lambda: rotary("SmolLM3", no_rope_layers=[1, 0, 1]),
    "gptj": lambda: seeded(lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**GPT2, eos_token_id=2, rotary_dim=4))),
    "opt": lambda: seeded(
        lambda: hf.OPTForCausalLM(hf.OPTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=40,
            vocab_size=50, max_position_embeddings=64, word_embed_proj_dim=32))
    ),
    "bloom": lambda: bloom(),
    "mpt": lambda: seeded(lambda: hf.MptForCausalLM(hf.MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=50))),
    "t5": lambda: seeded(
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, vocab_size=50)
        )
    ),
}  # fmt: skip


def bloom() -> Any:
    return seeded(lambda: hf.BloomForCausalLM(hf.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50)))


def gpt2() -> Any:
    return seeded(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, eos_token_id=2)))


def found(model: Any, dtype: torch.dtype = torch.float32) -> list[Finding]:
    return parity(Running(cast(model, dtype)), view(model))


def bugs(findings: list[Finding]) -> set[Any]:
    return {each.evidence["bug"] for each in findings if each.status == "fault"}


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SOUND)
def test_sound_models(name: str, dtype: torch.dtype) -> None:
    findings = found(SOUND[name](), dtype)
    assert [each.status for each in findings] == ["ok"]
    evidence = findings[0].evidence
    assert evidence["probe"] == "parity"
    assert "whole" in evidence["ways"]
    assert len(evidence["ways"]) + len(evidence["skipped"]) >= 7


def test_padding_moves_all_tokens_alike() -> None:
    (finding,) = found(rotary())
    assert finding.evidence["shifted"] == {"left-padded, the mask alone, then decoded": 5}


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_learned_table_and_a_mask_alone(dtype: torch.dtype) -> None:
    """transformers' GPT-2 counts padding unless it is given positions; `generate` gives them."""
    warning, ok = found(gpt2(), dtype)
    assert (warning.status, ok.status) == ("warning", "ok")
    assert warning.evidence["reference_behaviour"]
    assert warning.evidence["bug"] == "left-padding"
    assert any("generate" in way for way in ok.evidence["ways"])


def test_an_encoder_has_fewer_ways() -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40}
    model = seeded(lambda: hf.BertForMaskedLM(hf.BertConfig(**config, vocab_size=50, max_position_embeddings=64)))
    findings = found(model)
    assert not bugs(findings)
    assert "with a cache" in findings[-1].evidence["skipped"]


def _past(given: dict[str, Any]) -> int:
    cache = given.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


def _begin(start: Callable[[int], int]) -> Callable[[dict[str, Any]], None]:
    def change(given: dict[str, Any]) -> None:
        if past := _past(given):
            given["position_ids"] = start(past) + torch.arange(given["input_ids"].shape[1])[None]

    return change


@pytest.mark.parametrize(
    ("start", "dtype"), [(lambda past: 0, torch.float32), (lambda past: past + 1, torch.bfloat16)]
)
def test_positions_behind_a_cache(start: Callable[[int], int], dtype: torch.dtype) -> None:
    model = rotary("Qwen3", head_dim=8)
    around(model.model, _begin(start))
    (fault,) = found(model, dtype)
    assert fault.status == "fault"
    assert fault.evidence["bug"] == "cache-offset"
    assert fault.layers == (0, 1, 2)
    assert "in chunks of 7, 5, 8" in fault.evidence["ways"]
    seen, expected = fault.evidence["seen"]["queries"], fault.evidence["expected"]["queries"]
    assert expected == list(range(20))
    assert seen[1] == start(1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_turned_again_in_the_cache(dtype: torch.dtype) -> None:
    model = rotary("Mistral", sliding_window=None)

    def again(module: Any, given: Any, options: Any, out: Any) -> None:
        if out.past_key_values is None:
            return
        turn = hf.models.mistral.modeling_mistral.apply_rotary_pos_emb
        for layer in out.past_key_values.layers:
            new = layer.keys[..., -options["input_ids"].shape[1] :, :]
            at = torch.arange(layer.keys.shape[-2])[None, -new.shape[-2] :]
            new.copy_(turn(new, new, *module.rotary_emb(new, at))[1])

    model.model.register_forward_hook(again, with_kwargs=True)
    assert bugs(found(model, dtype)) == {"rotated-twice"}


def test_padding_counted_in_prefill_only() -> None:
    model = rotary()

    def change(given: dict[str, Any]) -> None:
        mask = given.get("attention_mask")
        if mask is not None and mask.ndim == 2 and not mask.all() and not _past(given):
            given["position_ids"] = torch.arange(mask.shape[1])[None]

    around(model.model, change)
    assert bugs(found(model)) == {"left-padding"}


def test_padding_on_the_right_that_moves_tokens() -> None:
    model = rotary()

    def change(given: dict[str, Any]) -> None:
        mask = given.get("attention_mask")
        if mask is not None and mask.ndim == 2 and not mask[:, -1].all():
            given["position_ids"] = torch.arange(mask.shape[1])[None] // 2

    around(model.model, change)
    (fault,) = found(model)
    assert (fault.status, fault.evidence["bug"]) == ("fault", "left-padding")
    assert fault.evidence["ways"] == ("batched, padded on the right",)


def test_content_that_changes_from_run_to_run_tells_nothing() -> None:
    model = rotary()
    model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda module, given, out: torch.randn_like(out))
    assert "cannot_tell" in {each.status for each in found(model)}
    assert not bugs(found(model))


@pytest.mark.parametrize("make", [gpt2, rotary], ids=["learned", "rotary"])
def test_positions_that_are_ignored(make: Callable[[], Any]) -> None:
    model = make()
    around(getattr(model, "transformer", None) or model.model, lambda given: given.pop("position_ids", None))
    assert bugs(found(model)) == {"left-padding"}


def test_a_bias_that_forgets_the_cache() -> None:
    model = bloom()
    build = model.transformer.build_alibi_tensor
    calls: list[int] = []

    def broken(mask: Any, heads: int, dtype: Any) -> Any:
        alibi = build(mask, heads, dtype)
        if calls:  # the first pass of a way is right
            alibi[..., -1] = alibi[..., 0]
        calls.append(mask.shape[-1])
        return alibi

    model.transformer.build_alibi_tensor = broken
    model.transformer.register_forward_pre_hook(
        lambda module, given, options: None if _past(options) else calls.clear(), with_kwargs=True
    )
    assert bugs(found(model)) == {"cache-offset"}


def test_what_is_no_number_stands_nowhere() -> None:
    model = rotary()
    model.model.rotary_emb.inv_freq.fill_(float("nan"))
    assert [each.status for each in found(model)] == ["cannot_tell"]


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_a_ruler_reads_positions(noise: float) -> None:
    dice = np.random.default_rng(0)
    content_HF = dice.normal(size=(2, 8)) + 1j * dice.normal(size=(2, 8))
    turned_SHF = content_HF * np.exp(1j * np.arange(30)[:, None, None] * 1e4 ** -(np.arange(8) / 8))
    known_SHR = np.concatenate([turned_SHF.real, turned_SHF.imag], axis=-1)
    ruler = Ruler(known_SHR, 2.0**-8)
    at = dice.permutation(30)[:12]
    seen = torch.as_tensor(known_SHR[at].transpose(1, 0, 2))[None] * (1 + noise * torch.randn(1, 2, 12, 16))
    read = ruler.reading(seen)
    assert read.best_BN[0].tolist() == at.tolist()
    assert read.fits(at[None]).all()
    assert not read.fits(at[None] + 1).any()
    assert (ruler.reading(3 * seen).at(at[None]) == NOWHERE).all()
    assert not ruler.still
    assert Ruler(known_SHR[:1].repeat(5, axis=0), 2.0**-8).still


def test_positions_that_look_alike_are_taken_as_expected() -> None:
    """Queries that only grow, and only every fourth token."""
    known_SHR = np.repeat(np.random.default_rng(1).normal(size=(5, 1, 6)), 4, axis=0)
    read = Ruler(known_SHR, 1e-7).reading(torch.as_tensor(known_SHR[3:9].transpose(1, 0, 2))[None])
    assert read.at(np.arange(3, 9)[None])[0].tolist() == [3, 4, 5, 6, 7, 8]
    assert read.fits(np.arange(7, 13)[None])[0].tolist() == [False] * 6
    assert read.fits(np.array([[30] * 6])).sum() == 0


def test_buckets_of_a_bias_are_taken_as_expected() -> None:
    offsets = np.arange(12)[:, None] - np.arange(12)
    table_HNM = np.stack([np.minimum(np.abs(offsets), 5) * slope for slope in (-1.0, -0.25)])
    ruler = BiasRuler.of(table_HNM, causal=True, eps=1e-7)
    row_HM = table_HNM[:, 11] - table_HNM[:, 11, 11:]
    assert ruler.read(row_HM, np.arange(11, -1, -1)).tolist() == list(range(11, -1, -1))
    assert ruler.read(row_HM[:, 9:10], np.array([3])).tolist() == [2]
    assert ruler.read(row_HM[:, 9:10] - 40, np.array([2])).tolist() == [ruler.none]


def _packing(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    """Fused attention that shows the query heads of one token as queries of their key head (transformers 5.23)."""
    groups, tokens = module.num_key_value_groups, query.shape[2]
    if tokens == 1:
        query = query.reshape(query.shape[0], key.shape[1], groups, query.shape[3])
    else:
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    causal = attention_mask is None and tokens > 1
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, is_causal=causal)
    return out.reshape(out.shape[0], -1, tokens, out.shape[-1]).transpose(1, 2).contiguous(), None


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Any:
    functions = hf.modeling_utils.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setitem(functions._global_mapping, "sdpa", _packing)
    return rotary()


def test_query_heads_that_are_packed(packing: Any) -> None:
    (finding,) = found(packing)
    assert (finding.status, "generate, left-padded" in finding.evidence["ways"]) == ("ok", True)


def test_a_layout_that_is_not_known_is_no_fault(packing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.live.watch._packs", lambda module, given: 1)
    findings = found(packing)
    assert not bugs(findings)
    (unclear,) = [each for each in findings if each.status == "cannot_tell"]
    assert "generate, left-padded" in unclear.evidence["ways"]
    assert "Error" not in unclear.explanation
