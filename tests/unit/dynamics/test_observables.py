"""What is measured on a cloud, against plain formulas and known clouds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from toposcope.dynamics import observables as seen
from toposcope.dynamics.fields import AttentionField, System


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 90), d=st.integers(1, 6))
def test_measures_are_the_plain_formulas(seed: int, n: int, d: int) -> None:
    x = np.random.default_rng(seed).standard_normal((n, d))
    got = seen.measure(x)
    assert got["norm_max"] == pytest.approx(np.linalg.norm(x, axis=1).max())
    assert got["distance_mean"] == pytest.approx(pdist(x).mean())
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert got["cosine_mean"] == pytest.approx((unit @ unit.T)[np.triu_indices(n, 1)].mean())
    assert got["dispersion"] == pytest.approx(np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean()))
    share = np.linalg.svd(x, compute_uv=False)
    share = share / share.sum()
    assert got["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()))


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_nothing_overflows_and_shapes_do_not_depend_on_size(size: float) -> None:
    x = np.random.default_rng(0).standard_normal((6, 3))
    with np.errstate(all="raise", under="ignore"):
        got, plain = seen.measure(size * x), seen.measure(x)
    for name in ("cosine_mean", "effective_rank", "clusters"):
        assert got[name] == pytest.approx(plain[name])
    assert got["distance_mean"] / size == pytest.approx(plain["distance_mean"])


def test_clusters_are_counted_where_they_are() -> None:
    random = np.random.default_rng(1)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    x = np.repeat(centres, 7, axis=0) + 0.01 * random.standard_normal((21, 2))
    assert seen.measure(x)["clusters"] == 3
    assert seen.measure(1e-3 * x, size_at_start=1.0)["clusters"] == 1, (
        "seen at the scale of the start all have come together"
    )
    chain = np.arange(30.0)[:, None] * 0.01  # single linkage: a chain of near neighbours is one part
    for reach, parts in ((0.011, 1), (0.009, 30), (1.0, 1)):
        assert seen._clusters(np.abs(chain - chain.T), reach) == parts
    assert seen.effective_rank(np.outer(np.arange(1.0, 5), [1.0, 2.0, 3.0])) == pytest.approx(1.0)
    assert seen.effective_rank(np.eye(5)) == pytest.approx(5.0)


def test_attention_measures() -> None:
    n = 4
    field = AttentionField(System(np.zeros((1, 2, 2)), np.eye(2)[None], causal=False), n)
    x = np.ones((n, 2))
    got = seen.measure(x, field=field, state=x, pair_matrix=np.eye(2))
    assert got["attention_entropy"] == pytest.approx(np.log(n))
    assert got["log_energy"] == pytest.approx(np.log(n * n))
    assert got["pair_form_max"] == 0
    causal = AttentionField(System(np.zeros((1, 2, 2)), np.eye(2)[None]), n)
    assert causal.entropy_and_energy(x) == pytest.approx((np.mean(np.log([1, 2, 3, 4])), np.log(10)))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e120])
@pytest.mark.parametrize("causal", [True, False])
def test_entropy_is_that_of_the_attention_matrices(causal: bool, size: float) -> None:
    """From weights that are nearly even to weights that are all 0 but one, and hidden tokens among them."""
    random = np.random.default_rng(5)
    k, v, q, o = (random.standard_normal((3, 4, 6)) for _ in range(4))
    field = AttentionField(System(k, v, q, o.transpose(0, 2, 1), causal=causal, reach=7), 20)
    x = size * random.standard_normal((20, 6))
    attention_HNN = field.attention(x)
    logs_HNN = np.log(attention_HNN, out=np.zeros_like(attention_HNN), where=attention_HNN > 0)
    expected = -(attention_HNN * logs_HNN).sum(axis=2).mean()
    assert field.entropy_and_energy(x)[0] == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("n", "d"), [(7, 3), (5, 12), (80, 6), (300, 4)])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_many_clouds_at_once_are_each_by_itself(n: int, d: int, size: float) -> None:
    """Wide ones, thin ones, collapsed ones and clusters, in portions of any size."""
    random = np.random.default_rng(n)
    clouds = [size * scale * random.standard_normal((n, d)) for scale in (1.0, 1e-3, 50.0)]
    clouds += [np.ones((n, d)) * size + 1e-9 * clouds[0], np.repeat(clouds[0][:2], n, axis=0)[:n], 0 * clouds[0]]
    single = [seen.measure(cloud, size_at_start=size) for cloud in clouds]
    heavy = np.array([True, False, True, True, True, True])
    for portion in (1, 2, 6):
        for first in range(0, 6, portion):
            some = slice(first, first + portion)
            together = seen.measure_all(np.stack(clouds[some]), size_at_start=size, heavy_T=heavy[some])
            for name, values in together.items():
                for number, value in enumerate(values, first):
                    expected = np.nan if number == 1 and name in seen.HEAVY else single[number][name]
                    assert value == pytest.approx(expected, rel=1e-12, nan_ok=True), (name, number)


@pytest.mark.parametrize(("n", "d"), [(12, 5), (64, 64), (9, 40)])
def test_near_pairs_and_small_directions_keep_their_digits(n: int, d: int) -> None:
    """Two clusters a billion times narrower than their distance, and singular values over twelve decades."""
    random = np.random.default_rng(d)
    x = np.sign(random.standard_normal((n, 1))) * np.ones((1, d)) + 1e-9 * random.standard_normal((n, d))
    assert seen.measure(x)["distance_mean"] == pytest.approx(pdist(x).mean(), rel=1e-12)
    steep = random.standard_normal((n, d)) * 10.0 ** -np.linspace(0, 12, d)
    share = np.linalg.svd(steep, compute_uv=False)
    share = share / share.sum()
    assert seen.measure(steep)["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-10)


def test_one_token_has_no_pairs() -> None:
    got = seen.measure(np.array([[3.0, 4.0]]), pair_matrix=np.eye(2))
    assert got["norm_min"] == got["norm_max"] == 5.0
    assert got["distance_mean"] == 0.0
    assert np.isnan(got["cosine_mean"])
    assert "pair_form_min" not in got


def test_a_token_at_rounding_size_has_no_direction() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1e-9], [1.0, 0.0]])
    assert seen.mean_cosine(x) == pytest.approx(1.0)
