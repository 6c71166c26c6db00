"""`toposcope.testing`: what raises, and with which findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.making import write_llama_lm
from toposcope.core.errors import BadValue
from toposcope.testing import assert_positions_equal

torch = pytest.importorskip("torch", reason="models run in torch")
hf = pytest.importorskip("transformers", reason="models are transformers'")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lm")
    write_llama_lm(directory)
    return directory


def loaded(place: Path) -> Any:
    return hf.AutoModelForCausalLM.from_pretrained(place).eval()


def test_a_sound_model_passes_and_gives_its_result(place: Path) -> None:
    assert assert_positions_equal(place, expect="rope:base=10000", live=False).kind == "check"


def test_a_configuration_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2})
    )
    assert_positions_equal(path, expect="rope", live=False)
    with pytest.raises(AssertionError, match="expected-encoding"):
        assert_positions_equal(path, expect="rope:base=500000", live=False)


def test_a_model_that_runs_wrong_fails(place: Path) -> None:
    model = loaded(place)
    model.model.rotary_emb.inv_freq.mul_(2)
    with pytest.raises(AssertionError, match="twice"):
        assert_positions_equal(model)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_reference_that_runs(wrong: bool, place: Path) -> None:
    model, other = loaded(place), loaded(place)
    if wrong:
        model.model.rotary_emb.inv_freq.zero_()
        with pytest.raises(AssertionError, match="frequencies-uninitialised"):
            assert_positions_equal(model, other, live=False)
    else:
        assert_positions_equal(model, other, live=False)


def test_modules() -> None:
    attention = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True, dropout=0.0)
    assert_positions_equal(attention, expect="none", width=16)
    with pytest.raises(AssertionError):
        assert_positions_equal(attention, expect="relative", width=16)
    with pytest.raises(BadValue):
        assert_positions_equal(attention, expect="rope:base=10000", width=16)
