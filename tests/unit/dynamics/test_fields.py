"""The field of attention with everything a layer may have, against the same written out token by token."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from toposcope.checkpoints.view import Norm
from toposcope.core.errors import BadValue
from toposcope.dynamics import fields
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
    "norm of heads, with gain and bias": lambda random: {
        "q_norm": Norm("layer", 0.1, random.uniform(0.5, 2, HEAD), random.standard_normal(HEAD)),
        "k_norm": Norm("layer", 0.2, random.uniform(0.5, 2, HEAD), random.standard_normal(HEAD)),
        "rotary": rope(HEAD, base=20.0, pairing="interleaved").rotary,
    },
    "some heads turn, some channels": lambda random: {
        "rotary": rope(HEAD, rotary_dim=2, base=20.0).rotary,
        "turning": 2,
        "causal": False,
    },
    "bias, causal": lambda random: {"bias": alibi(4).bias, "reach": 3},
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
    with pytest.raises(BadValue, match="token"):
        AttentionField(layer(np.random.default_rng(3)), 0)


def test_without_a_norm_enormous_tokens_see_the_largest_logit_alone() -> None:
    random = np.random.default_rng(4)
    system = layer(random, causal=False)
    x = random.standard_normal((COUNT, WIDTH))
    logits, _ = logits_of(replace(system, q_bias_HR=0 * system.q_bias_HR, k_bias_GR=0 * system.k_bias_GR), x, x)
    weights = AttentionField(system, COUNT).attention(1e120 * x)
    np.testing.assert_array_equal(weights, logits == logits.max(axis=2, keepdims=True))


def test_too_many_tokens_are_refused_before_anything_is_made() -> None:
    with pytest.raises(BadValue, match="GB") as refused:
        AttentionField(layer(np.random.default_rng(5)), 10**6)
    assert f"{10**6:,}" in str(refused.value)


def enlarged(system: System, by: float) -> System:
    """The system that does with tokens `by` times as large what this one does: each weight in its own unit."""
    normal = system.factor is not None  # the size is taken away before anything is read
    read = 1.0 if normal or system.q_norm is not None else 1 / by
    out = by if not normal else 1.0
    small = 1.0 if system.q_norm is None else by  # biases are added to what a norm of heads is taken of
    factor = None if system.factor is None else replace(system.factor, eps=system.factor.eps * by**2)
    return replace(
        system,
        q_HRD=None if system.q_HRD is None else system.q_HRD * read,
        k_GRD=system.k_GRD * read,
        q_bias_HR=None if system.q_bias_HR is None else system.q_bias_HR * small,
        k_bias_GR=None if system.k_bias_GR is None else system.k_bias_GR * small,
        v_bias_GS=None if system.v_bias_GS is None else system.v_bias_GS * out,
        o_bias_D=None if system.o_bias_D is None else system.o_bias_D * out,
        diagonal=system.diagonal * (1.0 if normal else by**-2),
        factor=factor,
        q_norm=None if system.q_norm is None else replace(system.q_norm, eps=system.q_norm.eps * by**2),
        k_norm=None if system.k_norm is None else replace(system.k_norm, eps=system.k_norm.eps * by**2),
    )


@pytest.mark.parametrize("place", ["origin", "base", "base and position", "reinjected"])
@pytest.mark.parametrize("case", [name for name in SYSTEMS if name != "output"])
def test_the_unit_of_length_changes_nothing(case: str, place: str) -> None:
    """Tokens, weights and biases in a unit of 1e-120: the same attention and energy, and rates in that unit."""
    by = 1e120
    random = np.random.default_rng(6)
    system = layer(random, **SYSTEMS[case](random))
    x, base, position = random.standard_normal((3, COUNT, WIDTH))
    given: dict[str, Any] = {} if place == "origin" else {"base": base}
    if place in ("base and position", "reinjected"):
        given |= {"position": position, "reinject": place == "reinjected"}
    plain = AttentionField(system, COUNT, **given)
    large = {name: by * value if isinstance(value, np.ndarray) else value for name, value in given.items()}
    far = AttentionField(enlarged(system, by), COUNT, **large)
    np.testing.assert_allclose(far.attention(by * x), plain.attention(x), atol=1e-9)
    assert far.log_energy(by * x) == pytest.approx(plain.log_energy(x), rel=1e-9)
    out = 1.0 if system.factor is not None else by
    np.testing.assert_allclose(far(by * x) / out, plain(x), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_queries_and_outputs_that_are_left_out_are_identities(turned: bool, small: bool) -> None:
    random = np.random.default_rng(7)
    w, v = random.standard_normal((2, 1, HEAD, HEAD))
    rotary = rope(HEAD, base=20.0, pairing="interleaved").rotary if turned else None
    lift, x = random.standard_normal((HEAD, 3)), random.standard_normal((COUNT, 3 if small else HEAD))
    base = random.standard_normal((COUNT, HEAD))
    output = np.linalg.pinv(lift)[None] if small else None  # from values to the state
    given = {"lift": lift if small else None, "base": base}
    bare = AttentionField(System(w, v, None, output, scale=0.3, rotary=rotary, diagonal=0.1), COUNT, **given)
    eye = np.eye(HEAD)[None]
    spelt = System(w, v, eye, eye if output is None else output, scale=0.3, rotary=rotary, diagonal=0.1)
    whole = AttentionField(spelt, COUNT, **given)
    np.testing.assert_allclose(bare(x), whole(x), atol=1e-12)
    np.testing.assert_allclose(bare.attention(x), whole.attention(x), atol=1e-12)


@pytest.mark.parametrize("case", ["plain", "norm", "layer norm", "some heads turn", "diagonal"])
def test_a_smaller_state_moves_as_its_tokens_do(case: str) -> None:
    """x = B s + base: the field of s is that of the tokens, written to the state by the outputs given."""
    random = np.random.default_rng(8)
    system = layer(random, **SYSTEMS[case](random))
    lift, outputs = random.standard_normal((WIDTH, 3)), random.standard_normal((HEADS, 3, VALUE))
    system = replace(system, o_HDS=outputs, o_bias_D=random.standard_normal(3))
    s, (base, position) = random.standard_normal((COUNT, 3)), random.standard_normal((2, COUNT, WIDTH))
    field = AttentionField(system, COUNT, lift=lift, base=base, position=position)
    tokens = s @ lift.T + base
    speed, weights, energy = written_out(system, tokens + position, tokens)
    np.testing.assert_allclose(field(s), speed, atol=1e-10)
    np.testing.assert_allclose(field.attention(s), weights, atol=1e-11)
    assert field.log_energy(s) == pytest.approx(energy, rel=1e-11)
    np.testing.assert_allclose(field.tokens(s), tokens, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_energy_beyond_all_numbers_is_the_largest_one(sign: int) -> None:
    field = AttentionField(System(sign * 1e20 * np.ones((1, 1, 1)), np.ones((1, 1, 1))), 1)
    assert field.log_energy(np.full((1, 1), 1e160)) == sign * np.finfo(np.float64).max
    assert field.log_energy(np.full((1, 1), 3.0)) == pytest.approx(sign * 9e20)


def test_beta_is_the_largest_share_of_the_others() -> None:
    """max_i log sum_j e^(b_ij - b_ii) over what a token sees, over all heads."""
    random = np.random.default_rng(9)
    assert AttentionField(layer(random, causal=False), COUNT).beta() == pytest.approx(np.log(COUNT))
    assert AttentionField(layer(random), COUNT).beta() == pytest.approx(np.log(COUNT))
    assert AttentionField(layer(random, reach=1), COUNT).beta() == pytest.approx(np.log(2))
    system = layer(random, bias=alibi(6).bias, bias_heads=(5, 0, 3, 1), reach=3, causal=False)
    table = alibi(6).bias.table(np.arange(COUNT), np.arange(COUNT))[[5, 0, 3, 1]]
    sums = [
        sum(np.exp(table[h, i, j] - table[h, i, i]) for j in range(COUNT) if abs(i - j) <= 3)
        for h in range(HEADS)
        for i in range(COUNT)
    ]
    assert AttentionField(system, COUNT).beta() == pytest.approx(np.log(max(sums)))


def test_the_work_of_one_evaluation_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products of n^2 entries for each head, one of the heads' width and one of the values'."""
    system = layer(np.random.default_rng(10))
    work = 2 * HEADS * COUNT**2 * (HEAD + VALUE)
    monkeypatch.setattr(fields, "MOST_WORK", work)
    AttentionField(system, COUNT)
    monkeypatch.setattr(fields, "MOST_WORK", work - 1)
    with pytest.raises(BadValue, match="operations"):
        AttentionField(system, COUNT)


def test_the_memory_foreseen_is_about_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(fields, "require_memory", lambda needed, *_: asked.append(needed))
    system, count = layer(np.random.default_rng(11), bias=alibi(HEADS).bias, softcap=5.0), 300
    x = np.random.default_rng(12).standard_normal((count, WIDTH))
    tracemalloc.start()
    AttentionField(system, count)(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(asked) == 1
    assert 0.7 * peak < asked[0] < 1.4 * peak


def test_a_single_token_sees_itself() -> None:
    random = np.random.default_rng(13)
    for more in ({}, {"causal": False}, {"reach": 0}):
        system = layer(random, **more)
        x = random.standard_normal((1, WIDTH))
        values = [x[0] @ system.v_GSD[g].T + system.v_bias_GS[g] for g in (0, 0, 1, 1)]
        expected = system.o_bias_D + sum(system.o_HDS[h] @ values[h] for h in range(HEADS))
        np.testing.assert_allclose(AttentionField(system, 1)(x)[0], expected, atol=1e-12)
