"""8-bit weights are multiplied by the scales beside them, as those who quantised them meant it."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.unit.checkpoints.making import safetensors_of, written
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadConfig, BadFile

FP8 = ml_dtypes.float8_e4m3fn


def opened(tmp_path: Path, arrays: dict[str, tuple[str, np.ndarray]], config: object = None) -> TensorSource:
    written(tmp_path / "model.safetensors", safetensors_of(arrays))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    return open_checkpoint(tmp_path).source


@pytest.mark.parametrize("block", [None, (128, 128), (64, 32)])
def test_block_scales_undo_a_block_quantisation(tmp_path: Path, block: tuple[int, int] | None) -> None:
    rng = np.random.default_rng(0)
    rows, columns = 300, 200  # neither is a multiple of the block
    high, wide = block or (128, 128)
    weight = rng.standard_normal((rows, columns)).astype(np.float32)
    scale = np.zeros((-(-rows // high), -(-columns // wide)), np.float32)
    stored = np.zeros_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = np.s_[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            scale[i, j] = np.abs(weight[part]).max() / 448
            stored[part] = weight[part] / scale[i, j]
    arrays = {"q.weight": ("F8_E4M3", stored.astype(FP8)), "q.weight_scale_inv": ("F32", scale)}
    config = None if block is None else {"quantization_config": {"weight_block_size": list(block)}}
    source = opened(tmp_path, arrays, config)
    ours = source.read("q.weight")
    assert ours.dtype == np.float32
    assert np.abs(ours - weight).max() < 0.04 * np.abs(weight).max()
    expected = stored.astype(FP8).astype(np.float32)
    for i in range(rows):
        for j in range(0, columns, 37):
            assert ours[i, j] == expected[i, j] * scale[i // high, j // wide]
    assert source.info("q.weight").dtype == "F8_E4M3"
    assert source.digest() != ""


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1)])
def test_one_scale_or_one_per_row(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scale = np.arange(2, 2 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    stored = np.arange(12).reshape(3, 4).astype(FP8)
    source = opened(tmp_path, {"q.weight": ("F8_E4M3", stored), "q.weight_scale": ("F32", scale)})
    factors = np.broadcast_to(scale.reshape(-1, 1), (3, 1))
    np.testing.assert_array_equal(source.read("q.weight"), stored.astype(np.float32) * factors)


def test_row_maxima_of_bitsandbytes(tmp_path: Path) -> None:
    stored = np.array([[127, -127], [64, 0]], np.int8)
    source = opened(tmp_path, {"q.weight": ("I8", stored), "q.SCB": ("F32", np.array([2.0, 1.0], np.float32))})
    np.testing.assert_allclose(source.read("q.weight"), [[2, -2], [64 / 127, 0]], rtol=1e-6)


def test_a_scale_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    arrays = {"q.weight": ("F8_E4M3", np.zeros((4, 4), FP8)), "q.weight_scale": ("F32", np.zeros((2, 3), np.float32))}
    with pytest.raises(BadFile, match=r"'q\.weight'") as refused:
        opened(tmp_path, arrays).read("q.weight")
    for fact in ("(4, 4)", "'q.weight_scale'", "(2, 3)"):
        assert fact in str(refused.value)


def test_wide_weights_are_left_alone(tmp_path: Path) -> None:
    arrays = {"q.weight": ("F32", np.ones((2, 2), np.float32)), "q.weight_scale": ("F32", np.full(1, 9, np.float32))}
    assert opened(tmp_path, arrays).read("q.weight").tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("leaf", ["_weight_qdata", "weight._data"])
def test_codes_whose_scale_is_missing_are_refused_as_such(tmp_path: Path, leaf: str) -> None:
    source = opened(tmp_path, {f"l.q.{leaf}": ("I8", np.ones((4, 4), np.int8))})
    for name in ("l.q.weight", f"l.q.{leaf}"):
        with pytest.raises(BadFile):
            source.read(name)


def test_columns_in_groups_by_index(tmp_path: Path) -> None:
    stored = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    scale = np.array([[1, 10], [2, 20]], np.float32)
    zero = np.array([[1, 2], [3, 4]], np.int8)
    index = np.array([0, 1, 0, 1, 1, 0, 1, 0], np.int32)
    weights = {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 4, "symmetric": False}
    settings = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"targets": ["Linear"], "weights": weights}},
    }
    arrays = {
        "l.q.weight": ("I8", stored),
        "l.q.weight_scale": ("F32", scale),
        "l.q.weight_zero_point": ("I8", zero),
        "l.q.weight_g_idx": ("I32", index),
    }
    found = opened(tmp_path, arrays, {"quantization_config": settings}).read("l.q.weight")
    expected = [[scale[r, g] * (int(stored[r, c]) - zero[r, g]) for c, g in enumerate(index)] for r in range(2)]
    np.testing.assert_array_equal(found, expected)
    for wrong in (np.full(8, 2), np.full(8, -2)):
        changed = arrays | {"l.q.weight_g_idx": ("I32", wrong.astype(np.int32))}
        with pytest.raises(BadFile):
            opened(tmp_path, changed, {"quantization_config": settings}).read("l.q.weight")


@pytest.mark.parametrize("block", [[0, 128], [128], "128", [128, -1], [1.5, 2]])
def test_blocks_that_are_none_are_refused(tmp_path: Path, block: object) -> None:
    arrays = {
        "q.weight": ("F8_E4M3", np.zeros((4, 4), FP8)),
        "q.weight_scale_inv": ("F32", np.ones((2, 2), np.float32)),
    }
    settings = {"quant_method": "fp8", "weight_block_size": block}
    with pytest.raises(BadConfig):
        opened(tmp_path, arrays, {"quantization_config": settings}).read("q.weight")


def test_an_exponent_that_is_no_number(tmp_path: Path) -> None:
    arrays = {
        "q.weight": ("F8_E4M3", np.ones((1, 32), FP8)),
        "q.weight_scale_inv": ("U8", np.array([[127]], np.uint8)),
    }
    settings = {"quantization_config": {"quant_method": "mxfp8"}}
    assert opened(tmp_path, arrays, settings).read("q.weight").tolist() == [[1.0] * 32]
    arrays["q.weight_scale_inv"] = ("U8", np.array([[255]], np.uint8))
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, settings).read("q.weight")


@pytest.mark.parametrize("leaf", ["scale", "qscale_weight"])
def test_scales_under_other_names(tmp_path: Path, leaf: str) -> None:
    arrays = {"q.weight": ("F8_E4M3", np.ones((2, 2), FP8)), f"q.{leaf}": ("F32", np.array([3.0], np.float32))}
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    assert opened(tmp_path, arrays, fp8).read("q.weight").tolist() == [[3, 3], [3, 3]]
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, {}).read("q.weight")
    pairs = arrays | {"q.weight": ("I8", np.ones((2, 2), np.int8))}
    with pytest.raises(BadFile):
        opened(tmp_path, pairs, fp8).read("q.weight")


def test_one_number_stays_one(tmp_path: Path) -> None:
    arrays = {"q.weight": ("F32", np.array(2.0, np.float32)), "q.weight_scale": ("F32", np.ones(1, np.float32))}
    source = opened(tmp_path, arrays)
    assert source.read("q.weight").shape == source.info("q.weight").shape == ()
