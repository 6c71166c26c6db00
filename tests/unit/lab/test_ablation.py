"""Heads removed one at a time: against the model with that head's weights at zero, and with planted truths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.lab.making import model
from toposcope.lab.ablation import ablation_map, scores
from toposcope.lab.batches import accuracy
from toposcope.lab.model import Transformer
from toposcope.lab.quirks import Quirks
from toposcope.lab.result import AblationMap
from toposcope.lab.tasks import NOTHING_ASKED, Batch

FLOOR = 0.05
CASES = {
    "rope": {"encoding": "rope"},
    "grouped": {"encoding": "alibi", "kv_heads": 2},
    "mla": {"encoding": "mla"},
    "token": {"encoding": "t5", "reads": "token"},
    "causal": {"encoding": "sinusoidal", "causal": True},
    "raw": {"encoding": "rope", "quirks": Quirks(raw_keys_values=True, visible_padding=True)},
}


def batch(made: Transformer, count: int = 200) -> Batch:
    """Sentences, labelled by the model itself except for some that it gets wrong."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.randint(3, 11, (count,), generator=generator)
    inside = torch.arange(10) < lengths[:, None]
    ids = torch.randint(1, 12, (count, 10), generator=generator) * inside
    with torch.no_grad():
        labels = made(ids, lengths).argmax(-1)
    wrong = torch.rand(labels.shape, generator=generator) < 0.2
    labels = torch.where(wrong, (labels + 1) % 5, labels)
    return Batch(ids, lengths, labels if labels.ndim == 1 else labels.masked_fill(~inside, NOTHING_ASKED))


def copied(made: Transformer) -> Transformer:
    other = Transformer(made.config).eval()
    other.load_state_dict(made.state_dict())
    return other


def without(made: Transformer, removed: list[tuple[int, int]]) -> Transformer:
    """A copy whose output projections are zero at some heads."""
    other = copied(made)
    for layer, head in removed:
        width = other.config.value_dim
        with torch.no_grad():
            other.layers[layer].attention.o_proj.weight[:, head * width : (head + 1) * width] = 0
    return other


@pytest.mark.parametrize("case", CASES)
def test_a_removed_head_is_one_whose_output_weights_are_zero(case: str) -> None:
    made = model(**CASES[case])
    data = batch(made)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    found = ablation_map(made, data, FLOOR, draws=50)
    for layer in range(2):
        theirs = [accuracy(without(made, [(layer, head)]), data)[0] for head in range(4)]
        assert found.zero[layer].accuracy == pytest.approx(theirs, abs=1e-9)
        assert len(set(theirs)) > 1  # heads differ, so that a wrong one would show
    assert found.base == pytest.approx(accuracy(made, data)[0], abs=1e-9) == pytest.approx(0.8, abs=0.08)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert not made.training


def test_the_mean_is_that_of_the_real_tokens() -> None:
    made = model("rope")
    data = batch(made)
    attention = made.layers[0].attention
    seen: list[torch.Tensor] = []
    hook = attention.o_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        made(data.ids_BN, data.lengths_B)
    hook.remove()
    mean = seen[0][data.ids_BN > 0].mean(0).unflatten(0, (4, -1))
    found = ablation_map(made, data, FLOOR, draws=50)
    for head in range(4):

        def swap(_: object, given: tuple[torch.Tensor], head: int = head) -> tuple[torch.Tensor]:
            changed = given[0].clone().unflatten(-1, (4, -1))
            changed[:, :, head] = mean[head]
            return (changed.flatten(2),)

        hook = attention.o_proj.register_forward_pre_hook(swap)
        assert found.mean[0].accuracy[head] == pytest.approx(accuracy(made, data)[0], abs=1e-9)
        hook.remove()
    assert found.mean[0].accuracy != found.zero[0].accuracy


@pytest.mark.parametrize("case", CASES)
def test_gates_of_one_are_the_model_itself(case: str) -> None:
    made = model(**CASES[case])
    data = batch(made)
    instead = torch.randn(4, made.config.value_dim)
    found = [scores(made, data, layer, torch.ones(1, 4), instead) for layer in (0, 1)]
    assert np.array_equal(found[0], found[1])
    assert found[0].mean() == pytest.approx(accuracy(made, data)[0], abs=1e-12)


def test_permuting_heads_permutes_the_map() -> None:
    made = model("none")
    order = [2, 0, 3, 1]
    other = copied(made)
    attention = other.layers[0].attention
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(attention, name)
            linear.weight.copy_(linear.weight.unflatten(0, (4, -1))[order].flatten(0, 1))
        attention.o_proj.weight.copy_(attention.o_proj.weight.unflatten(1, (4, -1))[:, order].flatten(1))
    data = batch(made)
    ours, theirs = (ablation_map(each, data, FLOOR, draws=50) for each in (made, other))
    assert theirs.zero[0].accuracy == pytest.approx([ours.zero[0].accuracy[head] for head in order], abs=1e-9)
    assert theirs.zero[1].accuracy == pytest.approx(ours.zero[1].accuracy, abs=1e-9)


def test_the_top_heads_of_all_layers_are_removed_together() -> None:
    made = model("rope")
    data = batch(made)
    joint = ablation_map(made, data, FLOOR, draws=50).joint
    assert joint is not None
    assert [layer for layer, _ in joint.heads] == [0, 1]
    assert joint.accuracy == pytest.approx(accuracy(without(made, list(joint.heads)), data)[0], abs=1e-9)
    for (layer, head), alone in zip(joint.heads, joint.alone, strict=True):
        assert alone == pytest.approx(accuracy(without(made, [(layer, head)]), data)[0], abs=1e-9)


def planted(carries: list[int]) -> tuple[AblationMap, Transformer]:
    """A model whose attention is silent but for some heads of layer 0, and which is right as long as it has them."""
    made = model("none")
    with torch.no_grad():
        for number, layer in enumerate(made.layers):
            silent = [head for head in range(4) if number or head not in carries]
            layer.attention.o_proj.weight.unflatten(1, (4, -1))[:, silent] = 0
    data = batch(made, 600)
    with torch.no_grad():
        data = replace(data, labels=made(data.ids_BN, data.lengths_B).argmax(-1))
    return ablation_map(made, data, FLOOR, draws=200), made


def test_a_planted_deposit_is_found() -> None:
    found, _ = planted([2])
    layer = found.zero[0]
    assert found.base == 1.0
    assert layer.head == 2
    assert layer.same_head == 1.0
    assert layer.share == 1.0
    assert layer.di == pytest.approx((1 - found.zero[0].accuracy[2]) / (1 - FLOOR))
    assert found.zero[1].di == 0.0  # no head of a silent layer matters
    assert found.joint is None


def test_the_map_as_data_has_one_row_per_layer() -> None:
    found, _ = planted([1])
    assert (found.sentences, found.draws, found.level) == (600, 200, 0.95)
    assert [row.layer for row in found.zero] == [row.layer for row in found.mean] == [0, 1]
    first = found.zero[0]
    assert len(first.accuracy) == 4
    assert first.head == 1
    assert first.interval is not None
    assert first.di is not None
    assert first.interval.low <= first.di <= first.interval.high


def test_without_skill_the_index_is_undefined() -> None:
    made = model("rope")
    data = batch(made)
    found = ablation_map(made, data, accuracy(made, data)[0] - 0.05, draws=50)
    assert found.zero[0].di is None
