"""SmolLM2 and MiniLM on a real text: hidden states, verdicts beside simulations, layers beside their flow."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest

import toposcope
from toposcope.core.errors import NotFound
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, locate, read_text
from toposcope.models.tracing.depth import correlations, through_depth
from toposcope.models.tracing.hidden import HiddenStates, attention_branch, hidden_states
from toposcope.models.tracing.verify import verify

pytestmark = pytest.mark.slow


def reference_of(name: str) -> Reference:
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running {name} needs {package}: pip install {package}")
    try:
        locate(name)
        read_text("wiki")
    except NotFound as missing:
        pytest.skip(str(missing))
    return load_reference(name)


@pytest.fixture(scope="module")
def smollm2() -> Reference:
    return reference_of("smollm2")


@pytest.fixture(scope="module")
def hidden(smollm2: Reference) -> HiddenStates:
    return hidden_states(smollm2.model, cut(smollm2, read_text("wiki"), tokens=24, name="wiki", begin=1000))


@pytest.fixture(scope="module")
def model(smollm2: Reference) -> Iterator[toposcope.Model]:
    with toposcope.load(smollm2.path) as opened:
        yield opened


def test_the_branch_is_what_the_model_adds(smollm2: Reference, hidden: HiddenStates, model: toposcope.Model) -> None:
    import torch

    seen: list[np.ndarray] = []
    hooks = [
        layer.self_attn.register_forward_hook(lambda _, __, out: seen.append(out[0][0].double().numpy()))
        for layer in smollm2.model.layers
    ]
    with torch.no_grad():
        smollm2.model(input_ids=torch.from_numpy(hidden.token_ids)[None])
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(hidden.entering) == 30
    for number in (0, 11, 29):
        ours = attention_branch(model.layers[number], hidden.entering[number])
        # theirs is float32, and the stream holds entries of several thousand
        np.testing.assert_allclose(ours, seen[number], atol=1e-4 * max(1.0, np.abs(seen[number]).max()))


def test_verdicts_predict_the_simulation(model: toposcope.Model, hidden: HiddenStates) -> None:
    runs, found = verify(model, hidden, layers=[13, 22, 29], heads=[0, 1, 2, 3])
    assert len(runs) == 12
    assert {each.verdict for each in runs} >= {"converges", "not_convergent"}
    assert not found.contradictions
    assert found.worst_path is not None
    assert found.worst_path <= 1e-3
    for each in runs:
        assert each.followed is not None
        if each.verdict == "converges":
            assert each.followed.log_growth < 0
        else:
            assert each.followed.unstable_growth is not None
            assert each.followed.unstable_growth > 0


def test_layers_beside_their_flow(model: toposcope.Model, hidden: HiddenStates) -> None:
    found = through_depth(model, hidden, layers=[2, 8, 14, 20, 26])
    assert all(each.flow is not None for each in found)
    rows = {(each.predicted, each.measured): each for each in correlations(found)}
    rho = rows["flow", "attention norm_growth"].rho
    assert rho is not None
    assert rho >= 0.7


def test_a_consensus_of_an_encoder_follows_its_values() -> None:
    reference = reference_of("minilm")
    states = hidden_states(reference.model, cut(reference, read_text("wiki"), tokens=24, name="wiki", begin=1000))
    assert states.token_ids[0] == reference.tokenizer.cls_token_id
    with toposcope.load(reference.path) as model:
        runs, found = verify(model, states, layers=[0, 5], heads=[1, 2])
    assert [each.scope for each in runs] == ["consensus"] * 4
    assert not found.contradictions
