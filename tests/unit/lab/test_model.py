"""The model: what its structure promises, whatever its weights (theory-spectra, section 9)."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F

from tests.unit.lab.making import ENCODINGS, model, sentences
from toposcope.core.errors import BadValue
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.lab.quirks import Quirks

CONTENT = ("cope:positions=4", "pope")


def padded(ids: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths_B = torch.tensor(lengths)
    return ids * (torch.arange(ids.shape[1]) < lengths_B[:, None]), lengths_B


def test_a_model_without_position_is_blind_to_order() -> None:
    """Test 9: permuting the valid tokens changes nothing without position, and something with each encoding."""
    ids, lengths = padded(sentences(1), [7])
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4, 7, 8, 9])
    blind = model("none")
    torch.testing.assert_close(blind(ids, lengths), blind(ids[:, order], lengths), atol=1e-5, rtol=1e-5)
    for encoding in (*ENCODINGS[1:], *CONTENT):
        seeing = model(encoding, noise=0.5)
        assert (seeing(ids, lengths) - seeing(ids[:, order], lengths)).abs().max() > 1e-4, encoding


@pytest.mark.parametrize("reads", ["pooled", "token"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "t5", "alibi", "rope", "mla", "fire", *CONTENT])
def test_padding_changes_no_score(encoding: str, causal: bool, reads: str) -> None:
    """Test 10: the same sentences, alone and with padding behind them, whatever ids stand there."""
    made = model(encoding, causal=causal, reads=reads)
    ids, lengths = padded(sentences(3), [4, 6, 5])
    together = made(ids, lengths)
    rubbish = torch.where(ids == 0, 11, ids)
    for row, length in enumerate(lengths.tolist()):
        alone = made(ids[row : row + 1, :length])[0]
        for seen in (together[row], made(rubbish, lengths)[row]):
            torch.testing.assert_close(alone, seen if reads == "pooled" else seen[:length], atol=1e-5, rtol=1e-5)


def test_visible_padding_is_seen() -> None:
    made = model("none", quirks=Quirks(visible_padding=True))
    ids, lengths = padded(sentences(1), [6])
    assert (made(ids, lengths) - made(ids[:, :6], lengths)).abs().max() > 1e-3


def test_a_causal_model_does_not_see_the_future() -> None:
    for encoding in ("none", "rope", "t5", "mla", *CONTENT):
        made = model(encoding, causal=True, reads="token")
        ids = sentences(1)
        changed = ids.clone()
        changed[:, 6:] = 1 + changed[:, 6:] % 11
        torch.testing.assert_close(made(ids)[:, :6], made(changed)[:, :6], atol=1e-6, rtol=1e-6)
        assert (made(ids)[:, 6:] - made(changed)[:, 6:]).abs().max() > 1e-3


def by_hand(module, query, key, value, attention_mask, *, scaling, dropout=0.0, position_bias=None, **kwargs):  # type: ignore[no-untyped-def]
    """Attention in the plainest words, one head at a time."""
    groups, length = module.num_key_value_groups, query.shape[2]
    out = torch.zeros(query.shape[0], length, query.shape[1], value.shape[3])
    for head in range(query.shape[1]):
        logits = scaling * query[:, head] @ key[:, head // groups].mT
        if position_bias is not None:
            logits = logits + position_bias[:, head]
        if attention_mask is not None:
            logits = logits.masked_fill(~attention_mask[:, 0], -torch.inf)
        elif module.is_causal:
            logits = logits + torch.full((length, length), -torch.inf).triu(1)
        out[:, :, head] = logits.softmax(-1) @ value[:, head // groups]
    return out, None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ["none", "rope", "alibi", "t5", "mla", *CONTENT])
def test_the_fused_kernel_is_plain_attention(encoding: str, causal: bool) -> None:
    """And `attend` is a plain attribute: what is put in its place is called with all it needs."""
    options = {} if encoding == "mla" else {"kv_heads": 2}
    made = model(encoding, causal=causal, **options)
    ids, lengths = padded(sentences(3), [10, 6, 7])
    theirs = made(ids, lengths)
    for layer in made.layers:
        assert layer.attention.attend.__name__ == "sdpa"
        layer.attention.attend = by_hand
    torch.testing.assert_close(made(ids, lengths), theirs, atol=1e-5, rtol=1e-5)


def test_the_attention_module_shows_what_an_instrument_needs() -> None:
    made = model("rope", kv_heads=2, head_dim=6)
    for index, layer in enumerate(made.layers):
        attention = layer.attention
        assert (attention.layer_idx, attention.num_key_value_groups, attention.is_causal) == (index, 2, False)
        assert isinstance(attention.o_proj, torch.nn.Linear)
        assert attention.o_proj.in_features == 4 * 6
    seen = {}

    def watch(module, query, key, value, attention_mask, **kwargs):  # type: ignore[no-untyped-def]
        seen.update(kwargs, query=query.shape, key=key.shape, value=value.shape, mask=attention_mask)
        return by_hand(module, query, key, value, attention_mask, **kwargs)

    made.layers[0].attention.attend = watch
    made(sentences(3))
    assert (seen["query"], seen["key"], seen["value"]) == ((3, 4, 10, 6), (3, 2, 10, 6), (3, 2, 10, 6))
    assert seen["mask"] is None
    assert seen["position_bias"] is None
    assert seen["scaling"] == pytest.approx(6**-0.5)


def test_the_described_model_by_its_formula() -> None:
    """Section 6.1, written out once more with torch's own functions."""
    made = model("none", noise=0.0)
    ids, lengths = padded(sentences(2), [10, 6])
    for row, length in enumerate(lengths.tolist()):
        x = made.embed.weight[ids[row, :length]]
        for layer in made.layers:
            attention = layer.attention
            y = F.layer_norm(x, (16,), layer.attention_norm.weight, layer.attention_norm.bias)
            q, k, v = (
                (y @ w.weight.T).reshape(length, 4, 4).transpose(0, 1)
                for w in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            mixed = ((q @ k.mT / 2).softmax(-1) @ v).transpose(0, 1).reshape(length, 16)
            x = x + mixed @ attention.o_proj.weight.T
            y = F.layer_norm(x, (16,), layer.mlp_norm.weight, layer.mlp_norm.bias)
            x = x + layer.mlp[2](F.gelu(layer.mlp[0](y)))
        x = F.layer_norm(x, (16,), made.norm.weight, made.norm.bias)
        torch.testing.assert_close(made(ids, lengths)[row], made.head(x.mean(0)), atol=1e-5, rtol=1e-5)


def test_the_first_weights_are_as_described_and_depend_on_the_seed_alone() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = Transformer(ModelConfig(500, 5, 10, "t5"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    again = Transformer(ModelConfig(500, 5, 10, "t5"))
    other = Transformer(ModelConfig(500, 5, 10, "t5", seed=1))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.embed.weight, other.embed.weight)
    assert float(first.embed.weight.detach().std()) == pytest.approx(0.5, rel=0.02)
    up = first.layers[0].mlp[0]
    assert float(up.weight.detach().abs().max()) == pytest.approx((6 / (64 + 128)) ** 0.5, rel=0.01)
    assert not up.bias.any()


def test_mla_shares_its_rotary_key_and_scales_by_the_whole_query() -> None:
    made = model("mla")
    attention = made.layers[0].attention
    assert attention.scaling == pytest.approx((2 * 4) ** -0.5)
    q, k, v = attention.project(torch.randn(2, 5, 16))
    assert (q.shape, k.shape, v.shape) == ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 4))
    assert torch.equal(k[:, 0, :, 4:], k[:, 3, :, 4:])
    assert not torch.allclose(k[:, 0, :, :4], k[:, 3, :, :4])
    assert attention.q_a_proj.out_features == 8  # half the width


def test_dropout_acts_in_training_only() -> None:
    made = model("rope", dropout=0.5)
    ids = sentences()
    assert torch.equal(made(ids), made(ids))
    made.train()
    assert not torch.equal(made(ids), made(ids))


def test_raw_keys_and_values_do_not_see_depth() -> None:
    made = model("none", quirks=Quirks(raw_keys_values=True), layers=3)
    seen = []

    def watch(module, query, key, value, attention_mask, **kwargs):  # type: ignore[no-untyped-def]
        seen.append((query, key, value))
        return by_hand(module, query, key, value, attention_mask, **kwargs)

    made.layers[2].attention.attend = watch
    ids = sentences()
    made(ids)
    with torch.no_grad():
        made.layers[0].mlp[2].weight.add_(1.0)
    made(ids)
    (query, key, value), (other_query, other_key, other_value) = seen
    assert torch.equal(key, other_key)
    assert torch.equal(value, other_value)
    assert not torch.allclose(query, other_query)


def test_each_quirk_of_the_model_changes_its_scores_alone() -> None:
    ids, lengths = padded(sentences(2), [8, 6])
    for name, encoding in {
        "sinusoid_beside_rotary": "rope",
        "learned_beside_mla": "mla",
        "raw_keys_values": "rope",
        "visible_padding": "rope",
        "steep_alibi": "alibi",
        "relu_mlp": "rope",
        "no_final_norm": "rope",
        "mla_misread": "mla",
    }.items():
        plain = model(encoding, noise=0.0)
        changed = model(encoding, noise=0.0, quirks=Quirks(**{name: True}))
        changed.load_state_dict(plain.state_dict(), strict=False)
        assert (plain(ids, lengths) - changed(ids, lengths)).abs().max() > 1e-4, name
        other = "none"
        if encoding != "rope":  # a quirk of one encoding leaves the others alone
            left = model(other, noise=0.0, quirks=Quirks(**{name: True}))
            torch.testing.assert_close(model(other, noise=0.0)(ids, lengths), left(ids, lengths))


def test_mla_apart_is_spared_what_the_others_have() -> None:
    ids, lengths = padded(sentences(2), [8, 6])
    spared = Quirks(mla_apart=True, raw_keys_values=True, visible_padding=True, relu_mlp=True, no_final_norm=True)
    torch.testing.assert_close(
        model("mla", noise=0.0, quirks=spared)(ids, lengths), model("mla", noise=0.0)(ids, lengths)
    )
    assert all(getattr(Quirks.published(), each.name) for each in fields(Quirks))
    assert Quirks().names() == ()


def test_steep_slopes_are_those_of_the_scripts() -> None:
    made = model("alibi", quirks=Quirks(steep_alibi=True))
    slopes = -made.layers[0].attention.position.record().bias.by_offset([1])[:, 0]
    assert slopes == pytest.approx([1.0, 0.778801, 0.606531, 0.472367], abs=1e-6)  # e^0, e^-1/4, e^-2/4, e^-3/4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"heads": 3}, "3 heads"),
        ({"kv_heads": 3}, "3 key-value"),
        ({"kv_heads": 2, "encoding": "mla"}, "MLA"),
        ({"dropout": 1.0}, "dropout"),
        ({"layers": 0}, "layers"),
        ({"causal": True, "quirks": Quirks(raw_keys_values=True)}, "raw_keys_values"),
        ({"reads": "all"}, "'pooled'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        model(**changes)


def test_quirks_are_switched_by_name() -> None:
    assert Quirks().changed(["relu_mlp", "steep-alibi"]) == Quirks(relu_mlp=True, steep_alibi=True)
    assert not Quirks.published().changed(["-relu_mlp"]).relu_mlp
    with pytest.raises(BadValue, match="'relu_mlp'"):
        Quirks().changed(["relu_ml"])
