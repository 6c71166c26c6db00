"""The contraction metrics: their exact properties, their routes against each other, and bad input."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import NONE, Encoding, LogitBias, alibi, fire_init, kerple, mla, rope, sinusoidal, t5, xpos
from toposcope.encodings.record import Rotary
from toposcope.spectra.contraction import Contraction, checked_positions, contraction, even_step, turned

seeds = st.integers(0, 2**32 - 1)
HEADS = 4
module = importlib.import_module("toposcope.spectra.contraction")  # its name is also that of a function


def encodings(h: int, random: np.random.Generator) -> list[Encoding]:
    table = random.standard_normal((8, HEADS))
    base = float(10 ** random.uniform(1, 6))
    return [
        NONE,
        rope(h, base=base),
        rope(h, base=base, pairing="interleaved", partial=0.5),
        rope(h, turning_heads=1),
        rope(h, scaling="yarn", factor=8.0, original_context=16),
        xpos(h),
        mla(h // 2, h // 2),
        alibi(HEADS),
        t5(table, max_distance=20),
        kerple(HEADS),
    ]


def draw(seed: int, n: int, h: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    random = np.random.default_rng(seed)
    return random.standard_normal((n, h)), random.standard_normal((n, h)), random


def numbers(found: Contraction) -> dict[str, float]:
    return {
        name: value
        for name, value in dataclasses.asdict(found).items()
        if isinstance(value, float) and name not in ("residual",)
    }


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 40), st.sampled_from([4, 8]), st.booleans(), st.integers(0, HEADS - 1))
def test_every_route_gives_the_same_numbers(seed: int, n: int, h: int, causal: bool, head: int) -> None:
    q, k, random = draw(seed, n, h)
    for encoding in encodings(h, random):
        dense = contraction(q, k, encoding, causal=causal, head=head, route="dense", scale=0.5)
        auto = contraction(q, k, encoding, causal=causal, head=head, scale=0.5)
        lanczos = contraction(q, k, encoding, causal=causal, head=head, route="lanczos", scale=0.5)
        assert auto.route == ("dense" if causal or encoding.bias else "factors")
        for name, value in numbers(dense).items():
            if not name.startswith("cond"):
                assert numbers(auto)[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
        for name in ("rho", "cap", "norm", "norm_reference"):
            assert getattr(lanczos, name) == pytest.approx(getattr(dense, name), rel=1e-7), (encoding.name, name)
        assert lanczos.residual is not None
        assert lanczos.residual <= 1e-8
        assert lanczos.erank_ratio is None
        assert "full rank" in str(lanczos.reason)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 30), st.booleans(), st.integers(0, HEADS - 1), st.floats(1e-3, 1e3))
def test_cap_ranks_and_scale(seed: int, n: int, causal: bool, head: int, scale: float) -> None:
    """The cap is never below 1, masked or not (S5f); effective rank is between 1 and n; rotation ignores scale."""
    q, k, random = draw(seed, n, 8)
    for encoding in encodings(8, random):
        found = contraction(q, k, encoding, causal=causal, head=head)
        assert found.cap is not None
        assert found.cap >= 1 - 1e-12
        assert found.erank is not None
        assert found.stable_rank is not None
        assert 1 <= found.stable_rank <= n + 1e-9
        assert 1 <= found.erank <= n * (1 + 1e-9)
        if encoding.bias is None:
            scaled = contraction(q, k, encoding, causal=causal, head=head, scale=scale)
            assert scaled.rho == pytest.approx(found.rho, rel=1e-9)
            assert scaled.erank_ratio == pytest.approx(found.erank_ratio, rel=1e-9)
            assert scaled.maj_gap == pytest.approx(found.maj_gap, rel=1e-9, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 40), st.booleans())
def test_no_encoding_changes_nothing(seed: int, n: int, causal: bool) -> None:
    q, k, _ = draw(seed, n, 4)
    for encoding, head in ((NONE, 0), (rope(4, turning_heads=1), 1)):
        found = contraction(q, k, encoding, causal=causal, head=head)
        assert found.rho == found.erank_ratio == 1
        assert found.maj_gap == 0
        assert found.maj_ok
        assert found.cond_r == found.cond_r_reference


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 60), st.integers(1, 8))
def test_constant_content_contracts_by_the_kernel(seed: int, n: int, pairs: int) -> None:
    """With z conj(w) >= 0, rho = lambda_max(T_n(g)) / n, and the spectrum is majorised (S5d, metric 3.1)."""
    random = np.random.default_rng(seed)
    encoding = rope(2 * pairs, base=float(10 ** random.uniform(0.5, 5)))
    row = random.standard_normal(2 * pairs)
    gains = np.tile(random.uniform(0, 2, pairs), 2)  # a nonnegative multiple per pair (half layout)
    found = contraction(np.tile(row, (n, 1)), np.tile(row * gains, (n, 1)), encoding)
    weight = gains[:pairs] * (row[:pairs] ** 2 + row[pairs:] ** 2)
    assert encoding.rotary is not None
    g = np.cos(np.outer(np.arange(n), encoding.rotary.frequencies())) @ weight / weight.sum()
    assert found.rho == pytest.approx(np.linalg.eigvalsh(scipy.linalg.toeplitz(g)).max() / n, rel=1e-9)
    assert found.maj_ok


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 12))
def test_full_rank_gram_content_with_one_kernel_has_no_larger_condition(seed: int, n: int) -> None:
    """cond_r with r = n, A positive definite, every pair holding the same content (S1): not larger."""
    random = np.random.default_rng(seed)
    root = random.standard_normal((n, n)) + 0.1 * np.eye(n)
    pairs = 3
    # C_f = a_f C with C = root root^T: each channel of `root` is copied to `pairs` first channels, phases zero
    encoding = rope(2 * n * pairs, divisors=np.tile(1.5 ** np.arange(pairs), n) * _flat(n * pairs))
    q = np.zeros((n, 2 * n * pairs))
    q[:, : n * pairs] = np.repeat(root, pairs, axis=1) * np.sqrt(np.tile(random.uniform(0.1, 1, pairs), n))
    found = contraction(q, q, encoding)
    assert found.rank_reference == n
    assert found.maj_ok
    assert found.cond_r is not None
    assert found.cond_r_reference is not None
    assert found.cond_r <= found.cond_r_reference * (1 + 1e-8)


def _flat(pairs: int) -> np.ndarray:
    """Divisors that undo the geometric ladder, so that every pair has frequency 1."""
    rotary = rope(2 * pairs).rotary
    assert rotary is not None
    return rotary.frequencies()


def test_masking_is_applied_to_both_sides() -> None:
    """The causal reference is tril(q k^T), not q k^T (S6)."""
    q, k, _ = draw(1, 20, 4)
    found = contraction(q, k, rope(4), causal=True)
    assert found.norm_reference == pytest.approx(np.linalg.norm(np.tril(q @ k.T), 2), rel=1e-12)
    assert found.causal


def test_bias_and_positions_are_used() -> None:
    q, k, _ = draw(2, 12, 4)
    encoding = alibi(HEADS)
    at = np.array([0, 1, 2, 5, 6, 9, 10, 12, 20, 21, 30, 31])
    assert encoding.bias is not None
    expected = np.linalg.norm(q @ k.T + encoding.bias.table(at, at)[2], 2)
    for route in ("dense", "lanczos"):
        found = contraction(q, k, encoding, at, head=2, route=route)
        assert found.norm == pytest.approx(expected, rel=1e-9)
    stepped = contraction(q, k, encoding, 3 * np.arange(12), head=2)
    expected = np.linalg.norm(q @ k.T + encoding.bias.table(3 * np.arange(12), 3 * np.arange(12))[2], 2)
    assert stepped.norm == pytest.approx(expected, rel=1e-12)
    both_positions = contraction(q, k, fire_init(HEADS, seed=0), head=1)
    assert both_positions.route == "dense"


def test_undefined_metrics_are_none_with_a_reason() -> None:
    q = np.array([[1.0, 1.0, 0.0, 0.0]] * 2)
    k = np.array([[1.0, -1.0, 0.0, 0.0]] * 2)
    found = contraction(q, k, rope(4, base=100.0))  # cancelling channels: S_0 = 0, S is not (S5b i)
    assert found.norm == pytest.approx(0.455, abs=5e-4)
    assert found.rho is found.erank_ratio is found.maj_gap is found.maj_ok is found.cond_r is None
    assert found.stable_rank_reference is None
    assert found.stable_rank is not None
    assert "zero" in str(found.reason)
    nothing = contraction(np.zeros((5, 4)), k[[0] * 5], rope(4))
    assert nothing.norm == 0
    assert nothing.cap is nothing.rho is nothing.erank is None
    only_bias = contraction(np.zeros((5, 4)), np.ones((5, 4)), alibi(HEADS))
    assert only_bias.cap == pytest.approx(1)
    assert only_bias.rho is None


def test_one_position_and_deficient_content() -> None:
    one = contraction([[1.0, 2.0]], [[3.0, 4.0]], rope(2), [1000], causal=True)
    assert one.rho == pytest.approx(1)
    assert one.erank == one.rank_reference == 1
    deficient = contraction(np.ones((30, 8)), np.ones((30, 8)), rope(8))
    assert deficient.rank_reference == 1
    assert deficient.cond_r == 1
    # rank falls: r = 2 without position, but a half turn per step merges the two channels
    assert contraction(np.ones((1, 2)), np.zeros((1, 2)), rope(2)).rank_reference == 0


def test_long_contexts_take_a_structured_route_and_dense_is_refused_with_its_size() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((3000, 8)), random.standard_normal((3000, 8))
    assert contraction(q, k, rope(8)).route == "factors"
    causal = contraction(q, k, rope(8), causal=True)
    assert causal.route == "lanczos"
    assert causal.rho is not None
    with pytest.raises(BadValue, match="GiB") as refused:
        contraction(q, k, rope(8), route="dense")
    assert all(number in str(refused.value) for number in ("3000", "0.1", "2048"))
    with pytest.raises(BadValue, match="full rank"):
        contraction(q, k, rope(8), causal=True, route="factors")


def test_bad_input_is_refused() -> None:
    good = np.ones((3, 4))
    with pytest.raises(BadValue, match="NaN"):
        contraction(good * np.nan, good, rope(4))
    with pytest.raises(BadValue, match="4 queries"):
        contraction(np.ones((4, 4)), good, rope(4))
    with pytest.raises(BadValue, match="width 4"):
        contraction(good, good, rope(6))
    with pytest.raises(BadEncoding, match="pairs"):
        rope(5)
    with pytest.raises(BadValue, match="2 positions"):
        contraction(good, good, rope(4), [0, 1])
    with pytest.raises(BadValue, match="rise"):
        contraction(good, good, rope(4), [2, 1, 0], causal=True)
    with pytest.raises(BadValue, match="head 7"):
        contraction(good, good, alibi(4), head=7)
    with pytest.raises(BadValue, match="-1"):
        contraction(good, good, rope(4), head=-1)
    with pytest.raises(BadValue, match="scale"):
        contraction(good, good, rope(4), scale=np.inf)
    with pytest.raises(BadValue, match="densest"):
        contraction(good, good, rope(4), route="densest")  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="sinusoidal"):
        contraction(good, good, sinusoidal(4))


EPS = np.finfo(np.float64).eps


@pytest.mark.parametrize("route", ["dense", "lanczos"])
@pytest.mark.parametrize("scale", [1.0, -0.25])
@pytest.mark.parametrize("part", ["content", "bias"])
def test_what_cancels_to_rounding_is_zero_and_a_little_more_is_not(route: str, scale: float, part: str) -> None:
    """Eight equal rows, entries 1 - (1 - delta): 8 eps times the parts' norms, 2 in all, is where rounding begins."""
    n = 8
    for delta, there in ((12 * EPS, False), (20 * EPS, True)):
        if part == "content":  # two channels that cancel, alike on both sides
            q, k = np.ones((n, 2)), np.tile([1.0, -(1 - delta)], (n, 1))
            found = contraction(q, k, NONE, route=route, scale=scale)
            assert found.norm == found.norm_reference
        else:  # content that the bias cancels: only the side with position does
            q, k = np.ones((n, 1)), np.full((n, 1), -(1 - delta))
            bias = LogitBias(1, lambda i, j: np.full((1, len(i), len(j)), scale), toeplitz=True)
            found = contraction(q, k, Encoding("flat", "a constant", bias=bias), route=route, scale=scale)
            assert found.norm_reference == pytest.approx(abs(scale) * n)
        assert found.norm == (pytest.approx(abs(scale) * n * delta, rel=1e-6) if there else 0)
        assert (found.cap is not None) == there


@pytest.mark.parametrize("causal", [False, True])
def test_the_side_that_decays_counts_with_its_own_size(causal: bool) -> None:
    """xPos makes keys grow with their position: rounding is judged by the larger of the two sides."""
    encoding = xpos(2, scale_base=1.0, gamma=0.4)
    at = 20.0 + np.arange(4)
    found = contraction(np.ones((4, 2)), np.ones((4, 2)), encoding, at, causal=causal, route="dense")
    assert encoding.rotary is not None
    q, k = (encoding.rotary.rotate(np.ones((4, 2)), at, side=side) for side in ("query", "key"))
    logits = np.tril(q @ k.T) if causal else q @ k.T
    assert found.norm == pytest.approx(np.linalg.norm(logits, 2))
    sizes = np.linalg.norm(q) * np.linalg.norm(k)  # one pair
    assert found.cap == pytest.approx(sizes / found.norm)


@pytest.mark.parametrize(("more", "ok"), [(0.5e-9, True), (2e-9, False)])
def test_a_spectrum_may_exceed_its_reference_by_rounding_only(more: float, ok: bool) -> None:
    """A constant on top of constant logits: every Ky Fan norm is 1 + more times that without."""
    bias = LogitBias(1, lambda i, j: np.full((1, len(i), len(j)), more), toeplitz=True)
    found = contraction(np.ones((6, 1)), np.ones((6, 1)), Encoding("flat", "a constant", bias=bias))
    assert found.maj_gap == pytest.approx(more, rel=1e-4)
    assert found.maj_ok is ok
    assert found.rho == pytest.approx(1 + more, rel=1e-13)


def test_scalings_that_depend_on_the_length_are_told_the_length() -> None:
    q, k, _ = draw(4, 12, 8)
    encoding = rope(8, scaling="dynamic", factor=4.0, original_context=5)
    assert encoding.rotary is not None
    at = 3 + np.arange(12)
    turned = [encoding.rotary.rotate(x, at, side=side, context=15) for x, side in ((q, "query"), (k, "key"))]
    found = contraction(q, k, encoding, at)
    assert found.norm == pytest.approx(np.linalg.norm(turned[0] @ turned[1].T, 2), rel=1e-12)
    assert found.norm != pytest.approx(contraction(q, k, rope(8), at).norm, rel=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_both_positions_meets_the_mask(causal: bool) -> None:
    q, k, _ = draw(5, 10, 4)
    encoding = fire_init(HEADS, threshold=4.0, seed=2)
    assert encoding.bias is not None
    table = encoding.bias.table(np.arange(10), np.arange(10))[3]
    logits = q @ k.T + table
    expected = np.tril(logits) if causal else logits
    own = np.linalg.norm(np.tril(table) if causal else table, 2)
    for route in ("dense", "lanczos"):
        found = contraction(q, k, encoding, head=3, causal=causal, route=route)
        assert found.norm == pytest.approx(np.linalg.norm(expected, 2), rel=1e-9)
        channels = (np.linalg.norm(q, axis=0) * np.linalg.norm(k, axis=0)).sum()
        assert found.cap == pytest.approx((channels + own) / found.norm, rel=1e-9)


def written_out(
    q: np.ndarray, k: np.ndarray, encoding: Encoding, at: np.ndarray, head: int, causal: bool, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Logits with the encoding and without it, n x n."""
    turns = encoding.rotary
    context = int(max(at.max(), 0)) + 1
    sides = []
    for where in (at, 0 * at):
        rows = (q, k)
        if turns is not None and (turns.turning_heads is None or head < turns.turning_heads):
            rows = tuple(
                turns.rotate(x, where, side=side, context=context)  # type: ignore[arg-type]
                for x, side in ((q, "query"), (k, "key"))
            )
        sides.append(scale * rows[0] @ rows[1].T)
    if encoding.bias is not None:
        sides[0] = sides[0] + encoding.bias.table(at, at)[head]
    return tuple(np.tril(part) if causal else part for part in sides)  # type: ignore[return-value]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("number", range(10))
def test_every_metric_is_that_of_the_dense_logits(number: int, causal: bool) -> None:
    n, h, head, scale = 14, 8, 2, -0.4
    q, k, random = draw(number, n, h)
    q[:, 1] = q[:, 0]  # content of deficient rank
    encoding = encodings(h, random)[number]
    at = 2.0 * np.arange(n) + 5
    found = contraction(q, k, encoding, at, causal=causal, head=head, scale=scale)
    s, s_0 = (np.linalg.svd(x, compute_uv=False) for x in written_out(q, k, encoding, at, head, causal, scale))

    def erank(values: np.ndarray) -> float:
        share = values[values > 1e-14] / values.sum()
        return float(np.exp(-(share * np.log(share)).sum()))

    rank = int((s_0 > n * np.finfo(float).eps * s_0[0]).sum())
    held = rank == int((s > n * np.finfo(float).eps * s[0]).sum()) or rank <= (s > 1e-12 * s[0]).sum()
    assert (found.positions, found.causal) == (n, causal)
    assert found.norm == pytest.approx(s[0], rel=1e-10)
    assert found.norm_reference == pytest.approx(s_0[0], rel=1e-10)
    assert found.rho == pytest.approx(s[0] / s_0[0], rel=1e-10)
    assert found.erank == pytest.approx(erank(s), rel=1e-9)
    assert found.erank_reference == pytest.approx(erank(s_0), rel=1e-9)
    assert found.erank_ratio == pytest.approx(erank(s) / erank(s_0), rel=1e-9)
    assert found.stable_rank == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-9)
    assert found.stable_rank_reference == pytest.approx((s_0**2).sum() / s_0[0] ** 2, rel=1e-9)
    assert found.rank_reference == rank
    assert found.cond_r_reference == pytest.approx(s_0[0] / s_0[rank - 1], rel=1e-6)
    if held:
        assert found.cond_r == pytest.approx(s[0] / s[rank - 1], rel=1e-6)
    gap = ((np.cumsum(s) - np.cumsum(s_0)) / s_0.sum()).max()
    assert found.maj_gap == pytest.approx(gap, abs=1e-10)
    assert found.maj_ok is bool(gap <= 1e-9)
    assert found.values is not None
    assert found.values_reference is not None
    np.testing.assert_allclose(found.values[:rank], s[:rank], rtol=1e-6)
    np.testing.assert_allclose(found.values_reference[:rank], s_0[:rank], rtol=1e-6)
    assert (found.residual, found.reason) == (None, None)


def test_the_cap_takes_a_pair_as_one_and_any_other_channel_by_itself() -> None:
    q, k, _ = draw(3, 9, 6)
    at = np.arange(9)

    def cap(pairs: list[tuple[int, int]], scale: float = -2.0) -> float:
        inside = {channel for pair in pairs for channel in pair}
        blocks = [*map(list, pairs), *([channel] for channel in range(6) if channel not in inside)]
        return abs(scale) * sum(np.linalg.norm(q[:, block]) * np.linalg.norm(k[:, block]) for block in blocks)

    for encoding, pairs in (
        (rope(6, rotary_dim=4), [(0, 2), (1, 3)]),
        (rope(6, pairing="interleaved"), [(0, 1), (2, 3), (4, 5)]),
        (NONE, []),
    ):
        for route in ("factors", "dense", "lanczos"):
            found = contraction(q, k, encoding, at, scale=-2.0, route=route)  # type: ignore[arg-type]
            assert found.cap == pytest.approx(cap(pairs) / found.norm, rel=1e-9)


def test_even_steps_and_positions() -> None:
    assert even_step(np.array([3.0, 5.0, 7.0])) == 2.0
    assert even_step(np.array([3.0, 5.0])) == 2.0
    assert even_step(np.array([3.0, 5.0, 8.0])) is None
    assert even_step(np.array([3.0, 6.0, 8.0])) is None
    assert even_step(np.array([4.0])) == 1.0
    assert checked_positions(None, 4, causal=True).tolist() == [0, 1, 2, 3]
    assert checked_positions([5, 5, 1], 3, causal=False).tolist() == [5, 5, 1]
    assert checked_positions([-2.5, 0, 7], 3, causal=True).tolist() == [-2.5, 0, 7]
    for wrong in ([0, 1, 1], [2, 1, 3]):
        with pytest.raises(BadValue):
            checked_positions(wrong, 3, causal=True)


def test_only_the_turning_heads_turn() -> None:
    q, k, _ = draw(6, 5, 4)
    at = np.arange(5.0)
    mixed = rope(4, turning_heads=2).rotary
    assert isinstance(mixed, Rotary)
    for head, moved in ((0, True), (1, True), (2, False), (3, False)):
        left, right = turned(mixed, q, k, at, head=head, context=5)
        assert np.array_equal(left, q) is not moved
        assert np.array_equal(right, k) is not moved
    assert turned(None, q, k, at, head=0, context=5) == (q, k)


def test_every_head_of_a_bias_is_there_and_no_other() -> None:
    good = np.ones((3, 4))
    for head in range(HEADS):
        assert contraction(good, good, alibi(HEADS), head=head).norm > 0
    assert contraction(good, good, rope(4), head=99).norm > 0  # a rotation is for any head
    for head in (HEADS, HEADS + 1):
        with pytest.raises(BadValue):
            contraction(good, good, alibi(HEADS), head=head)


def test_routes_change_at_the_limit_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = draw(7, 12, 4)
    assert contraction(q, k, rope(4), causal=True, dense_limit=12).route == "dense"
    assert contraction(q, k, rope(4), causal=True, dense_limit=11).route == "lanczos"
    assert contraction(q, k, rope(4), dense_limit=11).route == "factors"
    assert contraction(q, k, rope(4), causal=True, dense_limit=12, route="dense").norm > 0
    with pytest.raises(BadValue):
        contraction(q, k, rope(4), causal=True, dense_limit=11, route="dense")
    for biased in (alibi(HEADS), fire_init(HEADS)):  # full rank, though unmasked
        with pytest.raises(BadValue):
            contraction(q, k, biased, route="factors")
        assert contraction(q, k, biased, dense_limit=11).route == "lanczos"
    assert module.DENSE_LIMIT == 2048
    monkeypatch.setattr(module, "DENSE_LIMIT", 3)
    assert contraction(q, k, fire_init(HEADS)).norm > 0  # twelve positions: four times the limit
    longer = np.ones((13, 4))
    with pytest.raises(BadValue):
        contraction(longer, longer, fire_init(HEADS))
    uneven = [*range(12), 99]
    with pytest.raises(BadValue):
        contraction(longer, longer, alibi(HEADS), uneven)
    assert contraction(longer, longer, alibi(HEADS)).norm > 0


def test_a_rank_that_position_lowers_has_no_condition() -> None:
    """Two channels that the rotation by pi makes one: r = 2 without position, and s_2 = 0 with it."""
    q, k, _ = draw(8, 6, 2)
    bias = LogitBias(1, lambda i, j: -np.outer(q[:, 1], k[:, 1])[None], toeplitz=False)
    found = contraction(q, k, Encoding("less", "takes one channel away", bias=bias))
    assert found.rank_reference == 2
    assert found.cond_r is None
    assert found.cond_r_reference is not None
    assert found.maj_ok is not None


def test_the_residual_is_the_largest_of_all_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the logits with position, those without, and the bias; what is zero has none."""
    q, k, _ = draw(9, 12, 4)
    plain = module.top_singular_values
    sizes = iter([1e-3, 2e-3, 4e-3])

    def rough(operator: object, count: int) -> object:
        found = plain(operator, count)  # type: ignore[arg-type]
        return dataclasses.replace(found, residuals=found.values * next(sizes), converged=False)

    monkeypatch.setattr(module, "top_singular_values", rough)
    for encoding, worst in ((alibi(HEADS), 4e-3), (rope(4), 2e-3), (fire_init(HEADS), 4e-3)):
        sizes = iter([1e-3, 2e-3, 4e-3])
        assert contraction(q, k, encoding, route="lanczos").residual == pytest.approx(worst)
    monkeypatch.undo()
    nothing = contraction(np.zeros((5, 4)), np.ones((5, 4)), rope(4), route="lanczos")
    assert (nothing.residual, nothing.norm, nothing.rho, nothing.cap) == (0.0, 0.0, None, None)
