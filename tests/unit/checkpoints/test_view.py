"""A model's layers: read when they are asked for, once, and one at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import toposcope
from tests.unit import tiny
from toposcope.checkpoints.view import Latent, Norm, _norm_of


def test_a_layer_is_read_once_and_let_go_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        read: list[str] = []
        plain = model.source.read

        def noting(name: str, *more: object) -> np.ndarray:
            read.append(name)
            return plain(name, *more)

        monkeypatch.setattr(model.source, "read", noting)
        first = [head.q for head in model.layers[0].heads]
        once = len(read)
        assert once == len(set(read)) > 0
        assert [head.q.shape for head in model.layers[0].heads] == [part.shape for part in first]
        assert len(read) == once  # the same layer again costs nothing
        assert model.layers[1].heads[0].q.shape == first[0].shape
        assert len(read) == 2 * once
        np.testing.assert_array_equal(model.layers[0].heads[1].q, first[1])
        assert len(read) == 3 * once  # it was let go when the next was read


def test_the_end_of_a_block_closes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        close = model.source.close
        monkeypatch.setattr(model.source, "close", lambda: (closed.append("closed"), close()))
        assert closed == []
    assert closed == ["closed"]


def test_heads_are_counted_from_either_end(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        heads = model.layers[0].heads
        assert [heads[index].head for index in (-4, -1, 0, 3)] == [0, 3, 0, 3]
        for index in (-5, 4):
            with pytest.raises(IndexError):
                heads[index]


def test_a_bottleneck_without_its_norm_is_its_gain_times_its_rows() -> None:
    down = np.arange(6.0).reshape(2, 3)
    gain = np.array([2.0, -1.0])
    np.testing.assert_array_equal(Latent(down, None, Norm("rms", 1e-6, gain)).linear(), gain[:, None] * down)
    np.testing.assert_array_equal(Latent(down, None, Norm("rms", 1e-6)).linear(), down)
    np.testing.assert_array_equal(Latent(down, None, None).linear(), down)


def test_a_norm_for_each_head_is_cut_with_its_bias() -> None:
    gain, bias = np.arange(6.0).reshape(2, 3), 10 + np.arange(6.0).reshape(2, 3)
    cut = _norm_of(Norm("layer", 1e-5, gain, bias), 1)
    assert cut is not None
    np.testing.assert_array_equal(cut.gain, gain[1])
    np.testing.assert_array_equal(cut.bias, bias[1])
    plain = _norm_of(Norm("layer", 1e-5, gain), 0)
    assert plain is not None
    assert plain.bias is None
