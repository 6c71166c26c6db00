"""The theorems of the notes on random systems: on the field itself where they are pointwise, else on runs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics.fields import AttentionField, System, TokenFactor
from toposcope.dynamics.matrices import matrices, simulate
from toposcope.dynamics.observables import pair_forms
from toposcope.dynamics.regime import Verdict, regime
from toposcope.dynamics.run import Piece, Problem, run
from toposcope.dynamics.trajectory import Status
from toposcope.encodings import NONE, alibi, combine, rope
from toposcope.encodings.record import LogitBias

seeds = st.integers(0, 2**31)


def definite(random: np.random.Generator, d: int, least: float = 0.3) -> np.ndarray:
    a = random.standard_normal((d, d)) / np.sqrt(d)
    return a @ a.T + least * np.eye(d)


def hurwitz(random: np.random.Generator, d: int, alpha: float = -0.5) -> np.ndarray:
    """A matrix whose spectrum has largest real part alpha; not normal."""
    a = random.standard_normal((d, d)) / np.sqrt(d)
    return a + (alpha - np.linalg.eigvals(a).real.max()) * np.eye(d)


def key_bias(values: np.ndarray) -> LogitBias:
    """b_j, the same for every query."""

    def table(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values[keys.astype(int)], (1, len(queries), len(keys)))

    return LogitBias(1, table, toeplitz=False)


@settings(max_examples=300, deadline=None)
@given(seed=seeds, n=st.integers(2, 7), d=st.integers(1, 5))
def test_t1_no_pair_form_falls(seed: int, n: int, d: int) -> None:
    """A symmetric and indefinite, any W, key-side bias, no mask: d/dt delta^T A delta >= 0 for every pair."""
    random = np.random.default_rng(seed)
    a = random.standard_normal((d, d))
    a = a + a.T
    if np.linalg.cond(a) > 1e6:
        return
    w = random.standard_normal((d, d))
    v = np.linalg.solve(a, w)  # A V = W
    x = random.standard_normal((n, d))
    system = System(w[None], v[None], causal=False, bias=key_bias(2 * random.standard_normal(n)))
    speed = AttentionField(system, n)(x)
    delta, delta_dot = x[:, None] - x[None], speed[:, None] - speed[None]
    rate = 2 * np.einsum("ijd,de,ije->ij", delta, a, delta_dot)
    scale = np.abs(a).max() * np.abs(delta).max() * np.abs(delta_dot).max() + 1e-300
    assert rate.min() >= -1e-11 * scale * d


@settings(max_examples=300, deadline=None)
@given(seed=seeds, n=st.integers(1, 7), d=st.integers(1, 5), causal=st.booleans())
def test_t2_norm_inequality(seed: int, n: int, d: int, causal: bool) -> None:
    """x_i^T W m_i >= x_i^T W x_i - log(sum of weights seen / own weight), also under rotation (offset 0 is W)."""
    random = np.random.default_rng(seed)
    w = random.standard_normal((d, d))
    bias = random.standard_normal(n)
    x = 2 * random.standard_normal((n, d))
    system = System(w[None], np.eye(d)[None], causal=causal, bias=key_bias(bias))
    m = AttentionField(system, n)(x)  # V = I: the field is m
    for i in range(n):
        seen = bias[: i + 1] if causal else bias
        floor = x[i] @ w @ x[i] - (scipy.special.logsumexp(seen) - bias[i])
        assert x[i] @ w @ m[i] >= floor - 1e-9 * (1 + abs(floor))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_t3_all_tokens_go_to_zero_and_the_lyapunov_function_never_rises(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    d, n = 3, 6
    if kind == "a":  # A symmetric < 0, W > 0 not symmetric
        skew = random.standard_normal((d, d))
        w = definite(random, d) + (skew - skew.T) / 2
        a = -definite(random, d)
    else:  # W symmetric, sym(A) < 0
        w = definite(random, d)
        skew = random.standard_normal((d, d))
        a = -definite(random, d) + (skew - skew.T) / 2
    v = np.linalg.solve(a, w)
    verdict = regime(w, v, causal=False)
    assert verdict.verdict is Verdict.CONVERGES
    assert verdict.rule == f"T3{kind}"
    pairs = a if kind == "a" else None
    found = simulate(w, v, random.standard_normal((n, d)), causal=False, horizon=400.0, pair_matrix=pairs)
    assert found.observables["norm_max"][-1] < 0.2 * found.observables["norm_max"][0]
    if kind == "a":
        forms = np.stack([pair_forms(cloud, a) for cloud in found.tokens])
        assert np.diff(forms, axis=0).min() >= -1e-8 * np.abs(forms[0]).max()
    else:
        energy = found.observables["log_energy"]
        energy = energy[np.isfinite(energy)]
        assert len(energy) > 5
        assert np.diff(energy).max() <= 1e-8 * abs(energy[0])


@pytest.mark.parametrize("seed", range(6))
def test_t4a_no_return_from_above_the_threshold_and_one_cluster_at_most_below(seed: int) -> None:
    random = np.random.default_rng(seed)
    d, n = 3, 6
    w, a = definite(random, d), definite(random, d)
    v = np.linalg.solve(a, w)
    found = simulate(w, v, random.standard_normal((n, d)), causal=False, horizon=200.0)
    assert found.status is Status.GREW
    least = np.linalg.eigvalsh(w)[0]
    threshold = np.linalg.eigvalsh(a)[-1] / least * np.log(n)
    forms = np.einsum("tnd,de,tne->tn", found.tokens, a, found.tokens)
    above = forms > threshold
    assert (above[1:] >= above[:-1]).all(), "a token came back from above the threshold"
    below = found.tokens[-1][~above[-1]]
    assert len(below) <= 1 or np.abs(below - below[0]).max() < 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("position", ["none", "rope", "alibi", "both"])
def test_t6_exact_solutions_of_the_first_two_tokens(position: str, seed: int) -> None:
    """x_1 = e^{Vt} x_1(0) and x_2 - x_1 = e^{V sigma} (x_2 - x_1)(0), sigma the integral of p_22, to 1e-6."""
    random = np.random.default_rng(seed)
    d, n = 4, 5
    w, v = random.standard_normal((d, d)) / 6, random.standard_normal((d, d)) / 2
    turn, slope = rope(d, base=100.0), alibi(1, slopes=[0.7])
    encoding = {"none": NONE, "rope": turn, "alibi": slope, "both": combine(turn, slope)}[position]
    x = 0.8 * random.standard_normal((n, d))
    times = np.linspace(0.0, 3.0, 301)
    found = simulate(w, v, x, encoding=encoding, horizon=3.0, times=times, rtol=1e-9, atol=1e-12)
    problem = matrices(w, v, x, encoding=encoding)
    field = problem.pieces[0].make()
    p22 = np.array([field.attention(cloud)[0, 1, 1] for cloud in found.tokens])
    assert p22.std() > 1e-4, "the time change is not tested by a constant p_22"
    sigma = scipy.integrate.simpson(p22, x=found.times)
    scale = np.abs(found.tokens).max()
    first = scipy.linalg.expm(v * 3.0) @ x[0]
    second = scipy.linalg.expm(v * sigma) @ (x[1] - x[0])
    assert np.abs(found.final[0] - first).max() < 1e-6 * scale
    assert np.abs(found.final[1] - found.final[0] - second).max() < 1e-6 * scale


@pytest.mark.parametrize("seed", range(5))
def test_t6_converges_for_every_hurwitz_v_with_rope_alibi_and_diagonal(seed: int) -> None:
    random = np.random.default_rng(seed)
    d, n = 4, 4
    w, v = random.standard_normal((d, d)) / 2, hurwitz(random, d)
    encoding = combine(rope(d, base=50.0), alibi(1, slopes=[0.2]))
    found = simulate(w, v, random.standard_normal((n, d)), encoding=encoding, diagonal="auto", horizon=400.0)
    assert found.status is Status.CONVERGED, found.events
    assert regime(w, v).verdict is Verdict.CONVERGES


@settings(max_examples=200, deadline=None)
@given(seed=seeds, n=st.integers(1, 6), causal=st.booleans())
def test_t7_the_least_coordinate_along_xi_grows_at_rate_lambda(seed: int, n: int, causal: bool) -> None:
    """Pointwise: xi . dx_i/dt = lambda sum_j P_ij c_j >= lambda min c, whatever W, mask and position are."""
    random = np.random.default_rng(seed)
    d = 4
    xi, rate = random.standard_normal(d), float(random.uniform(0.1, 2))
    v = random.standard_normal((d, d))
    v = v + np.outer(xi, (rate * xi - v.T @ xi)) / (xi @ xi)  # now xi^T V = rate xi^T
    assert np.allclose(xi @ v, rate * xi)
    x = random.standard_normal((n, d))
    x = x + (np.abs(x @ xi) - x @ xi + 0.1)[:, None] * xi / (xi @ xi)  # every xi . x_i > 0
    system = System(
        random.standard_normal((1, d, d)), v[None], causal=causal, rotary=rope(d).rotary, bias=alibi(1).bias
    )
    speed = AttentionField(system, n)(x) @ xi
    assert speed.min() >= rate * (x @ xi).min() * (1 - 1e-9)


def test_t7_along_a_run() -> None:
    v = np.diag([0.5, -1.0])
    x = np.abs(np.random.default_rng(0).standard_normal((5, 2))) + 0.1
    found = simulate(np.eye(2), v, x, causal=False, encoding=rope(2), horizon=10.0)
    bound = np.exp(0.5 * found.times) * x[:, 0].min()
    assert (found.tokens[:, :, 0].min(axis=1) >= bound * (1 - 1e-5)).all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("causal", [True, False])
def test_t8_ball_of_certified_systems(seed: int, causal: bool) -> None:
    """V = -v I, W near a multiple of I plus D: `regime` certifies a ball, and runs end in it, RoPE included."""
    random = np.random.default_rng(seed)
    d, n = 4, 6
    w = 0.15 * random.standard_normal((d, d)) + 0.3 * np.eye(d)
    v = -float(random.uniform(0.5, 2)) * (np.eye(d) + 0.05 * random.standard_normal((d, d)))
    x = 3 * random.standard_normal((n, d))
    problem = matrices(w, v, x, causal=False, encoding=rope(d, base=10.0), diagonal=3.0)
    verdict = problem.decide()
    assert verdict is not None
    assert verdict.verdict is Verdict.BOUNDED
    assert verdict.certificate is not None
    found = simulate(w, v, x, causal=causal, encoding=rope(d, base=10.0), diagonal=3.0, horizon=60.0)
    assert (found.observables["norm_max"][-1]) ** 2 <= verdict.certificate.bound * np.log(n) * (1 + 1e-6)


def low_rank_head(
    random: np.random.Generator, d: int, r: int, eps: float | None, bias: bool
) -> tuple[System, np.ndarray, np.ndarray, np.ndarray]:
    q = k = random.standard_normal((r, d)) / np.sqrt(d)  # W = Q^T Q: tokens do not freeze on the way (time scale, T6)
    v, o = random.standard_normal((r, d)) / np.sqrt(d), random.standard_normal((d, r)) / np.sqrt(r)
    small = hurwitz(random, r)
    v = v + np.linalg.solve(o.T @ o, (small - v @ o).T).T @ o.T  # V O is Hurwitz now
    b_v = 0.3 * random.standard_normal(r) if bias else np.zeros(r)
    system = System(
        k[None],
        v[None],
        q[None],
        o[None],
        rotary=rope(r, base=30.0).rotary,
        v_bias_GS=b_v[None],
        factor=None if eps is None else TokenFactor("rms", eps),
    )
    return system, v, o, b_v


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", ["plain", "value bias", "rms norm"])
def test_t9_limit_of_a_low_rank_head(case: str, seed: int) -> None:
    """Every token tends to (I - O V~^-1 V) x_0 - O V~^-1 b_v; with RMSNorm(eps) too, where there is no value bias."""
    random = np.random.default_rng(seed)
    d, r, n = 7, 2, 3
    eps = 0.1 if case == "rms norm" else None
    system, v, o, b_v = low_rank_head(random, d, r, eps, case == "value bias")
    x = 0.5 * random.standard_normal((n, d))  # small logits: no token stands still for longer than the run
    field = AttentionField(system, n)
    found = run(Problem("head", x, (Piece(lambda: field),), 150.0), rtol=1e-8, max_evaluations=20_000)
    limit = x - np.linalg.solve(v @ o, (x @ v.T + b_v).T).T @ o.T
    assert np.abs(limit - x).max() > 0.05, "the head moves nothing: not a test"
    assert np.abs(found.final - limit).max() < 1e-5 * np.abs(x).max()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_and_biases_are_those_of_an_explicit_norm(kind: str) -> None:
    """The folded field with its per-token factor, written out: V norm(x) + b_v mixed by softmax, then O and b_o."""
    from toposcope.checkpoints.view import Norm

    random = np.random.default_rng(8)
    d, r, n = 6, 3, 4
    q, k, v = random.standard_normal((3, r, d))
    if kind == "layer":  # folding takes the mean off the rows
        q, k, v = (m - m.mean(axis=1, keepdims=True) for m in (q, k, v))
    o, b_o = random.standard_normal((d, r)), random.standard_normal(d)
    b_q, b_k, b_v = random.standard_normal((3, r))
    x = random.standard_normal((n, d))
    system = System(
        k[None],
        v[None],
        q[None],
        o[None],
        scale=0.4,
        q_bias_HR=b_q[None],
        k_bias_GR=b_k[None],
        v_bias_GS=b_v[None],
        o_bias_D=b_o,
        factor=TokenFactor(kind, 0.3),
    )
    y = Norm(kind, 0.3)(x)
    logits = 0.4 * (y @ q.T + b_q) @ (y @ k.T + b_k).T
    weights = scipy.special.softmax(np.where(np.tri(n) > 0, logits, -np.inf), axis=1)
    wanted = weights @ (y @ v.T + b_v) @ o.T + b_o
    assert np.allclose(AttentionField(system, n)(x), wanted, atol=1e-12)


def test_a_value_bias_under_a_norm_undoes_t6() -> None:
    """The counterexample behind `bias_with_norm`: V = -I, b_v = (3, 0), RMSNorm, and x_1 goes to infinity."""
    eye = np.eye(2)[None]
    system = System(eye, -eye, v_bias_GS=np.array([[3.0, 0.0]]), factor=TokenFactor("rms", 1e-6))
    field = AttentionField(system, 1)
    found = run(Problem("bias", np.array([[1.0, 1.0]]), (Piece(lambda: field),), 100.0))
    assert found.observables["norm_max"][-1] > 100
    assert regime(eye[0], -eye[0], norm=True, value_bias=True).exact is False
