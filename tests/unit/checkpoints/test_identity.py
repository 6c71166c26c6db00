"""Identity is content: the same numbers are the same wherever they lie, and any other number is another thing."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from tests.unit import tiny
from toposcope.checkpoints.identity import difference, fingerprint, identity
from toposcope.encodings import Encoding, LogitBias, alibi, rope


def test_a_copy_is_the_same_and_a_changed_setting_is_not(tmp_path: Path) -> None:
    model = tiny.write_llama(tmp_path / "model")
    shutil.copytree(model, tmp_path / "elsewhere" / "copy")
    other = tiny.write_llama(tmp_path / "other", rms_norm_eps=2e-5)
    with (
        toposcope.load(model) as one,
        toposcope.load(tmp_path / "elsewhere" / "copy") as two,
        toposcope.load(other) as three,
    ):
        assert identity(one) == identity(two)
        assert {name for name, value in identity(one).items() if value != identity(three)[name]} == {
            "config",
            "described",
        }


def test_reading_does_not_change_identity(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        before = identity(model)
        _ = model.layers[1].weights, model.token_embedding()
        assert identity(model) == before


@pytest.mark.parametrize("at", [(0, 0), (31, 15)])
def test_one_number_makes_the_difference(tmp_path: Path, at: tuple[int, int]) -> None:
    name = "model.embed_tokens.weight"
    tensors = tiny.tensors(tiny.CONFIG)
    with toposcope.load(tiny.write_llama(tmp_path / "model")) as model:
        model.source.read(name)
        model.source.read_rows(name, np.array([31, 0]))
        lines = dict(model.source.ledger.lines)
        assert len(lines) == 2
    tensors[name][at] = np.nextafter(tensors[name][at], np.float32(9))
    other = tiny.write_llama(tmp_path / "other")
    with toposcope.load(other) as same:
        assert difference(same.source, lines) is None
    save_file(tensors, other / "model.safetensors")
    for kept in ({key: line} for key, line in lines.items()):
        with toposcope.load(other) as changed:
            assert difference(changed.source, kept) == name


def test_lines_of_another_file_are_differences(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        assert difference(model.source, {"nowhere": "line"}) == "nowhere"
        assert difference(model.source, {"model.embed_tokens.weight\n0,99": "line"}) == "model.embed_tokens.weight"


def test_what_was_in_memory_is_noted_too(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        with model.source.ledger.noted() as first:
            _ = model.layers[0].weights
        with model.source.ledger.noted() as again:
            _ = model.layers[0].heads[1]
        assert first == again
        assert len(first) == 5


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"a": 1, "b": [2.0]}, {"a": 1, "b": [np.nextafter(2.0, 3)]}),
        (["ab", "c"], ["a", "bc"]),
        ([[1], 2], [1, [2]]),
        (1, "1"),
        (1, 1.0),
        (True, 1),
        (None, "None"),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
        (rope(8, base=10000.0), rope(8, base=10001.0)),
        (alibi(4), alibi(8)),
    ],
)
def test_fingerprints_tell_apart(one: object, two: object) -> None:
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(one) == fingerprint(one)


def test_order_and_place_do_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(np.arange(6).reshape(2, 3).T) == fingerprint(np.arange(6).reshape(2, 3).T.copy())


def test_an_encoding_is_what_it_computes() -> None:
    """A plug-in that changes its formula and not its name is another encoding."""

    def made(size: float) -> Encoding:
        return Encoding("wave", "wave", bias=LogitBias(1, lambda i, j: size * np.cos(i[:, None] - j)[None], True))

    assert fingerprint(made(1.0)) == fingerprint(made(1.0)) != fingerprint(made(1.5))
