"""The torch side of every encoding against its record, and against the formulas of those that have no tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.lab.making import ENCODINGS, model, sentences
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Sizes, parse
from toposcope.lab.encoding import completed
from toposcope.lab.model import Attention


def torch_logits(attention: Attention, q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    bias = attention.position.bias(q, k, attention.scaling)
    q, k = attention.position.turn(q, k)
    logits = attention.scaling * q @ k.repeat_interleave(attention.num_key_value_groups, 1).mT
    return (logits if bias is None else logits + bias).detach().numpy()


def record_logits(attention: Attention, q_HNR: np.ndarray, k_HNR: np.ndarray) -> np.ndarray:
    record = attention.position.record()
    at = np.arange(q_HNR.shape[1])
    if record.rotary is not None:
        q_HNR = record.rotary.rotate(q_HNR, at, side="query", context=len(at))
        k_HNR = record.rotary.rotate(k_HNR, at, side="key", context=len(at))
    logits = attention.scaling * q_HNR @ k_HNR.swapaxes(1, 2)
    return logits if record.bias is None else logits + record.bias.table(at, at)


def drawn(attention: Attention, length: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
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
    with pytest.raises(BadValue, match="positions 0 to 9"):
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
    with pytest.raises(BadEncoding, match="act in the same way"):
        model("rope@heads:0,xpos")
    with pytest.raises(BadEncoding, match="cannot mix"):
        model("mla@layers:0,rope@layers:1")
    with pytest.raises(BadEncoding, match="cannot form pairs"):
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
