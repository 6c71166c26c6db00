"""Tokens through depth, on tiny models whose numbers can be had another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import toposcope
from tests.unit.models.making import TEXT, write_bert, write_llama
from toposcope.dynamics.layers import layer_dynamics
from toposcope.models.corpus import cut
from toposcope.models.load import load_reference
from toposcope.models.tracing.depth import (
    correlations,
    dispersion_rate,
    layer_indices,
    radial_rate,
    step,
    through_depth,
)
from toposcope.models.tracing.hidden import attention_branch, hidden_states

pytest.importorskip("torch", reason="hidden states need torch: pip install torch")
pytest.importorskip("transformers", reason="hidden states need transformers: pip install transformers")


def test_rates_are_derivatives() -> None:
    random = np.random.default_rng(0)
    x, a = random.standard_normal((2, 9, 6))
    h = 1e-6
    grown = step(x, x + h * a)
    assert radial_rate(x, a) == pytest.approx(grown.norm_growth / h, rel=1e-4)
    assert dispersion_rate(x, a) == pytest.approx(2 * grown.dispersion_growth / h, rel=1e-4)
    assert step(x, x).norm_growth == step(x, x).rank_change == step(x, x).cosine_change == 0
    assert step(x, 3 * x).norm_growth == pytest.approx(np.log(3))
    assert radial_rate(x, 2 * x) == pytest.approx(2)
    assert dispersion_rate(x, -x) == pytest.approx(-2)
    assert dispersion_rate(x[:1], a[:1]) is None
    assert step(x[:1], a[:1]).cosine_change is None


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_layers_of_a_text(tmp_path: Path, family: str) -> None:
    (write_llama if family == "llama" else write_bert)(tmp_path / "model")
    reference = load_reference(tmp_path / "model")
    hidden = hidden_states(reference.model, cut(reference, TEXT, tokens=12))
    ticks: list[tuple[str, int, int]] = []
    with toposcope.load(tmp_path / "model") as model:
        found = through_depth(model, hidden, progress=lambda *told: ticks.append(told))
        assert ticks == [("depth", done, 5) for done in range(6)]
        assert [each.layer for each in found] == list(range(5))
        assert found[-1].whole is None
        for each, layer, x in zip(found, model.layers, hidden.entering, strict=True):
            branch = attention_branch(layer, x)
            assert each.radial_rate == pytest.approx(radial_rate(x, branch))
            assert each.attention == step(x, x + branch)
            if each.layer < 4:
                assert each.whole == step(x, hidden.entering[each.layer + 1])
            assert each.flow is not None
    rows = {(each.predicted, each.measured): each for each in correlations(found)}
    assert rows["flow", "attention norm_growth"].count == 5
    assert rows["growth_index", "whole norm_growth"].count == 4
    assert rows["step", "whole norm_growth"].count == 4
    assert ("step", "attention norm_growth") not in rows


def test_the_flow_of_a_weak_layer_is_its_residual_step(tmp_path: Path) -> None:
    """With a small O the tokens hardly move within the unit of time, and Euler's step is the flow."""
    import torch

    model = write_llama(tmp_path)
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.o_proj.weight.mul_(1e-3)
    model.save_pretrained(tmp_path)
    reference = load_reference(tmp_path)
    hidden = hidden_states(reference.model, cut(reference, TEXT, tokens=12))
    with toposcope.load(tmp_path) as opened:
        found = through_depth(opened, hidden)
    for each in found:
        assert each.flow is not None
        assert abs(each.attention.norm_growth) > 1e-6
        assert each.flow.norm_growth == pytest.approx(each.attention.norm_growth, rel=0.05, abs=1e-6)
        assert each.flow.cosine_change == pytest.approx(each.attention.cosine_change, rel=0.05, abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_indices_are_those_of_scan(tmp_path: Path, family: str) -> None:
    (write_llama if family == "llama" else write_bert)(tmp_path)
    with toposcope.load(tmp_path) as model:
        for layer in model.layers:
            ours, theirs = layer_indices(layer), layer_dynamics(layer, storage_error=0.0)
            assert ours.alpha == pytest.approx(theirs.regime.alpha)
            assert ours.rho_euler == pytest.approx(theirs.rho_euler)
            assert ours.growth_index == pytest.approx(theirs.regime.growth_index)
