"""Settings that studies need: tied depth, scaled logits, MLA's parts, models of equal size, finer curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.lab.making import model, sentences
from tests.unit.lab.test_ablation import FLOOR, batch, without
from tests.unit.runs.making import trained
from toposcope.checkpoints import load
from toposcope.core.errors import BadFile, BadValue
from toposcope.lab.ablation import ablation_map
from toposcope.lab.batches import accuracy
from toposcope.lab.config import RunConfig
from toposcope.lab.export import export
from toposcope.lab.load import load_model
from toposcope.lab.model import Transformer
from toposcope.lab.packed import scored
from toposcope.lab.parameters import trained_parameters
from toposcope.lab.result import TrainResult
from toposcope.lab.train import train
from toposcope.runs.grid import read_changes
from toposcope.studies.language import config as language
from toposcope.studies.language.cells import build
from toposcope.studies.language.config import ProbeConfig


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (RunConfig("distance", "rope"), "153a695854433c4f"),
        (RunConfig("count", "mla", 3, "laptop-m"), "46256bf350682ad7"),
        (RunConfig("distance", "rope", 1, "published", "published"), "15dc7331318f3e65"),
    ],
)
def test_runs_kept_before_there_were_these_settings_have_their_keys(config: RunConfig, key: str) -> None:
    assert config.key() == key
    assert len(config.as_dict()) == 20


def test_probes_keep_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "find", lambda name: type("Text", (), {"digest": "x"}))
    assert ProbeConfig("full-pd").key() == "832cf4194c0fc0f6"
    assert ProbeConfig("free", seed=2, heads=4).key() == "b4c21177af7c3ba3"
    assert ProbeConfig("free", loops=2).key() != ProbeConfig("free").key()
    full = ProbeConfig("full-pd", parameters=60_000, width=32)
    assert abs(trained_parameters(build(full.held, full.model()).model) - 60_000) <= 65
    assert full.key() == ProbeConfig("full-pd", ff=full.mlp, width=32).key()
    assert ProbeConfig.from_dict(full.as_dict()) == full


def unrolled(made: Transformer) -> Transformer:
    """A model of as many layers as run, each with the weights of the one that it stands for."""
    config, count = made.config, made.config.layers
    other = Transformer(replace(config, layers=count * config.loops, loops=1)).eval()
    other.load_state_dict(
        {name: value for name, value in made.state_dict().items() if not name.startswith("layers.")}, strict=False
    )
    for number, layer in enumerate(other.layers):
        layer.load_state_dict(made.layers[number % count].state_dict())
    return other


@pytest.mark.parametrize("case", [{"encoding": "rope", "layers": 1, "loops": 3}, {"encoding": "t5", "loops": 2}])
def test_a_looped_model_is_the_unrolled_one(case: dict[str, Any]) -> None:
    made = model(**case)
    other, ids = unrolled(made), sentences()
    assert torch.equal(made(ids), other(ids))
    data = batch(made, 60)
    torch.testing.assert_close(scored(made, data, 2)[0], scored(other, data, 2)[0])
    found = ablation_map(made, data, FLOOR, draws=20)
    for layer in range(made.config.layers):  # a removed head is missing each time
        theirs = [accuracy(without(made, [(layer, head)]), data)[0] for head in range(4)]
        assert found.zero[layer].accuracy == pytest.approx(theirs, abs=1e-9)
    assert found.joint is None or found.joint.accuracy == pytest.approx(
        accuracy(without(made, list(found.joint.heads)), data)[0], abs=1e-9
    )


@pytest.mark.parametrize("encoding", ["none", "rope", "alibi"])
def test_scaled_logits_are_scaled_queries(encoding: str) -> None:
    made, plain = model(encoding, logit_scale=0.5), model(encoding)
    with torch.no_grad():
        for layer in plain.layers:
            layer.attention.q_proj.weight *= 0.5
    torch.testing.assert_close(made(sentences()), plain(sentences()))


@pytest.mark.parametrize(
    "case",
    [
        {"encoding": "rope", "loops": 3, "logit_scale": 0.8},
        {"encoding": "mla", "latent_rank": 16, "shared_key": False},
        {"encoding": "mla", "latent_rank": 3},
    ],
)
def test_what_was_exported_comes_back_and_can_be_read(case: dict[str, Any], tmp_path: Path) -> None:
    made = model(**case)
    export(made, tmp_path)
    assert torch.equal(load_model(tmp_path)(sentences()), made(sentences()))
    with load(tmp_path) as opened:
        specs = [layer.spec for layer in opened.layers]
        shared = [spec.shared_with for spec in specs]
        q = opened.layers[-1].heads[0]
    assert shared == [None, None, *[0, 1] * (made.config.loops - 1)]
    assert specs[0].scale == pytest.approx(made.layers[0].attention.scaling)
    assert q is not None


def test_the_parts_of_mla_one_by_one() -> None:
    ids = sentences()
    for shared in (True, False):
        made = model("mla", shared_key=shared)
        attention = made.layers[0].attention
        _, k_BHNR, _ = attention.project(made.embedded(ids))
        turning = k_BHNR[..., made.config.query_widths[0] :]
        assert torch.equal(turning[:, 0], turning[:, 1]) == shared
    assert model("mla", latent_rank=16).layers[0].attention.kv_b_proj.weight.shape[1] == 16


@pytest.mark.parametrize(
    "wrong",
    [
        {"loops": 0}, {"loops": 9999}, {"logit_scale": 0.0}, {"logit_scale": float("nan")}, {"shared_key": False},
        {"latent_rank": 4}, {"parameters": 10}, {"parameters": 90_000, "ff": 8}, {"curve_points": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        RunConfig("distance", "rope", **wrong).key()


@pytest.mark.parametrize("encoding", ["rope-partial", "mla"])
def test_models_of_equal_size(encoding: str) -> None:
    config = RunConfig("distance", encoding, parameters=80_000)
    assert abs(trained_parameters(Transformer(config.model())) - 80_000) <= 129  # half of what one more unit adds
    assert config.key() == RunConfig("distance", encoding, ff=config.settings["ff"]).key()
    assert RunConfig.from_dict(config.as_dict()) == config


def test_they_can_be_set() -> None:
    asked = ["loops=4", "logit_scale=0.9", "parameters=70000", "curve_points=60", "latent_rank=8", "shared_key=false"]
    numbers = {"loops": 4, "logit_scale": 0.9, "parameters": 70000, "curve_points": 60, "latent_rank": 8}
    assert read_changes(asked) == {**numbers, "shared_key": False}


def test_a_finer_curve_changes_nothing_but_the_curve(tmp_path: Path) -> None:
    small = RunConfig("count", "none", steps=24, batch=8, width=16, heads=2, ff=16, layers=1, loops=2)
    usual, finer = train(small, tmp_path / "usual"), train(replace(small, curve_points=24), tmp_path / "finer")
    assert (len(finer.curve), len(usual.curve)) == (24, 20)
    assert (usual.loss, usual.gradients, usual.spectra) == (finer.loss, finer.gradients, finer.spectra)
    assert {point.step: point for point in finer.curve}.items() >= {
        point.step: point for point in usual.curve
    }.items()
    assert len(usual.spectra[0].rho) == 2  # each time that the layer runs
    assert finer.steps_to_90 == next((point.step for point in finer.curve if point.accuracy >= 0.9), None)


def test_every_two_heads_of_a_layer() -> None:
    made = model("rope", loops=2)
    data = batch(made, 60)
    found = ablation_map(made, data, FLOOR, draws=20, pairs=True).pairs
    assert [each.layer for each in found] == [0, 1]
    for each in found:
        assert each.base == pytest.approx(accuracy(made, data)[0], abs=1e-9)
        assert len(each.heads) == 6
        for pair, right in list(zip(each.heads, each.accuracy, strict=True))[::2]:
            theirs = without(made, [(each.layer, head) for head in pair])
            assert right == pytest.approx(accuracy(theirs, data)[0], abs=1e-9)
        assert each.alone == pytest.approx(ablation_map(made, data, FLOOR, draws=20).zero[each.layer].accuracy)


def test_results_kept_before_these_settings_are_read() -> None:
    """Without the fields that came later; steps to 90 % come off the curve that they have."""
    curve = [{"step": step, "loss": 1.0, "accuracy": right} for step, right in ((0, 0.1), (21, 0.95), (40, 0.9))]
    old = trained(curve=curve)
    assert not {"steps_to_90"} & old.keys()
    found = TrainResult.from_dict(old)
    assert found.ablation is not None
    assert (found.steps_to_90, found.ablation.pairs) == (21, ())
    assert TrainResult.from_dict(found.as_dict()) == found
    for damaged in ({"curve": 3}, {"curve": [3]}, {"ablation": []}, {"curve": [{"accuracy": "much"}]}):
        with pytest.raises(BadFile):
            TrainResult.from_dict({**old, **damaged})
