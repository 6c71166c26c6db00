"""Models that are not transformers': the laboratory's and TransformerLens's are run and judged alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from toposcope.checkpoints.opened import live
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.lab.running import LabModel
from toposcope.live.judge import judge
from toposcope.live.recover import recover
from toposcope.live.running import Running

from .lens import Lens

SAME = {"turns": {"pairs"}, "biased": {"biases"}, "added": {"inputs"}, "nothing": set()}
ENCODINGS = {
    "rope:base=500": "turns",
    "rope:pairing=interleaved,rotary_dim=4": "turns",
    "rope-partial:heads=2": "turns",
    "mla": "turns",
    "xpos": "turns",
    "alibi": "biased",
    "t5": "biased",
    "fire": "biased",
    "learned": "added",
    "sinusoidal": "added",
    "none": "nothing",
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_models_of_the_laboratory(encoding: str, causal: bool) -> None:
    config = ModelConfig(vocabulary=20, classes=3, length=40, encoding=encoding, width=32, heads=4, causal=causal)
    model = LabModel(Transformer(config).eval(), Path("model")).eval()
    found = judge(recover(Running(model)), live(model))
    assert {each.status for each in found} <= {"ok", "cannot_tell"}
    said = next(each for each in found if each.status == "ok")
    assert said.layers == (0, 1)
    assert said.evidence["mode"] == "constant"
    assert said.evidence["frequency_error"] <= 3e-7
    assert {name for name in ("pairs", "biases", "inputs") if said.evidence[name]} == SAME[ENCODINGS[encoding]]


def test_a_model_of_the_laboratory_without_its_wrapper_is_recovered_as_well() -> None:
    model = Transformer(ModelConfig(vocabulary=20, classes=3, length=40, encoding="rope", width=32, heads=4)).eval()
    side = recover(Running(model)).layers[1].key
    assert side is not None
    assert side.frequency_F == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-6)


def test_a_layer_of_the_laboratory_with_other_angles() -> None:
    model, other = (
        Transformer(ModelConfig(vocabulary=20, classes=3, length=40, encoding=encoding, width=32, heads=4)).eval()
        for encoding in ("rope:base=500", "rope")
    )
    model.layers[1].attention.position = other.layers[1].attention.position
    named = LabModel(model, Path("model")).eval()
    faults = [each for each in judge(recover(Running(named)), live(named)) if each.status == "fault"]
    assert [(each.layers, each.evidence["bug"]) for each in faults] == [((1,), "theta-lost")]


@pytest.mark.parametrize("position", ["standard", "rotary"])
def test_models_of_transformer_lens(position: str) -> None:
    model = Lens(position).eval()
    found = judge(recover(Running(model)), live(model))
    assert {each.status for each in found} == {"ok"}
    evidence = found[0].evidence
    assert evidence["mode"] == "constant"
    assert evidence["scales"] == 2
    assert evidence["scale_error"] <= 5e-5
    assert (evidence["pairs"], evidence["inputs"]) == ((0, 1) if position == "standard" else (16, 0))


def test_a_model_of_transformer_lens_whose_keys_turn_twice() -> None:
    model = Lens("rotary").eval()
    attention = model.blocks[0].attn
    attention.hook_k = nn_twice = torch.nn.Module()
    nn_twice.forward = attention._rotated
    faults = [each for each in judge(recover(Running(model)), live(model)) if each.status == "fault"]
    assert [(each.layers, each.evidence["bug"], each.evidence["sides"]) for each in faults] == [
        ((0,), "rotated-twice", ["keys"])
    ]
