"""Another encoding on a running model, against the same model built with that encoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from tests.reference.tiny import BUILDERS, SIZES, build, inputs
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Sizes, make
from toposcope.models.content import ContentReader
from toposcope.models.instrument import attached
from toposcope.models.swap_encoding import swap_encoding

ROTARY = ["llama", "qwen3", "gemma", "gemma2", "gpt_neox", "deepseek_v3"]


def run(model: Any, name: str, **more: Any) -> Any:
    with torch.no_grad():
        return model(**inputs(name), **more).logits


@pytest.mark.parametrize("name", ROTARY)
def test_own_encoding_put_in_again(name: str) -> None:
    """Turning back and forth by the same tables changes nothing but the last digits."""
    model = build(name)
    with attached(model) as instrument:
        reader = ContentReader(instrument)
        own = reader.encoding(instrument.sites[0])
        with swap_encoding(model, own):
            inside = run(model, name)
    assert torch.allclose(inside, run(model, name), rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", [*ROTARY, "falcon", "gptj"])
def test_none_is_every_position_at_zero(name: str) -> None:
    model = build(name)
    zeros = torch.zeros(2, 17, dtype=torch.long)
    with swap_encoding(model, "none"):
        inside = run(model, name)
    assert torch.allclose(inside, run(model, name, position_ids=zeros), rtol=0, atol=3e-6)
    assert not torch.allclose(inside, run(model, name), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("written", "rope"),
    [
        ("rope:base=500", {"rope_type": "default", "rope_theta": 500.0}),
        ("rope:scaling=linear,factor=4", {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
        (
            "rope:scaling=yarn,factor=4",
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": SIZES["max_position_embeddings"],
            },
        ),
    ],
    ids=["base", "linear", "yarn"],
)
def test_another_rope_is_the_model_configured_so(written: str, rope: dict[str, Any]) -> None:
    model = build("llama")
    config = hf.LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=rope)
    twin = hf.LlamaForCausalLM(config).eval()
    twin.load_state_dict(model.state_dict())
    with swap_encoding(model, written):
        inside = run(model, "llama")
    assert torch.allclose(inside, run(twin, "llama"), rtol=0, atol=3e-6)
    assert not torch.allclose(inside, run(model, "llama"), rtol=0, atol=1e-4)


def test_a_scaling_keeps_the_models_own_base() -> None:
    config = hf.LlamaConfig(
        **SIZES, num_key_value_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 777.0}
    )
    with swap_encoding(hf.LlamaForCausalLM(config).eval(), "rope:scaling=linear,factor=2") as put_in:
        assert put_in.parameters["base"] == 777.0


@pytest.mark.parametrize("name", ["gpt2", "bert", "albert"])
def test_none_for_learned_positions_is_an_empty_table(name: str) -> None:
    model = build(name)
    with swap_encoding(model, "none"):
        inside = run(model, name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "wpe" in key or "position_embeddings" in key:
                parameter.zero_()
    assert torch.equal(inside, run(model, name))


def test_none_for_t5_is_a_bias_of_zero() -> None:
    model = build("t5", sharp=1.0)  # T5 does not scale its logits
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "relative_attention_bias" in key:
                parameter.normal_()
    with swap_encoding(model, "none"):
        inside = run(model, "t5")
    assert not torch.allclose(inside, run(model, "t5"), rtol=0, atol=1e-3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "relative_attention_bias" in key:
                parameter.zero_()
    assert torch.allclose(inside, run(model, "t5"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_none_for_alibi_hides_the_order_of_the_past(name: str) -> None:
    """Without ALiBi the last token of a one-layer causal model sees a set: any order of the others is the same."""
    torch.manual_seed(0)
    if name == "bloom":
        model = hf.BloomForCausalLM(
            hf.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=50, bos_token_id=None, eos_token_id=None)
        ).eval()
    else:
        model = hf.MptForCausalLM(hf.MptConfig(d_model=32, n_layers=1, n_heads=4, vocab_size=50)).eval()
    ids = torch.randint(3, 50, (1, 17))
    mixed = torch.cat([ids[:, :16].flip(1), ids[:, 16:]], dim=1)
    with torch.no_grad():
        assert not torch.allclose(model(ids).logits[:, -1], model(mixed).logits[:, -1], rtol=0, atol=1e-5)
        with swap_encoding(model, "none"):
            assert torch.allclose(model(ids).logits[:, -1], model(mixed).logits[:, -1], rtol=0, atol=1e-6)


def test_alibi_put_into_llama_is_alibis_table() -> None:
    """Against attention written out here, from the content and the registry's table."""
    model = build("llama")
    bias = make("alibi", Sizes(32, 4, 8, 64)).bias
    assert bias is not None
    table = torch.from_numpy(bias.table(range(17), range(17))).float()
    seen: list[Any] = []
    with attached(model) as instrument, swap_encoding(model, "alibi"):
        reader = ContentReader(instrument)

        def note(call: Any, output: Any) -> None:
            if call.site.number == 0:
                seen.append((reader.of_call(call, 0), output[0]))

        instrument.observers.append(note)
        run(model, "llama")
    content, output = seen[0]
    q, k, v = (torch.from_numpy(part).float() for part in (content.q_HNR, content.k_HMR, content.v_HMV))
    hidden = torch.full((17, 17), -torch.inf).triu(1)
    expected = torch.softmax(q @ k.transpose(1, 2) * content.scale + table + hidden, dim=-1) @ v
    assert torch.allclose(output.transpose(0, 1), expected, rtol=0, atol=1e-5)


def test_layers_and_heads_apart() -> None:
    """All heads of all layers, one by one in the same block, is the whole; one head changes that head alone."""
    model = build("llama")
    with swap_encoding(model, "none"):
        whole = run(model, "llama")
    with swap_encoding(model, "none", layers=[0, 1, 2]):
        assert torch.equal(run(model, "llama"), whole)
    with swap_encoding(model, "none", heads=[(layer, head) for layer in range(3) for head in range(4)]):
        assert torch.allclose(run(model, "llama"), whole, rtol=0, atol=1e-6)
    from toposcope.models.intervene import captured

    with captured(model) as plain:
        run(model, "llama")
        kept = [plain[layer].output_BNHV for layer in range(2)]
    with swap_encoding(model, "none", heads=[(1, 2)]), captured(model) as trace:
        run(model, "llama")
    assert torch.equal(trace[0].output_BNHV, kept[0])
    others = [0, 1, 3]
    assert torch.allclose(trace[1].output_BNHV[:, :, others], kept[1][:, :, others], rtol=0, atol=1e-6)
    assert not torch.allclose(trace[1].output_BNHV[:, :, 2], kept[1][:, :, 2], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", list(BUILDERS))
def test_after_the_block_the_model_is_as_before(name: str) -> None:
    model = build(name)
    before = run(model, name)
    with swap_encoding(model, "none"):
        run(model, name)
    assert torch.equal(run(model, name), before)


def test_what_cannot_be_put_in_is_said() -> None:
    with pytest.raises(BadEncoding, match=r"'cope' .*trained"), swap_encoding(build("llama"), "cope"):
        pass
    with pytest.raises(BadValue, match="every layer"), swap_encoding(build("gpt2"), "none", layers=[0]):
        pass
    with pytest.raises(BadValue, match="every layer"), swap_encoding(build("llama"), "sinusoidal", layers=[0]):
        pass
    with pytest.raises(BadEncoding, match="only 'none'"), swap_encoding(build("bloom"), "rope"):
        pass
    with pytest.raises(BadValue, match=r"0\.9"), swap_encoding(build("llama"), "none", heads=[(0, 9)]):
        pass
    with pytest.raises(BadEncoding, match="'rope'"), swap_encoding(build("llama"), "rop"):
        pass


@pytest.mark.parametrize("none", [False, True])
def test_encodings_beside_sinks(none: bool) -> None:
    """gpt-oss has one more logit in each head's softmax, that no key has."""
    config = hf.GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=2, num_local_experts=2, num_experts_per_tok=1, sliding_window=8, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    torch.manual_seed(1)
    model = hf.GptOssForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn(each.shape) * 0.3)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        with attached(model) as instrument:
            own = ContentReader(instrument).encoding(instrument.sites[0])
            with swap_encoding(model, "none" if none else own):
                inside = model(ids).logits
        still = {"position_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}
        expected = model(ids, **still).logits if none else model(ids).logits
    assert torch.allclose(inside, expected, rtol=0, atol=1e-4)
