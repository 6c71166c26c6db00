"""Held regimes: at every step of training the promised verdict stands on the live weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.reference.tiny import SIZES, build
from toposcope import refinements as refine
from toposcope.checkpoints.live import view
from toposcope.core.errors import BadConfig, BadValue
from toposcope.dynamics.regime import Verdict, regime
from toposcope.refinements.adapters import projections
from toposcope.refinements.cores import Core
from toposcope.scanning.result import ScanResult
from toposcope.scanning.scan import scan

RULES = {"converges": {"T3a", "T3b", "T5", "T6"}, "diverges": {"T4a", "T4b", "T5"}, "not_convergent": {"T5"}}


def _model(family: str, **changes: Any) -> Any:
    if family == "llama" and changes:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes})).eval()
    if family == "bert" and changes:
        torch.manual_seed(0)
        config = transformers.BertConfig(**{**SIZES, "pad_token_id": 0, **changes})
        return transformers.BertForMaskedLM(config).eval()
    return build(family, sharp=1.0)


def _train(model: Any, steps: int, *, lr: float = 3e-3, seed: int = 0) -> Any:
    """Yields the loss of each step, after it."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(refine.parameter_groups(model, weight_decay=0.1), lr=lr)
    for _ in range(steps):
        ids = torch.randint(3, 50, (2, 12), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def _scan(model: Any, layers: tuple[int, ...] | None = None) -> ScanResult:
    return scan(view(refine.materialise(copy.deepcopy(model))), layers=layers, jobs=1)


CASES = [
    (f, k, r) for f in ("llama", "gpt2", "bert") for k in ("head", "layer", "full") for r in ("negative", "half")
]
CASES += [
    ("llama", "head", "positive"),
    ("gpt2", "layer", "positive"),
    ("bert", "full", "positive"),
    ("llama", "head", 0.25),
]


@pytest.mark.parametrize(("family", "kind", "wanted"), CASES)
def test_the_promise_holds_at_every_step(family: str, kind: Any, wanted: Any) -> None:
    model = _model(family) if kind != "full" or family != "llama" else _model(family, num_key_value_heads=4)
    applied = refine.apply(model, kind, wanted)
    losses = []
    for loss in _train(model, 3):
        losses.append(loss)
        found = _scan(model, (0, 2))
        rows = found.heads if kind == "head" else found.layers
        slack = 1 if family == "gpt2" and kind != "head" else 0  # LayerNorm takes one direction, of either sign
        for row in rows:
            assert abs(row.n_neg - applied.negative) <= slack
            assert row.n_neg + row.n_pos == applied.size - slack
            if applied.verdict is not None:
                assert row.verdict == applied.verdict
                assert row.rule in RULES[applied.verdict]
                assert row.margin > 1e-6
        if kind == "head" and applied.verdict is not None:
            assert all(head.robust for head in found.heads)
    assert all(np.isfinite(losses))


def test_rules_scopes_and_exactness() -> None:
    """T6 of all tokens, exactly, where norms have no bias; about the flow without norms where they have."""
    for family, exact in (("llama", True), ("gpt2", False)):
        model = _model(family)
        applied = refine.apply(model, "head", "negative")
        list(_train(model, 2))
        found = _scan(model).heads
        assert {(row.rule, row.scope, row.exact) for row in found} == {("T6", "all_tokens", exact)}
        assert ("exact: false" in applied.promise) is not exact
        if not exact:
            assert all("bias_with_norm" in row.warnings for row in found)


def test_heads_of_one_sign_do_not_make_a_layer_of_that_sign() -> None:
    model = _model("gpt2")
    refine.apply(model, "head", "negative")
    assert {part.verdict.value for part in _scan(model).layers} == {"not_convergent"}


@pytest.mark.parametrize("wanted", ["positive", "negative"])
def test_full_with_one_head_is_decided_without_a_mask(wanted: str) -> None:
    """T3b and T4b on float32 weights as they would be saved; all tokens, from every start."""
    model = _model("bert", num_attention_heads=1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("attention.self" not in name or not name.endswith("bias"))
    applied = refine.apply(model, "full", wanted)
    for _ in _train(model, 4):
        rows = _scan(model).heads
        rule = "T3b" if wanted == "negative" else "T4b"
        assert {(row.verdict.value, row.rule, row.scope) for row in rows} == {(applied.verdict, rule, "all_tokens")}
        assert min(row.margin for row in rows) > 1e-4


@pytest.mark.parametrize(("wanted", "rule"), [("positive", "T4a"), ("negative", "T3a"), ("half", "T5")])
def test_full_with_symmetric_a_in_float64(wanted: str, rule: str) -> None:
    model = _model("bert", num_attention_heads=1).double()
    refine.apply(model, "full", wanted, symmetric="A")
    for _ in _train(model, 2):
        for layer in projections(model):
            q, k, v = (part().detach().numpy() for part in (layer.q, layer.k, layer.v))
            found = regime(q.T @ k, v, causal=False)
            assert found.rule == rule
            assert found.w_min is not None
            assert found.w_min > 0
            assert found.n_neg == {"positive": 0, "negative": 32, "half": 16}[wanted]
            causal = regime(q.T @ k, v, causal=True).verdict
            expected = {"positive": Verdict.DIVERGES, "negative": Verdict.CONVERGES, "half": Verdict.NOT_CONVERGENT}
            assert causal is expected[wanted]
            assert (layer.o() == torch.eye(32)).all()


def test_with_a_free_output_positive_and_negative_are_one_model() -> None:
    """The mirror: V -> -V is undone by O -> -O, at the start and at every step; with the identity it is not."""

    def losses(wanted: str, output: Any) -> list[float]:
        model = _model("llama", num_key_value_heads=4)
        refine.apply(model, "full", wanted, output=output)
        if output == "free" and wanted == "negative":
            with torch.no_grad():
                for layer in projections(model):
                    layer.o.module.weight.neg_()
        return list(_train(model, 5))

    assert losses("positive", "free") == losses("negative", "free")
    assert losses("positive", "identity") != losses("negative", "identity")


def test_parameters_are_counted() -> None:
    """Heads: those of the plain model, and r^2 a head that move nothing; layers: the same number."""
    heads = refine.apply(_model("gpt2"), "head", "negative")
    assert heads.parameters_after - heads.parameters_before == heads.redundant == 3 * 4 * 8 * 8
    layers = refine.apply(_model("bert"), "layer", "negative")
    assert layers.parameters_after == layers.parameters_before
    full = refine.apply(_model("bert"), "full", "negative")
    assert full.parameters_before - full.parameters_after == 3 * (32 * 32 + 32 * 31 // 2)  # O, and half of M
    one = refine.apply(_model("bert"), "head", "negative", layers=[1])
    assert one.layers == (1,)
    assert one.redundant == 4 * 8 * 8


@pytest.mark.parametrize(("family", "kind"), [("llama", "head"), ("llama", "layer"), ("bert", "layer")])
def test_what_has_the_signs_already_is_left_alone(family: str, kind: Any) -> None:
    """Every (V, O) of a regime is reached: what was refined once is refined again without a change."""
    model = _model(family).double()
    refine.apply(model, kind, "negative")
    list(_train(model, 3))
    refine.materialise(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    refine.apply(model, kind, "negative", floor=1e-3)
    refine.materialise(model)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)


def test_only_the_rows_that_values_read_change_at_the_start() -> None:
    model = _model("llama")
    plain = [layer.o().clone() for layer in projections(model)]
    refine.apply(model, "head", "positive")
    for layer, before in zip(projections(model), plain, strict=True):
        change = (layer.o() - before).detach()
        assert change.norm() < before.norm()
        v_GRD = layer.norm.fold(layer.v()).detach().unflatten(0, (layer.groups, layer.value_dim))
        for head, part in enumerate(change.split(layer.value_dim, dim=1)):
            rows = v_GRD[head // (layer.heads // layer.groups)]
            inside = rows.T @ torch.linalg.lstsq(rows.T, part).solution
            assert torch.allclose(inside, part, atol=1e-5)


@pytest.mark.parametrize("kind", ["head", "layer", "full"])
def test_gradients_by_finite_differences(kind: Any) -> None:
    model = _model("gpt2").double()
    refine.apply(model, kind, "half" if kind == "head" else "negative")
    ids = torch.arange(3, 15)[None]

    def loss() -> Any:
        return torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])

    loss().backward()
    attention = model.transformer.h[1].attn
    generator = torch.Generator().manual_seed(2)
    for name, parameter in attention.named_parameters():
        if not parameter.requires_grad:
            continue
        way = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        way *= parameter.detach().norm() / way.norm() if parameter.detach().norm() else 1.0
        told, step = float((parameter.grad * way).sum()), 1e-5
        with torch.no_grad():
            parameter.add_(step * way)
            above = float(loss())
            parameter.sub_(2 * step * way)
            below = float(loss())
            parameter.add_(step * way)
        assert told == pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-8), name


def test_materialised_computes_the_same_and_copies_stand_alone() -> None:
    for kind in ("head", "full"):
        model = _model("gpt2")
        refine.apply(model, kind, "negative")  # type: ignore[arg-type]
        ids = torch.arange(3, 15)[None]
        with torch.no_grad():
            before = model(ids).logits
            twin = copy.deepcopy(model)
            list(zip(range(2), _train_twin(twin), strict=False))
            assert torch.equal(model(ids).logits, before)
            assert not torch.equal(twin(ids).logits, before)
            plain = refine.materialise(copy.deepcopy(model))
            assert torch.equal(plain(ids).logits, before)
        assert all(p.requires_grad for p in plain.parameters())
        assert not any("parametrizations" in name for name in plain.state_dict())
        assert any("parametrizations" in name for name in model.state_dict())


def _train_twin(model: Any) -> Any:
    with torch.enable_grad():
        yield from _train(model, 2)


def test_cores_are_not_decayed() -> None:
    model = _model("llama")
    refine.apply(model, "head", "negative")
    plain, cores = refine.parameter_groups(model, weight_decay=0.1, lr=1e-3)
    inside = {id(p) for module in model.modules() if isinstance(module, Core) for p in module.parameters()}
    assert {id(p) for p in cores["params"]} == inside
    assert (plain["weight_decay"], cores["weight_decay"]) == (0.1, 0.0)
    total = sum(p.numel() for group in (plain, cores) for p in group["params"])
    assert total == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(BadValue, match="whole"):
        refine.apply(_model("llama"), "whole", "negative")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="key-value"):
        refine.apply(_model("llama"), "full", "negative")
    with pytest.raises(BadValue, match="to 2"):
        refine.apply(_model("llama"), "head", "negative", layers=[3])
    with pytest.raises(BadConfig, match="'t5'"):
        refine.apply(_model("t5"), "head", "negative")
    model = _model("llama")
    refine.apply(model, "head", "negative", layers=[0])
    with pytest.raises(BadValue, match="refined already"):
        refine.apply(model, "head", "negative")
    with pytest.raises(BadValue, match="symmetric"):
        refine.apply(model, "full", "negative", symmetric="B")  # type: ignore[arg-type]
