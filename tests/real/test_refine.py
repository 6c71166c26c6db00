"""Refinements on SmolLM2: a few steps of D, the model untouched after, and heads of a chosen regime."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from toposcope.checkpoints.installed import find
from toposcope.core.errors import NotFound
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text


@pytest.fixture(scope="module")
def reference() -> Reference:
    try:
        find("smollm2").path()
        read_text("wiki")
    except NotFound as missing:
        pytest.skip(str(missing))
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running SmolLM2 needs {package}: pip install {package}")
    return load_reference("smollm2", head=True, attention="sdpa")


@pytest.mark.slow
def test_a_few_steps_of_d_and_its_control(reference: Reference) -> None:
    from toposcope.studies.refine import ArmParameters, TuneSettings
    from toposcope.studies.tuning import tune

    content = read_text("wiki")
    train = cut(reference, content, tokens=24, count=2)
    held = cut(reference, content, tokens=24, count=2, begin=len(content) // 2)
    before = {name: value.clone() for name, value in reference.model.state_dict().items()}
    found, values = tune(reference, train, held, TuneSettings(steps=2))
    assert found.parameters == ArmParameters(30 * 576, 30 * 576)
    assert all(value.shape == (9, 64) and bool((value > 0).all()) for value in values.values())
    assert all(np.isfinite(losses).all() for losses in vars(found.held_out).values())
    assert abs(found.held_out_mean.start - found.held_out_mean.before) < 0.2  # a small start is small
    assert all(row.bound > 10 * row.largest * row.start for row in found.moved)
    after = reference.model.state_dict()
    assert before.keys() == after.keys()
    assert all(bool((before[name] == after[name]).all()) for name in before)


@pytest.mark.slow
def test_heads_of_a_real_model_take_a_regime(reference: Reference) -> None:
    import torch

    from toposcope import refinements as refine
    from toposcope.checkpoints.live import view
    from toposcope.scanning.scan import scan

    layers = [0, 17]
    kept: dict[str, Any] = {
        name: value.clone() for name, value in reference.model.state_dict().items() if "o_proj" in name
    }
    try:
        applied = refine.apply(reference.model, "head", "negative", layers)
        refine.materialise(reference.model)
        found = scan(view(reference.model), layers=layers, layer_sums=False, jobs=1)
    finally:
        with torch.no_grad():
            reference.model.load_state_dict(kept, strict=False)
    assert applied.verdict == "converges"
    assert {(head.verdict.value, head.rule, head.exact) for head in found.heads} == {("converges", "T6", True)}
    assert all(head.robust for head in found.heads)
