"""What rotation does to a head's logits, against dense matrices written out from the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.checkpoints.view import Head
from toposcope.dynamics.products import Products
from toposcope.dynamics.rotation import RotaryFacts, Turns, offsets_to_sample, rotary_facts, tau_uniform, turned
from toposcope.encodings import Rotary

from .systems import logit_matrix, make_head, random_head, sym, turn_matrix, turning

seeds = st.integers(0, 2**32 - 1)
kinds = st.tuples(
    st.sampled_from(["half", "interleaved"]), st.sampled_from([None, 0.5]), st.sampled_from([1.0, 0.8, 1.25])
)
Kind = tuple[str, float | None, float]
OFFSETS = [0, -1, -4, -16, -64, 1, 3, 17]


def case(seed: int, d: int, kind: Kind, r: int = 4) -> tuple[Head, Rotary]:
    pairing, partial, factor = kind
    return random_head(np.random.default_rng(seed), d, r), turning(r, pairing=pairing, partial=partial, factor=factor)


def facts_of(head: Head, rotary: Rotary, offsets: list[int]) -> RotaryFacts:
    start = replace(head, q=turned(rotary, head.q, 0, "query"), k=turned(rotary, head.k, 0, "key"))
    return rotary_facts(Products(start), rotary, Turns.at(rotary, offsets))


@settings(max_examples=200, deadline=None)
@given(seeds, kinds, st.integers(-300, 300), st.integers(0, 50))
def test_turned_rows_are_the_rotation_of_every_column(seed: int, kind: Kind, offset: int, query: int) -> None:
    """W_k at several offsets: k = j - i, whatever i is; the sign of J is that of the model's own rotation."""
    head, rotary = case(seed, 7, kind)
    np.testing.assert_allclose(
        turned(rotary, head.k, offset, "key"), turn_matrix(rotary, offset) @ head.k, atol=1e-12
    )
    ours = head.scale * turned(rotary, head.q, 0, "query").T @ turned(rotary, head.k, offset, "key")
    dense = logit_matrix(head, rotary, offset, query)
    np.testing.assert_allclose(ours, dense, atol=1e-10)
    # and as the model computes it: rotate a query at i and a key at i + k
    x, y = np.random.default_rng(seed + 1).standard_normal((2, 7))
    q = rotary.rotate((head.q @ x)[None], [query], side="query")[0]
    k = rotary.rotate((head.k @ y)[None], [query + offset], side="key")[0]
    assert x @ ours @ y == pytest.approx(head.scale * q @ k, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(seeds, kinds, st.sampled_from([3, 4, 6, 8, 12]))
def test_facts_equal_dense(seed: int, kind: Kind, d: int) -> None:
    """rho and lambda_min at every sampled offset, for 2r > d as well as below."""
    head, rotary = case(seed, d, kind)
    facts = facts_of(head, rotary, OFFSETS)
    still = logit_matrix(head, rotary)
    size = np.linalg.norm(still, 2)
    least = {k: np.linalg.eigvalsh(sym(logit_matrix(head, rotary, k)))[0] for k in OFFSETS}
    assert list(facts.lmin_by_offset) == OFFSETS
    for k in OFFSETS:
        assert facts.lmin_by_offset[k] == pytest.approx(least[k], abs=1e-10 * size)
    rho = max(np.linalg.norm(logit_matrix(head, rotary, k) - still, 2) for k in OFFSETS)
    assert facts.rho == pytest.approx(rho, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(seeds, kinds, st.sampled_from([3, 6, 10]))
def test_tau_uniform_covers_every_real_offset(seed: int, kind: Kind, d: int) -> None:
    """200 real offsets each, up to far beyond any context: sym(W_k) + tau I is never negative (30 000 matrices)."""
    head, rotary = case(seed, d, kind)
    tau = facts_of(head, rotary, [0]).tau_uniform
    random = np.random.default_rng(seed + 1)
    offsets = np.concatenate([random.uniform(-12, 12, 140), random.uniform(-1e5, 1e5, 60)])
    # many angles at once, pair by pair, without the code under test
    angles = offsets[:, None] * rotary.frequencies()
    turns = np.tile(np.eye(rotary.head_dim), (len(offsets), 1, 1))
    a, b = rotary.pairs_F2.T
    gain = rotary.attention_factor**2
    turns[:, a, a] = turns[:, b, b] = gain * np.cos(angles)
    turns[:, a, b], turns[:, b, a] = -gain * np.sin(angles), gain * np.sin(angles)
    w = head.scale * head.q.T @ turns @ head.k
    lowest = np.linalg.eigvalsh((w + w.swapaxes(1, 2)) / 2)[:, 0]
    assert tau >= -lowest.min() * (1 - 1e-12)
    assert tau <= head.scale * gain * 50 * np.linalg.norm(head.q, 2) * np.linalg.norm(head.k, 2)  # and not senseless


@settings(max_examples=100, deadline=None)
@given(seeds, st.sampled_from(["half", "interleaved"]))
def test_tau_uniform_is_tight_for_equal_queries_and_keys(seed: int, pairing: str) -> None:
    """Q = K with one frequency: at k theta = pi the least eigenvalue is exactly -tau."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((2, 5))
    rotary = turning(2, pairing=pairing)
    head = make_head(q, q, q, q.T)
    tau = tau_uniform(q, q, rotary, head.scale)
    half_turn = np.pi / rotary.frequencies()[0]
    lowest = np.linalg.eigvalsh(sym(logit_matrix(head, rotary, half_turn)))[0]
    assert tau == pytest.approx(-lowest, rel=1e-9)
    assert tau == pytest.approx(head.scale * np.linalg.norm(q, 2) ** 2, rel=1e-12)


def test_the_example_of_the_notes() -> None:
    """Q = K = I, theta = 1: lambda_min = 1, .54, -.42, -.99 at k = 0..3."""
    rotary = turning(2)
    head = make_head(np.eye(2), np.eye(2), np.eye(2), np.eye(2), scale=1.0)
    facts = facts_of(head, rotary, [0, 1, 2, 3])
    np.testing.assert_allclose(list(facts.lmin_by_offset.values()), np.cos([0.0, 1.0, 2.0, 3.0]), atol=1e-12)
    assert facts.tau_uniform == pytest.approx(1.0)
    assert facts.rho == pytest.approx(np.abs(np.exp(3j) - 1))


def test_pairs_that_see_nothing_add_nothing() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, 4, 6))
    q[[0, 2]] = 0.0  # pair 0 of the half pairing
    rotary = turning(4)
    alone = tau_uniform(q, k, rotary, 1.0)
    weight = np.linalg.norm(k[[1, 3]]) / np.linalg.norm(q[[1, 3]])
    dense = weight * q[[1, 3]].T @ q[[1, 3]] + k[[1, 3]].T @ k[[1, 3]] / weight
    assert alone == pytest.approx(np.linalg.eigvalsh(dense)[-1] / 2)
    assert tau_uniform(0 * q, k, rotary, 1.0) == 0.0


def test_sampled_offsets() -> None:
    assert offsets_to_sample(1, causal=True) == [0]
    assert offsets_to_sample(2, causal=True) == [0, -1]
    assert offsets_to_sample(5, causal=False) == [0, -1, -4, 1, 4]
    assert offsets_to_sample(64, causal=True) == [0, -1, -4, -16]
    for n in range(12):  # a power of four is sampled as soon as it is visible
        assert offsets_to_sample(4**n + 1, causal=True)[-1] == -(4**n)
