"""Integers with scales and zero points: GPTQ in both versions, AWQ's order of columns, NVFP4, what is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.checkpoints.quantised.packing import Arrays, Gptq, W, opened, stream, words
from toposcope.checkpoints.quantised.stored import unpacked
from toposcope.core.errors import BadConfig, BadFile

GPTQ = {"quant_method": "gptq", "group_size": 32}


@given(
    st.integers(1, 8).flatmap(
        lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=80))
    )
)
def test_a_stream_of_bits_is_undone(case: tuple[int, list[int]]) -> None:
    bits, numbers = case
    packed = np.array([stream(numbers, bits)] * 2, dtype=np.uint32)
    assert unpacked(packed, bits, len(numbers)).tolist() == [numbers, numbers]


@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    version=st.sampled_from([1, 2]),
    size=st.sampled_from([16, 32, 48, 96]),
    reordered=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_gptq(tmp_path: Path, bits: int, version: int, size: int, reordered: bool, seed: int) -> None:
    packed = Gptq(bits, columns=96, size=size, reordered=reordered, seed=seed)
    said = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": reordered}
    said |= {"checkpoint_format": "gptq_v2"} if version == 2 else {}
    source = opened(tmp_path, packed.arrays(version), said)
    assert source.info(W).shape == (32, 96)
    np.testing.assert_allclose(source.read(W), packed.weight, rtol=1e-7, atol=0)
    source.close()


def test_the_two_versions_of_gptq_differ_by_one_step(tmp_path: Path) -> None:
    """The classic mistake: zero points that are off by one are invisible but for a shift of each group."""
    packed = Gptq(4)
    arrays = packed.arrays(version=1)
    first = opened(tmp_path, arrays, GPTQ).read(W)
    second = opened(tmp_path, arrays, GPTQ | {"checkpoint_format": "gptq_v2"}).read(W)
    step = packed.scales.astype(np.float64)[packed.of].T
    np.testing.assert_allclose(second - first, step, rtol=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_zero_point_that_wraps_round(tmp_path: Path, bits: int) -> None:
    """GPTQModel takes 1 from whole words (3 bits: from each number); AutoGPTQ reads such a file otherwise."""
    packed = Gptq(bits)
    packed.zeros[0, 5] = 0
    arrays = packed.arrays(version=2)
    stored = arrays["l.q.qzeros"][1].view(np.uint32)
    if bits == 3:
        rows = [stream([(zero - 1) % 8 for zero in row], 3) for row in packed.zeros.tolist()]
        less = np.array(rows, dtype=np.uint32)
    else:
        less = stored - np.uint32(sum(1 << at for at in range(0, 32, bits)))
    arrays["l.q.qzeros"] = ("I32", less.view("<i4"))
    with pytest.raises(BadFile):
        opened(tmp_path, arrays, GPTQ).read(W)
    by_gptqmodel = GPTQ | {"meta": {"quantizer": ["gptqmodel:2.2.0"]}}
    np.testing.assert_allclose(opened(tmp_path, arrays, by_gptqmodel).read(W), packed.weight, rtol=1e-7)


def without(arrays: Arrays, *names: str) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in names}


def test_without_g_idx_the_groups_follow_each_other(tmp_path: Path) -> None:
    packed = Gptq(4)
    source = opened(tmp_path, without(packed.arrays(), "l.q.g_idx"), GPTQ)
    np.testing.assert_allclose(source.read(W), packed.weight, rtol=1e-7)


def test_settings_beside_an_old_gptq_model(tmp_path: Path) -> None:
    packed = Gptq(4, reordered=True)
    old = {"bits": 4, "group_size": 32, "desc_act": True}
    source = opened(tmp_path, packed.arrays(version=2), None, quantize_config=old | {"checkpoint_format": "gptq_v2"})
    np.testing.assert_allclose(source.read(W), packed.weight, rtol=1e-7)
    said = GPTQ | {"checkpoint_format": "gptq"}
    with pytest.raises(BadConfig):
        opened(tmp_path, packed.arrays(), said, quantize_config=old | {"checkpoint_format": "gptq_v2"})


GPTQ_DAMAGE = {
    "no configuration": ({}, None),
    "another version": ({}, GPTQ | {"checkpoint_format": "marlin"}),
    "bits of another kind": ({}, GPTQ | {"bits": 8}),
    "groups that do not fit": ({}, GPTQ | {"group_size": 16}),
    "groups of nothing": ({"scales": ("F16", np.zeros((0, 32), np.float16))}, GPTQ),
    "a group that is not there": ({"g_idx": ("I32", np.full(64, 2, "<i4"))}, GPTQ),
    "a negative group": ({"g_idx": ("I32", np.full(64, -1, "<i4"))}, GPTQ),
    "too few groups named": ({"g_idx": ("I32", np.zeros(63, "<i4"))}, GPTQ),
    "an order that was denied": ({"g_idx": ("I32", np.arange(64, dtype="<i4") % 2)}, GPTQ | {"desc_act": False}),
    "floats for codes": ({"qweight": ("F32", np.zeros((8, 32), "<f4"))}, GPTQ),
    "codes in one dimension": ({"qweight": ("I32", np.zeros(256, "<i4"))}, GPTQ),
    "scales of other outputs": ({"scales": ("F16", np.zeros((2, 16), np.float16))}, GPTQ),
    "integer scales": ({"scales": ("I32", np.zeros((2, 32), "<i4"))}, GPTQ),
    "zeros of other widths": ({"qzeros": ("I32", np.zeros((2, 5), "<i4"))}, GPTQ),
    "zeros of other groups": ({"qzeros": ("I32", np.zeros((3, 4), "<i4"))}, GPTQ),
    "no outputs": (
        {
            "qweight": ("I32", np.zeros((8, 0), "<i4")),
            "qzeros": ("I32", np.zeros((2, 0), "<i4")),
            "scales": ("F16", np.zeros((2, 0), np.float16)),
        },
        GPTQ,
    ),
    "something unknown beside it": ({"lora_A": ("F32", np.zeros((2, 2), "<f4"))}, GPTQ),
    "two versions": ({}, GPTQ | {"checkpoint_format": "gptq_v2", "format": "gptq"}),
    "settings that are none": ({}, GPTQ | {"bits": "four"}),
    "groups that are none": ({}, GPTQ | {"group_size": "all"}),
}


@pytest.mark.parametrize("what", GPTQ_DAMAGE)
def test_gptq_refused(tmp_path: Path, what: str) -> None:
    changes, said = GPTQ_DAMAGE[what]
    arrays = Gptq(4).arrays() | {f"l.q.{leaf}": array for leaf, array in changes.items()}
    with pytest.raises((BadFile, BadConfig)):
        opened(tmp_path, arrays, said).read(W)


@pytest.mark.parametrize("leaf", ["scales", "qzeros"])
def test_without_scales_there_is_no_weight(tmp_path: Path, leaf: str) -> None:
    source = opened(tmp_path, without(Gptq(4).arrays(), f"l.q.{leaf}"), GPTQ)
    for name in (W, "l.q.qweight"):
        with pytest.raises(BadFile):
            source.read(name)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of the number at place 0, 1, ... of a word


def awq_words(numbers: np.ndarray) -> np.ndarray:
    rows = []
    for row in numbers.tolist():
        eights = [row[at : at + 8] for at in range(0, len(row), 8)]
        rows.append([sum(eight[column] << (4 * place) for place, column in enumerate(AWQ_ORDER)) for eight in eights])
    return words(rows)


def awq_arrays(rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes, zeros = rng.integers(0, 16, (64, 24)), rng.integers(0, 16, (2, 24))
    scales = rng.uniform(0.01, 0.1, (2, 24)).astype(np.float16)
    truth = ((codes - np.repeat(zeros, 32, 0)) * np.repeat(scales.astype(np.float64), 32, 0)).T
    return {
        "l.q.qweight": ("I32", awq_words(codes)),
        "l.q.qzeros": ("I32", awq_words(zeros)),
        "l.q.scales": ("F16", scales),
    }, truth


def test_awq(tmp_path: Path) -> None:
    arrays, truth = awq_arrays(np.random.default_rng(1))
    source = opened(tmp_path, arrays, AWQ)
    np.testing.assert_allclose(source.read(W), truth, rtol=1e-7)
    old = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    np.testing.assert_allclose(opened(tmp_path, arrays, None, quant_config=old).read(W), truth, rtol=1e-7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, AWQ | {"version": "gemv"}),
        ({}, AWQ | {"bits": 8}),
        ({}, AWQ | {"group_size": 48}),
        ({}, {"quant_method": "gptq", "bits": 4, "group_size": 32}),
        ({"g_idx": ("I32", np.zeros(64, "<i4"))}, AWQ),
        ({"qzeros": ("I32", np.zeros((2, 4), "<i4"))}, AWQ),
        ({"scales": ("F16", np.zeros((2, 16), np.float16))}, AWQ),
    ],
)
def test_awq_refused(tmp_path: Path, changes: Arrays, said: dict[str, object]) -> None:
    arrays, _ = awq_arrays(np.random.default_rng(1))
    with pytest.raises(BadFile):
        opened(tmp_path, arrays | {f"l.q.{leaf}": array for leaf, array in changes.items()}, said).read(W)


def test_gptq_named_awq_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile):
        opened(tmp_path, without(Gptq(4).arrays(), "l.q.g_idx"), AWQ).read(W)


FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
NVFP4 = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"}}


def nvfp4_arrays(rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(0, 16, (6, 64))
    scale = rng.uniform(0.1, 400, (6, 4)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(0.0123)
    values = np.array([FP4[code & 7] * (-1 if code & 8 else 1) for code in codes.reshape(-1).tolist()]).reshape(6, 64)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    arrays: Arrays = {
        "l.q.weight": ("U8", packed),
        "l.q.weight_scale": ("F8_E4M3", scale),
        "l.q.weight_scale_2": ("F32", np.array(whole)),
        "l.q.input_scale": ("F32", np.ones((), np.float32)),
    }
    return arrays, values * np.repeat(scale.astype(np.float64), 16, 1) * float(whole)


def test_nvfp4_of_modelopt_by_the_file_beside_its_configuration(tmp_path: Path) -> None:
    arrays, truth = nvfp4_arrays(np.random.default_rng(2))
    source = opened(tmp_path, arrays, None, hf_quant_config=NVFP4)
    assert source.info(W).shape == (6, 64)
    assert source.info(W).dtype == "NVFP4"
    np.testing.assert_allclose(source.read(W), truth, rtol=3e-7)
    assert list(source.names()) == [W]


@pytest.mark.parametrize("leaf", ["weight_scale_2", "weight_scale"])
def test_nvfp4_without_one_of_its_scales_is_refused(tmp_path: Path, leaf: str) -> None:
    arrays, _ = nvfp4_arrays(np.random.default_rng(2))
    with pytest.raises(BadFile):
        opened(tmp_path, without(arrays, f"l.q.{leaf}"), None, hf_quant_config=NVFP4).read(W)


def test_smoothed_inputs_are_not_left_out(tmp_path: Path) -> None:
    """AWQ of modelopt multiplies the input as well, which belongs to the weight."""
    arrays, _ = nvfp4_arrays(np.random.default_rng(2))
    arrays["l.q.pre_quant_scale"] = ("F32", np.ones(64, np.float32))
    with pytest.raises(BadFile, match="pre_quant_scale"):
        opened(tmp_path, arrays, None, hf_quant_config=NVFP4).read(W)
