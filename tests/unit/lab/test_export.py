"""A model written to files and read back: by torch, and by Toposcope's own reader and commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.lab.making import ENCODINGS, model, sentences
from toposcope.checkpoints import load
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadEncoding, BadFile, MissingTensor, NotFound
from toposcope.lab.export import export
from toposcope.lab.load import load_model
from toposcope.lab.quirks import Quirks


@pytest.mark.parametrize("encoding", [*ENCODINGS, "cope", "pope"])
def test_a_loaded_model_gives_the_same_scores(encoding: str, tmp_path: Path) -> None:
    made = model(encoding, causal=encoding == "alibi", seed=3)
    export(made, tmp_path, task="distance", run="0123456789abcdef")
    loaded = load_model(tmp_path)
    assert loaded.config == made.config
    assert torch.equal(loaded(sentences()), made(sentences()))
    assert json.loads((tmp_path / "config.json").read_text())["task"] == "distance"


def test_sizes_and_quirks_come_back(tmp_path: Path) -> None:
    made = model("mla", quirks=Quirks.published(), dropout=0.1, reads="token", layers=3)
    export(made, tmp_path / "model")
    loaded = load_model(tmp_path)  # the folder above will do
    assert loaded.config == made.config
    assert not loaded.training
    assert torch.equal(loaded(sentences()), made(sentences()))


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"config\.json"):
        load_model(tmp_path)
    export(model("rope"), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(BadFile, match=r"model\.safetensors"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadConfig, match="'llama'"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "toposcope-lab"}')
    with pytest.raises(BadConfig, match="not describe"):
        load_model(tmp_path)


def test_the_reader_finds_encodings_by_layer_and_head(tmp_path: Path) -> None:
    export(model("rope@heads:0-1@layers:1-,alibi@layers:0"), tmp_path)
    with load(tmp_path) as found:
        assert found.family == "lab"
        assert found.spec.context == 10
        assert found.skipped == ()
        first, second = (layer.encoding for layer in found.layers)
        assert (first.name, second.name) == ("alibi", "rope")
        assert second.rotary is not None
        assert second.rotary.turning_heads == 2


@pytest.mark.parametrize("encoding", ["cope", "pope"])
def test_encodings_without_tables_say_so(encoding: str, tmp_path: Path) -> None:
    export(model(encoding), tmp_path)
    with load(tmp_path) as found, pytest.raises(BadEncoding, match="tables"):
        found.layers[0].encoding.tables()


def test_the_misread_rotary_has_no_tables_and_absolute_tables_stand_beside(tmp_path: Path) -> None:
    export(model("mla", quirks=Quirks(mla_misread=True, learned_beside_mla=True)), tmp_path)
    with load(tmp_path) as found:
        encoding = found.layers[0].encoding
        assert not encoding.exact_tables
        assert encoding.input is not None
    export(model("rope", quirks=Quirks(sinusoid_beside_rotary=True)), tmp_path / "beside")
    with load(tmp_path / "beside") as found:
        assert found.layers[0].encoding.mechanisms == ("input", "rotary")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    made = model("t5")
    export(made, tmp_path)
    export(model("none"), tmp_path / "bare")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "bare" / "model.safetensors").read_bytes())
    with pytest.raises(MissingTensor, match=r"position\.parts\.0\.table"):
        load(tmp_path)


@pytest.mark.parametrize("entry", ["rope", [1], [{"heads": [0]}], {"encoding": "rope"}])
def test_a_damaged_list_of_encodings_is_named(tmp_path: Path, entry: object) -> None:
    export(model("rope"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "layer_encodings": [entry, entry]}))
    with pytest.raises(BadConfig, match="layer_encodings"):
        load(tmp_path)


@pytest.mark.parametrize("encoding", ["rope@heads:0-1", "t5", "sinusoidal", "mla"])
def test_the_commands_take_it(encoding: str, tmp_path: Path) -> None:
    export(model(encoding), tmp_path)
    for command in (["inspect"], ["check"], ["scan"], ["flow", "--layer", "0", "--n", "8", "--horizon", "1"]):
        with pytest.raises(SystemExit) as ended:
            main([command[0], str(tmp_path), *command[1:]])
        assert ended.value.code in (0, None), command


def test_the_embedding_is_found(tmp_path: Path) -> None:
    made = model("rope")
    export(made, tmp_path)
    with load(tmp_path) as found:
        np.testing.assert_array_equal(found.token_embedding(), made.embed.weight.detach().numpy())
