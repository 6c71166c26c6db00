"""Verdicts: planted systems get their theorem, counterexamples get nothing they contradict, margins hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.checkpoints.view import Head
from toposcope.core.errors import BadValue
from toposcope.core.ranges import LARGEST
from toposcope.dynamics.reduction import reduce_head, reduce_system, reduce_values
from toposcope.dynamics.regime import (
    Regime,
    Setting,
    Verdict,
    _asymmetry,
    _Facts,
    _nearest_multiple,
    decide,
    positive_share,
    regime,
)
from toposcope.dynamics.stability import TIGHTNESS

from .systems import (
    antisymmetric,
    make_head,
    orthogonal,
    planted,
    positive,
    random_head,
    rotation,
    simulate,
    sym,
    velocity,
    with_spectrum,
)

seeds = st.integers(0, 2**32 - 1)
RULES = ("T3a", "T3b", "T4a", "T4b")
J = rotation(np.pi / 2)


def of_head(head: Head, **setting: Any) -> Regime:
    return decide(reduce_head(head), Setting(**setting))


def cloud(random: np.random.Generator, n: int, d: int, size: float = 1.0) -> np.ndarray:
    return size * random.standard_normal((n, d))


def symmetric_to_the_bit(rule: str, w: np.ndarray, v: np.ndarray) -> bool:
    """Whether what T3 and T4 want symmetric is so exactly: V^T W in their case a, W in b."""
    matrix = v.T @ w if rule.endswith("a") else w
    return bool((matrix == matrix.T).all())


# --- T3 and T4 ------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(2, 6), st.sampled_from(RULES))
def test_planted_systems_get_their_rule(seed: int, d: int, rule: str) -> None:
    """The answer must also survive W -> cW, V -> cV and every orthogonal change of basis."""
    random = np.random.default_rng(seed)
    w, v = planted(rule, random, d)
    expected = Verdict.CONVERGES if rule.startswith("T3") else Verdict.DIVERGES
    q = orthogonal(random, d)
    c, e = 10.0 ** random.uniform(-3, 3, 2)
    for W, V in ((w, v), (c * w, v), (w, e * v), (q @ w @ q.T, q @ v @ q.T)):
        found = regime(W, V, causal=False)
        assert (found.verdict, found.rule, found.scope) == (expected, rule, "all_tokens")
        assert found.exact == symmetric_to_the_bit(rule, W, V) == ("symmetric_up_to_rounding" not in found.warnings)
    assert regime(w, -v, causal=False).rule == f"T{'4' if rule[1] == '3' else '3'}{rule[2]}"
    # the margin of definiteness, from dense algebra
    least = np.abs(np.linalg.eigvalsh(sym(v.T @ w))).min() / (2 * np.linalg.norm(w, 2) * np.linalg.norm(v, 2))
    definite = min(np.linalg.eigvalsh(sym(w))[0] / np.linalg.norm(w, 2), least)
    assert regime(w, v, causal=False).margin == pytest.approx(definite, rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(12))
def test_planted_systems_do_what_they_are_said_to_do(rule: str, seed: int) -> None:
    random = np.random.default_rng([seed, RULES.index(rule)])
    d = 2 + seed % 2
    w, v = planted(rule, random, d)
    v = v / np.linalg.norm(v, 2)
    run = simulate(w, v, cloud(random, 4, d, 1.5), 60.0, cap=30.0)
    if rule.startswith("T3"):
        assert not run.grew
        assert run.last.max() < 0.5 * run.first.max()
    else:
        assert run.grew


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(2, 5), st.floats(-9, -1))
def test_symmetry_must_be_exact(seed: int, d: int, power: float) -> None:
    """Neither W nor A symmetric, by ever so little: T3 and T4 are silent."""
    random = np.random.default_rng(seed)
    w = positive(random, d) + 10.0**power * antisymmetric(random, d)
    a = -(positive(random, d) + 10.0**power * antisymmetric(random, d))
    found = regime(w, np.linalg.solve(a, w), causal=False)
    assert found.verdict is not Verdict.CONVERGES
    assert found.rule not in RULES
    assert found.asym_W is not None
    dense = np.linalg.norm(w - w.T) / np.hypot(np.linalg.norm(w - w.T), np.linalg.norm(w + w.T))
    assert found.asym_W == pytest.approx(dense, rel=1e-6)


@pytest.mark.parametrize("power", range(1, 13))
@pytest.mark.parametrize("causal", [True, False])
def test_the_pair_that_defeats_a_tolerance(power: int, causal: bool) -> None:
    """W = R(.9 tol), V = -R(pi/2 + .45 tol): both symmetric parts say 'converges', and every consensus grows."""
    tol = 10.0**-power
    w, v = rotation(0.9 * tol), -rotation(np.pi / 2 + 0.45 * tol)
    assert np.linalg.eigvalsh(sym(v.T @ w))[-1] < 1e-16
    assert np.linalg.eigvals(v).real.max() > 0
    assert regime(w, v, causal=causal).verdict is not Verdict.CONVERGES
    grown = scipy.linalg.expm(v * 4 / tol) @ [1.0, 0.0]
    assert np.linalg.norm(grown) > 5


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 4), st.sampled_from(["query_bias", "value_bias"]))
def test_a_key_side_weight_leaves_t3a_alone(seed: int, d: int, what: str) -> None:
    """b_q, and b_v after its shift of the tokens, weigh the keys: allowed in T3a, not in T3b, T4 and T8."""
    random = np.random.default_rng(seed)
    for rule in RULES:
        found = regime(*planted(rule, random, d), causal=False, **{what: True})
        if rule == "T3a":
            assert (found.verdict, found.rule) == (Verdict.CONVERGES, "T3a")
        else:
            assert found.rule not in (*RULES, "T8")


# --- counterexamples ------------------------------------------------------------------------------------------------


def test_c1() -> None:
    """sym W > 0 and sym A < 0, and yet a single token grows like e^{t/2}."""
    w, v = rotation(np.pi / 3), rotation(-np.pi / 3)
    assert np.linalg.eigvalsh(sym(w))[0] > 0 > np.linalg.eigvalsh(sym(w @ np.linalg.inv(v)))[-1]
    run = simulate(w, v, np.array([[1.0, 0.0]]), 20.0)
    assert run.grew
    assert run.times[-1] == pytest.approx(2 * np.log(1e3), rel=1e-3)
    found = regime(w, v, causal=False)
    assert (found.verdict, found.rule, found.scope) == (Verdict.NOT_CONVERGENT, "T5", "consensus")
    assert regime(w, v, causal=True).verdict is Verdict.DIVERGES


def test_c1_mirrored() -> None:
    """sym W > 0 and sym A > 0: a single token goes to 0, five tokens diverge; nothing is said of all tokens."""
    w, v = rotation(np.pi / 3), rotation(2 * np.pi / 3)
    assert np.linalg.eigvalsh(sym(w @ np.linalg.inv(v)))[0] > 0
    alone = simulate(w, v, np.array([[1.0, 0.0]]), 20.0)
    assert alone.last[0] < 1e-3
    many = simulate(w, v, cloud(np.random.default_rng(0), 5, 2, 3.0), 60.0)
    assert many.grew
    assert regime(w, v, causal=False).verdict is Verdict.INDETERMINATE
    assert regime(w, v, causal=True).verdict is Verdict.CONVERGES


def test_c2() -> None:
    """V = W = -I: two unmasked tokens diverge; with a causal mask the same matrices converge."""
    w = v = -np.eye(2)
    pair = np.array([[1.0, 0.0], [-1.0, 0.3]])
    assert simulate(w, v, pair, 60.0).grew
    assert simulate(w, v, pair, 60.0, causal=True).last.max() < 1e-2
    assert regime(w, v, causal=False).verdict is Verdict.INDETERMINATE
    causal = regime(w, v, causal=True)
    assert (causal.verdict, causal.rule, causal.scope) == (Verdict.CONVERGES, "T6", "all_tokens")


def test_c4() -> None:
    """A < 0 and W < 0: pairs contract while everything goes to infinity."""
    run = simulate(-np.eye(2), np.eye(2), np.array([[1.0, 0.5], [0.8, 0.9]]), 40.0)
    apart = np.linalg.norm(run.states[:, 0] - run.states[:, 1], axis=1)
    assert run.grew
    assert apart[-1] < apart[0]
    found = regime(-np.eye(2), np.eye(2), causal=False)
    assert (found.verdict, found.scope) == (Verdict.NOT_CONVERGENT, "consensus")


def test_c5() -> None:
    """V = -I, W = -8 I, causal: converges (T6), though after t = 200 the second token has hardly moved."""
    found = regime(-8 * np.eye(2), -np.eye(2), causal=True)
    assert (found.verdict, found.rule) == (Verdict.CONVERGES, "T6")
    assert found.w_min is not None
    assert found.w_min < 0  # what `metastable` is printed from
    assert simulate(-8 * np.eye(2), -np.eye(2), np.array([[0.0, 1.0], [2.0, 0.0]]), 200.0, causal=True).last[1] > 1.5


def test_c7() -> None:
    """A = -(I + 2.5 J), W = I: pairs may grow, and T3b still says that all tokens go to 0; they do."""
    v = np.linalg.inv(-(np.eye(2) + 2.5 * J))
    found = regime(np.eye(2), v, causal=False)
    assert (found.verdict, found.rule) == (Verdict.CONVERGES, "T3b")
    run = simulate(np.eye(2), v, cloud(np.random.default_rng(1), 4, 2), 200.0)
    assert run.last.max() < 0.3 * run.first.max()


def test_a_frozen_part_can_hold_tokens_away_from_zero() -> None:
    """W~ = I, V~ = -I with nu = +-0.7 e_1 in the logits: z settles at (+-2.10, +-0.10), so the scope is nu_zero."""
    eye, zero = np.eye(2), np.zeros((2, 2))
    head = make_head(np.hstack([eye, 3 * eye]), np.hstack([eye, -3 * eye]), np.hstack([-eye, zero]), np.eye(4)[:, :2])
    head = replace(head, scale=1.0)
    found = of_head(head, causal=False)
    assert (found.verdict, found.rule, found.scope) == (Verdict.CONVERGES, "T3a", "nu_zero")
    start = np.array([[2.0, 0.3, 0.7, 0.0], [-2.0, -0.3, -0.7, 0.0]])
    held = simulate(head.q.T @ head.k, head.o @ head.v, start, 100.0).states[-1]
    np.testing.assert_allclose(np.abs(held[:, 0]), 2.10, atol=0.05)
    start[:, 2] = 0.0
    free = simulate(head.q.T @ head.k, head.o @ head.v, start, 100.0).states[-1]
    assert np.abs(free[:, :2]).max() < 0.3


def test_relative_biases_can_keep_tokens_moving() -> None:
    """V = -I, W = I with biases: no convergence is claimed, and the ball is not stated in units of log n."""
    found = regime(np.eye(2), -np.eye(2), causal=False, relative_bias=True)
    assert (found.verdict, found.rule) == (Verdict.BOUNDED, "T8")
    assert "log n" not in found.statement.replace("log sum", "")
    random = np.random.default_rng(2)
    kept = 0.0
    for _ in range(6):
        bias = random.uniform(0, 6, (4, 4))
        beta = np.log(np.exp(bias - np.diag(bias)[:, None]).sum(axis=1)).max()
        last = simulate(np.eye(2), -np.eye(2), cloud(random, 4, 2, 3.0), 60.0, bias=bias).last
        assert found.certificate is not None
        assert last.max() ** 2 <= found.certificate.bound * beta * 1.001
        kept = max(kept, float(last.max() ** 2) / np.log(4))
    assert kept > 1.0  # the ball of size log n would have been left: the unit matters


def test_a_value_bias_moves_the_ball() -> None:
    """T8's ball is about 0; with a value bias tokens rest at -V^-1 b_v, which may lie outside."""
    random = np.random.default_rng(4)
    w = np.eye(2) + 0.1 * random.standard_normal((2, 2))
    v = -np.eye(2) + 0.1 * random.standard_normal((2, 2))
    plain = regime(w, v, causal=False)
    assert (plain.verdict, plain.rule) == (Verdict.BOUNDED, "T8")
    bias = np.array([4.0, 0.0])
    last = simulate(w, v, cloud(random, 3, 2), 60.0, value_bias=bias).last
    assert plain.certificate is not None
    assert last.max() ** 2 > 2 * plain.certificate.bound * np.log(3)
    assert regime(w, v, causal=False, value_bias=True).verdict is not Verdict.BOUNDED


@settings(max_examples=400, deadline=None)
@given(seeds, st.integers(1, 5), st.booleans())
def test_no_verdict_contradicts_what_a_consensus_does(seed: int, d: int, causal: bool) -> None:
    """Whatever the matrices: consensus and first token follow e^{Vt}, and every verdict must allow that."""
    random = np.random.default_rng(seed)
    v = with_spectrum(random, d, *sorted(random.uniform(-1, 1, 2)), skew=10.0 ** random.uniform(-2, 1))
    w = random.choice([1.0, -1.0]) * (positive(random, d) + 10.0 ** random.uniform(-3, 1) * antisymmetric(random, d))
    if random.random() < 0.3:  # near or exactly on the borders of T3, T4 and T8
        w, v = planted(RULES[seed % 4], random, d)
        v = v + 10.0 ** random.uniform(-14, 0) * random.standard_normal((d, d))
    found = regime(w, v, causal=causal)
    real = np.linalg.eigvals(v).real
    allowed = {
        Verdict.CONVERGES: real.max() < 0,
        Verdict.BOUNDED: real.max() < 0,
        Verdict.DIVERGES: real.min() > 0,
        Verdict.NOT_CONVERGENT: real.max() > 0,
        Verdict.DIVERGES_ABOVE: real.max() > 0,
        Verdict.INDETERMINATE: True,
    }
    assert allowed[found.verdict], found
    assert (found.verdict is Verdict.INDETERMINATE) == (found.rule is None)
    assert found.exact == (found.rule is not None and "symmetric_up_to_rounding" not in found.warnings)
    if found.rule == "T8":
        assert found.verdict in (Verdict.BOUNDED, Verdict.DIVERGES_ABOVE)
    assert (found.n_pos, found.n_neg) == ((real > 0).sum(), (real < 0).sum())
    assert found.growth_index == pytest.approx(real[real > 0].sum() / np.abs(real).sum(), abs=1e-9)


# --- T5 and T6 ------------------------------------------------------------------------------------------------------


def sided(random: np.random.Generator, r: int, side: int) -> np.ndarray:
    """Eigenvalues all left of the axis (-1), all right of it (1), or on both sides (0)."""
    if side:
        return side * with_spectrum(random, r, 0.2, 1.5)
    v = with_spectrum(random, r, 0.2, 1.5, skew=0.0)
    flip = np.diag([-1.0, *np.ones(r - 1)])
    q = orthogonal(random, r)
    return q @ flip @ np.diag(np.diag(v) ** 2 + 0.2) @ q.T


EXPECTED = {-1: Verdict.CONVERGES, 1: Verdict.DIVERGES, 0: Verdict.NOT_CONVERGENT}


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(2, 6), st.integers(0, 6), st.sampled_from([-1, 0, 1]))
def test_causal_verdicts_follow_the_spectrum(seed: int, r: int, more: int, side: int) -> None:
    """Planted V O in a head of rank r; invariant under changes of the head's own bases, scales and rotations."""
    random = np.random.default_rng(seed)
    d = r + more
    o = np.linalg.qr(random.standard_normal((d, r)))[0]
    v = sided(random, r, side) @ o.T + random.standard_normal((r, d)) @ (np.eye(d) - o @ o.T)
    head = make_head(*random.standard_normal((2, r, d)), v, o)
    found = of_head(head)
    assert found.distance is not None
    assert (found.verdict, found.exact) == (EXPECTED[side], True)
    assert (found.rule, found.scope) == (("T6", "all_tokens") if side < 0 else ("T5", "first_token"))
    m = orthogonal(random, r) @ np.diag(2.0 ** random.uniform(-1, 1, r)) @ orthogonal(random, r)
    inverse = np.linalg.inv(m)
    q = orthogonal(random, d)
    for other, growth in (
        (replace(head, q=m @ head.q, k=inverse.T @ head.k), 1.0),
        (replace(head, o=head.o @ m, v=inverse @ head.v), 1.0),
        (replace(head, v=7.0 * head.v, q=0.01 * head.q), 7.0),
        (replace(head, q=head.q @ q.T, k=head.k @ q.T, v=head.v @ q.T, o=q @ head.o), 1.0),
    ):
        same = of_head(other)
        assert (same.verdict, same.rule, same.scope) == (found.verdict, found.rule, found.scope)
        assert same.alpha == pytest.approx(growth * found.alpha, rel=1e-5)
    turned = of_head(replace(head, v=-head.v))
    assert turned.verdict is (EXPECTED[-side] if side else Verdict.NOT_CONVERGENT)
    # the margin formula, from dense norms and the certified distance
    size = np.linalg.norm(head.v, 2) * np.linalg.norm(head.o, 2)
    assert found.margin == pytest.approx(np.sqrt(1 + found.distance.lower / size) - 1, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 5), st.sampled_from(RULES))
def test_t3_and_t4_in_a_head_are_invariant(seed: int, d: int, rule: str) -> None:
    """Full rank: the same verdict for every factorisation of W and of V; below full rank the scope is nu_zero."""
    random = np.random.default_rng(seed)
    w, v = planted(rule, random, d)
    m = orthogonal(random, d) @ np.diag(2.0 ** random.uniform(-1, 1, d)) @ orthogonal(random, d)
    head = make_head(np.linalg.inv(m).T @ w, m, np.linalg.solve(m, v), m, scale=1.0)
    head = replace(head, q=(w @ np.linalg.inv(m)).T)
    np.testing.assert_allclose(head.q.T @ head.k, w, atol=1e-9)
    found = of_head(head, causal=False)
    assert (found.verdict.value[:3], found.rule, found.scope) == (
        "con" if rule[1] == "3" else "div",
        rule,
        "all_tokens",
    )
    wide = np.linalg.qr(random.standard_normal((d + 2, d)))[0]
    inside = replace(head, q=head.q @ wide.T, k=head.k @ wide.T, v=head.v @ wide.T, o=wide @ head.o)
    assert (of_head(inside, causal=False).rule, of_head(inside, causal=False).scope) == (rule, "nu_zero")


@pytest.mark.parametrize("seed", range(10))
def test_causal_verdicts_are_what_the_simulation_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    w, start = 0.3 * positive(random, 3), cloud(random, 4, 3)
    for side in (-1, 0, 1):
        v = sided(random, 3, side)
        found = regime(w, v)
        run = simulate(w, v, start, 60.0, causal=True)
        assert found.verdict is EXPECTED[side]
        assert run.grew == (side >= 0)
        if side < 0:
            assert run.last.max() < 0.05


def margin_case(random: np.random.Generator, r: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """V (r, 2r) with orthonormal rows and O (2r, r) with orthonormal columns and V O given: errors cost most here."""
    small = sided(random, r, side)
    small = small * (0.95 / np.linalg.norm(small, 2))
    rest = scipy.linalg.sqrtm(np.eye(r) - small @ small.T).real
    basis = orthogonal(random, 2 * r)
    return np.hstack([small, rest]) @ basis.T, basis[:, :r]


def crossed(verdict: Verdict, values: np.ndarray) -> bool:
    """Whether a spectrum no longer is what the verdict says."""
    if verdict is Verdict.CONVERGES:
        return bool(values.real.max() >= 0)
    return bool(values.real.min() <= 0) if verdict is Verdict.DIVERGES else bool(values.real.max() <= 0)


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from([-1, 0, 1]))
def test_errors_below_the_margin_never_change_a_verdict(seed: int, r: int, side: int) -> None:
    """Random and adversarial errors of V and O, both of relative size .99 eps_w; 12 for each of 200 systems."""
    random = np.random.default_rng(seed)
    side = side if r > 1 else -1
    v, o = margin_case(random, r, side)
    found = decide(reduce_values(v, o), Setting())
    assert found.verdict is EXPECTED[side]
    assert found.margin is not None
    size = 0.99 * found.margin
    for dv, do in errors_of(random, v, o, found):
        dv, do = dv / np.linalg.norm(dv, 2), do / np.linalg.norm(do, 2)
        values = np.linalg.eigvals((v + size * dv) @ (o + size * do))
        assert not crossed(found.verdict, values), (found.verdict, found.margin, values)


def errors_of(
    random: np.random.Generator, v: np.ndarray, o: np.ndarray, found: Regime
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Gaussian and rank-one directions, and those that push the nearest eigenvalue towards the line."""
    drawn = [(random.standard_normal(v.shape), random.standard_normal(o.shape)) for _ in range(3)]
    for _ in range(3):
        a, b, c, d = (random.standard_normal(n) for n in (*v.shape, *o.shape))
        drawn.append((np.outer(a, b), np.outer(c, d)))
    assert found.distance is not None
    s = found.distance.s
    small = v @ o
    frequencies = np.concatenate([np.linspace(0, 2, 400), np.abs(np.linalg.eigvals(small).imag)])
    shifted = small - (s + 1j * frequencies[:, None, None]) * np.eye(len(small))
    at = frequencies[np.argmin(np.linalg.svd(shifted, compute_uv=False)[:, -1])]
    left, _, right = np.linalg.svd(small - (s + 1j * at) * np.eye(len(small)))
    push = -np.outer(left[:, -1], right[-1])  # small + sigma * push has the eigenvalue s + i at
    for part in (push.real, push.imag + push.real, push.imag):
        if np.linalg.norm(part) > 1e-9:
            drawn += [(sign * part @ o.T, sign * v.T @ part) for sign in (1, -1)]
    return drawn


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 4))
def test_the_margin_is_not_far_too_small(seed: int, r: int) -> None:
    """For a symmetric V O the adversarial error needs little more than eps_w: otherwise the test above is empty."""
    random = np.random.default_rng(seed)
    q = orthogonal(random, r)
    small = -q @ np.diag(np.concatenate([[0.02], random.uniform(0.3, 0.9, r - 1)])) @ q.T
    basis = orthogonal(random, 2 * r)
    v = np.hstack([small, scipy.linalg.sqrtm(np.eye(r) - small @ small.T).real]) @ basis.T
    o = basis[:, :r]
    found = decide(reduce_values(v, o), Setting())
    assert found.margin is not None
    push = np.outer(q[:, 0], q[:, 0])
    size = 1.05 * found.margin / TIGHTNESS
    values = np.linalg.eigvals((v + size * push @ o.T) @ (o + size * v.T @ push))
    assert crossed(Verdict.CONVERGES, values)


def test_some_eigenvalues_far_right_and_some_on_the_axis() -> None:
    """Not all are safely right of the axis, but one is: the weaker verdict holds."""
    v = scipy.linalg.block_diag([[5.0]], [[1e-17, 1.0], [-1.0, 1e-17]])
    found = regime(np.eye(3), v)
    assert (found.verdict, found.rule) == (Verdict.NOT_CONVERGENT, "T5")
    assert found.margin is not None
    assert found.margin > 0.1
    on_the_axis = regime(np.eye(2), J)
    assert (on_the_axis.verdict, on_the_axis.rule, on_the_axis.exact) == (Verdict.INDETERMINATE, None, False)


# --- T8 -------------------------------------------------------------------------------------------------------------


def robust_case(random: np.random.Generator, d: int, n: int, sign: int) -> tuple[np.ndarray, ...]:
    """W, V, the excess of a rotation over W, and the matrices M_ij of all pairs."""
    noise = 10.0 ** random.uniform(-2, -0.7)
    w = positive(random, d, 1.0) if random.random() < 0.5 else np.eye(d)
    w = w + noise * random.standard_normal((d, d))
    if random.random() < 0.5:
        v = sign * (np.eye(d) + noise * random.standard_normal((d, d)))
    else:
        v = np.linalg.solve(sign * (positive(random, d, 1.0) + noise * random.standard_normal((d, d))), w)
    c = 10.0 ** random.uniform(-3, -1)
    q, k = random.standard_normal((2, d, d))
    generator = antisymmetric(random, d)  # R_k = exp(k generator): a group of rotations, as RoPE is
    turns = {offset: c * q.T @ scipy.linalg.expm(offset * generator) @ k for offset in range(-n, n + 1)}
    excess = max(np.linalg.norm(turn - turns[0], 2) for turn in turns.values())
    pairs = np.array([[w + turns[j - i] - turns[0] for j in range(n)] for i in range(n)])
    return w, v, excess, pairs


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(1, 4), st.sampled_from([-1, 1]), st.booleans())
def test_t8_inequality(seed: int, d: int, sign: int, causal: bool) -> None:
    """For the largest token in the S-norm x^T N m >= w' |x|^2 - beta: 20 clouds for every certified system."""
    random = np.random.default_rng(seed)
    n = 5
    w, v, excess, pairs = robust_case(random, d, n, sign)
    found = regime(w, v, causal=False, rotary_excess=excess, relative_bias=True)
    assert found.verdict is not Verdict.CONVERGES
    if found.rule != "T8":
        return
    cert = found.certificate
    assert cert is not None
    assert found.verdict is (Verdict.BOUNDED if sign < 0 else Verdict.DIVERGES_ABOVE)
    np.testing.assert_allclose(cert.N, sign * cert.S @ v)
    kappa = np.linalg.cond(cert.S)
    assert np.linalg.eigvalsh(sym(cert.S))[0] > 0
    gap = np.linalg.norm(w - cert.N, 2) + excess
    assert cert.w_prime == pytest.approx(np.linalg.eigvalsh(sym(w))[0] - np.sqrt(kappa) * gap, abs=1e-9)
    assert cert.bound == pytest.approx((kappa if sign < 0 else np.linalg.norm(cert.S, 2)) / cert.w_prime)
    denominator = (1 + np.sqrt(kappa)) * (np.linalg.norm(w, 2) + excess) + np.sqrt(kappa) * np.linalg.norm(cert.N, 2)
    assert found.margin == pytest.approx(cert.w_prime / denominator)
    for _ in range(20):
        x = cloud(random, n, d, 10.0 ** random.uniform(-1, 1))
        bias = random.uniform(-2, 2, (n, n))
        seen = np.where(np.tri(n, dtype=bool) | (not causal), np.exp(bias - np.diag(bias)[:, None]), 0.0)
        beta = np.log(seen.sum(axis=1)).max()
        rate = velocity(x, pairs, v, bias=bias, causal=causal)
        i = int(np.argmax(np.einsum("id,de,ie->i", x, cert.S, x)))
        assert sign * x[i] @ cert.S @ rate[i] >= cert.w_prime * x[i] @ x[i] - beta - 1e-9 * (1 + x[i] @ x[i])


@pytest.mark.parametrize("sign", [-1, 1])
def test_t8_balls_and_growth(sign: int) -> None:
    """Certified systems with rotation, simulated: all end in the ball, or grow from beyond the threshold."""
    random = np.random.default_rng(sign + 1)
    certified = 0
    while certified < 20:
        d, n = int(random.integers(1, 4)), int(random.integers(2, 5))
        w, v, excess, pairs = robust_case(random, d, n, sign)
        found = regime(w, v, causal=False, rotary_excess=excess)
        if found.rule != "T8" or found.certificate is None or found.certificate.w_prime < 0.1:
            continue
        certified += 1
        x, cert = cloud(random, n, d, 2.0), found.certificate
        if sign < 0:
            last = simulate(pairs, v, x, 60.0 / cert.w_prime, rtol=1e-5).last
            assert last.max() ** 2 <= cert.bound * np.log(n) * 1.01
        else:
            level = np.einsum("id,de,ie->i", x, cert.S, x).max()
            x = x * np.sqrt(1.1 * cert.bound * np.log(n) / level)
            assert simulate(pairs, v, x, 400.0, cap=20.0, rtol=1e-5).grew


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 4))
def test_an_absorbing_ball_is_not_convergence(seed: int, d: int) -> None:
    """Where only T8 speaks, with s = -1, the word is never 'converges'; a large rotation silences it altogether."""
    random = np.random.default_rng(seed)
    w, v, excess, _ = robust_case(random, d, 3, -1)
    excess = max(excess, 1e-6)
    assert regime(w, v, causal=False, rotary_excess=excess).verdict is not Verdict.CONVERGES
    assert regime(w, v, causal=False, rotary_excess=100.0).verdict is Verdict.INDETERMINATE
    for off in ({"bilinear": False}, {"linear_terms": True}, {"query_bias": True, "relative_bias": True}):
        assert regime(w, v, causal=False, **off).rule not in (*RULES, "T8")


# --- edges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_a_head_that_writes_nothing(causal: bool) -> None:
    head = random_head(np.random.default_rng(0), 6, 2)
    for nothing in (replace(head, o=0 * head.o), replace(head, v=0 * head.v)):
        found = of_head(nothing, causal=causal)
        assert (found.verdict, found.margin, found.alpha) == (Verdict.INACTIVE, None, None)
    assert regime(np.eye(3), np.zeros((3, 3)), causal=causal).verdict is Verdict.INACTIVE


@pytest.mark.parametrize("causal", [True, False])
def test_v_o_is_zero_though_o_v_is_not(causal: bool) -> None:
    """O V nilpotent: tokens grow linearly, and no theorem speaks."""
    head = random_head(np.random.default_rng(1), 6, 2)
    o = np.linalg.svd(head.v)[2][2:4].T  # in the null space of V
    found = of_head(replace(head, o=o), causal=causal)
    assert (found.verdict, found.exact) == (Verdict.INDETERMINATE, False)
    assert "rank_deficient" in found.warnings
    single = np.array([[0.0, 1.0], [0.0, 0.0]])
    assert "rank_deficient" in regime(np.eye(2), single, causal=causal).warnings


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_rank_deficient_heads(causal: bool, sign: float) -> None:
    """O V of rank 1 stored with r = 3: its zeros are not zero by structure, so only what grows is decided."""
    random = np.random.default_rng(2)
    direction = random.standard_normal(6)
    v = np.outer(random.standard_normal(3), direction)
    o = random.standard_normal((6, 3))
    v *= sign * np.sign(np.trace(v @ o))
    found = of_head(make_head(*random.standard_normal((2, 3, 6)), v, o), causal=causal)
    assert found.warnings == ("rank_deficient",)
    assert found.verdict is (Verdict.NOT_CONVERGENT if sign > 0 else Verdict.INDETERMINATE)
    assert found.exact == (sign > 0)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_zero_rows_are_zero_by_structure(sign: float) -> None:
    """Two value rows, or two output columns, are zero: decided on what is left; the least error may fill them."""
    random = np.random.default_rng(2)
    head = random_head(random, 6, 3)
    v, o = head.v.copy(), head.o.copy()
    v[0], o[:, 2] = 0.0, 0.0
    v *= sign * np.sign(v[1] @ o[:, 1])
    found = of_head(make_head(head.q, head.k, v, o))
    assert found.warnings == ("rank_compressed",)
    assert found.alpha == pytest.approx(v[1] @ o[:, 1])
    assert (found.verdict, found.exact) == (Verdict.DIVERGES if sign > 0 else Verdict.CONVERGES, True)
    assert found.margin == 0.0


def test_a_zero_row_of_o_changes_nothing() -> None:
    random = np.random.default_rng(3)
    head = random_head(random, 8, 3)
    head.o[4] = 0.0
    found = of_head(head)
    assert found.alpha == pytest.approx(np.linalg.eigvals(head.v @ head.o).real.max())
    assert not found.warnings


@pytest.mark.parametrize(("d", "r"), [(1, 1), (5, 1), (5, 5), (5, 4), (4, 3), (3, 6)])
def test_small_and_wide_heads(d: int, r: int) -> None:
    """r = 1, r = d, 2r > d and r > d: the spectrum is that of O V, and the scope says whether anything is frozen."""
    random = np.random.default_rng(10 * d + r)
    head = random_head(random, d, r)
    for causal in (True, False):
        found = of_head(head, causal=causal)
        dense = np.linalg.eigvals(head.o @ head.v)
        dense = dense[np.argsort(-np.abs(dense))][: min(d, r)].real
        assert found.alpha == pytest.approx(dense.max())
        assert found.omega == pytest.approx(dense.min())
        assert found.verdict is not Verdict.INACTIVE
        assert "rank_compressed" not in found.warnings


@pytest.mark.parametrize(
    ("w", "v", "words"),
    [
        (np.eye(2), np.full((2, 2), np.nan), "V.*NaN"),
        (np.full((2, 2), np.inf), np.eye(2), "W.*NaN"),
        (np.eye(2), np.eye(2) * 1e61, r"V.*1e\+61"),
        (np.eye(2), np.eye(3), r"\(3, 3\)"),
        (np.ones((2, 3)), np.eye(3), r"\(2, 3\)"),
        (np.eye(2), np.ones(2), r"\(2,\)"),
        (np.zeros((0, 0)), np.zeros((0, 0)), r"\(0, 0\)"),
        (np.eye(2), 3.0, r"V.*\(\)"),
    ],
)
def test_bad_matrices(w: Any, v: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        regime(w, v)


def test_norms_and_biases_decide_what_is_exact() -> None:
    """T5 and T6 survive a norm without value bias; T3, T4 and T8 never do; other norms end all exactness."""
    random = np.random.default_rng(6)
    small = np.eye(2) + 0.1 * random.standard_normal((2, 2))
    t8 = (small, -np.eye(2) + 0.1 * random.standard_normal((2, 2)))
    systems = {rule: planted(rule, random, 3) for rule in RULES} | {"T8": t8}
    for rule, system in systems.items():
        assert regime(*system, causal=False).exact == (rule == "T8" or symmetric_to_the_bit(rule, *system))
        found = regime(*system, causal=False, norm=True)
        assert (found.rule, found.exact) == (rule, False)
    for side in (-1, 0, 1):
        v = sided(random, 3, side)
        w = random.standard_normal((3, 3))
        assert regime(w, v, norm=True).exact
        assert regime(w, v, value_bias=True).exact
        both = regime(w, v, norm=True, value_bias=True)
        assert (both.exact, both.warnings) == (False, ("bias_with_norm",))
        for reason in ("post_norm", "output_norm"):
            found = regime(w, v, outside=(reason,))
            assert (found.verdict, found.exact, found.warnings) == (EXPECTED[side], False, (reason,))


def test_a_bias_under_a_norm_can_drive_a_token_away() -> None:
    """V = -I, b_v = (3, 0), RMSNorm: x_1 goes to infinity, so `converges` is not exact there (theory, section 2)."""
    x = np.array([0.1, 0.2])
    for _ in range(4000):
        x = x + 0.05 * (-x / np.sqrt((x @ x) / 2 + 1e-6) + [3.0, 0.0])
    assert np.linalg.norm(x) > 100
    found = regime(np.eye(2), -np.eye(2), norm=True, value_bias=True)
    assert (found.verdict, found.exact) == (Verdict.CONVERGES, False)


def test_every_verdict_has_a_meaning() -> None:
    assert all(len(verdict.meaning) > 10 for verdict in Verdict)
    assert {verdict.value for verdict in Verdict} == {
        *("converges", "diverges", "not_convergent", "bounded", "diverges_above", "indeterminate", "inactive")
    }


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(2, 5), st.booleans())
def test_a_sum_over_heads_speaks_of_the_first_token_alone(seed: int, d: int, causal: bool) -> None:
    random = np.random.default_rng(seed)
    v = sided(random, d, int(random.integers(-1, 2)))
    found = decide(reduce_system(np.zeros((d, d)), v), Setting(causal=causal), several_heads=True)
    assert found.scope in (("first_token", None) if causal else ("consensus", None))
    if found.verdict is Verdict.CONVERGES:
        assert (found.rule, found.scope, causal) == ("T5", "first_token", True)
    drifting = decide(
        reduce_system(np.zeros((d, d)), v), Setting(causal=causal, outside=("bias_drift",)), several_heads=True
    )
    assert drifting.verdict is not Verdict.CONVERGES


def test_several_heads_together_can_do_what_none_does() -> None:
    """d = 1, causal, U = (1, -1.3), W = (1, -1): sum U = -.3, and every |x_2| > 0.51 diverges."""

    def rate(x1: float, x2: float) -> float:
        total = 0.0
        for u, w in ((1.0, 1.0), (-1.3, -1.0)):
            own, other = np.exp(w * x2 * x2), np.exp(w * x2 * x1)
            total += u * (own * x2 + other * x1) / (own + other)
        return total

    assert rate(0.0, 0.6) > 0
    assert rate(0.0, 0.4) < 0
    found = decide(reduce_system(np.zeros((1, 1)), np.array([[-0.3]])), Setting(), several_heads=True)
    assert (found.verdict, found.scope) == (Verdict.CONVERGES, "first_token")


# --- the numbers behind a verdict -----------------------------------------------------------------------------------


def test_signs_are_counted_beyond_rounding() -> None:
    """Known to 8 d eps of the Frobenius norm: what is smaller counts as zero, whatever its sign."""
    size = np.sqrt(3.0)
    least = 8 * 6 * np.finfo(float).eps * size
    found = regime(np.eye(6), np.diag([1.0, 1.0, -1.0, 1.1 * least, -1.1 * least, 0.9 * least]))
    assert (found.n_pos, found.n_neg, found.n_zero) == (3, 2, 1)
    assert (found.alpha, found.omega) == (1.0, -1.0)
    assert "rank_deficient" in found.warnings
    assert found.growth_index == pytest.approx(2 / 3)


def test_a_regime_records_what_it_found() -> None:
    found = regime(np.eye(2), -np.eye(2))
    assert found.record(robust=True) == {
        "verdict": "converges",
        "rule": "T6",
        "scope": "all_tokens",
        "exact": True,
        "margin": found.margin,
        "robust": True,
        "alpha": -1.0,
        "omega": -1.0,
        "n_pos": 0,
        "n_neg": 2,
        "n_zero": 0,
        "growth_index": 0.0,
    }
    assert (found.w_min, found.w_max, found.a_min, found.a_max) == (1.0, 1.0, -1.0, -1.0)
    assert (found.spread_index, found.asym_A, found.asym_W) == (0.0, 0.0, 0.0)


def test_what_writes_nothing_has_no_numbers() -> None:
    found = regime(np.eye(2), np.zeros((2, 2)))
    assert (found.rule, found.scope, found.exact, found.distance, found.certificate) == (None, None, True, None, None)
    assert (found.n_pos, found.n_neg, found.n_zero, len(found.eigenvalues)) == (0, 0, 0, 0)
    assert found.warnings == ()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_shares_and_asymmetries_have_no_unit(scale: float) -> None:
    assert positive_share(scale * np.array([3.0, -1.0, 0.0])) == pytest.approx(0.75)
    assert positive_share(scale * np.array([-3.0, -1.0])) == 0.0
    assert positive_share(np.zeros(3)) is None
    even, odd = np.array([[2.0, 1.0], [1.0, -1.0]]), np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert _asymmetry(scale * even) == 0.0
    assert _asymmetry(scale * odd) == pytest.approx(1.0)
    share = np.linalg.norm(odd) / np.hypot(np.linalg.norm(odd), np.linalg.norm(even))
    assert _asymmetry(scale * (even + odd)) == pytest.approx(share)
    assert _asymmetry(np.zeros((2, 2))) == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_the_nearest_multiple_is_the_nearest(seed: int) -> None:
    random = np.random.default_rng(seed)
    direction = positive(random, 3)
    target = random.uniform(0.2, 5) * direction + 0.3 * random.standard_normal((3, 3))
    size = 10.0 ** random.uniform(-3, 3)
    c, gap = _nearest_multiple(target, size * direction)
    assert gap == pytest.approx(np.linalg.norm(target - c * size * direction, 2), rel=1e-9)
    grid = np.linspace(0, 3 * np.linalg.norm(target, 2) / np.linalg.norm(direction, 2), 3000)
    least = min(np.linalg.norm(target - each * direction, 2) for each in grid)
    assert gap <= least * (1 + 1e-3)
    away = _nearest_multiple(target, -direction)  # no positive multiple helps
    assert away[0] == pytest.approx(0.0, abs=1e-3)
    assert away[1] == pytest.approx(np.linalg.norm(target, 2), rel=1e-3)


def test_no_distance_is_measured_where_no_theorem_looks() -> None:
    """V stable and nothing else known: unmasked, no line is looked at; a causal verdict carries its distance."""
    for v in (-0.5 * np.eye(2), np.diag([-0.5, -0.9])):
        unmasked = regime(-np.eye(2), v, causal=False)
        assert (unmasked.verdict, unmasked.distance, unmasked.margin) == (Verdict.INDETERMINATE, None, None)
        causal = regime(-np.eye(2), v)
        assert causal.distance is not None
        assert causal.distance.s == 0.0
        assert TIGHTNESS * 0.5 * 0.999 <= causal.distance.lower <= 0.5


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_spectrum_within_rounding_of_the_axis_decides_nothing(sign: int) -> None:
    """A rotation, damped by less than rounding: the distance is told, and no margin."""
    least = 8 * 2 * np.finfo(float).eps * np.sqrt(2)
    found = regime(np.eye(2), J + sign * 0.9 * least * np.eye(2))
    assert (found.verdict, found.rule, found.margin) == (Verdict.INDETERMINATE, None, None)
    assert found.distance is not None
    beyond = regime(np.eye(2), J + sign * 30 * least * np.eye(2))
    assert beyond.verdict is (Verdict.CONVERGES if sign < 0 else Verdict.DIVERGES)
    assert beyond.margin is not None
    assert beyond.margin > 0


def test_entries_up_to_the_largest_number_are_taken() -> None:
    assert regime(LARGEST * np.eye(2), np.eye(2)).verdict is Verdict.DIVERGES
    assert regime(np.eye(2), -LARGEST * np.eye(2)).verdict is Verdict.CONVERGES
    for w, v in ((1.01 * LARGEST * np.eye(2), np.eye(2)), (np.eye(2), -1.01 * LARGEST * np.eye(2))):
        with pytest.raises(BadValue, match="overflow"):
            regime(w, v)


def test_scalings_are_the_identity_and_the_form_where_it_is_positive() -> None:
    random = np.random.default_rng(7)
    form, w = positive(random, 3), positive(random, 3) + 0.3 * antisymmetric(random, 3)
    facts = _Facts(reduce_system(w, np.linalg.solve(form, w)))  # W V^-1 = form
    upper, lower = facts.scalings(1), facts.scalings(-1)
    assert (len(upper), len(lower)) == (2, 1)
    np.testing.assert_array_equal(upper[0], np.eye(3))
    np.testing.assert_allclose(upper[1], form, rtol=1e-9)
    mirrored = _Facts(reduce_system(w, -np.linalg.solve(form, w))).scalings(-1)
    np.testing.assert_allclose(mirrored[1], form, rtol=1e-9)
    for c, count in ((2e-8, 2), (0.5e-8, 1)):  # hardly positive, and V hardly invertible
        assert len(_Facts(reduce_system(np.diag([1.0, c]), np.eye(2))).scalings(1)) == count
        assert len(_Facts(reduce_system(np.diag([1.0, c]), np.diag([1.0, c]))).scalings(1)) == count


def test_margins_of_factors_follow_their_norms() -> None:
    """(1 + e)^2 - 1 of |V||O| is the least that moves V O by beta: e = sqrt(1 + beta/(|V||O|)) - 1."""
    facts = _Facts(reduce_values(2.0 * np.eye(2, 4), -3.0 * np.eye(4, 2)))
    assert facts.weight_margin(18.0) == pytest.approx(1.0, rel=1e-9)
    assert facts.weight_margin(facts.rounding) == 0.0
    assert facts.weight_margin(1.0) == pytest.approx(np.sqrt(7 / 6) - 1, rel=1e-9)


def test_a_margin_of_definiteness_must_be_above_rounding() -> None:
    """W = diag(1, c), V = -W: c in units of a thousand roundings decides whether T3 speaks."""
    eps = np.finfo(float).eps
    for share, speaks in ((0.9, False), (1.2, True)):
        w = np.diag([1.0, np.sqrt(share * 2 * 1e3 * 2 * eps)])  # V^T W has c^2, halved in the margin
        found = regime(w, -w, causal=False)
        assert (found.rule == "T3a") is speaks


@pytest.mark.parametrize("kind", ["a", "b"])
def test_symmetry_is_asked_for_within_rounding(kind: str) -> None:
    """An asymmetry of a thousand roundings is refused, one of a few is taken and named."""
    random = np.random.default_rng(8)
    eps = np.finfo(float).eps
    for size, rule in ((0.2e3, f"T3{kind}"), (20e3, None)):
        odd = np.array([[0.0, 1.0], [-1.0, 0.0]]) * size * eps
        if kind == "b":
            w = np.diag([1.0, 2.0]) + odd
            v = np.linalg.inv(-(np.eye(2) + 0.5 * antisymmetric(random, 2))) @ w
        else:
            w = np.array([[1.0, 0.4], [-0.4, 2.0]])
            v = -np.linalg.solve(np.eye(2) + odd, w)
        found = regime(w, v, causal=False)
        assert (found.rule if found.rule in RULES else None) == rule
        assert ("symmetric_up_to_rounding" in found.warnings) == (rule is not None)


def test_no_multiple_of_zero_is_nearer() -> None:
    assert _nearest_multiple(np.diag([3.0, -4.0]), np.zeros((2, 2))) == (0.0, pytest.approx(4.0))
