"""What a hostile or incomplete file can say of its codes, method by method, starting from a sound one."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.checkpoints.quantised.packing import Arrays, Gptq, W, opened, stream, words
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.core.errors import BadConfig, BadFile


def text(words: str) -> tuple[str, np.ndarray]:
    return "U8", np.frombuffer(words.encode(), np.uint8)


STATE = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [4, 64]}
NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]


def bnb(**state: Any) -> Arrays:
    said = {key: value for key, value in (STATE | state).items() if value is not ...}
    return {
        "l.q.weight": ("U8", np.arange(128, dtype=np.uint8).reshape(128, 1)),
        "l.q.weight.absmax": ("F32", np.arange(1, 5, dtype="<f4")),
        "l.q.weight.quant_map": ("F32", np.array(NF4, "<f4")),
        "l.q.weight.quant_state.bitsandbytes__nf4": text(json.dumps(said)),
    }


def test_nf4_by_hand(tmp_path: Path) -> None:
    """The first number of a pair is in the high half of its byte; blocks run on over the rows."""
    found = opened(tmp_path, bnb(), {"quant_method": "bitsandbytes"}).read(W)
    truth = [NF4[half] * (1 + at // 32) for at in range(128) for half in (at >> 4, at & 15)]
    np.testing.assert_allclose(found.reshape(-1), truth, rtol=1e-6)


BNB: dict[str, Arrays] = {
    "a block of nothing": bnb(blocksize=0),
    "a negative block": bnb(blocksize=-64),
    "a block that is no number": bnb(blocksize="64"),
    "an absurd block": bnb(blocksize=2**62),
    "no shape": bnb(shape=...),
    "a shape without end": bnb(shape=[4, 64] * 40),
    "an absurd shape": bnb(shape=[2**40, 2**40]),
    "a shape of other size": bnb(shape=[4, 66]),
    "a shape of nothing": bnb(shape=[]),
    "a negative shape": bnb(shape=[-4, -64]),
    "a shape with nothing in it": bnb(shape=[0, 64]),
    "nested without a table": bnb(nested_blocksize=256, nested_offset=0.5)
    | {"l.q.weight.absmax": ("U8", np.zeros(4, np.uint8)), "l.q.weight.nested_absmax": ("F32", np.ones(1, "<f4"))},
    "another type": bnb(quant_type="fp4"),
    "no type": bnb(quant_type=...),
    "blocks of another number": bnb(blocksize=32),
    "no JSON": bnb() | {"l.q.weight.quant_state.bitsandbytes__nf4": text("{")},
    "a JSON list": bnb() | {"l.q.weight.quant_state.bitsandbytes__nf4": text("[]")},
    "no UTF-8": bnb() | {"l.q.weight.quant_state.bitsandbytes__nf4": ("U8", np.full(9, 255, np.uint8))},
    "endless JSON": bnb() | {"l.q.weight.quant_state.bitsandbytes__nf4": ("U8", np.full(1 << 17, 32, np.uint8))},
    "another table": bnb() | {"l.q.weight.quant_map": ("F32", np.linspace(-1, 1, 16).astype("<f4"))},
    "nested without its parts": bnb() | {"l.q.weight.absmax": ("U8", np.zeros(4, np.uint8))},
    "codes as floats": bnb() | {"l.q.weight": ("BF16", np.zeros((64, 1), "<u2"))},
    "something beside it": bnb() | {"l.q.lora_B": ("F32", np.zeros((4, 4), "<f4"))},
}
MAXIMA = {"l.q.weight": ("I8", np.ones((4, 4), np.int8)), "l.q.SCB": ("F32", np.ones(4, "<f4"))}
BNB |= {
    "maxima of other rows": MAXIMA | {"l.q.SCB": ("F32", np.ones(3, "<f4"))},
    "shuffled rows": MAXIMA | {"l.q.weight_format": ("U8", np.array(2, np.uint8))},
    "maxima of floats": MAXIMA | {"l.q.weight": ("F32", np.ones((4, 4), "<f4"))},
}


@pytest.mark.parametrize("what", BNB)
def test_bitsandbytes(tmp_path: Path, what: str) -> None:
    with pytest.raises(BadFile):
        opened(tmp_path, BNB[what], {"quant_method": "bitsandbytes"}).read(W)


def number(value: float, kind: str = "I32") -> tuple[str, np.ndarray]:
    return kind, np.array(value, {"I32": "<i4", "U8": "<u1", "F32": "<f4"}[kind])


HQQ: Arrays = {
    "l.q.W_q": ("U8", np.full((4, 32), 0x4B, np.uint8)),
    "l.q.scale": ("F32", np.full((8, 1), 0.5, "<f4")),
    "l.q.zero": ("F32", np.full((8, 1), 1.5, "<f4")),
    "l.q.nbits": number(4),
    "l.q.group_size": number(32),
    "l.q.axis": number(1),
    "l.q.shape": ("I64", np.array([4, 64], "<i8")),
    "l.q.packing": text("4bit_u8"),
    "l.q.view_as_float": number(0, "U8"),
    "l.q.compute_dtype": text("torch.float16"),
}


def test_hqq_by_hand(tmp_path: Path) -> None:
    found = opened(tmp_path, HQQ, {"quant_method": "hqq"}).read(W)
    np.testing.assert_array_equal(found[:2], np.full((2, 64), 0.5 * (4 - 1.5)))
    np.testing.assert_array_equal(found[2:], np.full((2, 64), 0.5 * (11 - 1.5)))


@pytest.mark.parametrize(
    "changes",
    [
        {"group_size": number(0)},
        {"group_size": number(-32)},
        {"group_size": number(48)},
        {"nbits": number(7)},
        {"nbits": number(3)},
        {"nbits": number(1.58, "F32")},
        {"axis": number(2)},
        {"shape": ("I64", np.array([4, -64], "<i8"))},
        {"shape": ("I64", np.array([4, 0], "<i8"))},
        {"shape": ("I64", np.zeros(0, "<i8"))},
        {"shape": ("I64", np.array([2**40, 2**40], "<i8"))},
        {"shape": ("I64", np.full(100, 2, "<i8"))},
        {"shape": ("F32", np.array([4, 64], "<f4"))},
        {"packing": text("2bit_u8")},
        {"packing": text("")},
        {"view_as_float": number(1, "U8")},
        {"quant_zero": number(1, "U8")},
        {"scale": ("F32", np.ones((1, 8), "<f4"))},
        {"W_q": ("I32", np.ones((4, 32), "<i4"))},
        {"meta": number(1)},
    ],
)
def test_hqq(tmp_path: Path, changes: Arrays) -> None:
    with pytest.raises(BadFile):
        opened(
            tmp_path, HQQ | {f"l.q.{leaf}": array for leaf, array in changes.items()}, {"quant_method": "hqq"}
        ).read(W)


@pytest.mark.parametrize("leaf", ["scale", "zero", "nbits", "axis", "shape", "packing"])
def test_hqq_with_a_part_missing(tmp_path: Path, leaf: str) -> None:
    with pytest.raises(BadFile):
        opened(tmp_path, {name: array for name, array in HQQ.items() if name != f"l.q.{leaf}"}).read(W)


def compressed(weights: dict[str, Any], targets: list[str] | None = None, **others: Any) -> dict[str, Any]:
    group = {"targets": targets or ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **others}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
PACKED: Arrays = {
    "l.q.weight_packed": ("I32", words([stream([(row + at) % 16 for at in range(64)], 4) for row in range(4)])),
    "l.q.weight_scale": ("F32", np.arange(1, 9, dtype="<f4").reshape(4, 2)),
    "l.q.weight_shape": ("I64", np.array([4, 64], "<i8")),
}


def packed_truth(group_of: list[int]) -> np.ndarray:
    scale = np.arange(1, 9).reshape(4, 2)
    return np.array([[((row + at) % 16 - 8) * scale[row, group_of[at]] for at in range(64)] for row in range(4)])


def test_packed_by_hand(tmp_path: Path) -> None:
    plain = [at // 32 for at in range(64)]
    np.testing.assert_array_equal(opened(tmp_path, PACKED, compressed(INT4)).read(W), packed_truth(plain))
    reordered = [at % 2 for at in range(64)]
    arrays = PACKED | {"l.q.weight_g_idx": ("I32", np.array(reordered, "<i4"))}
    np.testing.assert_array_equal(opened(tmp_path, arrays, compressed(INT4)).read(W), packed_truth(reordered))
    unused = PACKED | {"l.q.weight_g_idx": ("I32", np.full(64, -1, "<i4"))}
    np.testing.assert_array_equal(opened(tmp_path, unused, compressed(INT4)).read(W), packed_truth(plain))


def test_a_scheme_by_name_comes_before_one_by_pattern_and_by_class(tmp_path: Path) -> None:
    said = compressed(INT4 | {"num_bits": 8})
    said["config_groups"] |= {
        "group_1": {"targets": [r"re:.*\.q$"], "weights": INT4 | {"num_bits": 2}},
        "group_2": {"targets": ["l.q"], "weights": INT4},
    }
    assert opened(tmp_path, PACKED, said).info(W).dtype.startswith("Q4")
    del said["config_groups"]["group_2"]
    with pytest.raises(BadFile):
        opened(tmp_path, PACKED, said).info(W)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({}, {"quant_method": "compressed-tensors"}),
        ({}, compressed(INT4, ["re:(a+)+$"])),
        ({}, compressed(INT4, ["re:("])),
        ({}, compressed(INT4, ["l.k"])),
        ({}, compressed(INT4, format="marlin-24")),
        ({}, compressed(INT4, sparsity_config={"format": "sparse-24-bitmask"})),
        ({}, compressed(INT4, transform_config={"config_groups": {"R1": {}}})),
        ({}, compressed(INT4 | {"group_size": 0})),
        ({}, compressed(INT4 | {"group_size": 16})),
        ({}, compressed(INT4 | {"num_bits": 0})),
        ({}, compressed(INT4 | {"num_bits": 8})),
        ({}, compressed(INT4 | {"type": "complex"})),
        ({}, compressed(INT4 | {"symmetric": False})),
        ({}, compressed({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})),
        ({"weight_zero_point": ("I32", np.zeros((1, 2), "<i4"))}, compressed(INT4)),
        ({"weight_shape": ("I64", np.array([4, 63], "<i8"))}, compressed(INT4)),
        ({"weight_shape": ("I64", np.array([2**40, 2**40], "<i8"))}, compressed(INT4)),
        ({"weight_g_idx": ("I32", np.full(64, 2, "<i4"))}, compressed(INT4)),
        ({"weight_g_idx": ("I32", np.zeros(3, "<i4"))}, compressed(INT4)),
        ({"weight_packed": ("I32", np.zeros((4, 9), "<i4"))}, compressed(INT4)),
        ({"weight_packed": ("I64", np.zeros((4, 8), "<i8"))}, compressed(INT4)),
        ({"weight_scale": ("F32", np.zeros((3, 2), "<f4"))}, compressed(INT4)),
        ({"weight_scale": ("U8", np.zeros((4, 2), "<u1"))}, compressed(INT4)),
    ],
)
def test_packed(tmp_path: Path, changes: Arrays, said: dict[str, Any] | None) -> None:
    arrays = PACKED | {f"l.q.{leaf}": array for leaf, array in changes.items()}
    with pytest.raises((BadFile, BadConfig)):
        opened(tmp_path, arrays, said).read(W)


@pytest.mark.parametrize("leaf", ["weight_scale", "weight_shape"])
def test_packed_with_a_part_missing(tmp_path: Path, leaf: str) -> None:
    arrays = deepcopy(PACKED)
    del arrays[f"l.q.{leaf}"]
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, compressed(INT4)).read(W)


BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": ("U8", np.full((2, 4), 3, np.uint8))},
        {"weight": ("BF16", np.zeros((8, 4), "<u2"))},
        {"weight_scale": ("F32", np.ones(8, "<f4"))},
        {"rms_norm.weight": ("F32", np.ones(4, "<f4"))},
    ],
)
def test_bitnet(tmp_path: Path, changes: Arrays) -> None:
    sound: Arrays = {
        "l.q.weight": ("U8", np.full((2, 4), 0b01_10_00_01, np.uint8)),
        "l.q.weight_scale": ("F32", np.array([2.0], "<f4")),
    }
    expected = np.repeat([[0.0], [-2.0], [2.0], [0.0]], 2, axis=0) * np.ones((1, 4))
    np.testing.assert_array_equal(opened(tmp_path, sound, BITNET).read(W), expected)
    with pytest.raises(BadFile):
        opened(tmp_path, sound | {f"l.q.{leaf}": array for leaf, array in changes.items()}, BITNET).read(W)


MLX: Arrays = {
    "l.q.weight": ("U32", np.zeros((2, 8), "<u4")),
    "l.q.scales": ("F32", np.ones((2, 1), "<f4")),
    "l.q.biases": ("F32", np.full((2, 1), 3, "<f4")),
}


@pytest.mark.parametrize(
    "said", [{"bits": 3, "group_size": 64}, {"bits": 4, "group_size": 0}, {"bits": 4}, {"bits": 4, "group_size": 48}]
)
def test_mlx(tmp_path: Path, said: dict[str, int]) -> None:
    sound = {"quant_method": "mlx", "bits": 4, "group_size": 64}
    np.testing.assert_array_equal(opened(tmp_path, MLX, sound).read(W), np.full((2, 64), 3))
    twice = {"bits": 4, "group_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"quantization": twice, "quantization_config": twice}))
    np.testing.assert_array_equal(open_checkpoint(tmp_path).source.read(W), np.full((2, 64), 3))
    with pytest.raises(BadFile):
        opened(tmp_path, MLX, {"quant_method": "mlx", **said}).read(W)


def test_mlx_settings_of_one_module(tmp_path: Path) -> None:
    said = {"quant_method": "mlx", "bits": 8, "group_size": 32, "l.q": {"bits": 4, "group_size": 64}}
    assert opened(tmp_path, MLX, said).info(W).shape == (2, 64)


MXFP4: Arrays = {
    "l.up_blocks": ("U8", np.full((2, 3, 4, 16), 0x21, np.uint8)),
    "l.up_scales": ("U8", np.full((2, 3, 4), 128, np.uint8)),
}


def test_mxfp4(tmp_path: Path) -> None:
    found = opened(tmp_path, MXFP4, {"quant_method": "mxfp4"}).read("l.up")
    assert found.shape == (2, 128, 3)
    np.testing.assert_array_equal(found[:, ::2], np.full((2, 64, 3), 1.0))  # the low half comes first
    np.testing.assert_array_equal(found[:, 1::2], np.full((2, 64, 3), 2.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": ("U8", np.zeros((2, 3, 4, 8), np.uint8))},
        {"blocks": ("U8", np.zeros((2, 3, 64), np.uint8))},
        {"blocks": ("I8", np.zeros((2, 3, 4, 16), np.int8))},
        {"blocks": ("U8", np.zeros((2, 0, 4, 16), np.uint8)), "scales": ("U8", np.zeros((2, 0, 4), np.uint8))},
        {"blocks": ("U8", np.zeros((2, 3, 0, 16), np.uint8)), "scales": ("U8", np.zeros((2, 3, 0), np.uint8))},
        {"scales": ("U8", np.zeros((2, 4, 3), np.uint8))},
        {"scales": ("U8", np.full((2, 3, 4), 255, np.uint8))},
        {"scales": ("F32", np.ones((2, 3, 4), "<f4"))},
    ],
)
def test_mxfp4_refused(tmp_path: Path, changes: Arrays) -> None:
    arrays = MXFP4 | {f"l.up_{leaf}": array for leaf, array in changes.items()}
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, {"quant_method": "mxfp4"}).read("l.up")


FLOATS = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
PACKED_FLOATS: Arrays = {
    "l.q.weight_packed": ("U8", np.full((4, 32), 0x21, np.uint8)),
    "l.q.weight_scale": ("U8", np.full((4, 2), 127, np.uint8)),
}


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, FLOATS | {"num_bits": 6}),
        ({}, FLOATS | {"group_size": 64}),
        ({}, FLOATS | {"group_size": 16}),
        ({"weight_global_scale": ("F32", np.ones(1, "<f4"))}, FLOATS),
        ({"weight_packed": ("I8", np.zeros((4, 32), np.int8))}, FLOATS),
        ({"weight_packed": ("U8", np.zeros((4, 33), np.uint8))}, FLOATS),
        ({"weight_scale": ("U8", np.zeros((4, 4), np.uint8))}, FLOATS),
    ],
)
def test_packed_floats(tmp_path: Path, changes: Arrays, weights: dict[str, Any]) -> None:
    sound = opened(tmp_path, PACKED_FLOATS, compressed(FLOATS)).read(W)
    np.testing.assert_array_equal(sound, np.tile([0.5, 1.0], (4, 32)))
    arrays = PACKED_FLOATS | {f"l.q.{leaf}": array for leaf, array in changes.items()}
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, compressed(weights)).read(W)


@pytest.mark.parametrize("block", [[0, 2], [2, -1], [2], "2x", "2x2x2", "99999999999x2", {}])
def test_blocks_of_a_scheme(tmp_path: Path, block: Any) -> None:
    arrays: Arrays = {
        "l.q.weight": ("F8_E4M3", np.full((4, 4), 0x38, np.uint8)),
        "l.q.weight_scale": ("F32", np.arange(1, 5, dtype="<f4").reshape(2, 2)),
    }
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "2x2"}
    sound = opened(tmp_path, arrays, compressed(weights)).read(W)
    np.testing.assert_array_equal(sound, np.repeat(np.repeat([[1, 2], [3, 4]], 2, 0), 2, 1))
    with pytest.raises((BadFile, BadConfig)):
        opened(tmp_path, arrays, compressed(weights | {"block_structure": block})).read(W)


def test_settings_that_agree(tmp_path: Path) -> None:
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
    packed = Gptq(4)
    source = opened(tmp_path, packed.arrays(), said, quantize_config={"bits": 4, "group_size": 32})
    np.testing.assert_allclose(source.read(W), packed.weight, rtol=1e-7)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_bitnet_divided_by_nothing(tmp_path: Path, scale: float) -> None:
    arrays: Arrays = {
        "l.q.weight": ("U8", np.zeros((2, 4), np.uint8)),
        "l.q.weight_scale": ("F32", np.array([scale], "<f4")),
    }
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, BITNET | {"linear_class": "bitlinear"}).read(W)
