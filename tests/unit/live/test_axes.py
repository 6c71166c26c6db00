"""One axis of a position at a time: which pairs answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unit.live.tiny_models import DTYPES, SIZES, around, cast, rotary, seeded
from toposcope.checkpoints.live import view
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Model
from toposcope.checks import Finding
from toposcope.encodings.record import Rotary
from toposcope.live.axes import axes
from toposcope.live.running import Running

hf = pytest.importorskip("transformers")


def qwen(sections: tuple[int, int, int]) -> Any:
    module = hf.models.qwen2_vl
    settings = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    config = module.configuration_qwen2_vl.Qwen2VLTextConfig(
        **SIZES, num_key_value_heads=2, max_position_embeddings=2048, rope_parameters=settings
    )
    return seeded(lambda: module.modeling_qwen2_vl.Qwen2VLTextModel(config))


def found(model: Any, dtype: torch.dtype = torch.float32) -> list[Finding]:
    return axes(Running(cast(model, dtype)), view(model))


def drop(model: Any, *dropped: int) -> None:
    """Give some axes the positions of the first."""

    def change(given: dict[str, Any]) -> None:
        at = given["position_ids"].clone()
        for axis in dropped:
            at[axis] = at[0]
        given["position_ids"] = at

    around(model.rotary_emb, change)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_axis_turns_its_pairs(dtype: torch.dtype) -> None:
    (finding,) = found(qwen((1, 2, 1)), dtype)
    assert finding.status == "ok"
    assert finding.evidence["expected"] == [1, 2, 1]


@pytest.mark.parametrize(
    ("dropped", "seen", "dtype"),
    [((1, 2), [4, 0, 0], torch.float32), ((2,), [3, 1, 0], torch.bfloat16), ((1,), [3, 0, 1], torch.float16)],
)
def test_dropped_axes(dropped: tuple[int, ...], seen: list[int], dtype: torch.dtype) -> None:
    model = qwen((2, 1, 1))
    drop(model, *dropped)
    (finding,) = found(model, dtype)
    assert finding.status == "fault"
    assert finding.evidence["bug"] == "axes-dropped"
    assert finding.evidence["seen"] == seen
    assert finding.evidence["expected"] == [2, 1, 1]
    assert finding.layers == (0, 1, 2)


def test_a_description_without_axes() -> None:
    """Which axis a pair belongs to is then asked of a fresh copy of the class."""
    model = qwen((1, 2, 1))
    seen = view(model)
    plain = [replace(each, encoding=replace(each.encoding, rotary=_one_axis(each))) for each in seen.spec.layers]
    bare = Model(replace(seen.spec, layers=tuple(plain)), seen.source, seen.config, read_layer)
    (finding,) = axes(Running(model), bare)
    assert finding.status == "ok"
    assert finding.evidence["expected"] == [1, 2, 1]
    drop(model, 1, 2)
    (finding,) = axes(Running(model), bare)
    assert finding.status == "fault"
    assert finding.evidence["seen"] == [4, 0, 0]


def _one_axis(layer: LayerSpec) -> Rotary:
    assert layer.encoding.rotary is not None
    return replace(layer.encoding.rotary, axis_F=None, axes=())


def test_one_axis_is_not_asked() -> None:
    assert found(rotary()) == []
