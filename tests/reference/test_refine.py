"""Refined models against references: the diagonal written out, the flow's own diagonal, `scan` of saved models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import toposcope
from tests.reference.tiny import SIZES, build, inputs
from toposcope import refinements as refine
from toposcope.checkpoints.live import view
from toposcope.dynamics.sources import layer_problem
from toposcope.lab.export import export
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.refinements.cores import Core
from toposcope.scanning.scan import scan


@pytest.fixture
def explicit() -> Iterator[dict[Any, Any]]:
    """An attention function of transformers that adds a table to the logits, by the module that attends."""
    tables: dict[Any, Any] = {}

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: float, **rest: Any) -> Any:
        k, v = (side.repeat_interleave(q.shape[1] // k.shape[1], 1) for side in (k, v))
        logits = q @ k.mT * scaling + tables[module]
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return (logits.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2), None

    transformers.AttentionInterface.register("explicit_diagonal", attention)
    transformers.AttentionMaskInterface.register(
        "explicit_diagonal", transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    )
    yield tables
    tables.clear()


@pytest.mark.parametrize("form", ["slice", "uniform"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox"])
def test_sdpa_form_equals_the_explicit_form(explicit: dict[Any, Any], name: str, form: Any) -> None:
    """Llama and Qwen3 share keys between heads; GPT-NeoX turns a quarter of its channels."""
    model, given = build(name, sharp=2.0), inputs(name)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        plain = model(**given).logits
        with refine.with_diagonal(model, form=form, start=0.02) as installed:
            for raw in installed.parameters():
                raw.copy_(torch.randn(raw.shape, generator=generator))
            ours = model(**given).logits
            values = installed.values()

        modules = [module for module in model.modules() if type(module).__name__.endswith("Attention")]

        def before(module: Any, args: Any, kwargs: Any) -> None:
            x = args[0] if args else kwargs["hidden_states"]
            d = values[modules.index(module)]
            split = x.unflatten(-1, d.shape).transpose(1, 2)
            explicit[module] = (split * d[:, None]) @ split.mT

        for module in modules:
            module.register_forward_pre_hook(before, with_kwargs=True)
        model.config._attn_implementation = "explicit_diagonal"
        theirs = model(**given).logits
    size = theirs.abs().max()
    assert (ours - theirs).abs().max() <= 1e-6 * size
    assert (ours - plain).abs().max() > 1e-3 * size


def test_the_flow_has_the_same_diagonal() -> None:
    """dx/dt of the flow with tau I is what the layer writes with D = tau / gain^2 in uniform form."""
    model = build("llama")
    tau, number = 0.03, 1
    block = model.model.layers[number]
    with torch.no_grad():
        block.input_layernorm.weight.add_(0.3 * torch.randn(32, generator=torch.Generator().manual_seed(1)))
    tokens = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(2))
    seen: dict[str, Any] = {}
    ids = torch.arange(3, 12)[None]
    with torch.no_grad(), refine.with_diagonal(model, form="uniform", start=1.0, layers=[number]) as installed:
        part = installed.parts[number]
        wanted = (tau / block.input_layernorm.weight[None] ** 2 - 1e-6) * np.log(2)
        part.raw.copy_(torch.log(torch.expm1(wanted)))
        handles = [
            block.register_forward_pre_hook(lambda module, args: (tokens, *args[1:])),
            block.self_attn.register_forward_hook(lambda module, args, out: seen.update(out=out[0])),
        ]
        model(input_ids=ids, use_cache=False)
        for handle in handles:
            handle.remove()
    x = tokens[0].double().numpy()
    for diagonal, same in ((tau, True), (0.0, False)):
        problem = layer_problem(view(model), number, x, diagonal=diagonal, norms="on")
        field = problem.pieces[0].make()
        assert np.allclose(field(x), seen["out"][0].double().numpy(), atol=1e-5) is same


@pytest.mark.parametrize(
    ("family", "kind", "wanted", "verdict", "rule", "scope", "exact"),
    [
        ("llama", "head", "negative", "converges", "T6", "all_tokens", True),
        ("llama", "head", "positive", "diverges", "T5", "first_token", True),
        ("llama", "head", "half", "not_convergent", "T5", "first_token", True),
        ("llama", "layer", "negative", "converges", "T5", "first_token", True),
        ("llama", "layer", "positive", "diverges", "T5", "first_token", True),
        ("gpt2", "head", "negative", "converges", "T6", "all_tokens", False),
        ("gpt2", "layer", "positive", "diverges", "T5", "first_token", False),
        ("bert", "head", "positive", "not_convergent", "T5", "consensus", False),
        ("one head", "full", "negative", "converges", "T3b", "all_tokens", False),
        ("one head", "full", "positive", "diverges", "T4b", "all_tokens", False),
    ],
)
def test_scan_of_the_saved_model_gives_the_promised_verdict(
    tmp_path: Path, family: str, kind: Any, wanted: str, verdict: str, rule: str, scope: str, exact: bool
) -> None:
    if family == "one head":
        torch.manual_seed(1)
        config = transformers.BertConfig(**{**SIZES, "pad_token_id": 0, "num_attention_heads": 1})
        model = transformers.BertForMaskedLM(config).eval()
        for name, parameter in model.named_parameters():  # T3b and T4b know no biases
            parameter.requires_grad_("attention.self" not in name or not name.endswith("bias"))
    else:
        model = build(family, sharp=1.0)
    applied = refine.apply(model, kind, wanted)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # what training might do
        for core in (module for module in model.modules() if isinstance(module, Core)):
            for raw in core.raw:
                raw.add_(0.3 * core.unit / core.size**0.5 * torch.randn(raw.shape, generator=generator))
        if family == "gpt2":
            for block in model.transformer.h:
                block.ln_1.bias.add_(0.1)
    refine.materialise(model).save_pretrained(tmp_path)
    with toposcope.load(tmp_path) as saved:
        found = scan(saved, jobs=1)
    rows = found.layers if kind == "layer" else found.heads
    assert applied.verdict == verdict
    assert {(r.verdict, r.rule, r.scope, r.exact) for r in rows} == {(verdict, rule, scope, exact)}
    assert min(r.margin or 0.0 for r in rows) > 1e-6
    if rule in ("T5", "T6"):
        assert all(r.robust for r in rows)
    elif exact is False and family == "one head":
        assert all("post_norm" in r.warnings for r in rows)


@pytest.mark.parametrize("kind", ["head", "layer"])
def test_the_labs_model_exported_and_scanned(tmp_path: Path, kind: Any) -> None:
    config = ModelConfig(20, 7, 32, encoding="rope", causal=True, reads="token", width=32, layers=2, heads=4, ff=48)
    model = Transformer(config)
    applied = refine.apply(model, kind, "negative")
    optimizer = torch.optim.AdamW(refine.parameter_groups(model, weight_decay=0.1), lr=3e-3)
    for step in range(4):
        ids = torch.randint(0, 7, (4, 16), generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    export(refine.materialise(model.eval()), tmp_path)
    with toposcope.load(tmp_path) as saved:
        found = scan(saved, jobs=1)
    rows = found.heads if kind == "head" else found.layers
    assert {(r.verdict.value, r.rule) for r in rows} == {(applied.verdict, "T6" if kind == "head" else "T5")}
    assert all(r.robust for r in rows)
    # LayerNorm with a trained bias: the verdict is about the flow without norms, as was promised
    assert not any(r.exact for r in rows)
    assert "exact: false" in applied.promise


@pytest.mark.parametrize(
    ("wanted", "verdict", "rule"), [("negative", "converges", "T3b"), ("positive", "diverges", "T4b")]
)
def test_the_labs_unmasked_model_with_one_head(tmp_path: Path, wanted: str, verdict: str, rule: str) -> None:
    """With the norm's bias frozen at 0 T3b and T4b decide, off the direction that LayerNorm does not read."""
    model = Transformer(ModelConfig(20, 7, 32, reads="token", width=16, layers=2, heads=1, ff=24))
    for layer in model.layers:
        layer.attention_norm.bias.requires_grad_(False)
    applied = refine.apply(model, "full", wanted)
    optimizer = torch.optim.AdamW(refine.parameter_groups(model), lr=3e-3)
    for step in range(4):
        ids = torch.randint(0, 7, (4, 16), generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    export(refine.materialise(model.eval()), tmp_path)
    with toposcope.load(tmp_path) as saved:
        found = scan(saved, jobs=1).heads
    assert applied.verdict == verdict
    assert {(row.verdict.value, row.rule, row.scope) for row in found} == {(verdict, rule, "all_tokens")}
    biased = Transformer(ModelConfig(20, 7, 32, reads="token", width=16, layers=2, heads=1, ff=24))
    assert refine.apply(biased, "full", wanted).verdict in (None, "not_convergent")  # a trained bias: no T3, no T4
