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
from toposcope.dynamics import layers as layers_module
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.layers import (
    _phi,
    _summed,
    growth_of,
    layer_dynamics,
    layer_factors,
    product_fits,
    stack_growth,
)
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


@pytest.mark.parametrize("causal", [True, False])
def test_under_another_mask_the_theorem_speaks_of_other_tokens(causal: bool) -> None:
    heads = [random_head(np.random.default_rng(0), 4, 4, index=h) for h in range(2)]
    heads[0].o[:] = np.linalg.inv(heads[0].v)
    heads[1].o[:] = 0.0
    found = layer_dynamics(make_layer(heads), storage_error=0.0, causal=causal)
    assert found.causal is causal
    assert found.regime.scope == ("first_token" if causal else "consensus")


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


def test_a_row_holds_what_was_found() -> None:
    random = np.random.default_rng(3)
    heads = [random_head(random, 7, 2, index=h) for h in range(2)]
    layer = make_layer(heads, residual_norm=Norm("rms", 1e-6), causal=False)
    found = layer_dynamics(layer, storage_error=0.0)
    row = found.as_dict()
    assert (row["layer"], row["stack"], row["causal"], row["pe"]) == (0, "decoder", False, layer.encoding.name)
    assert (row["rank_U"], row["rho_euler"], row["symU"]) == (4, found.rho_euler, found.symU)
    assert (row["radial_rate"], row["dispersion_rate"], row["warnings"]) == (None, None, ["post_norm"])
    assert {name: row[name] for name in found.regime.record(found.robust)} == found.regime.record(found.robust)
    assert row["robust"] is found.robust
    u = sum(head.o @ head.v for head in heads)
    values = np.linalg.eigvalsh(sym(u))
    assert found.symU["inertia"] == [int((values > 0).sum()), int((values < 0).sum()), 0]
    assert found.symU["pos_mass"] == pytest.approx(values[values > 0].sum() / np.abs(values).sum())
    np.testing.assert_allclose(layer_factors(layer).left @ layer_factors(layer).right, u)


def test_a_layer_that_writes_nothing_has_a_row() -> None:
    head = random_head(np.random.default_rng(4), 6, 2)
    row = layer_dynamics(make_layer([replace(head, o=0 * head.o)]), storage_error=0.0).as_dict()
    assert (row["verdict"], row["rank_U"], row["rho_euler"], row["robust"]) == ("inactive", 0, None, False)


def test_rank_that_is_missing_is_counted() -> None:
    """Two heads with the same values: V' has four rows and rank two, and so has U."""
    random = np.random.default_rng(5)
    one, two = (random_head(random, 7, 2, index=h) for h in range(2))
    found = layer_dynamics(make_layer([one, replace(two, v=one.v)]), storage_error=0.0)
    assert "rank_deficient" in found.regime.warnings
    assert found.rank_U == 2


def test_a_verdict_needs_a_rule_to_be_robust() -> None:
    """Singular and without growth: no rule, no margin, and nothing robust, however good the storage."""
    e1 = np.eye(3)[0]
    layer = make_layer(heads_for(np.stack([-e1, -2 * e1]), np.stack([e1, e1], axis=1), 1))
    found = layer_dynamics(layer, storage_error=-1.0)
    assert (found.regime.rule, found.robust) == (None, False)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_constant_leaves_the_range_by_more_than_a_hundred_millionth(scale: float) -> None:
    """U = -e_1 e_1^T and b_o = e_1 + c e_2."""
    e1, e2, _ = np.eye(3)
    for c, drifts in ((0.9e-8, False), (1.1e-8, True)):
        layer = make_layer(heads_for(-e1[None], e1[:, None], 1), o_bias=scale * (e1 + c * e2))
        assert drift_of(layer)[0] is drifts


@pytest.mark.parametrize("wide", [False, True])
def test_the_range_of_u_counts_what_is_above_1e_10_of_its_norm(wide: bool) -> None:
    """U = -diag(1, c, 0) and b_o = e_2: a direction that U hardly reaches is not in its range."""
    outputs = np.eye(3) if wide else np.eye(3)[:, :2]
    for c, drifts in ((0.9e-10, True), (1.1e-10, False)):
        values = -np.diag([1.0, c, 0.0])[: outputs.shape[1]]
        assert drift_of(make_layer(heads_for(values, outputs, 1), o_bias=np.eye(3)[1]))[0] is drifts


def test_no_drift_without_a_constant_or_through_the_outputs_alone() -> None:
    random = np.random.default_rng(6)
    plain = [random_head(random, 6, 2, index=h) for h in range(2)]
    summed = _summed(make_layer([replace(head, v_bias=np.ones(2)) for head in plain]))
    assert (summed.drift(4), summed.drift(6)) == (None, None)
    assert summed.drift(3) == "bias_in_range_up_to_rounding"  # a row was left out: looked at, and found inside
    assert _summed(make_layer(plain)).drift(3) is None
    outside = _summed(make_layer(plain, o_bias=np.ones(6)))
    assert (outside.drift(4), outside.drift(6)) == ("bias_drift", None)
    np.testing.assert_array_equal(outside.constant, np.ones(6))


def test_constants_come_from_values_and_outputs() -> None:
    """O b_v summed over groups of heads that share it, and b_o through the output's norm and gain."""
    random = np.random.default_rng(7)
    heads = [random_head(random, 5, 2, index=h, v_bias=random.standard_normal(2)) for h in range(3)]
    bias, gain = random.standard_normal((2, 5))
    found = _summed(make_layer(heads, o_bias=bias, output_gain=gain))
    np.testing.assert_allclose(found.value_constant, gain * sum(h.o @ h.v_bias for h in heads))
    np.testing.assert_allclose(found.output_constant, gain * bias)
    np.testing.assert_allclose(found.constant, gain * (bias + sum(h.o @ h.v_bias for h in heads)))
    assert not _summed(make_layer([random_head(random, 5, 2)])).constant.any()
    rms = _summed(make_layer([random_head(random, 5, 2)], o_bias=bias, output_norm=Norm("rms", 1e-6)))
    np.testing.assert_allclose(rms.output_constant, bias)


@pytest.mark.parametrize("d", [6, 30])
def test_growth_beyond_all_numbers_is_not_known(d: int) -> None:
    random = np.random.default_rng(8)
    left = random.standard_normal((d, 2))
    huge = Factored(left, 1e5 * np.linalg.pinv(left))
    assert growth_of([huge]) is None
    assert growth_of([Factored(left, np.linalg.pinv(left)), huge]) is None
    assert growth_of([Factored(left, np.linalg.pinv(left))]) == pytest.approx(np.e, rel=1e-6)


def test_growth_needs_the_factors_of_every_layer() -> None:
    random = np.random.default_rng(9)
    found = [layer_dynamics(make_layer([random_head(random, 5, 2)]), storage_error=0.0) for _ in range(2)]
    assert stack_growth(found) is not None
    assert stack_growth([found[0], replace(found[1], factors=None)]) is None


def test_an_empty_search_for_the_growth_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    left = np.random.default_rng(10).standard_normal((20, 2))
    monkeypatch.setattr(scipy.sparse.linalg, "eigs", lambda *_, **__: np.zeros(0))
    assert growth_of([Factored(left, left.T / 100)]) is None


def test_the_product_is_formed_while_its_factors_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two factors of width times key-value heads times their width, eight bytes each, for every layer."""
    random = np.random.default_rng(11)
    heads = [replace(random_head(random, 7, 2, index=h), kv_group=h // 2) for h in range(4)]
    layers = [make_layer(heads), make_layer(heads[:2])]
    bytes_taken = sum(part.nbytes for each in layers for part in vars(layer_factors(each)).values())
    monkeypatch.setattr(layers_module, "MOST_PRODUCT_BYTES", bytes_taken)
    assert product_fits(layers)
    monkeypatch.setattr(layers_module, "MOST_PRODUCT_BYTES", bytes_taken - 1)
    assert not product_fits(layers)


@pytest.mark.parametrize("size", [1e-9, 0.3, 4.0, 60.0])
def test_phi_is_the_block_of_an_exponential(size: float) -> None:
    """exp([[G, 1], [0, 0]]) holds phi(G) in its upper right."""
    g = size * np.random.default_rng(13).standard_normal((5, 5)) / np.sqrt(5)
    block = np.zeros((10, 10))
    block[:5, :5], block[:5, 5:] = g, np.eye(5)
    expected = scipy.linalg.expm(block)[:5, 5:]
    np.testing.assert_allclose(_phi(g), expected, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(_phi(0 * g), np.eye(5))


def test_phi_is_its_series() -> None:
    g = np.random.default_rng(12).standard_normal((4, 4))
    term, series = np.eye(4), np.eye(4)
    for n in range(2, 40):
        term = term @ g / n
        series = series + term
    np.testing.assert_allclose(_phi(g), series, atol=1e-12)
