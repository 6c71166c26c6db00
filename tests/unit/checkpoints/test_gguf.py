"""Reading `.gguf`: the numbers of the gguf package in every quantisation it knows, and no trust in the header."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from tests.unit.checkpoints.making import gguf_bytes, gguf_pair, gguf_string, gguf_tensor, written
from toposcope.checkpoints.decode import BLOCK
from toposcope.checkpoints.gguf_file import GgufFile
from toposcope.checkpoints.gguf_header import LongArray
from toposcope.core.errors import BadFile, BadWeights

MEGABYTE = 1 << 20
KINDS = gguf.GGMLQuantizationType
DECODED = sorted(quants._type_traits, key=lambda kind: kind.name)


def can_quantise(kind: KINDS) -> bool:
    try:
        quants.quantize(np.zeros((1, 256), np.float32), kind)
    except NotImplementedError:
        return False
    return True


QUANTISED = [kind for kind in DECODED if can_quantise(kind)]
ONLY_DECODED = [kind for kind in DECODED if kind not in QUANTISED]


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    return GgufFile(written(tmp_path / "model.gguf", content))


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_quantisations_are_not_forgotten() -> None:
    assert {kind.name for kind in QUANTISED} >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"}
    assert {kind.name for kind in ONLY_DECODED} >= {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_reads_what_the_package_quantised(tmp_path: Path, kind: KINDS) -> None:
    values = np.random.default_rng(3).standard_normal((3, 5, 512)).astype(np.float32)
    stored = quants.quantize(values, kind)
    path = write(
        tmp_path / "q.gguf",
        lambda writer: writer.add_tensor("w", stored, raw_shape=stored.shape, raw_dtype=kind),
    )
    source = GgufFile(path)
    theirs = gguf.GGUFReader(path).tensors[0]
    ours = source.read("w")
    assert source.info("w").shape == ours.shape == (3, 5, 512)
    assert source.info("w").dtype == kind.name
    assert source.info("w").nbytes == theirs.n_bytes
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, quants.dequantize(theirs.data, kind).reshape(values.shape))


@pytest.mark.parametrize("kind", ONLY_DECODED, ids=lambda kind: kind.name)
def test_decodes_any_bytes_as_the_package_does(tmp_path: Path, kind: KINDS) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    # More numbers than are decoded at a time, and not a multiple of it.
    rows, columns = 3001, 256
    rng = np.random.default_rng(kind.value)
    raw = rng.integers(0, 256, size=(rows, columns // block_size * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = quants.dequantize(raw, kind).reshape(rows, columns)
    finite = np.isfinite(theirs).all(axis=1)
    raw, theirs = raw[finite], theirs[finite]
    assert len(raw) * columns > BLOCK
    content = gguf_bytes((), [gguf_tensor("w", [columns, len(raw)], kind.value)], raw.tobytes())
    ours = opened(tmp_path, content).read("w")
    np.testing.assert_array_equal(ours, theirs)


def test_plain_types_come_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "f32": rng.standard_normal((4, 3)).astype(np.float32),
        "f16": rng.standard_normal((4, 3)).astype(np.float16),
        "f64": rng.standard_normal((4, 3)),
        "i8": rng.integers(-100, 100, (4, 3)).astype(np.int8),
        "i32": rng.integers(-100, 100, (4, 3)).astype(np.int32),
        "one": rng.standard_normal(7).astype(np.float32),
    }

    def fill(writer: gguf.GGUFWriter) -> None:
        for name, array in arrays.items():
            writer.add_tensor(name, array)

    source = GgufFile(write(tmp_path / "plain.gguf", fill))
    for name, array in arrays.items():
        np.testing.assert_array_equal(source.read(name), array.astype(np.float64))
    assert source.read("f64").dtype == source.read("i32").dtype == np.float64
    assert source.read("f16").dtype == np.float32


def test_settings_of_every_type(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("u8", 200)
        writer.add_int8("i8", -100)
        writer.add_uint16("u16", 60_000)
        writer.add_int16("i16", -30_000)
        writer.add_uint32("u32", 4_000_000_000)
        writer.add_int32("i32", -2_000_000_000)
        writer.add_uint64("u64", 1 << 63)
        writer.add_int64("i64", -(1 << 62))
        writer.add_float32("f32", 0.5)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_string("text", "Grüße")
        writer.add_array("gemma3.attention.head_count_kv", [1, 2, 4, 8])
        writer.add_array("names", ["a", "", "ß"])
        writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(10_000)])
        writer.add_array("tokenizer.ggml.scores", [float(number) for number in range(10_000)])
        writer.add_tensor("w", np.zeros(4, np.float32))

    path = write(tmp_path / "settings.gguf", fill)
    source = GgufFile(path)
    expected = {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -100,
        "u16": 60_000,
        "i16": -30_000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 1 << 63,
        "i64": -(1 << 62),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "Grüße",
        "gemma3.attention.head_count_kv": [1, 2, 4, 8],
        "names": ["a", "", "ß"],
    }
    for key, value in expected.items():
        assert source.metadata[key] == value
        assert type(source.metadata[key]) is type(value)
    tokens = source.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, LongArray)
    assert len(tokens) == 10_000
    assert tokens[-1] == "token 9999"
    assert tokens[2:4] == ["token 2", "token 3"]
    assert source.array("tokenizer.ggml.tokens") == list(tokens) == [f"token {number}" for number in range(10_000)]
    assert source.array("tokenizer.ggml.scores")[77] == 77.0
    assert source.array("names") == ["a", "", "ß"]


def test_version_two_and_other_alignments_are_read(tmp_path: Path) -> None:
    pair = gguf_pair("general.alignment", 4, struct.pack("<I", 256))
    tensors = [gguf_tensor("a", [2]), gguf_tensor("b", [3], offset=256)]
    data = np.array([1, 2], "<f4").tobytes().ljust(256, b"\0") + np.array([3, 4, 5], "<f4").tobytes()
    source = opened(tmp_path, gguf_bytes([pair], tensors, data, version=2, alignment=256))
    assert source.read("a").tolist() == [1, 2]
    assert source.read("b").tolist() == [3, 4, 5]


def test_nested_arrays_are_lists_of_lists(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 5, 6)
    pair = gguf_pair("nested", 9, struct.pack("<IQ", 9, 2) + inner + inner)
    assert opened(tmp_path, gguf_bytes([pair])).metadata["nested"] == [[5, 6], [5, 6]]


def deep_array(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


ZEROS = b"\0" * 64
BAD_FILES = {
    "three bytes": b"GGU",
    "only the magic": b"GGUF",
    "no counts": b"GGUF\x03\0\0\0",
    "wrong magic": gguf_bytes(magic=b"GGML"),
    "version one": gguf_bytes(version=1),
    "version from the future": gguf_bytes(version=99),
    "big-endian": gguf_bytes(version=3 << 24),
    "2^40 settings": gguf_bytes(pair_count=1 << 40),
    "2^63 tensors": gguf_bytes(tensor_count=1 << 63),
    "a setting too few": gguf_bytes([gguf_pair("a", 0, b"1")], pair_count=2),
    "truncated setting": gguf_bytes([gguf_pair("a", 12, b"1234")])[:40],
    "unknown setting type": gguf_bytes([gguf_pair("a", 13, ZEROS)]),
    "same setting twice": gguf_bytes([gguf_pair("a", 0, b"1"), gguf_pair("a", 0, b"2")]),
    "long key": gguf_bytes([struct.pack("<Q", 1 << 60) + ZEROS]),
    "empty key": gguf_bytes([gguf_pair("", 0, b"1")]),
    "key not UTF-8": gguf_bytes([gguf_pair(b"\xff\xfe", 0, b"1")]),
    "key that clears the screen": gguf_bytes([gguf_pair("\x1b[2J", 0, b"1")]),
    "long text": gguf_bytes([gguf_pair("a", 8, struct.pack("<Q", 1 << 63) + ZEROS)]),
    "array of 2^60 numbers": gguf_bytes([gguf_pair("a", 9, struct.pack("<IQ", 6, 1 << 60) + ZEROS)]),
    "array of 2^60 texts": gguf_bytes([gguf_pair("a", 9, struct.pack("<IQ", 8, 1 << 60) + ZEROS)]),
    "array of 2^60 arrays": gguf_bytes([gguf_pair("a", 9, struct.pack("<IQ", 9, 1 << 60) + ZEROS)]),
    "array of an unknown type": gguf_bytes([gguf_pair("a", 9, struct.pack("<IQ", 77, 1) + ZEROS)]),
    "array of texts past the end": gguf_bytes(
        [gguf_pair("a", 9, struct.pack("<IQ", 8, 2) + gguf_string("x") + struct.pack("<Q", 1 << 62))]
    ),
    "arrays in arrays in arrays": gguf_bytes([gguf_pair("a", 9, deep_array(50))]),
    "alignment zero": gguf_bytes([gguf_pair("general.alignment", 4, struct.pack("<I", 0))]),
    "alignment 48": gguf_bytes([gguf_pair("general.alignment", 4, struct.pack("<I", 48))]),
    "alignment 2^31": gguf_bytes([gguf_pair("general.alignment", 4, struct.pack("<I", 1 << 31))]),
    "alignment a text": gguf_bytes([gguf_pair("general.alignment", 8, gguf_string("32"))]),
    "tensor without data": gguf_bytes((), [gguf_tensor("w", [16])]),
    "tensor cut short": gguf_bytes((), [gguf_tensor("w", [16])], ZEROS[:-1]),
    "tensor of unknown type": gguf_bytes((), [gguf_tensor("w", [16], 4)], ZEROS),
    "tensor of type 2^31": gguf_bytes((), [gguf_tensor("w", [16], 1 << 31)], ZEROS),
    "tensor of five dimensions": gguf_bytes((), [gguf_tensor("w", [1, 1, 1, 1, 16])], ZEROS),
    "tensor of 2^32 - 1 dimensions": gguf_bytes((), [gguf_tensor("w", [16], dims=2**32 - 1)], ZEROS),
    "tensor of 2^128 numbers": gguf_bytes((), [gguf_tensor("w", [1 << 32] * 4)], ZEROS),
    "empty tensor of 2^62 rows": gguf_bytes((), [gguf_tensor("w", [0, 1 << 62])], ZEROS),
    "offset not aligned": gguf_bytes((), [gguf_tensor("w", [4], offset=8)], ZEROS),
    "offset past the end": gguf_bytes((), [gguf_tensor("w", [4], offset=1 << 40)], ZEROS),
    "offset 2^64 - 32": gguf_bytes((), [gguf_tensor("w", [4], offset=2**64 - 32)], ZEROS),
    "row not a multiple of its block": gguf_bytes((), [gguf_tensor("w", [33], 8)], ZEROS),
    "same tensor twice": gguf_bytes((), [gguf_tensor("w", [4]), gguf_tensor("w", [4], offset=32)], ZEROS),
    "overlapping tensors": gguf_bytes((), [gguf_tensor("a", [16]), gguf_tensor("b", [4], offset=32)], ZEROS),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_refuses_unsound_files_at_once_and_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path / "model.gguf", content)
    tracemalloc.start()
    with pytest.raises(BadFile) as refused:
        GgufFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(refused.value)
    assert peak < 2 * MEGABYTE
    assert "model.gguf" in message
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(message) < 600


def test_big_endian_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="big-endian"):
        opened(tmp_path, BAD_FILES["big-endian"])


def test_a_quantisation_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    undecoded = [kind for kind in KINDS if kind not in DECODED and kind.name.startswith("Q")]
    assert undecoded
    for kind in undecoded:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        content = gguf_bytes((), [gguf_tensor("blk.0.w", [block_size], kind.value)], b"\0" * block_bytes)
        with pytest.raises(BadFile, match=rf"'blk.0.w' .* {kind.name}"):
            opened(tmp_path, content).read("blk.0.w")


def test_an_infinite_scale_is_found(tmp_path: Path) -> None:
    blocks = np.zeros((4, 34), np.uint8)  # Q8_0: a float16 scale, then 32 bytes
    blocks[:, 2:] = 1
    blocks[3, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    content = gguf_bytes((), [gguf_tensor("w", [64, 2], KINDS.Q8_0.value)], blocks.tobytes())
    with pytest.raises(BadWeights, match=r"\(1, 32\)") as refused:
        opened(tmp_path, content).read("w")
    for fact in ("'w'", "model.gguf", " inf "):
        assert fact in str(refused.value)


def test_a_bad_letter_in_a_description_does_not_hide_the_weights(tmp_path: Path) -> None:
    pair = gguf_pair("general.description", 8, gguf_string(b"caf\xe9"))
    assert opened(tmp_path, gguf_bytes([pair])).metadata["general.description"] == "caf�"


@pytest.mark.parametrize("kind", [KINDS.Q4_1, KINDS.Q6_K, KINDS.IQ2_XS], ids=lambda kind: kind.name)
def test_dequantising_holds_the_result_and_little_more(tmp_path: Path, kind: KINDS) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    side = 2048
    raw = np.zeros(side * side // block_size * block_bytes, np.uint8)
    source = opened(tmp_path, gguf_bytes((), [gguf_tensor("w", [side, side], kind.value)], raw.tobytes()))
    tracemalloc.start()
    ours = source.read("w")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{kind.name}: result {ours.nbytes / MEGABYTE:.0f} MB, peak {peak / MEGABYTE:.1f} MB")
    assert peak < ours.nbytes + 20 * MEGABYTE
