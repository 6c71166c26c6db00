"""Hidden states and the attention branch of tiny models, against transformers' own forward pass."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from tests.unit.models.making import TEXT, write_bert, write_llama
from toposcope.core.errors import BadConfig, BadFile, BadValue, MissingExtra, NotFound
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, locate, read_text
from toposcope.models.tracing.hidden import HiddenStates, attention_branch, hidden_states, self_layers

torch = pytest.importorskip("torch", reason="the comparison needs torch: pip install torch")
pytest.importorskip("transformers", reason="the comparison needs transformers: pip install transformers")


def watched(model: Any, layers: Any, attention_of: Any, ids: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What enters each layer and what its attention adds, by hooks on the modules themselves."""
    inputs: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    hooks = []
    for layer in layers:
        hooks.append(
            layer.register_forward_pre_hook(
                lambda _, args, kwargs: inputs.append((args[0] if args else kwargs["hidden_states"])[0].numpy()),
                with_kwargs=True,
            )
        )
        hooks.append(
            attention_of(layer).register_forward_hook(
                lambda _, __, out: outputs.append((out[0] if isinstance(out, tuple) else out)[0].numpy())
            )
        )
    with torch.no_grad():
        model(input_ids=torch.from_numpy(ids)[None])
    for hook in hooks:
        hook.remove()
    return inputs, outputs


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_states_and_branch_equal_theirs(tmp_path: Path, family: str) -> None:
    (write_llama if family == "llama" else write_bert)(tmp_path)
    reference = load_reference(tmp_path)
    model = reference.model
    hidden = hidden_states(model, cut(reference, TEXT, tokens=14))
    layers = model.layers if family == "llama" else model.encoder.layer
    of = (lambda layer: layer.self_attn) if family == "llama" else (lambda layer: layer.attention.output.dense)
    theirs_in, theirs_out = watched(model, layers, of, hidden.token_ids)
    assert hidden.count == 14
    assert len(hidden.entering) == len(theirs_in) == 5
    with toposcope.load(reference.path) as ours:
        for layer, x, their_x, added in zip(
            self_layers(ours, hidden), hidden.entering, theirs_in, theirs_out, strict=True
        ):
            np.testing.assert_allclose(x, their_x, atol=1e-7)
            branch = attention_branch(layer, x)
            assert np.abs(added).max() > 0.1
            np.testing.assert_allclose(branch, added, atol=1e-5)


def test_the_first_tokens_are_taken_and_named(tmp_path: Path) -> None:
    write_llama(tmp_path)
    reference = load_reference(tmp_path)
    assert reference.context == 32
    corpus = cut(reference, TEXT * 5, tokens=30, count=2, name="hills")
    found = hidden_states(reference.model, corpus, tokens=7)
    assert found.count == 7
    assert found.token_ids.tolist() == corpus.sequences[0][:7].tolist()
    assert found.cut == "the first 7 tokens of hills"
    assert hidden_states(reference.model, corpus).count == 30


def test_states_of_another_model_are_refused(tmp_path: Path) -> None:
    write_llama(tmp_path)
    with toposcope.load(tmp_path) as model:
        wrong = HiddenStates(np.arange(3), (np.zeros((3, 24)),), np.zeros((3, 24)), "t")
        with pytest.raises(BadValue, match="width 24"):
            self_layers(model, wrong)


def test_broken_weights_are_an_error(tmp_path: Path) -> None:
    write_llama(tmp_path)
    reference = load_reference(tmp_path)
    with torch.no_grad():
        reference.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(BadValue, match="NaN") as caught:
        hidden_states(reference.model, cut(reference, TEXT, tokens=4))
    assert "layer 2" in str(caught.value)


class TestLoading:
    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="neither config"):
            load_reference(tmp_path)
        with pytest.raises(NotFound, match="'smollm2'"):
            locate("smolm2")
        with pytest.raises(BadFile, match="directory"):
            read_text(tmp_path)

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        write_llama(tmp_path)
        (tmp_path / "tokenizer.json").unlink()
        with pytest.raises(NotFound, match=r"tokenizer\.json"):
            load_reference(tmp_path)

    def test_a_model_that_transformers_does_not_know(self, tmp_path: Path) -> None:
        write_llama(tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "hillfinder"}')
        with pytest.raises(BadConfig, match="hillfinder"):
            load_reference(tmp_path)

    def test_no_weights(self, tmp_path: Path) -> None:
        write_llama(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(BadFile, match=r"model\.safetensors"):
            load_reference(tmp_path)

    def test_without_torch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtra, match=r"\[hf\]"):
            load_reference(tmp_path)
        with pytest.raises(MissingExtra, match="'toposcope check some-model'"):  # what does without torch
            toposcope.check("some-model", live=True)

    def test_a_weights_file_stands_for_its_directory(self, tmp_path: Path) -> None:
        write_llama(tmp_path)
        found = load_reference(tmp_path / "model.safetensors")
        assert isinstance(found, Reference)
        assert next(found.model.parameters()).dtype is torch.float32
        assert not found.model.training
