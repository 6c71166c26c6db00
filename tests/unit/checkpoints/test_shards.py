"""A model in several files is one source; an index that lies or leaves its directory is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpoints.making import gguf_bytes, gguf_tensor, safetensors_of, written
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.errors import BadFile, NotFound

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def array(number: int) -> np.ndarray:
    return np.full((2, 3), number, np.float32)


def make(directory: Path, weight_map: dict[str, object] | None = None) -> Path:
    written(directory / SHARDS[0], safetensors_of({"a": ("F32", array(1)), "b": ("F32", array(2))}))
    written(directory / SHARDS[1], safetensors_of({"c": ("F32", array(3))}))
    weight_map = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]} if weight_map is None else weight_map
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 72}, "weight_map": weight_map}))
    return directory


def test_shards_are_one_source(tmp_path: Path) -> None:
    source = open_checkpoint(make(tmp_path)).source
    assert source.format == "safetensors"
    assert set(source.names()) == {"a", "b", "c"}
    assert source.metadata == {"total_size": 72}
    assert source.info("c").shape == (2, 3)
    assert [source.read(name)[0, 0] for name in "abc"] == [1, 2, 3]


def test_the_digest_is_that_of_the_same_model_in_one_file(tmp_path: Path) -> None:
    sharded = open_checkpoint(make(tmp_path)).source
    whole = SafetensorsFile(
        written(tmp_path / "one.bin", safetensors_of({n: ("F32", array(i + 1)) for i, n in enumerate("abc")}))
    )
    for name in "cab":
        sharded.read(name)
        whole.read(name)
    assert sharded.digest() == whole.digest()
    sharded.close()


def test_shards_are_opened_when_needed(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / SHARDS[1]).write_bytes(b"damaged")
    source = open_checkpoint(tmp_path).source
    assert source.read("a")[0, 0] == 1
    with pytest.raises(BadFile, match=SHARDS[1]):
        source.read("c")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / SHARDS[1]).unlink()
    with pytest.raises(NotFound, match=SHARDS[1]) as refused:
        open_checkpoint(tmp_path)
    assert INDEX in str(refused.value)
    assert SHARDS[0] not in str(refused.value)


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path: Path) -> None:
    make(tmp_path, {"a": SHARDS[0], "d": SHARDS[1]})
    source = open_checkpoint(tmp_path).source
    for asked in (source.info, source.read):
        with pytest.raises(BadFile, match=f"'d'.*{SHARDS[1]}"):
            asked("d")


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "..",
        ".",
        "",
        "a\\b",
        "C:x",
        "a\0b",
        3,
        None,
        ["x"],
    ],
)
def test_an_index_cannot_leave_its_directory(tmp_path: Path, shard: object) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    written(tmp_path / "secret.safetensors", safetensors_of({"a": ("F32", array(1))}))
    make(inside, {"a": shard})
    with pytest.raises(BadFile, match="same directory"):
        open_checkpoint(inside)


@pytest.mark.parametrize("cached", [True, False], ids=["the hub's cache", "anywhere"])
def test_links_to_shards_are_followed_in_the_hubs_cache_only(tmp_path: Path, cached: bool) -> None:
    """The Hugging Face cache keeps files elsewhere and links to them."""
    place = tmp_path / ("models--org--name" if cached else "models")
    blobs, snapshot = place / "blobs", place / "snapshots" / "1f3a"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    make(blobs)
    for number, name in enumerate((*SHARDS, INDEX)):
        (blobs / name).rename(blobs / f"blob{number}")
        (snapshot / name).symlink_to(blobs / f"blob{number}")
    if cached:
        assert open_checkpoint(snapshot).source.read("c")[0, 0] == 3
        assert open_checkpoint(snapshot / INDEX).source.read("c")[0, 0] == 3
        (snapshot / SHARDS[0]).unlink()
        (snapshot / SHARDS[0]).symlink_to(tmp_path / "secret")
        (tmp_path / "secret").touch()
    for target in (snapshot, snapshot / INDEX):
        with pytest.raises(BadFile, match="leaves"):
            open_checkpoint(target)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": []}', "{}", '{"weight_map": {}}'])
def test_an_index_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    make(tmp_path)
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(BadFile, match=INDEX):
        open_checkpoint(tmp_path)


def test_numbered_parts_without_an_index_are_joined(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / INDEX).unlink()
    for target in (tmp_path, tmp_path / SHARDS[1]):
        source = open_checkpoint(target).source
        assert [source.read(name)[0, 0] for name in "abc"] == [1, 2, 3]
        assert source.info("c").nbytes == 24


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / SHARDS[1]).unlink()
    with pytest.raises(NotFound, match=SHARDS[1]):
        open_checkpoint(tmp_path / SHARDS[0])


def test_a_missing_first_part_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / SHARDS[0]).unlink()
    with pytest.raises(NotFound, match=SHARDS[0]):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["m-00001-of-00000.safetensors", "m-00003-of-00002.safetensors"])
def test_numbers_that_make_no_sense_are_part_of_the_name(tmp_path: Path, name: str) -> None:
    written(tmp_path / name, safetensors_of({"a": ("F32", array(1))}))
    assert open_checkpoint(tmp_path).source.read("a")[0, 0] == 1


def test_parts_that_hold_the_same_tensor_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / INDEX).unlink()
    (tmp_path / SHARDS[1]).write_bytes((tmp_path / SHARDS[0]).read_bytes())
    with pytest.raises(BadFile, match="both hold"):
        open_checkpoint(tmp_path)


def test_split_gguf_files_are_joined(tmp_path: Path) -> None:
    for number, name in enumerate("ab", 1):
        content = gguf_bytes((), [gguf_tensor(name, [3, 2])], array(number).tobytes())
        written(tmp_path / f"m-{number:05d}-of-00002.gguf", content)
    source = open_checkpoint(tmp_path).source
    assert source.format == "gguf"
    assert [source.read(name)[0, 0] for name in "ab"] == [1, 2]


def test_torch_shards(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    weight_map = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    opened = open_checkpoint(tmp_path)
    assert opened.source.format == "torch"
    assert opened.source.read("a").tolist() == [1, 1]
    assert opened.notes == ()
