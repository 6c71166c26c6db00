"""The view of a TransformerLens model, on stand-ins with the attributes it documents.

The reference is attention as TransformerLens defines it: row vectors times W (heads, model width, head width),
rotation by complex numbers, slopes and windows by loops over positions.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import toposcope
from toposcope.checkpoints.attention import attention, logits, output, project
from toposcope.core.errors import BadConfig, BadEncoding, BadValue, BadWeights

N = 11
CFG: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 12,
    "n_ctx": 16,
    "d_head": 4,
    "n_heads": 3,
    "n_key_value_heads": None,
    "eps": 1e-5,
    "use_attn_scale": True,
    "attn_scale": 2.0,
    "scale_attn_by_inverse_layer_idx": False,
    "normalization_type": "LN",
    "attention_dir": "causal",
    "use_local_attn": False,
    "attn_types": None,
    "window_size": None,
    "positional_embedding_type": "standard",
    "rotary_dim": None,
    "rotary_base": 10000,
    "rotary_base_local": None,
    "rotary_adjacent_pairs": False,
    "use_NTK_by_parts_rope": False,
    "attn_scores_soft_cap": -1.0,
    "model_name": "custom",
}
ROTARY = {"positional_embedding_type": "rotary", "rotary_dim": 4}
CASES: dict[str, dict[str, Any]] = {
    "standard": {},
    "folded LayerNorm": {"normalization_type": "LNPre"},
    "folded RMSNorm": {"normalization_type": "RMSPre"},
    "no norm": {"normalization_type": None},
    "rotary": ROTARY,
    "rotary, adjacent, partial": {**ROTARY, "rotary_dim": 2, "rotary_adjacent_pairs": True, "rotary_base": 50},
    "rotary, grouped": {**ROTARY, "n_heads": 4, "n_key_value_heads": 2, "normalization_type": "RMS"},
    "alibi": {"positional_embedding_type": "alibi"},
    "by depth": {"use_attn_scale": False, "scale_attn_by_inverse_layer_idx": True},
    "scale left open": {"attn_scale": -1.0},
    "softcap": {"attn_scores_soft_cap": 1.5},
    "windows": {**ROTARY, "use_local_attn": True, "attn_types": ["global", "local"], "window_size": 4,
                "rotary_base_local": 100},
    "bidirectional": {"attention_dir": "bidirectional"},
}  # fmt: skip


def stand_in(seed: int = 0, **changes: Any) -> Any:
    """An object with a HookedTransformer's attributes and random weights."""
    cfg = SimpleNamespace(**{**CFG, **changes})
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, groups = cfg.n_heads, cfg.n_key_value_heads or cfg.n_heads
    blocks = []
    for _ in range(cfg.n_layers):
        attn = SimpleNamespace(
            W_Q=draw(heads, cfg.d_model, cfg.d_head),
            W_O=draw(heads, cfg.d_head, cfg.d_model),
            b_Q=draw(heads, cfg.d_head),
            b_O=draw(cfg.d_model),
        )
        shared = {name: draw(groups, cfg.d_model, cfg.d_head) for name in ("W_K", "W_V")}
        shared |= {name: draw(groups, cfg.d_head) for name in ("b_K", "b_V")}
        for name, tensor in shared.items():
            setattr(attn, name, tensor.repeat_interleave(heads // groups, dim=0))
            if groups != heads:
                setattr(attn, f"_{name}", tensor)
        norm = SimpleNamespace()
        if cfg.normalization_type in ("LN", "RMS"):
            norm.w = draw(cfg.d_model)
        if cfg.normalization_type == "LN":
            norm.b = draw(cfg.d_model)
        blocks.append(SimpleNamespace(attn=attn, ln1=norm))
    made = SimpleNamespace(cfg=cfg, blocks=blocks, embed=SimpleNamespace(W_E=draw(20, cfg.d_model)))
    if cfg.positional_embedding_type in ("standard", "shortformer"):
        made.pos_embed = SimpleNamespace(W_pos=draw(cfg.n_ctx, cfg.d_model))
    return made


def turned(x_NR: np.ndarray, cfg: Any, base: float) -> np.ndarray:
    """Each pair of channels as a complex number, multiplied by e^(i position / base^(2f/d))."""
    out, wide = x_NR.copy(), cfg.rotary_dim
    for pair in range(wide // 2):
        first, second = (2 * pair, 2 * pair + 1) if cfg.rotary_adjacent_pairs else (pair, pair + wide // 2)
        number = x_NR[:, first] + 1j * x_NR[:, second]
        number = number * np.exp(1j * np.arange(len(x_NR)) / base ** (2 * pair / wide))
        out[:, first], out[:, second] = number.real, number.imag
    return out


def reference(model: Any, i: int, x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, pattern and output of one layer."""
    cfg, attn, norm = model.cfg, model.blocks[i].attn, model.blocks[i].ln1
    if cfg.normalization_type is not None:
        centred = x_ND - x_ND.mean(-1, keepdims=True) if "LN" in cfg.normalization_type else x_ND
        x_ND = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + cfg.eps)
        x_ND = x_ND * norm.w.numpy() if hasattr(norm, "w") else x_ND
        x_ND = x_ND + norm.b.numpy() if hasattr(norm, "b") else x_ND
    local = cfg.use_local_attn and cfg.attn_types[i] == "local"
    scores, pattern, out = [], [], attn.b_O.numpy().copy() + np.zeros((N, cfg.d_model))
    for head in range(cfg.n_heads):
        q, k, v = (
            x_ND @ getattr(attn, f"W_{name}")[head].numpy() + getattr(attn, f"b_{name}")[head].numpy()
            for name in "QKV"
        )
        if cfg.positional_embedding_type == "rotary":
            base = cfg.rotary_base_local if local and cfg.rotary_base_local else cfg.rotary_base
            q, k = turned(q, cfg, base), turned(k, cfg, base)
        divisor = (cfg.attn_scale if cfg.attn_scale > 0 else math.sqrt(cfg.d_head)) if cfg.use_attn_scale else 1.0
        if cfg.scale_attn_by_inverse_layer_idx:
            divisor *= i + 1
        each = q @ k.T / divisor
        if cfg.attn_scores_soft_cap > 0:
            each = cfg.attn_scores_soft_cap * np.tanh(each / cfg.attn_scores_soft_cap)
        for query in range(N):
            for key in range(N):
                if cfg.positional_embedding_type == "alibi":
                    each[query, key] += (2 ** (-8 / cfg.n_heads)) ** (head + 1) * min(key - query, 0)
                if cfg.attention_dir == "causal" and (key > query or (local and key <= query - cfg.window_size)):
                    each[query, key] = -np.inf
        weights = np.exp(each - each.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out += weights @ v @ attn.W_O[head].numpy()
        scores.append(each)
        pattern.append(weights)
    return np.stack(scores), np.stack(pattern), out


@pytest.mark.parametrize("case", CASES)
def test_attention_is_the_models_own(case: str) -> None:
    model = stand_in(**CASES[case])
    ours = toposcope.from_transformer_lens(model)
    x_ND = np.random.default_rng(5).standard_normal((N, CFG["d_model"]))
    for i, layer in enumerate(ours.layers):
        scores, pattern, out = reference(model, i, x_ND)
        q, k, v = project(layer, x_ND)
        seen = np.isfinite(scores)
        np.testing.assert_allclose(logits(layer, q, k)[seen], scores[seen], rtol=1e-9, atol=1e-9)
        found = attention(layer, x_ND)
        np.testing.assert_allclose(found, pattern, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(output(layer, found, v), out, rtol=1e-9, atol=1e-9)


def test_learned_positions_and_the_embedding() -> None:
    model = stand_in()
    ours = toposcope.from_transformer_lens(model)
    at = ours.layers[1].encoding.input
    assert at is not None
    np.testing.assert_array_equal(at.vectors(np.arange(16)), model.pos_embed.W_pos.numpy())
    np.testing.assert_array_equal(ours.token_embedding(), model.embed.W_E.numpy())


def test_vectors_behind_the_norm_are_no_tables_of_ours() -> None:
    layer = toposcope.from_transformer_lens(stand_in(positional_embedding_type="shortformer")).layers[0]
    assert layer.encoding.name == "shortformer"
    assert "the norm" in layer.spec.warnings[0]
    q_HNR, k_HNR, _ = project(layer, np.ones((N, 12)))
    with pytest.raises(BadEncoding, match=r"'shortformer' .*tables"):
        logits(layer, q_HNR, k_HNR)


def test_grouped_keys_are_read_once_with_and_without_the_stored_ones() -> None:
    model = stand_in(**CASES["rotary, grouped"])
    stored = toposcope.from_transformer_lens(model).layers[0].weights.k_GRD
    for block in model.blocks:
        for name in ("W_K", "W_V", "b_K", "b_V"):
            delattr(block.attn, f"_{name}")
    np.testing.assert_array_equal(toposcope.from_transformer_lens(model).layers[0].weights.k_GRD, stored)
    assert stored.shape == (2, 4, 12)


def test_a_scan_goes_through() -> None:
    found = toposcope.scan(toposcope.from_transformer_lens(stand_in(**ROTARY)))
    assert len(found.heads) == 6


def test_angles_that_the_model_holds_are_compared() -> None:
    def with_angles(factor: float) -> Any:
        model = stand_in(**ROTARY)
        angle = np.arange(16)[:, None] / 10000 ** (np.arange(2) / 2) / factor
        for block in model.blocks:
            block.attn.rotary_sin = torch.tensor(np.tile(np.sin(angle), 2), dtype=torch.float32)
            block.attn.rotary_cos = torch.tensor(np.tile(np.cos(angle), 2), dtype=torch.float32)
        return model

    toposcope.from_transformer_lens(with_angles(1.0))
    with pytest.raises(BadConfig, match="angles"):
        toposcope.from_transformer_lens(with_angles(2.0))


def test_scaled_rotations_are_those_of_llama_3() -> None:
    scaled = {"use_NTK_by_parts_rope": True, "NTK_by_parts_factor": 8.0, "NTK_original_ctx_len": 64}
    made = toposcope.from_transformer_lens(stand_in(**ROTARY, d_head=4, rotary_base=500, **scaled)).layers[0].encoding
    plain = 500.0 ** -(np.arange(2) / 2)
    turns = 64 * plain / (2 * np.pi)  # more than 4: kept; fewer than 1: divided by 8; between: blended
    share = np.clip((turns - 1) / 3, 0, 1)
    assert made.rotary is not None
    np.testing.assert_allclose(made.rotary.frequencies(), (1 - share) * plain / 8 + share * plain, rtol=1e-12)


def test_a_bridge_is_read_as_the_model_inside() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=12, n_head=3, n_positions=16, vocab_size=20)
    inner = transformers.GPT2LMHeadModel(config)
    wrapped = {
        name.replace(".attn.", ".attn._original_component."): each for name, each in inner.state_dict().items()
    }
    original = SimpleNamespace(config=config, state_dict=lambda: wrapped)
    seen = toposcope.from_transformer_lens(SimpleNamespace(original_model=original, compatibility_mode=False))
    plain = toposcope.from_transformers(inner)
    np.testing.assert_array_equal(seen.layers[1].weights.q_HRD, plain.layers[1].weights.q_HRD)
    with pytest.raises(BadValue, match="compatibility mode"):
        toposcope.from_transformer_lens(SimpleNamespace(original_model=original, compatibility_mode=True))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"positional_embedding_type": "relative_positional_bias"},
            BadConfig,
            "'relative_positional_bias'",
        ),
        (
            {"positional_embedding_type": "alibi", "attention_dir": "bidirectional"},
            BadConfig,
            "causal mask",
        ),
        ({"normalization_type": "BN"}, BadConfig, "'normalization_type'"),
        ({"n_heads": 4, "n_key_value_heads": 3}, BadConfig, "4 heads .*3 "),
        ({"load_in_4bit": True}, BadWeights, "4 bits"),
    ],
    ids=["t5", "alibi", "norm", "groups", "bits"],
)
def test_what_cannot_be_read_is_said(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    model = stand_in(**{**changes, "n_key_value_heads": None})
    model.cfg.n_key_value_heads = changes.get("n_key_value_heads")
    with pytest.raises(error, match=words):
        toposcope.from_transformer_lens(model)


def test_other_objects_are_refused() -> None:
    with pytest.raises(BadValue, match="no HookedTransformer"):
        toposcope.from_transformer_lens(SimpleNamespace())
    encoder = stand_in()
    encoder.embed.pos_embed = encoder.pos_embed
    with pytest.raises(BadValue, match=r"toposcope\.load"):
        toposcope.from_transformer_lens(encoder)
    wrong = stand_in()
    wrong.blocks[0].attn.W_Q = wrong.blocks[0].attn.W_Q[:, :, :2]
    with pytest.raises(BadWeights, match="asks for"):
        toposcope.from_transformer_lens(wrong).layers[0].head(0)
