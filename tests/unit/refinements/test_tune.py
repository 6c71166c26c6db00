"""Tuning D beside its control: what is tuned, that nothing else changes, and that an interrupted run ends alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

import toposcope
from tests.unit.models.making import TEXT, write_llama, write_llama_lm
from tests.unit.runs.making import shows_itself
from toposcope import refinements as refine
from toposcope.checkpoints.live import view
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadFile, BadValue
from toposcope.core.saved import NAME
from toposcope.dynamics.rotation import turned
from toposcope.models.corpus import Corpus, cut
from toposcope.models.load import Reference, load_reference
from toposcope.models.score import trial
from toposcope.refinements.diagonal import save
from toposcope.studies.refine import ArmParameters, TuneSettings
from toposcope.studies.tuning import evaluate, tune

SETTINGS = TuneSettings(steps=15, lr=0.3, control_lr=0.02, seed=3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lm")
    write_llama_lm(found)
    (found / "text.txt").write_text(TEXT * 30)
    return found


@pytest.fixture
def reference(directory: Path) -> Reference:
    return load_reference(directory, head=True, attention="sdpa")


def _corpora(reference: Reference) -> tuple[Corpus, Corpus]:
    return (
        cut(reference, TEXT * 8, tokens=17, count=6),
        cut(reference, TEXT * 8, tokens=17, count=4, begin=400),
    )


def test_both_arms_learn_and_the_model_stays_as_it_was(reference: Reference, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in reference.model.state_dict().items()}
    calls: list[int] = []
    train, held = _corpora(reference)
    found, values = tune(
        reference, train, held, SETTINGS, progress=lambda what, done, total: calls.append(total - done)
    )
    assert (calls[0], calls[-1]) == (1 + 2 * 16, 0)
    after = reference.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.requires_grad for p in reference.model.parameters())
    assert found.parameters == ArmParameters(3 * 24, 3 * 24)
    for arm in ("diagonal", "control"):
        assert len(getattr(found.training, arm)) == 15
    # the first step of the control sees the model as it is, on the same sequence as the diagonal's
    assert found.training.diagonal[0] == pytest.approx(found.training.control[0], abs=0.2)
    assert np.mean(found.held_out.control) < np.mean(found.held_out.before)
    row = next(row for row in found.differences if (row.of, row.against) == ("diagonal", "control"))
    gaps = np.array(found.held_out.diagonal) - np.array(found.held_out.control)
    low, high = scipy.stats.t.interval(0.95, 3, gaps.mean(), scipy.stats.sem(gaps))
    assert row.mean == pytest.approx(gaps.mean())
    assert row.half_width == pytest.approx((high - low) / 2)
    # the values written are those that were measured
    path = save(tmp_path / "d.safetensors", values, "slice")
    installed = refine.load(reference, path)
    again = evaluate(reference.model, [trial(reference, ids) for ids in held.sequences])
    installed.remove()
    assert np.allclose(again, found.held_out.diagonal, atol=1e-6)


def test_an_automatic_start_adds_what_it_should(reference: Reference) -> None:
    train, held = _corpora(reference)
    for form in ("slice", "uniform"):
        found, _ = tune(reference, train, held, replace(SETTINGS, steps=1, form=form))
        x: dict[int, torch.Tensor] = {}
        layers = reference.model.model.layers
        handles = [
            layer.self_attn.register_forward_pre_hook(
                lambda module, args, kwargs, i=i, x=x: x.update({i: kwargs["hidden_states"]}), with_kwargs=True
            )
            for i, layer in enumerate(layers)
        ]
        with torch.no_grad():
            reference.model(torch.from_numpy(train.sequences[0])[None])
        for handle in handles:
            handle.remove()
        for row in found.moved:
            slices = 4 if form == "slice" else 1
            assert row.start * float(x[row.layer].pow(2).sum(-1).mean()) / slices == pytest.approx(0.1, rel=1e-4)


def test_above_the_bound_logits_are_positive_at_every_offset(reference: Reference) -> None:
    """D at 'bound' makes sym(W_k) + D > 0 for every head and offset, in the coordinates that D reads."""
    train, held = _corpora(reference)
    settings = replace(SETTINGS, diagonal="bound", form="uniform", steps=3)
    _, values = tune(reference, train, held, settings)
    for layer in view(reference.model).layers:
        d = np.diag(values[layer.number][0].double().numpy())
        rotary = layer.encoding.rotary
        assert rotary is not None
        least = []
        for head in layer.heads:
            for offset in (0, -1, -3, -7, -20, 5):
                w = head.scale * head.q.T @ turned(rotary, head.k, offset, "key")
                least.append(np.linalg.eigvalsh((w + w.T) / 2 + d)[0])
        assert min(least) > 0
        assert np.linalg.eigvalsh((w + w.T) / 2)[0] < 0


def test_an_interrupted_run_ends_as_if_it_had_not_been(reference: Reference, tmp_path: Path) -> None:
    train, held = _corpora(reference)
    whole, values = tune(reference, train, held, SETTINGS)
    for stop in (14, 30):  # within the first arm, and within the second

        def progress(what: str, done: int, total: int, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tune(reference, train, held, SETTINGS, directory=tmp_path, progress=progress)
        assert (tmp_path / NAME).exists()
        assert not hasattr(reference.model.model.layers[0].self_attn, "added_diagonal")
    calls: list[int] = []
    again, found = tune(
        reference, train, held, SETTINGS, directory=tmp_path, progress=lambda what, done, total: calls.append(done)
    )
    assert calls == list(range(1 + 1 + 2 * 16))
    assert again.held_out == whole.held_out
    assert again.training == whole.training
    assert all(torch.equal(found[number], values[number]) for number in values)
    with pytest.raises(BadFile, match="another model"):
        tune(reference, train, held, replace(SETTINGS, seed=4), directory=tmp_path)
    (tmp_path / NAME).write_bytes(b"half a file")
    with pytest.raises(BadFile, match="damaged"):
        tune(reference, train, held, SETTINGS, directory=tmp_path)


def test_norms_are_tuned_in_both_arms_and_put_back(reference: Reference) -> None:
    train, held = _corpora(reference)
    before = {name: value.clone() for name, value in reference.model.state_dict().items()}
    found, _ = tune(reference, train, held, replace(SETTINGS, steps=2, norms=True))
    assert found.parameters == ArmParameters(3 * 24 + 7 * 24, 3 * 24 + 7 * 24)
    assert all(torch.equal(before[name], value) for name, value in reference.model.state_dict().items())


def test_the_command(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["refine", str(directory), "--text", str(directory / "text.txt"), "--steps", "4", "--tokens", "16",
             "--held-out", "3", "--out", str(tmp_path / "out")]  # fmt: skip

    def run(*more: str) -> int | str | None:
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        return ended.value.code

    assert run() == 0
    said = capsys.readouterr().out
    assert "D tuned" in said
    assert "control tuned" in said
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert {"key", "sha256"} <= result.keys(), "whose it is, and a sum over it"
    del result["sha256"]
    assert result["schema"] == "toposcope/refine/2"
    assert len(result["held_out"]["diagonal"]) == 3
    assert (tmp_path / "out/diagonal.safetensors").exists()
    assert not (tmp_path / "out" / NAME).exists()
    # again: what is there is shown, not measured anew
    assert run("--json", "-") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("directory") == str(tmp_path / "out")
    assert result.pop("directory") is None, "the file does not say where it is"
    assert told == result
    assert run("--seed", "5") == 2
    assert "another model" in capsys.readouterr().err


def test_a_loaded_model_is_refined_without_a_directory(directory: Path, tmp_path: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    text = directory / "text.txt"
    result = toposcope.refine(reference, text=text, steps=3, tokens=16, held_out=3)
    assert result.directory is None
    assert result.held_out_mean.before == pytest.approx(np.mean(result.held_out.before))
    assert [(row["of"], row["against"]) for row in result.rows()][-1] == ("diagonal", "control")
    shows_itself(result, tmp_path)


def test_what_cannot_be_tuned_is_said(directory: Path, reference: Reference, tmp_path: Path) -> None:
    train, held = _corpora(reference)
    write_llama(tmp_path)
    with pytest.raises(BadConfig, match="next token"):
        tune(load_reference(tmp_path, head=True, attention="sdpa"), train, held, SETTINGS)
    for wrong in ({"diagonal": "much"}, {"diagonal": "-1"}, {"form": "whole"}, {"steps": 0}, {"lr": 0.0}):
        with pytest.raises(BadValue):
            replace(SETTINGS, **wrong)
    with pytest.raises(BadValue, match="--form uniform"):
        replace(SETTINGS, diagonal="bound")
