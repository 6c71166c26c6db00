"""The split of logit variance: planted shares, exact zeros, and the closed form against the whole table."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import NONE, Encoding, LogitBias, alibi, combine, rope, t5, xpos
from toposcope.spectra.anova import DIRECT_LIMIT, Shares, decompose

seeds = st.integers(0, 2**32 - 1)


def by_definition(
    logits_AIBJ: np.ndarray, weight_A: np.ndarray, weight_B: np.ndarray, visible_IJ: np.ndarray
) -> tuple[float, ...]:
    """Section 3.6 word for word on the whole table, one weighting throughout: C, P, X; Toeplitz parts of P, X."""
    pair = visible_IJ / visible_IJ.sum()
    row = visible_IJ / visible_IJ.sum(axis=1, keepdims=True)
    gauge = np.einsum("aibj,b,ij->ai", logits_AIBJ, weight_B, row)
    L = logits_AIBJ - gauge[:, :, None, None]
    grand = np.einsum("aibj,a,b,ij->", L, weight_A, weight_B, pair)
    C = np.einsum("aibj,ij->ab", L, pair) - grand
    P = np.einsum("aibj,a,b->ij", L, weight_A, weight_B) - grand
    X = L - grand - C[:, None, :, None] - P[None, :, None, :]
    parts = np.array(
        [
            np.einsum("ab,a,b->", C**2, weight_A, weight_B),
            np.einsum("ij,ij->", P**2, pair),
            np.einsum("aibj,a,b,ij->", X**2, weight_A, weight_B, pair),
            np.einsum("ij,ij->", toeplitz_part(P, visible_IJ) ** 2, pair),
            np.einsum("aibj,a,b,ij->", toeplitz_part(X, visible_IJ) ** 2, weight_A, weight_B, pair),
        ]
    )
    whole = np.einsum("aibj,a,b,ij->", (L - grand) ** 2, weight_A, weight_B, pair)
    assert parts[:3].sum() == pytest.approx(whole, rel=1e-10)  # the three are orthogonal
    return tuple(parts / parts[:3].sum())


def toeplitz_part(table: np.ndarray, visible_IJ: np.ndarray) -> np.ndarray:
    """Each entry replaced by the mean over the visible pairs of the same i - j, one offset at a time."""
    last = np.moveaxis(table, 1, -2) if table.ndim == 4 else table  # [a, b, i, j] or [i, j]
    offset = np.subtract.outer(np.arange(len(visible_IJ)), np.arange(len(visible_IJ)))
    part = np.zeros_like(last)
    for t in np.unique(offset[visible_IJ > 0]):
        here = (offset == t) & (visible_IJ > 0)
        part[..., here] = last[..., here].mean(axis=-1, keepdims=True)
    return np.moveaxis(part, -2, 1) if table.ndim == 4 else part


def triple(shares: Shares) -> tuple[float, float, float]:
    assert shares.content is not None
    assert shares.position is not None
    assert shares.coupling is not None
    return shares.content, shares.position, shares.coupling


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(2, 9), st.booleans(), st.integers(0, 3))
def test_the_shares_follow_the_definition(seed: int, a: int, b: int, n: int, causal: bool, kind: int) -> None:
    random = np.random.default_rng(seed)
    encoding = [NONE, rope(4, base=50.0), alibi(2), t5(random.standard_normal((8, 2)), max_distance=20)][kind]
    q, k = random.standard_normal((a, n, 4)), random.standard_normal((b, n, 4))
    weight_A, weight_B = random.uniform(0.1, 1, a), random.uniform(0.1, 1, b)
    at = np.arange(n)
    q_turned, k_turned = q, k
    if encoding.rotary is not None:
        q_turned = encoding.rotary.rotate(q, at, side="query")
        k_turned = encoding.rotary.rotate(k, at, side="key")
    logits = 0.7 * np.einsum("air,bjr->aibj", q_turned, k_turned)
    if encoding.bias is not None:
        logits = logits + encoding.bias.table(at, at)[1][None, :, None, :]
    visible = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
    expected = by_definition(logits, weight_A / weight_A.sum(), weight_B / weight_B.sum(), visible)
    options = {"weights": weight_A, "key_weights": weight_B, "causal": causal, "scale": 0.7, "head": 1}
    ours = decompose(q, k, encoding, **options)
    np.testing.assert_allclose(triple(ours), expected[:3], atol=1e-10)
    np.testing.assert_allclose((ours.position_toeplitz, ours.coupling_toeplitz), expected[3:], atol=1e-10)
    assert sum(triple(ours)) == pytest.approx(1, abs=4e-16)
    closed = decompose(q, k, encoding, **options, direct_limit=0)
    np.testing.assert_allclose(triple(closed), expected[:3], atol=1e-10)
    assert sum(triple(closed)) == pytest.approx(1, abs=4e-16)
    assert closed.coupling_toeplitz is None
    assert closed.position_toeplitz == pytest.approx(ours.position_toeplitz)


@settings(max_examples=80, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(2, 12), st.booleans(), st.integers(0, 6))
def test_vectors_that_are_the_same_everywhere_go_by_offsets(
    seed: int, a: int, b: int, n: int, causal: bool, kind: int
) -> None:
    random = np.random.default_rng(seed)
    both = combine(rope(8, base=50.0), alibi(2, symmetric=False))
    bias = t5(random.standard_normal((8, 2)), max_distance=20)
    encoding = (NONE, rope(8, base=50.0), rope(8, partial=0.5), xpos(8), alibi(2), bias, both)[kind]
    q, k = random.standard_normal((a, 8)), random.standard_normal((b, 8))
    at = random.integers(0, 5) + random.integers(1, 4) * np.arange(n)
    options = {"weights": random.uniform(0.1, 1, a), "key_weights": random.uniform(0.1, 1, b), "causal": causal}
    short = decompose(q, k, encoding, at, **options, scale=-0.7, head=1)
    spread = (np.repeat(each[:, None], n, axis=1) for each in (q, k))
    long = decompose(*spread, encoding, at, **options, scale=-0.7, head=1)
    if long.content is None:
        assert short == long
        return
    np.testing.assert_allclose(astuple(short), astuple(long), rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 8), st.integers(1, 12), st.booleans())
def test_content_only_and_bias_only_heads_have_no_coupling(seed: int, m: int, n: int, causal: bool) -> None:
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((m, 4)), random.standard_normal((m, 4))
    content = decompose(q, k, NONE, np.arange(n), causal=causal)
    np.testing.assert_allclose(triple(content), (1, 0, 0), atol=1e-12)
    if n > 2:
        for encoding in (alibi(2), t5(random.standard_normal((8, 2)), max_distance=20)):
            mixed = decompose(q, k, encoding, np.arange(n), causal=causal)
            assert mixed.coupling == pytest.approx(0, abs=1e-12)
            assert mixed.position is not None
            assert mixed.position > 0
            only = decompose(np.zeros((m, 4)), k, encoding, np.arange(n), causal=causal)
            np.testing.assert_allclose(triple(only), (0, 1, 0), atol=1e-12)


def planted(n: int, content: float, position: float, coupling: float) -> tuple[np.ndarray, np.ndarray, Encoding]:
    """Two tokens, n positions: s_b content + bias + s_b * pattern_j, three parts of the given mean squares."""
    sign = np.array([1.0, -1.0])
    wave = np.sqrt(2) * np.cos(2 * np.pi * np.arange(n) / n)  # mean 0, mean square 1
    q = np.ones((2, n, 2))
    k = np.empty((2, n, 2))
    k[:, :, 0] = np.sqrt(content) * sign[:, None]
    k[:, :, 1] = np.sqrt(coupling) * sign[:, None] * wave
    size = np.sqrt(2 * position)
    bias = LogitBias(1, lambda i, j: size * np.cos(2 * np.pi * (i[:, None] - j[None, :]) / n)[None], toeplitz=True)
    return q, k, Encoding(name="planted", title="a planted bias", bias=bias)


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 24), st.floats(0, 5), st.floats(0.1, 5), st.floats(0, 5))
def test_planted_shares_are_recovered(n: int, content: float, position: float, coupling: float) -> None:
    q, k, encoding = planted(n, content, position, coupling)
    total = content + position + coupling
    ours = decompose(q, k, encoding)
    np.testing.assert_allclose(triple(ours), np.array([content, position, coupling]) / total, atol=1e-10)
    assert ours.total == pytest.approx(total)
    assert ours.position_toeplitz == pytest.approx(position / total)  # the bias is Toeplitz
    assert ours.coupling_toeplitz is not None
    assert ours.coupling is not None
    assert ours.coupling_toeplitz <= ours.coupling


def test_rotary_logits_depend_on_the_offset_only_before_the_gauge() -> None:
    """Same token vectors at all positions: L[a,i,b,j] is Toeplitz in (i,j); coupling is not zero."""
    random = np.random.default_rng(0)
    encoding = rope(8, base=100.0)
    assert encoding.rotary is not None
    q, k, at = random.standard_normal((3, 1, 8)), random.standard_normal((3, 1, 8)), np.arange(10)
    turned_q = encoding.rotary.rotate(np.repeat(q, 10, axis=1), at, side="query")
    turned_k = encoding.rotary.rotate(np.repeat(k, 10, axis=1), at, side="key")
    logits = np.einsum("air,bjr->aibj", turned_q, turned_k)
    np.testing.assert_allclose(logits[:, 1:, :, 1:], logits[:, :-1, :, :-1], atol=1e-12)
    shares = decompose(q[:, 0], k[:, 0], encoding, at)
    assert shares.coupling is not None
    assert shares.coupling > 0.1
    assert shares.position_toeplitz is not None
    assert shares.position is not None
    assert shares.position_toeplitz < shares.position  # the finite window: P after the gauge is not Toeplitz


@pytest.mark.parametrize("positions", [np.arange(9), 4 + 2 * np.arange(6)])
def test_a_scaling_that_depends_on_the_length_is_told_the_length(positions: np.ndarray) -> None:
    """The text ends at the last position, so a text of that length decides the frequencies, not the trained one."""
    random = np.random.default_rng(6)
    q, k = random.standard_normal((3, 8)), random.standard_normal((3, 8))
    dynamic = rope(8, base=50.0, scaling="dynamic", factor=4.0, original_context=5)
    assert dynamic.rotary is not None
    q_IR, k_IR = (
        dynamic.rotary.rotate(np.repeat(x[:, None], len(positions), axis=1), positions, side=side, context=length)
        for x, side, length in ((q, "query", positions[-1] + 1), (k, "key", positions[-1] + 1))
    )
    logits = np.einsum("air,bjr->aibj", q_IR, k_IR)
    expected = by_definition(logits, np.full(3, 1 / 3), np.full(3, 1 / 3), np.ones((len(positions),) * 2))
    np.testing.assert_allclose(triple(decompose(q, k, dynamic, positions)), expected[:3], atol=1e-12)
    trained = triple(decompose(q, k, rope(8, base=50.0), positions))
    assert np.abs(np.subtract(trained, expected[:3])).max() > 1e-3


def test_repeating_a_token_is_weighting_it() -> None:
    random = np.random.default_rng(1)
    q, k = random.standard_normal((3, 6, 4)), random.standard_normal((3, 6, 4))
    repeated = decompose(q[[0, 0, 1, 2]], k[[0, 0, 1, 2]], rope(4))
    weighted = decompose(q, k, rope(4), weights=[2, 1, 1])
    np.testing.assert_allclose(triple(repeated), triple(weighted), atol=1e-12)
    shares = decompose(q, k, rope(4), weights=[0.5, 0.25, 0.25])
    np.testing.assert_allclose(triple(shares), triple(weighted), atol=1e-12)


def test_what_only_the_query_decides_is_invisible() -> None:
    """A key that is the same everywhere gives logits of the query alone: total 0, no shares."""
    random = np.random.default_rng(2)
    found = decompose(random.standard_normal((3, 4)), np.ones((2, 4)), NONE, np.arange(5))
    assert found == Shares(None, None, None, None, None, 0.0)
    assert decompose(np.zeros((2, 3, 4)), np.ones((2, 3, 4)), rope(4)).content is None


def test_uneven_positions_have_no_toeplitz_part() -> None:
    random = np.random.default_rng(3)
    found = decompose(random.standard_normal((2, 4)), random.standard_normal((2, 4)), rope(4), [0, 1, 5])
    assert found.position_toeplitz is found.coupling_toeplitz is None
    assert found.content is not None


def test_bad_designs_are_refused() -> None:
    good = np.ones((2, 3, 4))
    with pytest.raises(BadValue, match="5, 4"):
        decompose(good, np.ones((2, 5, 4)))
    with pytest.raises(BadValue, match=r"\(2, 4\)"):
        decompose(np.ones((2, 4)), np.ones((2, 4)))
    with pytest.raises(BadValue, match="NaN"):
        decompose(good * np.nan, good)
    with pytest.raises(BadValue, match="width"):
        decompose(good, np.ones((2, 3, 6)))
    with pytest.raises(BadValue, match=r"3.*weights"):
        decompose(good, good, weights=[1, 1, 1])
    with pytest.raises(BadValue, match="negative"):
        decompose(good, good, weights=[1, -1])
    with pytest.raises(BadValue, match="all zero"):
        decompose(good, good, weights=[0, 0])
    with pytest.raises(BadValue, match="head 5"):
        decompose(good, good, alibi(2), head=5)


def test_a_text_that_ends_at_position_0_is_one_token_long() -> None:
    """Positions may be counted back from the last token: then the length is that of a text of one token."""
    random = np.random.default_rng(7)
    q, k = random.standard_normal((2, 4)), random.standard_normal((2, 4))
    dynamic = rope(4, base=50.0, scaling="dynamic", factor=4.0, original_context=1)
    at = np.arange(-4, 1)
    np.testing.assert_allclose(triple(decompose(q, k, dynamic, at)), triple(decompose(q, k, rope(4, base=50.0), at)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.parametrize("at", [[0, 1, 2, 3, 4], [3, 5, 7, 9, 11], [0, 1, 5, 6, 20]])
def test_both_routes_give_the_shares_and_the_total(causal: bool, limit: int, at: list[int]) -> None:
    """With a rotation, a bias, weights of their own for keys, and a scale; the total is the mean square."""
    random = np.random.default_rng(11)
    q, k = random.standard_normal((3, 5, 4)), random.standard_normal((2, 5, 4))
    encoding = combine(rope(4, base=50.0), alibi(2, symmetric=False, slopes=[0.1, 0.3]))
    weight_A, weight_B = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0])
    found = decompose(
        q,
        k,
        encoding,
        at,
        weights=weight_A,
        key_weights=weight_B,
        causal=causal,
        scale=-0.5,
        head=1,
        direct_limit=limit,
    )
    assert encoding.rotary is not None
    assert encoding.bias is not None
    turned = [encoding.rotary.rotate(x, at, side=side) for x, side in ((q, "query"), (k, "key"))]  # type: ignore[arg-type]
    logits = -0.5 * np.einsum("air,bjr->aibj", *turned) + encoding.bias.table(at, at)[1][:, None, :]
    visible = np.tril(np.ones((5, 5))) if causal else np.ones((5, 5))
    expected = by_definition(logits, weight_A / 6, weight_B / 4, visible)
    np.testing.assert_allclose(triple(found), expected[:3], atol=1e-10)
    row = visible / visible.sum(axis=1, keepdims=True)
    gauge = np.einsum("aibj,b,ij->ai", logits, weight_B / 4, row)
    square = ((logits - gauge[:, :, None, None]) ** 2 * (visible / visible.sum())[None, :, None, :]).sum(axis=(1, 3))
    assert found.total == pytest.approx(weight_A / 6 @ square @ weight_B / 4, rel=1e-10)
    even = len(set(np.diff(at))) == 1
    assert found.position_toeplitz == (pytest.approx(expected[3], abs=1e-10) if even else None)
    assert found.coupling_toeplitz == (pytest.approx(expected[4], abs=1e-10) if even and limit else None)


def test_the_table_is_formed_up_to_its_limit() -> None:
    random = np.random.default_rng(12)
    q, k = random.standard_normal((2, 4, 3)), random.standard_normal((3, 4, 3))
    assert decompose(q, k, direct_limit=2 * 3 * 16).coupling_toeplitz is not None
    assert decompose(q, k, direct_limit=2 * 3 * 16 - 1).coupling_toeplitz is None
    assert DIRECT_LIMIT == 4_000_000


def test_what_rounding_leaves_is_no_variance() -> None:
    """Keys that differ by d: variance d^2 / 4 against 64 eps times the size of the logits."""
    eps = np.finfo(np.float64).eps
    for steps, there in ((100, False), (160, True)):
        k = np.array([[1.0], [1.0 + steps * eps]])
        found = decompose([[1.0]], k, NONE, np.arange(3))
        assert (found.total > 0) == there
        assert (found.content is not None) == there


def test_heads_weights_and_tables_are_checked() -> None:
    good = np.ones((2, 3, 4))
    assert decompose(good, good, alibi(2), head=1).position == pytest.approx(1)
    for head in (-1, 2):
        with pytest.raises(BadValue):
            decompose(good, good, alibi(2), head=head)
    content = Encoding("content", "position by content", exact_tables=False)
    with pytest.raises(BadEncoding):
        decompose(good, good, content)
    random = np.random.default_rng(13)
    q, k = random.standard_normal((2, 3, 4)), random.standard_normal((3, 3, 4))
    one = decompose(q, k, weights=[0.0, 1.0], key_weights=[1, 1, 0])  # a weight of 0 leaves a token out
    np.testing.assert_allclose(triple(one), triple(decompose(q[1:], k[:2])), atol=1e-12)
    for wrong in ([1, np.nan], [[1, 1]], []):
        with pytest.raises(BadValue):
            decompose(q, q, weights=wrong)
    for shapes in (((2, 3, 4), (2, 4)), ((2, 4), (2, 3, 4))):  # one of them the same at every position
        a, b = (random.standard_normal(shape) for shape in shapes)
        spread = [np.repeat(x[:, None], 3, axis=1) if x.ndim == 2 else x for x in (a, b)]
        np.testing.assert_allclose(triple(decompose(a, b, rope(4))), triple(decompose(*spread, rope(4))), atol=1e-12)
    with pytest.raises(BadValue):
        decompose(good, good, positions=[0, 1])
