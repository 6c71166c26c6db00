"""A layer as a whole: U = sum O_h V_h, its drift, and the product over the stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Norm
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.layers import _summed, layer_dynamics, stack_growth
from toposcope.dynamics.regime import Verdict

from .systems import make_head, make_layer, random_head, simulate, sym, with_spectrum

seeds = st.integers(0, 2**32 - 1)


def heads_for(values: np.ndarray, outputs: np.ndarray, r: int) -> list[Head]:
    """Cut stacked V' (R, d) and O' (d, R) into heads of width r."""
    random = np.random.default_rng(0)
    return [
        make_head(
            *random.standard_normal((2, r, values.shape[1])), values[at : at + r], outputs[:, at : at + r], index=i
        )
        for i, at in enumerate(range(0, len(values), r))
    ]


def largest(u: np.ndarray, count: int) -> np.ndarray:
    values = np.linalg.eigvals(u)
    return values[np.argsort(-np.abs(values))][:count]


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(2, 9), st.integers(1, 3), st.integers(1, 5))
def test_the_sum_over_heads_equals_dense(seed: int, d: int, r: int, count: int) -> None:
    """alpha, omega, rho(I + U), sym U and rank, for R below, at and above d."""
    random = np.random.default_rng(seed)
    heads = [random_head(random, d, r, index=h) for h in range(count)]
    found = layer_dynamics(make_layer(heads), storage_error=0.0)
    u = sum(head.o @ head.v for head in heads)
    rank = min(d, r * count)
    values = largest(u, rank)
    assert found.rank_U == rank == np.linalg.matrix_rank(u)
    assert found.regime.alpha == pytest.approx(values.real.max(), rel=1e-6, abs=1e-8)
    assert found.regime.omega == pytest.approx(values.real.min(), rel=1e-6, abs=1e-8)
    assert found.rho_euler == pytest.approx(np.abs(1 + values).max(), rel=1e-6)
    extremes = np.linalg.eigvalsh(sym(u))[[0, -1]]
    np.testing.assert_allclose([found.symU["min"], found.symU["max"]], extremes, atol=1e-9 * np.abs(extremes).max())
    assert found.regime.scope in ("first_token", None)
    if found.regime.verdict is Verdict.CONVERGES:
        assert values.real.max() < 0
    row = found.as_dict()
    assert {"rank_U", "rho_euler", "radial_rate", "dispersion_rate", "robust", "verdict", "rule"} <= set(row)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(3, 8), st.sampled_from([None, "rms", "layer"]))
def test_more_rows_than_columns_leave_no_structural_zeros(seed: int, d: int, kind: str | None) -> None:
    """R > d and U = -I (on the complement of 1 under LayerNorm): alpha is -1, not 0."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((2 * d, d))
    outputs = -np.linalg.pinv(values)
    norm = None if kind is None else Norm(kind, 1e-6)
    found = layer_dynamics(make_layer(heads_for(values, outputs, 2), input_norm=norm), storage_error=0.0)
    assert found.rank_U == (d - 1 if kind == "layer" else d)
    assert found.regime.alpha == pytest.approx(-1, rel=1e-6)
    assert found.regime.omega == pytest.approx(-1, rel=1e-6)
    assert found.rho_euler == pytest.approx(0, abs=1e-6)
    verdict = found.regime
    assert (verdict.verdict, verdict.rule, verdict.scope) == (Verdict.CONVERGES, "T5", "first_token")
    assert verdict.exact
    assert found.robust
    assert verdict.margin is not None
    for error, robust in ((0.99 * verdict.margin, True), (verdict.margin, False)):
        again = layer_dynamics(make_layer(heads_for(values, outputs, 2), input_norm=norm), storage_error=error)
        assert again.robust is robust


def test_layer_norm_with_fewer_rows_than_columns() -> None:
    random = np.random.default_rng(1)
    heads = [random_head(random, 8, 2, index=h) for h in range(2)]
    found = layer_dynamics(make_layer(heads, input_norm=Norm("layer", 1e-6, 1 + random.random(8))), storage_error=0.0)
    layer = make_layer(heads, input_norm=Norm("layer", 1e-6, None))
    centring = np.eye(8) - np.ones((8, 8)) / 8
    plain = layer_dynamics(layer, storage_error=0.0)
    values = largest(sum(head.o @ head.v for head in heads) @ centring, 4)
    assert plain.regime.alpha == pytest.approx(values.real.max())
    assert plain.rank_U == found.rank_U == 4
    assert plain.regime.alpha != pytest.approx(found.regime.alpha)  # the gain is folded in


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(2, 6), st.booleans())
def test_a_layer_of_heads_never_converges_as_a_whole(seed: int, d: int, causal: bool) -> None:
    random = np.random.default_rng(seed)
    target = with_spectrum(random, d, -1.5, -0.2)
    values = random.standard_normal((2 * d, d))
    found = layer_dynamics(
        make_layer(heads_for(values, target @ np.linalg.pinv(values), d), causal=causal), storage_error=0.0
    ).regime
    if causal:
        assert (found.verdict, found.scope) == (Verdict.CONVERGES, "first_token")
    else:
        assert found.verdict is Verdict.INDETERMINATE  # a consensus that shrinks says nothing about other clouds


# --- the constant term ----------------------------------------------------------------------------------------------


def drift_of(layer: Any) -> tuple[bool, Verdict]:
    found = layer_dynamics(layer, storage_error=0.0)
    assert ("bias_drift" in found.regime.warnings) == found.drift
    if found.drift:
        assert found.regime.verdict is not Verdict.CONVERGES
        assert not found.regime.exact
    return found.drift, found.regime.verdict


def test_the_example_of_the_notes() -> None:
    """d = 2, O = e_1, V = -e_1^T, W = e_2 e_2^T, b_o = e_2, causal: the first token drifts, and nothing converges."""
    e1, e2 = np.eye(2)
    head = make_head(e2[None], e2[None], -e1[None], e1[:, None], scale=1.0)
    assert drift_of(make_layer([head], o_bias=e2)) == (True, Verdict.INDETERMINATE)
    run = simulate(
        np.outer(e2, e2), -np.outer(e1, e1), np.array([[0.0, 5.0], [2.0, 3.0]]), 40.0, causal=True, value_bias=e2
    )
    assert run.states[-1, 0, 1] == pytest.approx(45.0, rel=1e-6)
    assert run.states[-1, 1, 0] > 1.9  # the second token looks at the first alone, and its z stays
    assert drift_of(make_layer([head])) == (False, Verdict.CONVERGES)
    inside = layer_dynamics(make_layer([head], o_bias=e1), storage_error=0.0).regime
    assert (inside.verdict, inside.exact, inside.warnings) == (
        Verdict.CONVERGES,
        False,
        ("bias_in_range_up_to_rounding",),
    )


def test_a_bias_of_values_that_never_move() -> None:
    """V' has a zero row whose output is not zero: its bias drives tokens where U does not."""
    e1, e2, _ = np.eye(3)
    outputs = np.stack([e1, e2], axis=1)
    heads = [replace(head, v_bias=np.ones(1)) for head in heads_for(np.stack([-e1, 0 * e1]), outputs, 1)]
    assert drift_of(make_layer(heads)) == (True, Verdict.INDETERMINATE)
    run = simulate(
        np.zeros((3, 3)), -np.outer(e1, e1), np.ones((2, 3)), 20.0, causal=True, value_bias=outputs @ np.ones(2)
    )
    assert run.states[-1, 0, 1] == pytest.approx(21.0, rel=1e-6)
    alone = make_head(np.eye(2, 3), np.eye(2, 3), np.stack([-e1, 0 * e1]), outputs, v_bias=np.ones(2))
    assert head_dynamics(make_layer([alone]), 0, storage_error=0.0).regime.verdict is Verdict.INDETERMINATE
    assert head_dynamics(make_layer([replace(alone, v_bias=None)]), 0, storage_error=0.0).regime.exact


def test_a_constant_inside_the_outputs_and_outside_the_range_of_u() -> None:
    """V' has dependent rows, so range(U) is smaller than range(O'): U = -e_1 e_1^T, O' = [e_1, e_2], b_o = e_2."""
    e1, e2, _ = np.eye(3)
    values, outputs = np.stack([-e1, 0 * e1]), np.stack([e1, e2], axis=1)
    assert drift_of(make_layer(heads_for(values, outputs, 1), o_bias=e2)) == (True, Verdict.INDETERMINATE)
    assert drift_of(make_layer(heads_for(values, outputs, 1), o_bias=e1))[0] is False
    same = np.stack([-e1, -e1])  # range(U) is spanned by e_1 + e_2
    assert drift_of(make_layer(heads_for(same, outputs, 1), o_bias=e1 + e2))[0] is False
    assert drift_of(make_layer(heads_for(same, outputs, 1), o_bias=e1 - e2))[0] is True


def test_the_output_gain_acts_on_the_bias_too() -> None:
    """output = gain * (O P V x + b_o): with b_o in range(O) the constant stays in range(U)."""
    random = np.random.default_rng(2)
    head = random_head(random, 6, 2)
    inside = head.o @ random.standard_normal(2)
    gain = 0.1 + random.random(6)
    for options in ({"output_gain": gain}, {"output_norm": Norm("rms", 1e-6, gain)}):
        assert drift_of(make_layer([head], o_bias=inside, **options))[0] is False
        assert drift_of(make_layer([head], o_bias=inside / gain, **options))[0] is True
    shifted = Norm("layer", 1e-6, gain, random.standard_normal(6))
    assert drift_of(make_layer([head], output_norm=shifted))[0] is True


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 3), st.integers(1, 3))
def test_drift_is_a_part_outside_the_range_of_u(seed: int, r: int, more: int) -> None:
    random = np.random.default_rng(seed)
    d = 2 * r + more
    heads = [random_head(random, d, r, index=h, v_bias=random.standard_normal(r)) for h in range(2)]
    assert drift_of(make_layer(heads))[0] is False  # O' b_v lies in range(O')
    assert drift_of(make_layer(heads, o_bias=random.standard_normal(d)))[0] is True
    full = [random_head(random, d, d, index=h) for h in range(2)]
    assert drift_of(make_layer(full, o_bias=random.standard_normal(d)))[0] is False
    centred = make_layer(full, o_bias=random.standard_normal(d), input_norm=Norm("layer", 1e-6))
    assert drift_of(centred)[0] is True  # U has rank d - 1


# --- the stack ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "r", "count"), [(5, 1, 2), (5, 3, 2), (12, 3, 3), (20, 2, 3), (24, 8, 4)])
def test_growth_through_the_stack_equals_the_dense_product(d: int, r: int, count: int) -> None:
    """Also for d >= 16, where only the largest eigenvalue of an operator is sought, and for R > d."""
    for seed in range(8):
        random = np.random.default_rng(seed)
        layers, product = [], np.eye(d)
        for _ in range(3):
            heads = [random_head(random, d, r, index=h) for h in range(count)]
            # a planted growing direction keeps the largest eigenvalue real and apart
            heads[0].o[:, 0] = 2 * heads[0].v[0] / np.linalg.norm(heads[0].v[0])
            heads = [make_head(h.q, h.k, 0.3 * h.v / np.sqrt(r), h.o / np.sqrt(d), index=h.head) for h in heads]
            layers.append(layer_dynamics(make_layer(heads), storage_error=0.0))
            product = scipy.linalg.expm(sum(h.o @ h.v for h in heads)) @ product
        assert stack_growth(layers) == pytest.approx(np.abs(np.linalg.eigvals(product)).max(), rel=1e-6)


def test_the_order_of_the_layers_matters() -> None:
    parts = np.random.default_rng(0).standard_normal((3, 3, 3))
    eye = np.eye(3)
    layers = [layer_dynamics(make_layer([make_head(eye, eye, u, eye)]), storage_error=0.0) for u in parts]
    a, b, c = (scipy.linalg.expm(u) for u in parts)
    forward, backward = (np.abs(np.linalg.eigvals(m)).max() for m in (c @ b @ a, a @ b @ c))
    assert forward != pytest.approx(backward, rel=1e-3)
    assert stack_growth(layers) == pytest.approx(forward)
    assert stack_growth([]) is None


@pytest.mark.parametrize("kind", ["ArpackError", "ArpackNoConvergence"])
def test_a_search_for_the_growth_that_fails_is_not_known(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    random = np.random.default_rng(0)
    layers = [layer_dynamics(make_layer([random_head(random, 20, 3, index=0)]), storage_error=0.0)]
    assert stack_growth(layers) is not None
    errors = scipy.sparse.linalg
    failure = errors.ArpackError(-9999) if kind == "ArpackError" else errors.ArpackNoConvergence("", [], [])

    def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(scipy.sparse.linalg, "eigs", fails)
    assert stack_growth(layers) is None


def test_a_layers_margin_is_relative_to_the_norms_of_its_stacked_factors() -> None:
    """U = -I from V' = 2 I and O' = -I/2: the smallest e with (1 + e)^2 >= 2 is sqrt(2) - 1, four fifths proven."""
    found = layer_dynamics(make_layer(heads_for(2 * np.eye(6), -np.eye(6) / 2, 2)), storage_error=0.0).regime
    assert found.margin is not None
    assert np.sqrt(1.8) - 1 - 1e-6 <= found.margin <= np.sqrt(2) - 1


@pytest.mark.parametrize("per_group", [1, 3])
def test_outputs_are_measured_side_by_side(per_group: int) -> None:
    """Both norms of all outputs, with the root of how many heads share a value head; constants with their signs."""
    random = np.random.default_rng(per_group)
    heads = [replace(random_head(random, 7, 2, index=h), kv_group=h // per_group) for h in range(3)]
    bias, shift, gain = random.standard_normal((3, 7))
    layer = make_layer(heads, o_bias=bias, output_norm=Norm("layer", 1e-6, gain, shift))
    found = _summed(layer)
    beside = np.concatenate([fold(layer, head).o for head in layer.heads], axis=1)
    sizes = [np.sqrt(per_group) * size for size in (np.linalg.norm(beside, 2), np.linalg.norm(beside))]
    np.testing.assert_allclose(found.output_size, sizes)
    np.testing.assert_allclose(found.output_constant, gain * (bias - bias.mean()) + shift)
