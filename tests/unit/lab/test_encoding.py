"""The torch side of every encoding against its record, and against the formulas of those that have no tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.lab.making import ENCODINGS, model, sentences
from toposcope.checkpoints.families.lab import Acting
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Sizes, alibi, parse, rope, t5_init
from toposcope.lab.encoding import LayerEncoding, RotaryPart, T5Bias, completed
from toposcope.lab.model import SelfAttention


def torch_logits(attention: SelfAttention, q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    bias = attention.position.bias(q, k, attention.scaling)
    q, k = attention.position.turn(q, k)
    logits = attention.scaling * q @ k.repeat_interleave(attention.num_key_value_groups, 1).mT
    return (logits if bias is None else logits + bias).detach().numpy()


def record_logits(attention: SelfAttention, q_HNR: np.ndarray, k_HNR: np.ndarray) -> np.ndarray:
    record = attention.position.record()
    at = np.arange(q_HNR.shape[1])
    if record.rotary is not None:
        q_HNR = record.rotary.rotate(q_HNR, at, side="query", context=len(at))
        k_HNR = record.rotary.rotate(k_HNR, at, side="key", context=len(at))
    logits = attention.scaling * q_HNR @ k_HNR.swapaxes(1, 2)
    return logits if record.bias is None else logits + record.bias.table(at, at)


def drawn(attention: SelfAttention, length: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (1, attention.heads, length, attention.head_dim)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_logits_are_those_of_the_record_with_the_trained_parameters(encoding: str, causal: bool) -> None:
    made = model(encoding, causal=causal).double()
    for layer in made.layers:
        q, k = drawn(layer.attention, 10)
        ours = torch_logits(layer.attention, q, k)[0]
        theirs = record_logits(layer.attention, q[0].numpy(), k[0].numpy())
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5", "xpos:scale_base=8", "kerple", "sinusoidal", "pope"])
def test_longer_texts_extend_the_tables(encoding: str) -> None:
    short, long = model(encoding, causal=True), model(encoding, causal=True, length=25)
    long.load_state_dict(short.state_dict())
    ids = sentences(length=25)
    if encoding == "t5":  # whose farthest bucket lies by the length it was made for
        long.layers[0].attention.position.parts[0].bucket_of = short.layers[0].attention.position.parts[0].bucket_of
        long.layers[1].attention.position.parts[0].bucket_of = short.layers[1].attention.position.parts[0].bucket_of
    torch.testing.assert_close(short(ids), long(ids), atol=1e-6, rtol=1e-6)


def test_a_learned_table_says_how_long_it_is() -> None:
    with pytest.raises(BadValue, match="to 9"):
        model("learned")(sentences(length=11))


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "random"])
def test_what_is_added_to_the_input_is_the_record(encoding: str) -> None:
    made = model(encoding)
    theirs = made.position.record().input.vectors(np.arange(7))
    np.testing.assert_allclose(made.position(7).detach().numpy(), theirs, atol=1e-6)
    fresh = model(encoding, noise=0.0, width=256, length=64)
    assert float(fresh.position(64).detach().square().mean().sqrt()) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("encoding", ["t5", "kerple", "fire:threshold=4", "learned"])
def test_learned_parts_start_as_the_registry_says_and_learn(encoding: str) -> None:
    made = model(encoding, noise=0.0)
    part = made.position if encoding == "learned" else made.layers[0].attention.position.parts[0]
    acting = made.config.added if encoding == "learned" else made.config.acting(0)[0].spec
    first, at = acting.build(made.config.sizes), np.arange(10)
    now = part.record() if encoding == "learned" else made.layers[0].attention.position.record()
    if encoding == "learned":
        np.testing.assert_allclose(now.input.vectors(at), first.input.vectors(at), atol=1e-6)
    else:
        np.testing.assert_allclose(now.bias.table(at, at), first.bias.table(at, at), atol=1e-6)
    made(sentences()).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in part.parameters())


def test_layers_draw_different_tables_and_seeds_differ() -> None:
    first, second = (layer.attention.position.parts[0].table for layer in model("t5", noise=0.0).layers)
    other = model("t5", noise=0.0, seed=1).layers[0].attention.position.parts[0].table
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def cope_by_hand(q: np.ndarray, k: np.ndarray, tables: np.ndarray, scale: float, causal: bool) -> np.ndarray:
    """One head: walk from i towards j, adding up gates, and interpolate the table at the sum."""
    length, last = len(q), tables.shape[1] - 1
    logits = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            between = range(j, i + 1) if j <= i else range(i, j + 1)
            position = min(sum(1 / (1 + math.exp(-scale * q[i] @ k[m])) for m in between), last)
            low, share = math.floor(position), position - math.floor(position)
            table = tables[0 if causal or j <= i else 1]
            vector = (1 - share) * table[low] + share * table[min(low + 1, last)]
            logits[i, j] = scale * q[i] @ (k[j] + vector)
    return np.tril(logits) if causal else logits


@pytest.mark.parametrize("causal", [False, True])
def test_cope_is_its_definition(causal: bool) -> None:
    attention = model("cope:positions=4", causal=causal).double().layers[0].attention
    q, k = drawn(attention, 7)
    ours = torch_logits(attention, q, k)[0]
    tables = attention.position.parts[0].table.detach().numpy()
    for head in range(4):
        theirs = cope_by_hand(q[0, head].numpy(), k[0, head].numpy(), tables, attention.scaling, causal)
        np.testing.assert_allclose(np.tril(ours[head]) if causal else ours[head], theirs, atol=1e-10)


def test_pope_is_its_definition() -> None:
    attention = model("pope:base=100").double().layers[0].attention
    q, k = drawn(attention, 7)
    ours = torch_logits(attention, q, k)[0]
    frequency = 100.0 ** -(np.arange(4) / 4)
    phase = attention.position.parts[0].phase.detach().numpy()
    softplus = np.logaddexp(0, q[0].numpy()), np.logaddexp(0, k[0].numpy())
    for head in range(4):
        for i in range(7):
            for j in range(7):
                angle = frequency * (i - j) + phase[head, 0]
                theirs = 0.5 * (softplus[0][head, i] * softplus[1][head, j] * np.cos(angle)).sum()
                assert ours[head, i, j] == pytest.approx(theirs, abs=1e-6)


def test_the_misread_rotary_is_no_rotation() -> None:
    from toposcope.lab.quirks import Quirks

    misread = model("mla", quirks=Quirks(mla_misread=True)).double().layers[0].attention
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, 1, 8, generator=generator, dtype=torch.float64).expand(-1, -1, 6, -1) for _ in range(2))
    logits = torch_logits(misread, q, k)[0]
    right = torch_logits(model("mla").double().layers[0].attention, q, k)[0]
    for head in range(4):  # constant content: a rotation's logits depend on i - j only
        assert np.ptp(np.diagonal(right[head])) < 1e-6
        assert np.ptp(np.diagonal(logits[head])) > 1e-3
    # sin w_0 and sin w_1 stand where sine and cosine of the first pair belong
    w = 10000.0 ** -(np.arange(2) / 2)
    table = misread.position.parts[0].query.numpy()
    np.testing.assert_allclose(table[5, 0], [np.sin(5 * w[1]), np.sin(5 * w[0])], atol=1e-6)
    np.testing.assert_allclose(table[5, 1], [np.cos(5 * w[1]), np.cos(5 * w[0])], atol=1e-6)


def test_the_labs_defaults_yield_to_what_is_given() -> None:
    sizes = model().config.sizes
    assert str(completed(parse("rope"), sizes, seed=0)) == "rope:pairing=interleaved"
    assert str(completed(parse("rope:pairing=half"), sizes, seed=0)) == "rope:pairing=half"
    assert completed(parse("t5"), sizes, seed=5).parameters == {"max_distance": 32, "seed": 5}
    assert completed(parse("learned:std=0.1"), sizes, seed=5).parameters["std"] == 0.1


def test_parts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(BadEncoding, match="same way"):
        model("rope@heads:0,xpos")
    with pytest.raises(BadEncoding, match="cannot mix"):
        model("mla@layers:0,rope@layers:1")
    with pytest.raises(BadEncoding, match="pairs"):
        model("rope", head_dim=3)


def test_what_is_left_open_is_filled_in_and_what_is_given_stays() -> None:
    sizes = Sizes(16, 4, 4, 10)

    def filled(written: str, **more: Any) -> dict[str, Any]:
        return dict(completed(parse(written), sizes, seed=7, **more).parameters)

    assert filled("mla", latent=(6, 2)) == {"nope_dim": 6, "rope_dim": 2}
    assert filled("mla:nope_dim=3,rope_dim=4", latent=(6, 2)) == {"nope_dim": 3, "rope_dim": 4}
    assert filled("rope") == {"pairing": "interleaved"}
    assert filled("rope:pairing=half") == {"pairing": "half"}
    assert filled("fire") == filled("fire:seed=7") == {"seed": 7}
    assert filled("t5") == {"max_distance": 32, "seed": 7}  # as many buckets as the text is long, and more
    assert filled("t5:buckets=4") == {"buckets": 4, "max_distance": 10, "seed": 7}


def test_which_heads_take_part_is_not_among_the_weights() -> None:
    assert not [name for name in model("t5@heads:1-2").state_dict() if "chosen" in name]


# --- parts by themselves --------------------------------------------------------------------------------------------


def part(written: str, *, heads: int = 4, kv_heads: int = 4, context: int = 10, causal: bool = False) -> Any:
    """The torch side of an encoding on heads of width 8."""
    sizes = Sizes(8 * heads, heads, 8, context, causal=causal)
    return LayerEncoding([Acting(parse(written), None)], sizes, kv_heads)


@pytest.mark.parametrize(
    ("written", "alike"),
    [
        ("rope:pairing=interleaved", True),
        ("rope:pairing=half", False),
        ("rope-partial:pairing=interleaved", False),
        ("rope-partial:pairing=interleaved,heads=2", False),
        ("xpos:scale_base=8,pairing=interleaved", False),
        ("alibi", False),
    ],
)
def test_whether_all_channels_turn_alike(written: str, alike: bool) -> None:
    assert part(written).alike is alike


def test_rows_are_turned_as_heads_are_with_their_gradients() -> None:
    """Queries and keys of all heads side by side, then other channels that stay as they are."""
    position = part("rope:pairing=interleaved", heads=3, kv_heads=3)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 7, 6 * 8 + 4, generator=generator, requires_grad=True)
    weight = torch.randn(rows.shape, generator=generator)
    at = torch.randint(0, 10, (2, 7), generator=generator)
    for places in (None, at):
        turned = position.turn_rows(rows, 6, places)
        heads = rows[..., :48].unflatten(-1, (6, 8)).transpose(1, 2)
        both = torch.cat(position.turn(heads[:, :3], heads[:, 3:], places), dim=1)
        expected = torch.cat([both.transpose(1, 2).flatten(-2), rows[..., 48:]], dim=-1)
        torch.testing.assert_close(turned, expected)
        found = torch.autograd.grad((turned * weight).sum(), rows)[0]
        torch.testing.assert_close(found, torch.autograd.grad((expected * weight).sum(), rows)[0])
        assert turned is not rows


@pytest.mark.parametrize("written", ["rope:pairing=half", "rope:pairing=interleaved", "pope"])
def test_given_places_are_those_of_the_tokens(written: str) -> None:
    position = part(written)
    x = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(1))
    at = torch.tensor([[0, 1, 2, 0, 1, 2], [5, 3, 9, 0, 0, 7]])
    whole = position.turn(x.new_ones(2, 4, 10, 8), x.new_ones(2, 4, 10, 8))
    ones = position.turn(torch.ones_like(x), torch.ones_like(x), at)
    for table, found in zip(whole, ones, strict=True):
        for row in range(2):
            torch.testing.assert_close(found[row], table[row][:, at[row]])


def test_a_rotation_that_depends_on_length_follows_the_text() -> None:
    """Dynamic scaling: the factors are those of the record for as many tokens as there are, now more, now fewer."""
    written = "rope:scaling=dynamic,factor=2,original_context=5,pairing=interleaved"
    position = part(written)
    rotary = parse(written).build(Sizes(32, 4, 8, 10)).rotary
    assert rotary is not None
    turning = position.parts[0]
    assert turning.by_length
    for length in (10, 30, 6, 6, 12):
        x = torch.randn(1, 4, length, 8, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
        ours = position.turn(x, x)[0][0].numpy()
        theirs = rotary.rotate(x[0].numpy(), np.arange(length), side="query", context=length)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    at = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0]])  # packed sentences: the longest has eight tokens
    x = torch.randn(1, 4, 12, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ours = position.turn(x, x, at)[1][0].numpy()
    np.testing.assert_allclose(ours, rotary.rotate(x[0].numpy(), at[0].numpy(), side="key", context=8), atol=1e-5)
    fixed = part("rope:pairing=interleaved").parts[0]
    table = fixed.query
    fixed.factors("query", 4)
    fixed.factors("query", 10)
    assert fixed.query is table  # as long as it lasts
    fixed.factors("query", 11)
    assert len(fixed.query) == len(fixed.key) == 11


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_channels_before_and_after_the_turning_ones_stay(pairing: str) -> None:
    rotary = rope(8, rotary_dim=4, base=50.0, pairing=pairing).rotary
    assert rotary is not None
    turning = RotaryPart(rotary, 10, 4, 4)
    wide = torch.randn(2, 4, 6, 9, generator=torch.Generator().manual_seed(4))
    for x in (wide[..., :8], wide[..., 1:]):  # also at odd places in memory
        found = turning.turn(x, "query")
        np.testing.assert_allclose(found.numpy(), rotary.rotate(x.numpy(), np.arange(6), side="query"), atol=1e-5)
    assert (turning.start, turning.stop) == (0, 4)


def test_heads_that_share_a_key_turn_together() -> None:
    rotary = rope(8, turning_heads=2).rotary
    assert rotary is not None
    assert RotaryPart(rotary, 10, 4, 2).turning == {"query": 2, "key": 1}
    assert RotaryPart(rotary, 10, 4, 4).turning == {"query": 2, "key": 2}
    with pytest.raises(BadEncoding, match="4 share"):
        RotaryPart(rotary, 10, 4, 1)
    x, k = torch.ones(1, 4, 5, 8), torch.ones(1, 2, 5, 8)
    found = RotaryPart(rotary, 10, 4, 2)
    q, k = found.turn(x, "query"), found.turn(k, "key")
    assert [bool((q[0, h] == 1).all()) for h in range(4)] == [False, False, True, True]
    assert [bool((k[0, g] == 1).all()) for g in range(2)] == [False, True]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("buckets", [6, 32])
@pytest.mark.parametrize("max_distance", [8, 40])
def test_the_buckets_of_t5_start_as_the_record_has_them(max_distance: int, buckets: int, causal: bool) -> None:
    """At all offsets, far beyond the last bucket too."""
    if max_distance < buckets:
        max_distance = buckets
    record = t5_init(3, bidirectional=not causal, buckets=buckets, max_distance=max_distance, seed=5)
    made = T5Bias(record, None)
    assert made.table.shape == (buckets, 3)
    length = 2 * max_distance + 20
    found = made.values(length).detach().numpy()
    assert record.bias is not None
    at = np.arange(length)
    table = record.bias.table(at, at)
    np.testing.assert_allclose(found, table, atol=1e-6)
    assert made.values(length).shape == (3, length, length)
    assert set(made.buckets) == {length}


@pytest.mark.parametrize(
    "written", ["kerple", "kerple:kernel=power,r2=1.3", "fire:threshold=4,c=0.3", "t5:buckets=8"]
)
@pytest.mark.parametrize("causal", [False, True])
def test_learned_biases_are_those_of_their_record_at_any_length(written: str, causal: bool) -> None:
    made = part(written, causal=causal)
    at = np.arange(23)
    record = made.record()
    assert record.bias is not None
    q = torch.zeros(1, 4, 23, 8)
    found = made.bias(q, q, 1.0)
    assert found is not None
    seen = np.tril(np.ones((23, 23))) if causal else np.ones((23, 23))
    np.testing.assert_allclose(found[0].detach().numpy() * seen, record.bias.table(at, at) * seen, atol=2e-5)


def test_kerple_is_its_formula_and_its_powers_stay_between_zero_and_two() -> None:
    for kernel in ("log", "power"):
        for r2 in (0.0002, 0.3, 1.9999):
            made = LayerEncoding(
                [Acting(parse(f"kerple:kernel={kernel},r1=1.5,r2={r2}"), None)], Sizes(8, 2, 4, 6), 2
            )
            distance = np.abs(np.subtract.outer(np.arange(6), np.arange(6))).astype(float)
            power = min(max(r2, 0.002), 1.998)
            expected = -1.5 * (np.log1p(r2 * distance) if kernel == "log" else distance**power)
            found = made.parts[0].values(6).detach().numpy()
            np.testing.assert_allclose(found, np.broadcast_to(expected, (2, 6, 6)), rtol=1e-4)


def test_heads_that_are_not_chosen_get_no_bias() -> None:
    for written in ("t5", "kerple", "fire:threshold=4"):
        made = LayerEncoding([Acting(parse(written), (1, 3))], Sizes(16, 4, 4, 6), 4)
        found = made.bias(torch.zeros(1, 4, 6, 4), torch.zeros(1, 4, 6, 4), 1.0)
        assert found is not None
        assert found.shape == (1, 4, 6, 6)
        assert [bool(found[0, h].abs().sum() > 0) for h in range(4)] == [False, True, False, True]


def test_fixed_tables_grow_with_the_text_and_keep_their_kind() -> None:
    made = part("alibi").double()
    record = alibi(4).bias
    assert record is not None
    for length in (4, 10, 11, 25, 7):
        at = np.arange(length)
        q = torch.zeros(1, 4, length, 8, dtype=torch.float64)
        found = made.bias(q, q, 1.0)
        assert found is not None
        assert found.dtype == torch.float64
        np.testing.assert_allclose(found[0].numpy(), record.table(at, at), atol=1e-5)
    assert len(made.parts[0].table_HNN[0]) == 25


def test_biases_of_several_parts_add_up() -> None:
    made, q = part("t5"), torch.zeros(1, 4, 6, 8)
    other = part("kerple")
    made.biased = [*made.biased, *other.biased]
    torch.testing.assert_close(made.bias(q, q, 1.0), part("t5").bias(q, q, 1.0) + other.bias(q, q, 1.0))
    assert part("rope").bias(q, q, 1.0) is None


def test_fire_is_its_network_of_log_distances() -> None:
    for causal in (False, True):
        made = part("fire:threshold=4,c=0.3,hidden=3", causal=causal).parts[0]
        weights = {name: value.detach().double().numpy() for name, value in made.named_parameters()}
        found = made.values(9).detach().numpy()
        for i in range(9):
            for j in range(i + 1 if causal else 9):
                reach = max(i if causal else max(i, j), 4.0)
                ratio = np.log1p(0.3 * abs(i - j)) / np.log1p(0.3 * reach)
                hidden = np.maximum(ratio * weights["hidden_weight"] + weights["hidden_bias"], 0)
                expected = weights["output_weight"] @ hidden + weights["output_bias"]
                np.testing.assert_allclose(found[:, i, j], expected, rtol=1e-4, atol=1e-6)


def test_each_part_turns_or_adds_a_bias() -> None:
    assert (len(part("pope").turning), len(part("pope").biased)) == (1, 0)
    assert (len(part("alibi").turning), len(part("alibi").biased)) == (0, 1)
    assert (len(part("rope").turning), len(part("rope").biased)) == (1, 0)
    assert (len(part("cope").turning), len(part("cope").biased)) == (0, 1)


@pytest.mark.parametrize("encoding", [*ENCODINGS, "cope:positions=4", "pope"])
def test_only_what_is_learned_is_stored(encoding: str) -> None:
    """Tables are made anew from the configuration, at any length, and are no part of the weights."""
    made = model(encoding)
    assert set(made.state_dict()) == {name for name, _ in made.named_parameters()}


def test_rows_are_turned_at_once_only_where_nothing_else_acts() -> None:
    sizes = Sizes(32, 4, 8, 10)
    turn = Acting(parse("rope:pairing=interleaved"), None)
    assert LayerEncoding([turn], sizes, 4).alike
    assert not LayerEncoding([turn, Acting(parse("alibi"), None)], sizes, 4).alike
    assert not LayerEncoding([], sizes, 4).alike
    latent = LayerEncoding([Acting(parse("mla:nope_dim=4,rope_dim=4"), None)], sizes, 4)
    assert type(latent.parts[0]) is RotaryPart
