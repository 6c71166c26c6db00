"""Every encoding's spectrum against the dense matrix made from its own tables, and what each point claims."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.fields import plain as plain_data
from toposcope.encodings import NONE, Encoding, Sizes, alibi, combine, learned, make, parse, rope, sinusoidal, t5
from toposcope.spectra import bias_points, rotary_points, table_points, toeplitz, toeplitz_points
from toposcope.spectra.encoding_spectrum import contexts_up_to, decay
from toposcope.spectra.encoding_spectrum import spectrum_of as spectrum
from toposcope.spectra.points import Point, of_values
from toposcope.spectra.rotary_kernel import rotary_rank, rotary_weights
from toposcope.spectra.toeplitz import Spectrum, TopValue, effective_rank

TOLERANCE = 1e-9


def dense_kernel(encoding: Encoding, n: int, head: int = 0) -> np.ndarray:
    """The kernel at n positions by the encoding's own rotation, table or vectors, n x n."""
    at = np.arange(n)
    if encoding.rotary is not None and (
        encoding.rotary.turning_heads is None or head < encoding.rotary.turning_heads
    ):
        ones = np.ones((n, encoding.rotary.head_dim))
        # counted from the middle: xPos multiplies queries and keys by large and small factors that cancel
        q = encoding.rotary.rotate(ones, at - n // 2, side="query", context=n)
        k = encoding.rotary.rotate(ones, at - n // 2, side="key", context=n)
        logits = q @ k.T
        return (np.tril(logits) if encoding.rotary.decay_F is not None else logits) / logits[0, 0]
    if encoding.bias is not None:
        table = encoding.bias.table(at, at)[head]
        return np.exp(table - (table[0, 0] if encoding.bias.toeplitz else np.diagonal(table).max()))
    if encoding.input is not None:
        vectors = encoding.input.vectors(at)
        return vectors @ vectors.T * (n / (vectors**2).sum())
    return np.ones((n, n))


def agrees(point: Point, matrix: np.ndarray) -> None:
    n = point.context
    values = np.linalg.svd(matrix, compute_uv=False)
    assert point.lambda_max_over_n * n == pytest.approx(values[0], rel=TOLERANCE)
    assert point.effective_rank == pytest.approx(effective_rank(values), rel=1e-7)
    top = values[0]
    sure = (values > 1e-7 * top).sum(), (values > 1e-16 * top).sum()
    assert point.rank is not None
    assert sure[0] <= point.rank
    if point.rank_statement == "numerical":
        assert point.rank <= max(sure[1], sure[0])
        assert point.tolerance == n * np.finfo(np.float64).eps
    if point.condition is not None and point.condition < 1e5 and sure[0] == n:
        assert point.condition == pytest.approx(top / values[n - 1], rel=1e-6)
    if point.negative is not None and np.array_equal(matrix, matrix.T) and sure[0] == n:
        assert point.negative == (np.linalg.eigvalsh(matrix) < 0).sum()


@st.composite
def encodings(draw: st.DrawFn) -> tuple[Encoding, int]:
    """An encoding of every kind with random parameters, and one of its heads."""
    heads, half = draw(st.integers(1, 6)), draw(st.integers(1, 16))
    number = st.floats(0.05, 3)
    base = draw(st.floats(2, 1e6))
    choices: dict[str, dict[str, Any]] = {
        "none": {},
        "rope": {"base": base},
        "rope-partial": {"rotary_dim": 2 * draw(st.integers(1, half)), "heads": draw(st.integers(1, heads))},
        "mla": {"rope_dim": 2 * draw(st.integers(1, half)), "base": base},
        "xpos": {"base": base, "scale_base": draw(st.floats(100, 2000))},
        "alibi": {"max_bias": draw(st.floats(0.5, 10)), "scale": draw(st.floats(0.1, 2))},
        "t5": {
            "bidirectional": draw(st.booleans()),
            "seed": draw(st.integers(0, 99)),
            "std": draw(st.floats(0.01, 2)),
            "max_distance": draw(st.integers(20, 300)),
        },
        "kerple": {"r1": draw(number), "r2": draw(number)},
        "kerple-power": {"r1": draw(number), "r2": draw(st.floats(0.1, 2))},
        "fire": {"seed": draw(st.integers(0, 99)), "threshold": draw(st.floats(1, 600))},
        "sinusoidal": {
            "base": base,
            "offset": draw(st.integers(0, 5)),
            "scale": draw(number),
            "layout": draw(st.sampled_from(["interleaved", "half"])) if half > 1 else "interleaved",
        },
        "learned": {"seed": draw(st.integers(0, 99))},
        "random": {"std": draw(number)},
    }
    name = draw(st.sampled_from(sorted(choices)))
    sizes = Sizes(2 * half, heads, 2 * half, 512, causal=draw(st.booleans()))
    return make(name, sizes, **choices[name]), draw(st.integers(0, heads - 1))


@settings(deadline=None, max_examples=150)
@given(encodings(), st.one_of(st.sampled_from([1, 2, 33, 300]), st.integers(1, 80)))
def test_structured_equals_dense_for_every_encoding(chosen: tuple[Encoding, int], n: int) -> None:
    encoding, head = chosen
    found = spectrum(encoding, [n], head)
    agrees(found.points[0], dense_kernel(encoding, n, head))
    if encoding.bias is not None:
        table = encoding.bias.table(np.arange(n), np.arange(n))[head]
        if np.abs(table).max() > 0:
            agrees(found.logit_points[0], table)
        else:
            assert found.logit_points[0].effective_rank is None
    else:
        assert found.logit_points == ()


@pytest.mark.parametrize("text", ["rope", "alibi", "t5", "kerple", "xpos", "sinusoidal", "learned", "mla"])
def test_at_512_positions(text: str) -> None:
    encoding = parse(text).build(Sizes(64, 4, 64, 512))
    agrees(spectrum(encoding, [512], 2).points[0], dense_kernel(encoding, 512, 2))


def precise_rank(frequencies_F: np.ndarray, n: int) -> int:
    """The rank of [sum_f cos(w_f (i - j))] to 120 digits."""
    mpmath = pytest.importorskip("mpmath", reason="exact arithmetic needs mpmath, which comes with torch")
    with mpmath.workdps(120):
        frequencies = [mpmath.mpf(float(w)) for w in frequencies_F]
        row = [sum(mpmath.cos(w * t) for w in frequencies) for t in range(n)]
        values = mpmath.eigsy(
            mpmath.matrix([[row[abs(i - j)] for j in range(n)] for i in range(n)]), eigvals_only=True
        )
        return sum(abs(value) > mpmath.mpf(10) ** -90 for value in values)


@pytest.mark.parametrize(("channels", "n"), [(6, 4), (6, 9), (8, 12), (4, 7)])
def test_ranks_called_theorems_are_those_of_exact_arithmetic(channels: int, n: int) -> None:
    """In float64 the slow frequencies of a short context cannot be told from one another; their rank is full."""
    turned = rope(channels, base=1e6)
    assert turned.rotary is not None
    frequencies_F = turned.rotary.frequencies()
    (point,) = spectrum(turned, [n]).points
    assert (point.rank, point.rank_statement) == (precise_rank(frequencies_F, n), "theorem")
    still = np.append(frequencies_F, 0.0)
    assert rotary_rank(still, n) == precise_rank(still, n)
    assert rotary_rank(np.array([np.pi, np.pi, 1.0]), 9) == 3


def test_alibi_is_regular_at_any_context() -> None:
    """S4 and S7: one negative eigenvalue and n - 1 positive ones; n positive ones. No rank falls as n grows."""
    contexts = [2, 64, 2**17, 2**20, 2**22]
    found = spectrum(alibi(1, slopes=[0.5]), contexts)
    for points, negative in ((found.points, 0), (found.logit_points, 1)):
        assert [(point.rank, point.rank_statement, point.negative) for point in points] == [
            (n, "theorem", negative) for n in contexts
        ]
    assert all(a.condition < b.condition for a, b in pairwise(found.logit_points))  # type: ignore[operator]
    assert found.logit_points[3].condition == pytest.approx(2 * 0.347408 * 2.0**40, rel=1e-4)


def test_what_each_statement_rests_on() -> None:
    sizes = Sizes(64, 8, 64, 2**20)
    for text in ("rope", "alibi", "sinusoidal", "none"):
        points = spectrum(parse(text).build(sizes), [32, 2**20]).points
        assert {point.statement for point in points} == {"theorem"}
    kerple = spectrum(parse("kerple").build(sizes), [100, 5000, 2**18])
    assert [point.statement for point in kerple.points] == ["measured", "measured", "bound"]
    for point in (*kerple.points[1:], *kerple.logit_points[1:]):
        assert point.lower is not None
        assert point.upper is not None
        assert point.lower * (1 - 1e-9) <= point.lambda_max_over_n <= point.upper * (1 + 1e-9)
    assert kerple.points[1].effective_rank_statement == "at most"
    assert kerple.points[1].residual is not None
    assert kerple.points[1].residual < 1e-6


def test_beyond_the_dense_limit_the_routes_agree_with_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kerple's power kernel with r2 = 1 is ALiBi: its Lanczos and bounds are checked against ALiBi's closed form."""
    slope = 0.01
    general = parse(f"kerple:kernel=power,r1={slope},r2=1").build(Sizes(8, 1, 8, 6000))
    closed = alibi(1, slopes=[slope])
    there, here = spectrum(general, [6000]), spectrum(closed, [6000])
    assert there.logit_points[0].statement == "measured"
    assert there.logit_points[0].lambda_max_over_n == pytest.approx(here.logit_points[0].lambda_max_over_n, rel=1e-9)
    top = here.points[0].lambda_max_over_n
    assert (there.points[0].lower or 9) <= top <= (there.points[0].upper or 0)
    rank, bound = here.points[0].effective_rank, there.points[0].effective_rank
    assert rank is not None
    assert bound is not None
    assert rank <= bound <= 1.05 * rank
    assert there.logit_points[0].effective_rank is None  # the estimate is far off at 2048, so it is not given
    monkeypatch.setattr(bias_points, "ALL_EIGENVALUES", 4000)
    limit = spectrum(closed, [6000])
    assert limit.points[0].effective_rank_statement == "limit"
    assert limit.points[0].lambda_max_over_n == pytest.approx(top, rel=1e-12)
    assert limit.points[0].effective_rank == pytest.approx(rank, rel=0.02)
    assert limit.points[0].condition == pytest.approx(here.points[0].condition, rel=1e-9)
    assert limit.logit_points[0].condition == pytest.approx(here.logit_points[0].condition, rel=1e-9)


@settings(deadline=None)
@given(st.floats(0.001, 2), st.integers(2, 200))
def test_one_sided_alibi_has_two_singular_values(slope: float, n: int) -> None:
    encoding = alibi(1, slopes=[slope], symmetric=False)
    found = spectrum(encoding, [n])
    table = encoding.bias.table(np.arange(n), np.arange(n))[0]  # type: ignore[union-attr]
    assert found.logit_points[0].rank == 2
    assert found.logit_points[0].lambda_max_over_n * n == pytest.approx(np.linalg.norm(table, 2), rel=1e-9)
    top = np.linalg.norm(np.exp(table), 2)
    assert found.points[0].lambda_max_over_n * n == pytest.approx(top, rel=1e-9)


def test_the_law_stands_beside_plain_rope_only() -> None:
    plain = spectrum(rope(64), [2048, 10**6]).points
    assert plain[0].law == pytest.approx(0.257, abs=5e-4)
    assert plain[1].law is None
    assert plain[0].law_bound is not None
    assert plain[0].law_bound <= plain[0].lambda_max_over_n
    for other in (rope(64, partial=0.5), rope(64, scaling="linear", factor=4), make("mla", Sizes(64, 1, 64, 99))):
        assert spectrum(other, [2048]).points[0].law is None


def test_weights_of_channels_that_do_not_turn() -> None:
    half = rope(8, rotary_dim=4)
    assert half.rotary is not None
    frequencies, weights = rotary_weights(half.rotary)
    assert frequencies[-1] == 0
    assert weights.tolist() == pytest.approx([0.25, 0.25, 0.5])


def test_a_head_that_does_not_turn_is_the_matrix_of_ones() -> None:
    mixed = rope(16, turning_heads=2)
    assert spectrum(mixed, [100], 1).points[0].lambda_max_over_n < 0.8
    assert spectrum(mixed, [100], 2).points[0].lambda_max_over_n == 1


def test_decay_is_the_slope_between_points() -> None:
    found = spectrum(alibi(1, slopes=[1.0]), [1000, 4000])
    assert found.decay[0] == pytest.approx(-1, abs=1e-3)  # the norm is bounded, so norm / n falls like 1/n
    assert spectrum(NONE, [10, 100]).decay == (0,)
    assert plain_data(found)["points"][0]["context"] == 1000


def test_contexts() -> None:
    assert contexts_up_to(131072) == (32, 128, 512, 2048, 8192, 32768, 131072)
    assert contexts_up_to(1000) == (32, 128, 512, 1000)
    assert contexts_up_to(1) == (1,)
    assert [point.context for point in spectrum(NONE, [9, 3, 9]).points] == [3, 9]


def test_what_cannot_be_computed_is_said() -> None:
    table = learned(np.random.default_rng(0).standard_normal((100, 8)))
    found = spectrum(table, [50, 200])
    assert [point.context for point in found.points] == [50]
    assert all(number in found.skipped[0] for number in ("200", "100"))
    fire = make("fire", Sizes(8, 2, 8, 100))
    assert "not Toeplitz" in spectrum(fire, [20, 10**5]).skipped[0]
    steep = spectrum(alibi(1, slopes=[1.0], symmetric=False), [10, 10**6])
    assert "float64" in steep.skipped[0]
    assert len(steep.logit_points) == 2
    both = combine(sinusoidal(8), rope(8))
    assert "input" in spectrum(both, [9]).notes[-1]


def test_degenerate_tables_have_defined_values() -> None:
    flat = spectrum(t5(np.zeros((32, 1))), [40])
    assert flat.points[0].lambda_max_over_n == pytest.approx(1)
    assert flat.logit_points[0].lambda_max_over_n == 0
    assert flat.logit_points[0].effective_rank is None
    still = spectrum(alibi(1, slopes=[0.0]), [40])
    assert still.symbol_range is None
    assert still.points[0].lambda_max_over_n == pytest.approx(1)
    zero = spectrum(learned(np.zeros((40, 4))), [40])
    assert zero.points[0].effective_rank is None
    odd = spectrum(sinusoidal(7), [40]).points[0]
    assert "QR" in odd.method
    assert math.isfinite(odd.lambda_max_over_n)


def test_bad_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadEncoding, match="cope"):
        spectrum(make("cope", Sizes(8, 2, 8, 100)), [10])
    for wrong in (0, 10**13):
        with pytest.raises(BadValue, match=f"context.*{wrong}"):
            spectrum(NONE, [wrong])
    with pytest.raises(BadValue, match=r"spectrum.*context"):
        spectrum(NONE, [])
    with pytest.raises(BadValue, match="head 4"):
        spectrum(alibi(4), [10], head=4)
    with pytest.raises(BadValue, match="-1"):
        spectrum(NONE, [10], head=-1)
    with pytest.raises(BadValue, match="float64"):
        spectrum(t5(np.linspace(0, 900, 32)[:, None]), [500])


def test_no_slope_from_or_to_nothing() -> None:
    """Where position cancels everything there is no logarithm to compare."""
    made = spectrum(NONE, [10, 100])
    nothing = replace(made.points[0], lambda_max_over_n=0.0)
    for points in ((nothing, made.points[1]), (made.points[1], nothing), (nothing, nothing)):
        assert decay(points) == (None,)


def test_what_is_said_of_a_long_context_does_not_depend_on_the_shorter_ones() -> None:
    """The estimate of the effective rank is judged at 2048 positions, whether or not these were asked for."""
    table = 0.2 * np.random.default_rng(0).standard_normal((32, 1))
    alone, among = (spectrum(t5(table), contexts) for contexts in ([2500], [2048, 2500]))
    assert alone.points[-1] == among.points[-1]
    assert alone.logit_points[-1] == among.logit_points[-1]
    said = {alone.points[-1].effective_rank_statement, alone.logit_points[-1].effective_rank_statement}
    assert "estimate" in said


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("offset", [0, 3])
def test_a_sinusoid_of_either_layout_is_read_from_its_own_table(layout: str, offset: int) -> None:
    encoding = sinusoidal(10, layout=layout, base=50.0, offset=offset)  # type: ignore[arg-type]
    assert encoding.input is not None
    rows = encoding.input.vectors(np.arange(40))
    gram = rows @ rows.T
    expected = np.linalg.eigvalsh(gram / gram[0, 0]).max() / 40
    assert spectrum(encoding, [40]).points[0].lambda_max_over_n == pytest.approx(expected, rel=1e-9)


def test_a_bias_linear_in_the_offset_has_two_equal_values() -> None:
    """-m (i - j) is antisymmetric of rank two; at one position it is 0."""
    found = spectrum(alibi(1, symmetric=False), [1, 30]).logit_points
    lags = np.arange(30)[:, None] - np.arange(30)
    exact = np.linalg.svd(alibi(1).parameters["slopes"][0] * lags, compute_uv=False)
    assert [point.effective_rank for point in found] == [None, pytest.approx(2)]
    assert found[1].lambda_max_over_n == pytest.approx(exact[0] / 30)
    assert [point.rank for point in found] == [0, 2]


# ------------------------------------------------------------------ beyond the dense limit
def short_limits(monkeypatch: pytest.MonkeyPatch, dense: int = 64) -> None:
    """The routes of long contexts at lengths that a dense matrix can check."""
    monkeypatch.setattr(toeplitz, "DENSE_LIMIT", dense)


@pytest.mark.parametrize("text", ["kerple", "t5:std=0.3", "t5:std=0.3,bidirectional=true", "xpos:scale_base=20"])
def test_long_routes_agree_with_dense_ones_at_lengths_where_both_go(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = parse(text).build(Sizes(16, 2, 16, 512))
    contexts, head = [40, 64, 65, 150], 1
    exact = spectrum(encoding, contexts, head)
    short_limits(monkeypatch)
    found = spectrum(encoding, contexts, head)
    for points, dense in ((found.points, exact.points), (found.logit_points, exact.logit_points)):
        assert points[:2] == dense[:2]
        for ours, theirs in zip(points[2:], dense[2:], strict=True):
            assert ours.lower is not None
            assert ours.upper is not None
            assert ours.residual is not None or ours.statement == "bound"
            assert ours.lower <= theirs.lambda_max_over_n * (1 + 1e-9)
            assert theirs.lambda_max_over_n <= ours.upper * (1 + 1e-9)
            if ours.statement == "measured":
                assert ours.lambda_max_over_n == pytest.approx(theirs.lambda_max_over_n, rel=1e-6)
            else:
                assert ours.lambda_max_over_n == ours.lower
                assert ours.upper <= 1.001 * ours.lower
            assert (ours.rank, ours.condition, ours.negative, ours.tolerance) == (None,) * 4
            if ours.effective_rank_statement == "at most":
                assert text == "kerple"
                assert ours.effective_rank >= theirs.effective_rank * (1 - 1e-9)  # type: ignore[operator]
            elif ours.effective_rank_statement == "estimate":
                assert ours.effective_rank == pytest.approx(theirs.effective_rank, rel=0.25)
            else:
                assert (ours.effective_rank_statement, ours.effective_rank) == ("not computed", None)
    words = {point.effective_rank_statement for point in found.points[2:]}
    assert words == {"at most"} if text == "kerple" else "at most" not in words
    assert "at most" not in {point.effective_rank_statement for point in found.logit_points}


def lags_of(values: list[float]) -> np.ndarray:
    return np.array([*values[:0:-1], *values])


@pytest.mark.parametrize(("near", "said"), [(0.099, "estimate"), (0.101, "not computed")])
def test_an_estimate_is_given_within_a_tenth_of_the_dense_one(
    near: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effective rank of the circulant at the dense limit is planted that far off, on either side."""
    short_limits(monkeypatch, 4)
    lags = lags_of([3.0, 1.0, 0.5, 0.2, 0.1, 0.0])
    exact = effective_rank(toeplitz.dense_singular_values(lags[2:-2]))
    assert exact is not None
    plain = toeplitz_points.effective_rank
    for off in (1 + near, 1 - near):
        monkeypatch.setattr(
            toeplitz_points,
            "effective_rank",
            lambda values, off=off: exact * off if len(values) == 4 else plain(values),
        )
        for contexts in ([6], [4, 6], [2, 4, 6], [3, 5, 6]):
            (*_, last) = toeplitz_points.toeplitz_points(lags, contexts, positive=False)
            assert last.effective_rank_statement == said
            assert (last.effective_rank is not None) == (said == "estimate")
        (last,) = toeplitz_points.toeplitz_points(lags, [6], positive=True)
        assert last.effective_rank_statement == "at most"


def test_the_search_is_left_out_where_bounds_meet_or_the_text_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def point(values: list[float]) -> Point:
        return toeplitz_points._long(lags_of(values), None, "not computed")

    apart = [1.0, -0.7, 0.4, 0.3, -0.2, 0.1]
    below, above = toeplitz.norm_bounds(lags_of(apart))
    assert above > 1.01 * below
    found = point(apart)
    exact = np.abs(np.linalg.eigvalsh(toeplitz.toeplitz_matrix(lags_of(apart)))).max()
    assert found.statement == "measured"
    assert found.lambda_max_over_n * 6 == pytest.approx(exact, rel=1e-8)
    assert (found.lower, found.upper) == (pytest.approx(below / 6), pytest.approx(above / 6))
    assert found.context == 6
    flat = point([1.0] + [0.0] * 5)  # the identity: both bounds are 1
    assert (flat.statement, flat.residual, flat.lambda_max_over_n) == ("bound", None, pytest.approx(1 / 6))
    monkeypatch.setattr(toeplitz_points, "LANCZOS_LIMIT", 6)
    assert point(apart).statement == "measured"
    monkeypatch.setattr(toeplitz_points, "LANCZOS_LIMIT", 5)
    cut = point(apart)
    assert (cut.statement, cut.residual, cut.lambda_max_over_n) == ("bound", None, cut.lower)
    monkeypatch.undo()
    for share, kept in ((1 - 0.5e-9, True), (1 - 2e-9, False)):  # Lanczos that misses what is known to be there
        monkeypatch.setattr(
            toeplitz,
            "top_singular_value",
            lambda lags, share=share: TopValue(share * below, 0.1, 3, False),
        )
        found = point(apart)
        assert (found.statement == "measured") == kept
        assert found.residual == (0.1 if kept else None)


def test_a_search_says_whether_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for done in (True, False):
        monkeypatch.setattr(toeplitz, "top_singular_value", lambda lags, done=done: TopValue(9.0, 0.1, 3, done))
        said.append(toeplitz_points._long(lags_of([1.0, -0.7, 0.4, 0.3]), None, "").method)
    assert "stopped" not in said[0]
    assert "stopped" in said[1]


@pytest.mark.parametrize("text", ["kerple", "t5", "xpos"])
def test_contexts_beyond_what_can_be_paid_are_left_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bias_points, rotary_points):
        monkeypatch.setattr(module, "LAGS_LIMIT", 50)
    encoding = parse(text).build(Sizes(8, 2, 8, 100))
    some, none = spectrum(encoding, [49, 50, 51, 60]), spectrum(encoding, [51])
    assert [point.context for point in some.points] == [49, 50]
    assert len(some.skipped) == 2
    assert (none.points, none.logit_points, len(none.skipped)) == ((), (), 1)


def test_tables_are_paid_for_by_length_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_points, "GRAM_LIMIT", 50 * 7**2)
    table = learned(np.random.default_rng(0).standard_normal((70, 7)))
    found = spectrum(table, [50, 51, 70, 71])
    assert [point.context for point in found.points] == [50]
    assert len(found.skipped) == 3


def test_a_bias_of_both_positions_is_dense_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    fire = make("fire", Sizes(8, 3, 8, 100))
    short_limits(monkeypatch, 21)
    assert [point.context for point in spectrum(fire, [9, 10, 11]).points] == [9, 10]
    monkeypatch.setattr(bias_points, "BIASES_AT_ONCE", 3 * 64)  # all heads at once: 8 x 8 for each
    found = spectrum(fire, [8, 9], 2)
    assert [point.context for point in found.points] == [8]
    assert len(found.skipped) == 1
    assert {point.negative for point in (*found.points, *found.logit_points)} == {None}  # singular values
    assert {point.statement for point in (*found.points, *found.logit_points)} == {"measured"}


def test_tables_longer_than_a_block_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = learned(np.random.default_rng(1).standard_normal((60, 5)))
    decaying, encoded = parse("xpos:scale_base=9").build(Sizes(8, 2, 8, 100)), [20, 45, 60]
    whole = [spectrum(encoding, encoded).points for encoding in (table, decaying)]
    for module in (table_points, rotary_points):
        monkeypatch.setattr(module, "_ROWS", 16)
    for encoding, points in zip((table, decaying), whole, strict=True):
        for ours, theirs in zip(spectrum(encoding, encoded).points, points, strict=True):
            assert ours.lambda_max_over_n == pytest.approx(theirs.lambda_max_over_n, rel=1e-12)
            assert ours.effective_rank == pytest.approx(theirs.effective_rank, rel=1e-12)
            agrees(ours, dense_kernel(encoding, ours.context))


def test_long_biases_are_read_in_pieces() -> None:
    """65,536 offsets at a time: the lags of 40,000 positions are two pieces."""
    lags = bias_points._offsets(parse("kerple:r1=0.5/2").build(Sizes(8, 2, 8, 100)), 40_000, 1)
    np.testing.assert_allclose(lags, -2 * np.log1p(np.abs(np.arange(-39_999, 40_000))), rtol=1e-12)


def test_kernels_foresee_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, module in (("kerple", bias_points), ("xpos", rotary_points)):
        asked: list[float] = []
        monkeypatch.setattr(module, "require_memory", lambda needed, what, advice, asked=asked: asked.append(needed))
        spectrum(parse(text).build(Sizes(8, 1, 8, 100)), [30, 80])
        assert asked == [64 * 80]  # eight numbers for each position of the longest context


# ------------------------------------------------------------------ what a point says
def test_a_point_says_what_its_numbers_rest_on() -> None:
    made = of_values
    small = 1e-30
    some = Spectrum(np.array([4.0, -2.0, small, 0.0]), 4)
    plain = made(some, "m", statement="measured")
    assert (plain.rank, plain.rank_statement, plain.condition, plain.condition_statement) == (
        2,
        "numerical",
        2.0,
        "numerical",
    )
    assert (plain.negative, plain.tolerance) == (1, some.tolerance)
    assert (plain.statement, plain.effective_rank_statement) == ("measured", "measured")
    assert (plain.law, plain.law_bound) == (None, None)
    known = made(some, "m", rank=3)
    assert (known.rank, known.rank_statement, known.condition, known.condition_statement) == (
        3,
        "theorem",
        2.0,
        "at least",
    )
    assert known.tolerance == some.tolerance
    assert made(some, "m", rank=2).condition_statement == "numerical"
    regular = made(some, "m", rank=3, regular=True)  # what is listed and not 0 is right, however small
    assert (regular.condition, regular.condition_statement, regular.tolerance) == (4.0 / small, "theorem", None)
    assert made(some, "m", signed=False).negative is None
    assert made(some, "m", signed=False, negative=3).negative == 3
    assert made(some, "m", negative=0).negative == 0
    nothing = Spectrum(np.zeros(2), 2)
    for point in (made(nothing, "m", rank=0, regular=True), made(nothing, "m", rank=0)):
        assert (point.condition, point.condition_statement) == (None, None)


def test_ones_are_of_rank_one() -> None:
    (point,) = spectrum(NONE, [7]).points
    assert (point.rank, point.condition, point.effective_rank, point.negative) == (1, 1.0, 1.0, 0)
    assert (point.rank_statement, point.condition_statement, point.tolerance) == ("theorem", "theorem", None)
    (lone,) = spectrum(alibi(1, slopes=[0.3], symmetric=False), [7]).points
    assert (lone.rank, lone.condition, lone.rank_statement) == (1, 1.0, "theorem")


def test_the_ranks_of_the_smallest_biases() -> None:
    """At one position ALiBi's bias is the number 0; at two it has eigenvalues +m and -m."""
    one, two = spectrum(alibi(1, slopes=[0.3]), [1, 2]).logit_points
    assert (one.rank, one.negative, one.condition, one.effective_rank) == (0, 0, None, None)
    assert (two.rank, two.negative, two.condition) == (2, 1, pytest.approx(1.0))
    assert two.lambda_max_over_n == pytest.approx(0.15)


def test_one_sided_alibi_reaches_to_the_range_of_float64() -> None:
    steep = alibi(1, slopes=[0.5], symmetric=False)
    found = spectrum(steep, [1399, 1400, 1401])
    assert [point.context for point in found.points] == [1399, 1400]
    assert len(found.skipped) == 1
    assert len(found.logit_points) == 3
    reversed_ = alibi(1, slopes=[-0.5], symmetric=False)  # the mirror image: the same values
    a, b = spectrum(steep, [20]), spectrum(reversed_, [20])
    assert a.points[0].lambda_max_over_n == b.points[0].lambda_max_over_n
    assert a.logit_points[0] == b.logit_points[0]
    rising = alibi(1, slopes=[-0.5])  # grows with the distance: no closed form is known for it
    agrees(spectrum(rising, [20]).points[0], dense_kernel(rising, 20))


def test_exp_of_a_bias_stays_within_float64() -> None:
    for most, fine in ((699.0, True), (701.0, False)):
        table = np.zeros((32, 1))
        table[5] = most
        if fine:
            assert math.isfinite(spectrum(t5(table), [20]).points[0].lambda_max_over_n)
            table[0] = most  # only differences count
            assert math.isfinite(spectrum(t5(table + 300), [20]).points[0].lambda_max_over_n)
        else:
            with pytest.raises(BadValue):
                spectrum(t5(table), [20])


def test_slopes_from_point_to_point() -> None:
    made = spectrum(NONE, [10, 40, 160])
    points = tuple(
        replace(point, lambda_max_over_n=value) for point, value in zip(made.points, (1.0, 0.5, 0.5), strict=True)
    )
    assert decay(points) == (pytest.approx(-0.5), 0.0)
    for where in (0, 1):
        bound = [*points]
        bound[where] = replace(points[where], statement="bound")
        assert decay(tuple(bound))[0] is None
    assert decay(points[:1]) == ()
    assert made.decay == decay(made.points)


def test_contexts_are_whole_numbers_within_reach() -> None:
    assert contexts_up_to(32) == (32,)
    assert contexts_up_to(33) == (32, 33)
    assert contexts_up_to(2**40)[-2:] == (2**39, 2**40)
    assert spectrum(NONE, [2**40]).points[0].context == 2**40
    for wrong in (0, -1, 2**40 + 1, 1.5, True):
        with pytest.raises(BadValue):
            contexts_up_to(wrong)  # type: ignore[arg-type]


def test_parts_that_are_left_aside_are_noted() -> None:
    three = combine(combine(sinusoidal(8), rope(8)), alibi(2))
    assert len(spectrum(three, [9]).notes) == len(three.notes) + 2
    two = combine(sinusoidal(8), alibi(2))
    for whole, part, head in ((three, rope(8), 0), (two, alibi(2), 1)):
        found, alone = (spectrum(each, [9], head).points[0] for each in (whole, part))
        assert found.lambda_max_over_n == pytest.approx(alone.lambda_max_over_n, rel=1e-12)
        assert found.effective_rank == pytest.approx(alone.effective_rank, rel=1e-9)
    assert spectrum(rope(8), [9]).notes == rope(8).notes
    assert spectrum(alibi(2), [9], 1).head == 1


def test_ranks_of_frequencies_on_the_circle() -> None:
    """Points e^(+-iw): two for each angle, one at 0 and at pi; what differs by a turn is the same."""
    for frequencies, rank in (
        ([1.0], 2),
        ([0.0], 1),
        ([np.pi], 1),
        ([1.0, -1.0], 2),
        ([1.0, 2 * np.pi - 1.0], 2),
        ([0.0, 1.0, np.pi], 4),
        ([0.5, 1.0, 1.5], 6),
    ):
        assert rotary_rank(np.array(frequencies), 100) == rank
        assert rotary_rank(np.array(frequencies), 1) == 1


def test_an_attention_factor_weighs_the_pairs_that_turn() -> None:
    encoding = rope(8, rotary_dim=4, scaling="yarn", factor=8.0, original_context=16)
    rotary = encoding.rotary
    assert rotary is not None
    assert rotary.attention_factor != 1
    _, weights = rotary_weights(rotary)
    pair = 2 * rotary.attention_factor**2
    assert weights.tolist() == pytest.approx(np.array([pair, pair, 4.0]) / (2 * pair + 4))
    agrees(spectrum(encoding, [30]).points[0], dense_kernel(encoding, 30))


def test_sinusoids_of_no_size_and_of_any_offset() -> None:
    nothing = spectrum(sinusoidal(8, scale=0.0), [10]).points[0]
    assert (nothing.lambda_max_over_n, nothing.effective_rank) == (0.0, None)
    for scale in (1.0, -2.0):
        encoding = sinusoidal(8, scale=scale, offset=4, base=30.0)
        agrees(spectrum(encoding, [25]).points[0], dense_kernel(encoding, 25))
    point = spectrum(sinusoidal(8, base=30.0), [25]).points[0]
    assert point.law is None
    assert point.law_bound is not None
    assert 0.5 * point.lambda_max_over_n < point.law_bound <= point.lambda_max_over_n
    assert point.rank_statement == "theorem"


def test_negative_eigenvalues_are_counted_of_symmetric_kernels() -> None:
    lags = lags_of([1.0, -0.7, 0.4, 0.3])
    (point,) = toeplitz_points.toeplitz_points(lags, [4], positive=False)
    dense = scipy.linalg.toeplitz(lags[3:])
    assert point.negative == int((np.linalg.eigvalsh(dense) < 0).sum()) > 0
    (skew,) = toeplitz_points.toeplitz_points(np.arange(7.0), [4], positive=False)
    assert skew.negative is None
