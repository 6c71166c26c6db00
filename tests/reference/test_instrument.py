"""The instrument against transformers itself: nothing changes, one head is one head, content rebuilds the output."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference.tiny import BUILDERS, OWN_WAY, build, inputs
from toposcope.checkpoints.attention import logits, softmax
from toposcope.checkpoints.live import view
from toposcope.checkpoints.view import Layer
from toposcope.core.errors import BadConfig, BadValue
from toposcope.models.content import Content, ContentReader
from toposcope.models.instrument import Call, attached
from toposcope.models.intervene import ablated, captured, gated

NAMES = list(BUILDERS)


def run(model: Any, name: str, **more: Any) -> Any:
    with torch.no_grad():
        return model(**inputs(name), **more).logits


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_wrapping_changes_nothing(name: str, implementation: str) -> None:
    model = build(name)
    if name not in OWN_WAY:
        if name == "gemma2" and implementation == "sdpa":
            implementation = "eager"  # its capped logits have no SDPA form in transformers
        model.set_attn_implementation(implementation)
    before = run(model, name)
    implementations = model.config._attn_implementation
    with attached(model):
        inside = run(model, name)
    assert torch.equal(before, inside)
    assert torch.equal(before, run(model, name))
    assert model.config._attn_implementation == implementations


@pytest.mark.parametrize("name", NAMES)
def test_sites_are_the_layers_of_the_view(name: str) -> None:
    model = build(name)
    with attached(model) as instrument:
        mine = [(layer.spec.heads, layer.spec.kind == "cross") for layer in view(model).layers]
        assert [(site.heads, site.cross) for site in instrument.sites] == mine


@pytest.mark.parametrize("name", [name for name in NAMES if name != "albert"])
def test_ablation_is_zeroing_the_columns_of_the_output_projection(name: str) -> None:
    """Exactly: the removed head's columns set to 0 in the weights give the very same logits."""
    model = build(name)
    layers = view(model).layers
    for layer, head in ((0, 1), (len(layers) - 1, 3)):
        with ablated(model, layer, head):
            removed = run(model, name)
        spec = layers[layer].spec
        weight = dict(model.named_parameters())[spec.o.weight]
        columns = slice(head * spec.value_width, (head + 1) * spec.value_width)
        kept = weight.detach().clone()
        with torch.no_grad():
            (weight[columns] if spec.o.transposed else weight[:, columns]).zero_()
            zeroed = run(model, name)
            weight.copy_(kept)
        assert torch.equal(removed, zeroed)
        assert not torch.equal(removed, run(model, name))


def test_a_shared_module_is_ablated_in_one_layer_only() -> None:
    """ALBERT runs one module three times: removing a head of the last run leaves the first two as they were."""
    model = build("albert")
    with captured(model) as plain:
        whole = run(model, "albert")
        first = [plain[layer].output_BNHV for layer in range(3)]
    with ablated(model, 2, 1), captured(model) as trace:
        removed = run(model, "albert")
    assert torch.equal(first[0], trace[0].output_BNHV)
    assert torch.equal(first[1], trace[1].output_BNHV)
    assert not trace[2].output_BNHV[:, :, 1].any()
    assert torch.equal(first[2][:, :, [0, 2, 3]], trace[2].output_BNHV[:, :, [0, 2, 3]])
    assert not torch.equal(whole, removed)


@pytest.mark.parametrize("name", NAMES)
def test_gates(name: str) -> None:
    """Gates of 1 are the identity, bit by bit; a gate of 0 is an ablation; gradients reach every gate."""
    model = build(name)
    with attached(model) as instrument:
        gates = [torch.ones(site.heads, requires_grad=True) for site in instrument.sites]
    with gated(model, gates):
        out = model(**inputs(name)).logits
        (out**2).sum().backward()
    assert torch.equal(out.detach(), model(**inputs(name)).logits.detach())  # both with gradients: kernels may differ
    assert all(bool((gate.grad != 0).all()) for gate in gates)
    closed = [torch.ones(len(gate)) for gate in gates]
    closed[0][2] = 0
    with gated(model, closed):
        shut = run(model, name)
    with ablated(model, 0, 2):
        assert torch.allclose(shut, run(model, name), rtol=0, atol=1e-6)


def test_gates_must_fit_the_model() -> None:
    model = build("llama")
    held = [4, 4, 4]
    for sizes in ([4, 4], [4, 4, 4, 4], [4, 3, 4], [4, 4, 5], [1, 1, 1]):
        with (
            pytest.raises(BadValue, match=re.escape(str(held))),
            gated(model, [torch.ones(n) for n in sizes]),
        ):
            pass


def test_gates_multiply_their_own_head() -> None:
    model = build("llama")
    draw = torch.Generator().manual_seed(3)
    gates = [torch.rand(4, generator=draw) for _ in range(3)]
    with captured(model) as plain:
        run(model, "llama")
        first = plain[0].output_BNHV
    with gated(model, gates), captured(model) as trace:
        run(model, "llama")
    assert torch.equal(trace[0].output_BNHV, first * gates[0][None, None, :, None])


@pytest.mark.parametrize("raises", [False, True])
def test_each_block_takes_away_what_it_put_in(raises: bool) -> None:
    """Another user keeps the model open meanwhile, so nothing but the block itself can tidy up."""
    model, other = build("llama"), {"input_ids": torch.full((1, 5), 7)}
    plain = run(model, "llama")
    with attached(model) as instrument:
        traces = []
        for block in (captured(model), gated(model, [torch.zeros(4)] * 3), ablated(model, 1, 2)):
            with contextlib.suppress(ZeroDivisionError), block as trace:
                traces.append(trace)
                run(model, "llama")
                if raises:
                    raise ZeroDivisionError
        assert (instrument.observers, instrument.edits) == ([], [])
        seen = traces[0][0]
        with torch.no_grad():
            model(**other)
        assert traces[0][0] is seen
        assert torch.equal(run(model, "llama"), plain)


@pytest.mark.parametrize("name", NAMES)
def test_content_rebuilds_what_the_heads_hand_on(name: str) -> None:
    """Queries and keys turned back, then turned again by our tables in float64: the outputs are the model's."""
    model = build(name)
    seen: dict[int, Content] = {}
    with attached(model) as instrument, captured(model) as trace:
        reader = ContentReader(instrument)

        def note(call: Call, output: Any) -> None:
            if call.query_BHNR is not None:
                seen[call.site.number] = reader.of_call(call, 1)

        instrument.observers.append(note)
        instrument.input_observers.append(lambda site, x: seen.update({site.number: reader.of_input(site, x, 1)}))
        run(model, name)
        assert len(seen) == len(instrument.sites)
    for number, content in seen.items():
        theirs = trace[number].output_BNHV[1].numpy()
        mine = _outputs(content)
        assert np.abs(mine - theirs).max() < 3e-6 * np.abs(theirs).max(), number


def _outputs(content: Content) -> np.ndarray[Any, np.dtype[np.float64]]:
    spec = replace(content.layer.spec, encoding=content.encoding, scale=content.scale)
    table = logits(Layer(0, spec, lambda spec: content.layer.weights), content.q_HNR, content.k_HMR)
    offset = np.arange(table.shape[1])[:, None] - np.arange(table.shape[2])
    visible = np.ones_like(offset, dtype=bool)
    if spec.causal and spec.kind == "self":
        visible &= offset >= 0
    if spec.reach is not None:
        visible &= np.abs(offset) <= spec.reach
    return np.einsum("hnm,hmv->nhv", softmax(np.where(visible, table, -np.inf)), content.v_HMV)


def test_custom_positions_are_turned_back_too() -> None:
    model = build("llama")
    shift = torch.arange(17)[None].expand(2, -1) * 3 + 5
    kept: list[Content] = []
    with attached(model) as instrument:
        reader = ContentReader(instrument)
        instrument.observers.append(lambda call, output: kept.append(reader.of_call(call, 0)))
        run(model, "llama")
        run(model, "llama", position_ids=shift)
    assert np.allclose(kept[0].q_HNR, kept[3].q_HNR, atol=1e-5)


def test_nested_users_share_one_instrument_and_leave_the_model_as_it_was() -> None:
    model = build("llama")
    before = run(model, "llama")
    with captured(model) as outer:
        with ablated(model, 1, 0), captured(model, layers=[1]) as inner:
            run(model, "llama")
        assert len(inner) == 1
        assert not inner[1].output_BNHV[:, :, 0].any()
        run(model, "llama")
        assert outer[1].output_BNHV[:, :, 0].any()
    assert torch.equal(before, run(model, "llama"))
    assert not model._forward_pre_hooks


def test_a_copy_of_an_attached_model_runs_as_ever() -> None:
    """A deep copy made inside the block carries our attention's name, but nobody is looking at it."""
    import copy

    model = build("llama")
    before = run(model, "llama")
    with ablated(model, 0, 0):
        twin = copy.deepcopy(model)
        assert not torch.equal(run(model, "llama"), before)
        twin._forward_pre_hooks.clear()
        assert torch.equal(run(twin, "llama"), before)


def test_wrong_layers_and_heads_are_named() -> None:
    model = build("llama")
    with pytest.raises(BadValue, match="layer 7"), ablated(model, 7, 0):
        pass
    with pytest.raises(BadValue, match=r"1\.4"), ablated(model, 1, 4):
        pass
    with captured(model, layers=[0]) as trace:
        run(model, "llama")
    with pytest.raises(BadValue, match="layer 2"):
        trace[2]


def test_models_that_cannot_be_looked_into() -> None:
    model = build("llama")
    model.train()
    with pytest.raises(BadConfig, match=r"model\.eval\(\)"), attached(model):
        pass
    with pytest.raises(BadConfig, match="torch model"), attached("smollm2"):
        pass
    with pytest.raises(BadConfig, match="no configuration"), attached(torch.nn.Linear(2, 2).eval()):
        pass
