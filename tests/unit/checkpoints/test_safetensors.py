"""Reading `.safetensors`: what is stored comes back exactly, and what is wrong is refused by name."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.unit.checkpoints.making import one_float, safetensors_bytes, safetensors_of, written
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.errors import BadFile, BadWeights

MEGABYTE = 1 << 20


def opened(tmp_path: Path, content: bytes) -> SafetensorsFile:
    return SafetensorsFile(written(tmp_path / "model.safetensors", content))


@pytest.mark.parametrize(
    ("torch_name", "stored_name", "read_as"),
    [
        ("bfloat16", "BF16", np.float32),
        ("float16", "F16", np.float32),
        ("float8_e4m3fn", "F8_E4M3", np.float32),
        ("float8_e5m2", "F8_E5M2", np.float32),
        ("float32", "F32", np.float32),
        ("float64", "F64", np.float64),
        ("int8", "I8", np.float64),
        ("uint8", "U8", np.float64),
        ("int16", "I16", np.float64),
        ("int32", "I32", np.float64),
        ("int64", "I64", np.float64),
        ("bool", "BOOL", np.float64),
    ],
)
def test_reads_what_torch_wrote(tmp_path: Path, torch_name: str, stored_name: str, read_as: type) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    values = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    theirs = values.to(getattr(torch, torch_name))
    save_file({"w": theirs, "zzz": theirs[0].clone()}, tmp_path / "m.safetensors", metadata={"format": "pt"})
    source = SafetensorsFile(tmp_path / "m.safetensors")
    ours = source.read("w")
    assert source.info("w").dtype == stored_name
    assert source.info("w").shape == ours.shape == (5, 7)
    assert source.metadata == {"format": "pt"}
    assert ours.dtype == read_as
    np.testing.assert_array_equal(ours, theirs.double().numpy())
    source.close()


@pytest.mark.parametrize(
    ("stored_name", "code", "theirs"),
    [
        ("BF16", np.uint16, ml_dtypes.bfloat16),
        ("F16", np.uint16, np.float16),
        ("F8_E4M3", np.uint8, ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", np.uint8, ml_dtypes.float8_e5m2),
    ],
)
def test_every_finite_number_of_a_small_type_comes_back_exactly(
    tmp_path: Path, stored_name: str, code: type, theirs: type
) -> None:
    every = np.arange(np.iinfo(code).max + 1, dtype=code).view(theirs)
    with np.errstate(all="ignore"):
        finite = every[np.isfinite(every.astype(np.float64))]
    ours = opened(tmp_path, safetensors_of({"w": (stored_name, finite)})).read("w")
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.astype(np.float64), finite.astype(np.float64))


def test_reads_scalars_empty_tensors_and_headers_of_any_length(tmp_path: Path) -> None:
    content = safetensors_of(
        {
            "an odd name": ("F16", np.float16(2.5).reshape(())),
            "none": ("F32", np.zeros((0, 4), np.float32)),
            "after": ("F64", np.array([1e300])),
        }
    )
    source = opened(tmp_path, content)
    assert source.read("an odd name") == np.float32(2.5)
    assert source.read("none").shape == (0, 4)
    assert source.read("after")[0] == 1e300
    assert source.info("after").nbytes == 8


BAD_FILES = {
    "shorter than eight bytes": b"1234567",
    "no header": b"\0" * 8,
    "truncated": one_float()[:-1],
    "truncated header": one_float()[:30],
    "trailing bytes": one_float() + b"\0",
    "huge header": safetensors_bytes(b"{}", length=1 << 62),
    "header beyond the file": safetensors_bytes(b"{}", length=3),
    "not UTF-8": safetensors_bytes(b'{"\xff": 1}'),
    "not JSON": safetensors_bytes(b'{"w": '),
    "not an object": safetensors_bytes(b"[1]"),
    "leading space": safetensors_bytes(b" {}"),
    "nested without end": safetensors_bytes(b'{"w":' + b"[" * 100_000),
    "a number of many digits": safetensors_bytes(b'{"w": ' + b"9" * 10_000 + b"}"),
    "not a number": safetensors_bytes(b'{"w": NaN}'),
    "entry not an object": safetensors_bytes({"w": 3}),
    "entry without offsets": safetensors_bytes({"w": {"dtype": "F32", "shape": [1]}}),
    "twice the same tensor": safetensors_bytes(
        b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"1",
    ),
    "unknown dtype": one_float(dtype="F31"),
    "dtype not a text": one_float(dtype=["F32"]),
    "wrong dtype": one_float(dtype="F64"),
    "wrong shape": one_float(shape=[2, 3]),
    "negative shape": one_float(shape=[-2, -2]),
    "fractional shape": one_float(shape=[2.0, 2]),
    "boolean shape": one_float(shape=[True, 4]),
    "shape not a list": one_float(shape=4),
    "overflowing shape": one_float(shape=[1 << 32, 1 << 32]),
    "overflowing empty shape": one_float(shape=[0, 1 << 62, 1 << 62], data_offsets=[0, 0]),
    "too many dimensions": one_float(shape=[1] * 100 + [4]),
    "offsets reversed": one_float(data_offsets=[16, 0]),
    "offsets negative": one_float(data_offsets=[-16, 0]),
    "offsets past the end": one_float(data_offsets=[16, 32]),
    "offsets huge": one_float(data_offsets=[0, 1 << 70]),
    "three offsets": one_float(data_offsets=[0, 8, 16]),
    "hole at the start": one_float(shape=[2], data_offsets=[8, 16]),
    "overlapping offsets": safetensors_bytes(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "U8", "shape": [3], "data_offsets": [2, 5]},
        },
        b"12345",
    ),
    "same offsets": safetensors_bytes(
        {
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
            "b": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        },
        b"123",
    ),
    "metadata of numbers": safetensors_bytes({"__metadata__": {"a": 1}}),
    "a terminal command as a name": safetensors_bytes(
        {"\x1b[2J": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"1"
    ),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_refuses_unsound_files_in_one_sentence_that_names_them(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BadFile) as refused:
        opened(tmp_path, content)
    message = str(refused.value)
    assert "model.safetensors" in message
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 600


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="0 bytes"):
        opened(tmp_path, b"")


def test_a_file_that_claims_much_allocates_little(tmp_path: Path) -> None:
    content = one_float(shape=[1 << 30, 1 << 20], data_offsets=[0, 1 << 52])
    tracemalloc.start()
    with pytest.raises(BadFile):
        opened(tmp_path, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEGABYTE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", np.float32), ("F64", np.float64), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)]
)
def test_nan_and_infinity_are_found_with_their_place(tmp_path: Path, kind: str, dtype: type, value: float) -> None:
    array = np.ones((3, 200_000), dtype=dtype)
    array[2, 123_456] = value
    source = opened(tmp_path, safetensors_of({"layer.weight": (kind, array)}))
    with pytest.raises(BadWeights, match=r"\(2, 123456\)") as refused:
        source.read("layer.weight")
    for fact in ("'layer.weight'", "model.safetensors", f" {value} "):
        assert fact in str(refused.value)


def test_a_bit_flip_in_the_exponent_is_seen(tmp_path: Path) -> None:
    content = bytearray(safetensors_of({"w": ("F32", np.full(4, 1.5, np.float32))}))
    content[-1] ^= 0x40  # 1.5 becomes NaN
    with pytest.raises(BadWeights):
        opened(tmp_path, bytes(content)).read("w")


def test_types_without_a_reader_are_refused_when_read(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    source = opened(tmp_path, safetensors_bytes(header, b"1234"))
    with pytest.raises(BadFile, match=r"'w' .* F4"):
        source.read("w")


@pytest.mark.parametrize(("kind", "dtype"), [("BF16", ml_dtypes.bfloat16), ("F32", np.float32), ("F64", np.float64)])
def test_reading_a_large_tensor_holds_the_result_and_little_more(tmp_path: Path, kind: str, dtype: type) -> None:
    side = 4096 if kind == "BF16" else 2048
    array = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32).astype(dtype)
    path = written(tmp_path / "big.safetensors", safetensors_of({"w": (kind, array)}))
    expected = array.astype(np.float64 if kind == "F64" else np.float32)
    source = SafetensorsFile(path)
    tracemalloc.start()
    ours = source.read("w")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{kind}: result {ours.nbytes / MEGABYTE:.0f} MB, peak {peak / MEGABYTE:.1f} MB")
    assert peak < ours.nbytes + 20 * MEGABYTE
    np.testing.assert_array_equal(ours, expected)


def test_results_outlive_the_file(tmp_path: Path) -> None:
    source = opened(tmp_path, one_float())
    ours = source.read("w")
    digest = source.digest()
    source.close()
    assert ours.sum() == 6
    assert source.digest() == digest
    with pytest.raises(RuntimeError, match="closed"):
        source.read("w")


def test_the_digest_depends_on_what_was_read_and_not_on_the_order(tmp_path: Path) -> None:
    content = safetensors_of({"a": ("U8", np.arange(6, dtype=np.uint8)), "b": ("U8", np.arange(3, dtype=np.uint8))})
    reshaped = safetensors_of({"a": ("U8", np.arange(6, dtype=np.uint8).reshape(2, 3))})
    first = opened(tmp_path, content)
    second, third = SafetensorsFile(first.path), SafetensorsFile(first.path)
    for name in ("a", "b", "a"):
        first.read(name)
    for name in ("b", "a"):
        second.read(name)
    third.read("a")
    assert first.digest() == second.digest() != third.digest()
    (tmp_path / "other").mkdir()
    other = opened(tmp_path / "other", reshaped)
    other.read("a")
    assert other.digest() != third.digest()


def test_agrees_with_the_reference_reader_on_many_random_files(tmp_path: Path) -> None:
    from safetensors import safe_open

    rng = np.random.default_rng(7)
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "F64": np.float64}
    for _ in range(20):
        arrays = {}
        for number in range(int(rng.integers(1, 8))):
            kind = list(kinds)[int(rng.integers(len(kinds)))]
            shape = tuple(int(size) for size in rng.integers(0, 6, size=int(rng.integers(0, 4))))
            arrays[f"t{number}"] = (kind, np.asarray(rng.integers(0, 100, size=shape)).astype(kinds[kind]))
        path = written(tmp_path / "r.safetensors", safetensors_of(arrays))
        ours = SafetensorsFile(path)
        with safe_open(path, "np") as theirs:
            assert sorted(ours.names()) == sorted(theirs.keys())
            for name in theirs.keys():  # noqa: SIM118 (it is not a dictionary)
                np.testing.assert_array_equal(ours.read(name), theirs.get_tensor(name).astype(np.float64))


@pytest.mark.timeout(120)  # comparing every name with every other would take hours
def test_a_name_that_stands_twice_among_many_is_found(tmp_path: Path) -> None:
    names = [f'"{number}":0' for number in range(200_000)]
    header = ("{" + ",".join([*names, names[-1]]) + "}").encode()
    with pytest.raises(BadFile, match="'199999'"):
        opened(tmp_path, safetensors_bytes(header))


def test_header_with_padding_is_read(tmp_path: Path) -> None:
    text = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode() + b"   "
    assert opened(tmp_path, safetensors_bytes(text, b"\x07")).read("w")[0] == 7
