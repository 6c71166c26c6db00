"""A model's layers: read when they are asked for, once, and one at a time."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import toposcope
from tests.unit import tiny
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec
from toposcope.checkpoints.view import Latent, Layer, LayerWeights, Norm, _norm_of


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


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_norm_is_its_formula_along_the_last_axis(kind: str, gain: bool, bias: bool) -> None:
    draw = np.random.default_rng(0).standard_normal
    given, g, b = draw((2, 3, 5)), draw(5), draw(5)
    found = Norm(kind, 0.1, g if gain else None, b if bias else None)(given)
    for row, out in zip(given.reshape(-1, 5), found.reshape(-1, 5), strict=True):
        centred = row - row.mean() if kind == "layer" else row
        expected = centred / np.sqrt((centred @ centred) / 5 + 0.1)
        np.testing.assert_allclose(out, expected * (g if gain else 1) + (b if bias else 0), rtol=1e-12)


def test_a_bottleneck_applied_is_norm_of_rows_and_bias() -> None:
    draw = np.random.default_rng(1).standard_normal
    down, bias, x = draw((2, 3)).astype(np.float32), draw(2), draw((4, 3))
    norm = Norm("rms", 1e-6, draw(2))
    np.testing.assert_allclose(Latent(down, None, None)(x), x @ down.T.astype(np.float64))
    np.testing.assert_allclose(Latent(down, bias, None)(x), x @ down.T.astype(np.float64) + bias)
    np.testing.assert_allclose(Latent(down, bias, norm)(x), norm(x @ down.T.astype(np.float64) + bias))
    assert Latent(down, bias, None)(x).dtype == Latent(down, None, norm).linear().dtype == np.float64


def grouped(**changes: object) -> Layer:
    """Six heads over three for keys and values, every tensor drawn in float32."""
    draw = np.random.default_rng(2).standard_normal

    def stored(*shape: int) -> np.ndarray:
        return draw(shape).astype(np.float32)

    given = {
        "q_HRD": stored(6, 4, 5),
        "k_GRD": stored(3, 4, 5),
        "v_GVD": stored(3, 2, 5),
        "o_HDV": stored(6, 5, 2),
        "q_bias_HR": stored(6, 4),
        "k_bias_GR": stored(3, 4),
        "v_bias_GV": stored(3, 2),
        "q_norm": Norm("rms", 1e-6, stored(6, 4)),
        "k_norm": Norm("rms", 1e-6, stored(3, 4)),
    }
    weights = LayerWeights(**{**given, **changes})  # type: ignore[arg-type]
    return Layer(7, LayerSpec("decoder", 0, 5, 6, 3, 4, 0.25, causal=True, o=Linear("o")), lambda _: weights)


@pytest.mark.parametrize("head", range(6))
def test_a_head_is_cut_from_its_layer(head: int) -> None:
    layer = grouped()
    w, found, group = layer.weights, layer.heads[head], head // 2
    assert (found.layer, found.head, found.kv_group, found.scale) == (7, head, group, 0.25)
    for ours, stored in (
        (found.q, w.q_HRD[head]),
        (found.k, w.k_GRD[group]),
        (found.v, w.v_GVD[group]),
        (found.o, w.o_HDV[head]),
        (found.q_bias, w.q_bias_HR[head]),  # type: ignore[index]
        (found.k_bias, w.k_bias_GR[group]),  # type: ignore[index]
        (found.v_bias, w.v_bias_GV[group]),  # type: ignore[index]
        (found.q_norm.gain, w.q_norm.gain[head]),  # type: ignore[union-attr, index]
        (found.k_norm.gain, w.k_norm.gain[group]),  # type: ignore[union-attr, index]
    ):
        np.testing.assert_array_equal(ours, stored)
    assert found.q.dtype == found.o.dtype == found.k_bias.dtype == np.float64  # type: ignore[union-attr]
    bare = grouped(q_bias_HR=None, k_bias_GR=None, v_bias_GV=None, q_norm=None, k_norm=None).heads[head]
    assert (bare.q_bias, bare.k_bias, bare.v_bias, bare.q_norm, bare.k_norm) == (None,) * 5
    assert [each.head for each in layer.heads[1:6:2]] == [1, 3, 5]
    assert len(layer.heads) == 6


def test_latents_and_shared_keys_are_multiplied_out() -> None:
    draw = np.random.default_rng(3).standard_normal
    to_q, to_kv = Latent(draw((5, 8)), None, Norm("rms", 1e-6, draw(5))), Latent(draw((5, 8)), None, None)
    shared, bias = draw((2, 8)), draw(2)
    layer = grouped(q_latent=to_q, kv_latent=to_kv, k_shared_SD=shared, k_shared_bias_S=bias)
    w, found = layer.weights, layer.heads[3]
    np.testing.assert_allclose(found.q, w.q_HRD[3] @ to_q.linear())
    np.testing.assert_allclose(found.k, np.concatenate([w.k_GRD[1] @ to_kv.linear(), shared]))
    np.testing.assert_allclose(found.v, w.v_GVD[1] @ to_kv.linear())
    np.testing.assert_allclose(found.k_bias, np.concatenate([w.k_bias_GR[1], bias]))  # type: ignore[index]
    lone = grouped(kv_latent=to_kv, k_bias_GR=None, k_shared_SD=shared, k_shared_bias_S=bias).heads[3]
    np.testing.assert_allclose(lone.k_bias, np.concatenate([np.zeros(4), bias]))
    plain = grouped(kv_latent=to_kv, k_bias_GR=None, k_shared_SD=shared).heads[3]
    assert plain.k_bias is None
    assert plain.k.shape == (6, 8)


def test_the_embedding_is_read_where_there_is_one(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        found = model.token_embedding()
        assert model.spec.embedding is not None
        assert found is not None
        np.testing.assert_array_equal(found, model.source.read(model.spec.embedding))
        assert found.dtype == np.float64
        for name in (None, "no.such.tensor"):
            model.spec = ModelSpec(model.family, model.spec.layers, embedding=name)
            assert model.token_embedding() is None


def test_the_digest_before_any_layer_is_that_of_the_tables(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        assert model.tables == model.source.digest()
        assert [layer.number for layer in model.layers] == list(range(len(model.spec.layers)))
        assert model.layers[0].encoding is model.spec.layers[0].encoding
        _ = model.layers[0].weights
        assert model.tables != model.source.digest()
        with model.source.ledger.noted() as used:
            _ = model.layers[0].weights  # held: not read again, but used
        assert used
        assert set(used) <= set(model.source.ledger.lines)


def test_a_model_says_where_and_what_it_is(tmp_path: Path) -> None:
    place = tiny.write_llama(tmp_path)
    with toposcope.load(place) as model:
        assert model.path == model.source.path
        assert model.path.exists()
        assert (model.family, model.skipped) == (model.spec.family, model.spec.skipped)
        assert model.path.name in repr(model)
        assert model.family in repr(model)
        assert str(len(model.layers)) in repr(model)
        assert str(model.layers[1].number) in repr(model.layers[1])
        assert str(model.layers[1].spec.heads) in repr(model.layers[1])


def test_a_closed_model_lets_its_weights_go(tmp_path: Path) -> None:
    with toposcope.load(tiny.write_llama(tmp_path)) as model:
        held = weakref.ref(model.layers[0].weights)
        assert held() is not None  # kept for the next use
    gc.collect()
    assert held() is None
