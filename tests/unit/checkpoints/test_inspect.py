"""`inspect`: numbers against dense products, a result that can do what results can, all ways to name a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toposcope
from tests.unit.results import holds
from tests.unit.tiny import write_llama
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.inspect import StrengthRange
from toposcope.core.errors import BadValue
from toposcope.core.result import Skipped


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


def test_strengths_are_norms_of_dense_products(model: Path) -> None:
    found = toposcope.inspect(model)
    with toposcope.load(model) as opened:
        for row in found.heads:
            layer = opened.layers[row.layer]
            head = fold(layer, layer.heads[row.head])
            assert row.logit_strength == pytest.approx(np.linalg.norm(head.scale * head.q.T @ head.k))
            assert row.write_strength == pytest.approx(np.linalg.norm(head.o @ head.v))
            assert row.rotating_share == 1.0
    for row in found.layers:
        ranked = sorted(head.logit_strength for head in found.heads if head.layer == row.layer)
        assert row.logit_strength == StrengthRange(ranked[0], ranked[2], ranked[3])


def test_what_it_says_of_the_model(model: Path) -> None:
    found = toposcope.inspect(model, layers="0,2")
    assert (found.family, found.format, found.width, found.context) == ("llama", "safetensors", 16, 64)
    assert found.parameters == 32 * 16 + 3 * (2 * 16 * 16 + 2 * 8 * 16 + 16)
    assert found.dtypes == {"F32": 16}
    assert found.stored_bytes == 4 * found.parameters
    assert [(row.layer, row.heads, row.kv_heads, row.head_dim) for row in found.layers] == [
        (0, 4, 2, 4),
        (2, 4, 2, 4),
    ]
    assert found.provenance.subjects[0].name == "model"
    assert found.provenance.options["layers"] == "0,2"


def test_the_result(model: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    found = toposcope.inspect(model, progress=lambda *step: told.append(step))
    assert told == [("layers", done, 3) for done in range(4)]
    saved = holds(found, tmp_path)
    assert [(row["layer"], row["head"]) for row in saved["heads"]] == [(i, j) for i in range(3) for j in range(4)]
    assert "logit_strength.median" in found.rows("layers")[0]


def test_many_heads_are_shown_by_layer_and_what_was_not_read_is_said(model: Path, tmp_path: Path) -> None:
    found = toposcope.inspect(model)
    tower = Skipped("a vision tower", "no adapter", ("a", "b"))
    many = replace(found, heads=found.heads * 5, skipped=(tower,))
    holds(many, tmp_path)
    assert len(str(many).splitlines()) < len(many.heads)
    assert tower.what in str(many)


def test_a_model_in_memory_is_inspected_alike(model: Path) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = transformers.LlamaModel(transformers.LlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=8,
        vocab_size=32,
    ))  # fmt: skip
    live = toposcope.inspect(loaded)
    assert [row.heads for row in live.layers] == [4, 4]
    with toposcope.load(model) as opened:
        assert toposcope.inspect(opened).heads == toposcope.inspect(model).heads
        with pytest.raises(BadValue):
            toposcope.inspect(opened, num_heads=4)
