"""The spectral half of scan, on checkpoints whose answer is planted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from tests.unit.tiny import CONFIG, tensors, write_llama
from toposcope.checkpoints.fold import fold
from toposcope.encodings import NONE, learned, random, rope, sinusoidal
from toposcope.spectra.of_heads import head_spectra, second_moment
from toposcope.spectra.of_model import WhatIf, bias_spectra, table_spectrum

WIDTH, HEADS = 64, 2
WIDE = WIDTH // HEADS


def planted(directory: Path, looks_back: int) -> Path:
    """One layer: head 0 looks so many tokens back whatever the tokens are, head 1 has no queries at all."""
    config = {
        **CONFIG,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 1,
        "vocab_size": WIDTH,
    }
    made = tensors(config)
    at = "model.layers.0."
    keys = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDTH, WIDE)))[0].T
    rotary = rope(WIDE).rotary
    assert rotary is not None
    # z = e^{-i w t} w in every pair: the kernel is sum cos(w (t - looks_back)), largest at looks_back
    turned = rotary.rotate(keys.T, np.full(WIDTH, -float(looks_back)), side="query").T
    made[f"{at}self_attn.k_proj.weight"] = np.tile(keys, (HEADS, 1)).astype(np.float32)
    made[f"{at}self_attn.q_proj.weight"] = np.concatenate([turned, np.zeros_like(turned)]).astype(np.float32)
    made[f"{at}input_layernorm.weight"] = np.ones(WIDTH, np.float32)
    made["model.embed_tokens.weight"] = np.eye(WIDTH, dtype=np.float32)
    directory.mkdir()
    save_file({name: np.ascontiguousarray(value) for name, value in made.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def scanned(path: Path, *encodings: str) -> list[WhatIf]:
    """The spectral half of a scan under the model's own encoding, then under others."""
    found = toposcope.scan(path, layers="0", context=64, encoding=encodings, layer_sums=False)
    return [WhatIf(**vars(found.spectra), heads=found.heads), *found.what_if]


@pytest.mark.parametrize("back", [0, 1, 2, 5, 17, 40])
def test_a_head_built_to_look_back_is_reported_so(tmp_path: Path, back: int) -> None:
    own = scanned(planted(tmp_path / "m", back))[0]
    assert own.heads[0].peak_offset == back
    assert own.heads[0].peak_share == pytest.approx(1.0, abs=1e-6)
    assert str(back) in own.heads[0].looks
    assert ("back" in own.heads[0].looks) == (back > 0)
    assert own.heads[1].peak_offset is None
    assert own.tokens == "embedding"
    assert sum(own.heads[0].query_energy) == pytest.approx(1.0)


def test_without_position_the_split_is_content_alone(tmp_path: Path) -> None:
    _, none = scanned(planted(tmp_path / "m", 1), "none")
    assert none.first_layer[0].position == pytest.approx(0.0, abs=1e-12)
    assert none.first_layer[0].coupling == pytest.approx(0.0, abs=1e-12)
    assert none.heads[0].peak_offset is None


def test_a_bias_alone_has_no_coupling(tmp_path: Path) -> None:
    own, alibi = scanned(planted(tmp_path / "m", 1), "alibi")
    assert alibi.first_layer[1].position == pytest.approx(1.0)
    assert alibi.first_layer[1].coupling == pytest.approx(0.0, abs=1e-12)
    assert len(alibi.biases) == HEADS
    assert alibi.biases[0].statement == "theorem"
    assert own.biases == ()
    assert own.first_layer[0].coupling is not None
    assert own.first_layer[0].coupling > 0.05


def test_another_base_moves_the_peak_of_a_rotary_head(tmp_path: Path) -> None:
    own, other = scanned(planted(tmp_path / "m", 17), "rope:base=100")
    assert own.heads[0].peak_offset == 17
    assert other.heads[0].peak_offset != 17


def test_the_kernel_norm_is_that_of_the_dense_matrix(tmp_path: Path) -> None:
    path = planted(tmp_path / "m", 3)
    own = scanned(path)[0]
    with toposcope.load(path) as model:
        layer = model.layers[0]
        head = fold(layer, layer.heads[0])
        rotary = layer.encoding.rotary
        assert rotary is not None
        w_F = rotary.frequencies()
        offset_NN = np.subtract.outer(np.arange(64), np.arange(64))
        g_NN = np.cos((offset_NN[..., None] - 3) * w_F).mean(axis=-1)
        assert own.heads[0].lambda_max_over_n == pytest.approx(np.linalg.norm(g_NN, 2) / 64, rel=1e-6)
        again = head_spectra(layer, head, second_moment=second_moment(model), context=64, encoding=NONE)
        assert again.lambda_max_over_n is None


def test_tables_tell_a_sinusoid_from_noise() -> None:
    sines, noise = table_spectrum(sinusoidal(32), 256), table_spectrum(random(32, 256), 256)
    assert sines is not None
    assert noise is not None
    assert sines.toeplitz_share == pytest.approx(1.0, abs=1e-9)
    assert sines.sinusoid_likeness > 0.99 > 0.5 > noise.sinusoid_likeness
    assert noise.toeplitz_share is not None
    assert noise.toeplitz_share < 0.5
    assert table_spectrum(learned(np.zeros((9, 4))), 9) is not None
    assert table_spectrum(rope(8), 64) is None
    assert bias_spectra(rope(8), 64) == ()


def tiny_gpt2(directory: Path, **more: np.ndarray) -> Path:
    """A GPT-2 whose table of positions is shorter than the factorial design."""
    draw, width = np.random.default_rng(0).standard_normal, 8
    shapes = {
        "wte.weight": (20, width),
        "wpe.weight": (6, width),
        "h.0.ln_1.weight": (width,),
        "h.0.ln_1.bias": (width,),
    }
    shapes |= {"h.0.attn.c_attn.weight": (width, 3 * width), "h.0.attn.c_attn.bias": (3 * width,)}
    shapes |= {"h.0.attn.c_proj.weight": (width, width), "h.0.attn.c_proj.bias": (width,)}
    made = {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
    directory.mkdir()
    save_file({**made, **more}, directory / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": width, "n_head": 2, "n_layer": 1, "n_positions": 6}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_short_table_of_positions_is_enough_for_the_split(tmp_path: Path) -> None:
    own, none = scanned(tiny_gpt2(tmp_path / "m"), "none")
    assert "no kernel" in own.heads[0].looks
    assert own.table is not None
    assert own.table.positions == 6
    assert own.first_layer[0].position is not None
    assert own.first_layer[0].position > 0
    assert none.first_layer[0].position == pytest.approx(0.0, abs=1e-12)


def test_no_split_where_a_norm_stands_between_embedding_and_layer_0(tmp_path: Path) -> None:
    norm = {"word_embeddings_layernorm.weight": np.ones(8, np.float32)}
    assert scanned(tiny_gpt2(tmp_path / "m", **norm))[0].first_layer == ()


def test_the_kept_kernel_is_the_mean_logit_of_a_token_with_its_like(tmp_path: Path) -> None:
    """g(t) = scale tr(R_t Q C K^T) with R_t written out for half-split pairs, over the sum of the amplitudes."""
    with toposcope.load(write_llama(tmp_path / "m")) as model:
        found = toposcope.scan(model, layers="1", context=64)
        moment, layer = second_moment(model), model.layers[1]
        for row, head in zip(found.heads, layer.heads, strict=True):
            folded = fold(layer, head)
            inner = folded.scale * folded.q @ moment @ folded.k.T  # (4, 4): pairs are (0, 2) and (1, 3)
            speeds = np.array([1.0, 10000.0**-0.5])
            values, sizes = np.zeros(64), 0.0
            for pair, speed in enumerate(speeds):
                one, two = pair, pair + 2
                real, imaginary = inner[one, one] + inner[two, two], inner[two, one] - inner[one, two]
                values += real * np.cos(speed * np.arange(64)) - imaginary * np.sin(speed * np.arange(64))
                sizes += np.hypot(real, imaginary)
            assert row.kernel_from == 0
            assert row.kernel == pytest.approx(values / sizes, abs=1e-4)
            assert row.kernel[row.peak_offset or 0] == pytest.approx(row.peak_share, rel=1e-3)
