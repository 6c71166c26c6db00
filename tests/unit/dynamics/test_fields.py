"""The field of attention with everything a layer may have, against the same written out token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from toposcope.checkpoints.view import Norm
from toposcope.core.errors import BadValue
from toposcope.dynamics.fields import AttentionField, System, TokenFactor
from toposcope.encodings import alibi, rope

HEADS, GROUPS, HEAD, VALUE, WIDTH, COUNT = 4, 2, 6, 3, 8, 5


def layer(random: np.random.Generator, **more: Any) -> System:
    """Four heads in two groups, with a bias on everything."""
    draw = random.standard_normal
    return System(
        draw((GROUPS, HEAD, WIDTH)),
        draw((GROUPS, VALUE, WIDTH)),
        draw((HEADS, HEAD, WIDTH)),
        draw((HEADS, WIDTH, VALUE)),
        q_bias_HR=draw((HEADS, HEAD)),
        k_bias_GR=draw((GROUPS, HEAD)),
        v_bias_GS=draw((GROUPS, VALUE)),
        o_bias_D=draw(WIDTH),
        **{"scale": 0.4, **more},
    )


def normed(norm: Norm | None, rows: list[np.ndarray], over: str) -> list[np.ndarray]:
    """q or k norm of one token: head by head, or over all heads together."""
    if norm is None:
        return rows
    if over == "head":
        return [norm(row) for row in rows]
    flat = np.concatenate(rows)
    flat = flat / np.sqrt((flat**2).mean() + norm.eps)
    assert norm.gain is not None
    return list(flat.reshape(len(rows), -1) * norm.gain)


def logits_of(system: System, read: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits (H, n, n) with -inf where hidden, and the norm's factors (n, 1)."""
    factor = np.ones((COUNT, 1))
    if system.factor is not None:
        centred = kept - kept.mean(axis=1, keepdims=True) if system.factor.kind == "layer" else kept
        factor = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + system.factor.eps)
    seen = read * factor
    q, k = [], []
    for i in range(COUNT):
        own = [system.q_HRD[h] @ seen[i] + system.q_bias_HR[h] for h in range(HEADS)]
        q.append(normed(system.q_norm, own, system.qk_norm_over))
        own = [system.k_GRD[g] @ seen[i] + system.k_bias_GR[g] for g in range(GROUPS)]
        k.append(normed(system.k_norm, own, system.qk_norm_over))
    found = np.full((HEADS, COUNT, COUNT), -np.inf)
    for h in range(HEADS):
        for i in range(COUNT):
            for j in range(COUNT):
                if (system.causal and j > i) or (system.reach is not None and abs(i - j) > system.reach):
                    continue
                a, b = q[i][h], k[j][h // (HEADS // GROUPS)]
                if system.rotary is not None and (system.turning is None or h < system.turning):
                    a = system.rotary.rotate(a[None], [i], side="query", context=COUNT)[0]
                    b = system.rotary.rotate(b[None], [j], side="key", context=COUNT)[0]
                value = system.scale * a @ b + system.diagonal * seen[i] @ seen[j]
                if system.softcap is not None:
                    value = system.softcap * np.tanh(value / system.softcap)
                if system.bias is not None:
                    row = h if system.bias_heads is None else system.bias_heads[h]
                    value += system.bias.table([i], [j])[row, 0, 0]
                found[h, i, j] = value
    return found, factor


def written_out(system: System, read: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """dx/dt, the attention and log E."""
    logits, factor = logits_of(system, read, kept)
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    out = np.tile(system.o_bias_D, (COUNT, 1))
    for h in range(HEADS):
        g = h // (HEADS // GROUPS)
        values = kept * factor @ system.v_GSD[g].T + system.v_bias_GS[g]
        out += weights[h] @ values @ system.o_HDS[h].T
    return (out if system.output is None else system.output(out)), weights, float(np.log(np.exp(logits).sum()))


def gains(random: np.random.Generator, heads: int) -> Norm:
    return Norm("rms", 0.1, random.uniform(0.5, 2, (heads, HEAD)))


SYSTEMS: dict[str, Any] = {
    "plain": lambda random: {},
    "unmasked, window": lambda random: {"causal": False, "reach": 2},
    "causal, window": lambda random: {"reach": 1},
    "scale 1": lambda random: {"scale": 1.0},
    "scale 2": lambda random: {"scale": 2.0},
    "rotation": lambda random: {"rotary": rope(HEAD, base=20.0, pairing="interleaved").rotary},
    "some heads turn": lambda random: {"rotary": rope(HEAD, rotary_dim=4, base=20.0).rotary, "turning": 2},
    "bias rows": lambda random: {"bias": alibi(6).bias, "bias_heads": (5, 0, 3, 1), "causal": False},
    "diagonal": lambda random: {"diagonal": 0.3, "softcap": 2.0},
    "norm": lambda random: {"factor": TokenFactor("rms", 0.2), "diagonal": 0.3},
    "layer norm": lambda random: {"factor": TokenFactor("layer", 0.2), "softcap": 3.0},
    "norm of heads": lambda random: {"q_norm": Norm("rms", 0.1), "k_norm": Norm("layer", 0.2)},
    "norm over heads": lambda random: {
        "q_norm": gains(random, HEADS),
        "k_norm": gains(random, GROUPS),
        "qk_norm_over": "layer",
        "rotary": rope(HEAD, base=20.0, pairing="interleaved").rotary,
    },
    "output": lambda random: {"output": np.tanh},
}


@pytest.mark.parametrize("case", SYSTEMS)
def test_the_field_of_a_layer_is_the_layer_written_out(case: str) -> None:
    random = np.random.default_rng(0)
    system = layer(random, **SYSTEMS[case](random))
    x = random.standard_normal((COUNT, WIDTH))
    field = AttentionField(system, COUNT)
    speed, weights, energy = written_out(system, x, x)
    np.testing.assert_allclose(field(x), speed, atol=1e-11)
    np.testing.assert_allclose(field.attention(x), weights, atol=1e-12)
    assert field.log_energy(x) == pytest.approx(energy, rel=1e-12)


@pytest.mark.parametrize("reinject", [False, True])
@pytest.mark.parametrize("case", ["plain", "norm", "some heads turn"])
def test_positions_are_read_by_logits_and_by_values_where_asked(case: str, reinject: bool) -> None:
    random = np.random.default_rng(1)
    system = layer(random, **SYSTEMS[case](random))
    x, base, position = random.standard_normal((3, COUNT, WIDTH))
    field = AttentionField(system, COUNT, base=base, position=position, reinject=reinject)
    read = x + base + position
    speed, _, _ = written_out(system, read, read if reinject else x + base)
    np.testing.assert_allclose(field(x), speed, atol=1e-11)
    np.testing.assert_allclose(field.tokens(x), x + base)


@pytest.mark.parametrize("case", ["norm", "norm of heads"])
def test_tokens_of_enormous_size_are_followed(case: str) -> None:
    """A norm takes the size away: at 1e120 the attention is that of 1e20, where eps and biases have long vanished."""
    random = np.random.default_rng(2)
    system = layer(random, **{**SYSTEMS[case](random), "diagonal": 0.0})
    x = random.standard_normal((COUNT, WIDTH))
    field = AttentionField(system, COUNT)
    np.testing.assert_allclose(field.attention(1e120 * x), field.attention(1e20 * x), atol=1e-10)
    assert np.isfinite(field(1e120 * x)).all()


def test_a_flow_needs_a_token() -> None:
    with pytest.raises(BadValue, match="at least one token, got 0"):
        AttentionField(layer(np.random.default_rng(3)), 0)


def test_without_a_norm_enormous_tokens_see_the_largest_logit_alone() -> None:
    random = np.random.default_rng(4)
    system = layer(random, causal=False)
    x = random.standard_normal((COUNT, WIDTH))
    logits, _ = logits_of(replace(system, q_bias_HR=0 * system.q_bias_HR, k_bias_GR=0 * system.k_bias_GR), x, x)
    weights = AttentionField(system, COUNT).attention(1e120 * x)
    np.testing.assert_array_equal(weights, logits == logits.max(axis=2, keepdims=True))


def test_too_many_tokens_are_refused_before_anything_is_made() -> None:
    with pytest.raises(BadValue, match="1,000,000 tokens"):
        AttentionField(layer(np.random.default_rng(5)), 10**6)
