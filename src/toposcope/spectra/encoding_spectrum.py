"""What an encoding's positional kernel looks like at every context: norm, effective rank, condition, decay.

The kernel of an encoding is the matrix that position alone makes of constant content:

* rotary: T_n(g), g(t) = sum_f a_f cos(w_f t), equal weights, unit diagonal (S5d); channels that do not
  turn have w = 0;
* xPos: the same with its decay, for i >= j only (towards the future it would grow without bound);
* bias: exp(B), divided by exp(b(0)), the factor it puts on exp(logits) (S7); and B itself, in `logit_points`;
* absolute: the Gram matrix P P^T of the position vectors, divided by its mean diagonal;
* none: the matrix of ones.

No mask is applied except where said. Each point says whether its norm is a theorem (closed form, exact up to
rounding), measured (dense or Lanczos, with its residual) or a bound (it lies between two numbers that are theorems).
Rank and condition have words of their own, since a closed form of the norm is none of theirs: a rank is a theorem
where the matrix is known to be regular, or of known rank, and else numerical (values above a tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.memory import foresee
from toposcope.core.printable import printable
from toposcope.encodings.record import Encoding, InputTable, Rotary
from toposcope.encodings.registry import LARGEST
from toposcope.spectra import bias_kernel, toeplitz
from toposcope.spectra.rotary_kernel import constant_vector_bound, contraction_law, kernel_spectrum
from toposcope.spectra.singular import effective_rank
from toposcope.spectra.toeplitz import Spectrum

Array = NDArray[np.float64]
Statement = Literal["theorem", "measured", "bound"]
RankStatement = Literal["theorem", "numerical"]
ConditionStatement = Literal["theorem", "numerical", "at least"]
ALL_EIGENVALUES = 2**21  # ALiBi: beyond it only the extremes are computed
LANCZOS_LIMIT = 2**17  # other biases: beyond it only bounds are computed
LAGS_LIMIT = 2**22  # any Toeplitz matrix without a closed form: at it about a minute, beyond it hours
GRAM_LIMIT = 2e12  # operations on a table of position vectors: some minutes
BIASES_AT_ONCE = 2**24  # entries of a table with all heads of a bias that is not Toeplitz
DECAYING = "decaying rotary kernel, equal weights, for i >= j only"
_ROWS = 4096


@dataclass(frozen=True)
class Point:
    """One context. `lambda_max_over_n` is the spectral norm over n, which lies in [`lower`, `upper`] (both over n).

    `statement` speaks of the norm, `effective_rank_statement` of the effective rank ("at most": a theorem; "limit":
    its value for n to infinity; "estimate": within a tenth of the truth where that could be checked).

    `rank_statement` is "theorem", or "numerical": then `rank` counts the values above `tolerance` times the largest,
    and falls where more of them drop below it. `condition_statement` is "theorem", "numerical" (largest over smallest
    computed value), or "at least": values below the tolerance exist, so the true condition number is larger. Both are
    None where nothing was computed. Where `statement` is "bound", `lambda_max_over_n` is `lower`, a lower bound.
    `residual` belongs to Lanczos. `law` is S5g's, `law_bound` its lower bound.
    """

    context: int
    lambda_max_over_n: float
    effective_rank: float | None
    condition: float | None
    rank: int | None
    statement: Statement
    method: str
    residual: float | None = None
    effective_rank_statement: str = "theorem"
    lower: float | None = None
    upper: float | None = None
    negative: int | None = None
    law: float | None = None
    law_bound: float | None = None
    rank_statement: RankStatement | None = None
    condition_statement: ConditionStatement | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class EncodingSpectrum:
    """The spectrum of one encoding over contexts. `logit_points` is the summand B of a bias; empty for the others."""

    name: str
    title: str
    kernel: str
    head: int
    points: tuple[Point, ...]
    logit_points: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def decay(self) -> tuple[float | None, ...]:
        """How fast lambda_max / n falls: d ln(lambda_max/n) / d ln n from each point to the next; None for bounds."""
        return tuple(
            math.log(b.lambda_max_over_n / a.lambda_max_over_n) / math.log(b.context / a.context)
            if a.lambda_max_over_n > 0 and b.lambda_max_over_n > 0 and "bound" not in (a.statement, b.statement)
            else None
            for a, b in zip(self.points, self.points[1:], strict=False)
        )

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**asdict(self), "decay": list(self.decay())}


def spectrum(encoding: Encoding, contexts: Sequence[int], head: int = 0) -> EncodingSpectrum:
    """The spectrum of an encoding's positional kernel at the given contexts, by the fastest route that is exact.

    `head` chooses the head of a bias. An encoding that is not given by tables is refused (`Encoding.tables`); one
    with several mechanisms is taken at its rotary part, then its bias, then its input, and says so.
    """
    encoding.tables()
    wanted = sorted({_whole(n) for n in contexts})
    if not wanted:
        raise BadValue("a spectrum needs at least one context.")
    if head < 0:
        raise BadValue(f"heads are counted from 0, got {head}.")
    used = encoding.rotary or encoding.bias or encoding.input
    others = [part for part in encoding.mechanisms if getattr(encoding, part) is not used]
    notes = (*encoding.notes, *(f"its {part} part is left aside here." for part in others))
    if encoding.rotary is not None:
        turns = encoding.rotary.turning_heads is None or head < encoding.rotary.turning_heads
        if not turns:
            made = _result(encoding, "ones: this head does not turn", head, (_ones(n) for n in wanted))
        elif encoding.rotary.decay_F is not None:
            made = _decaying(encoding, encoding.rotary, wanted, head)
        else:
            made = _rotary(encoding, encoding.rotary, wanted, head)
    elif encoding.bias is not None:
        if head >= encoding.bias.heads:
            raise BadValue(f"'{encoding.name}' has heads 0 to {encoding.bias.heads - 1}, head {head} was asked for.")
        made = _bias(encoding, wanted, head)
    elif encoding.input is not None:
        made = _absolute(encoding, encoding.input, wanted, head)
    else:
        made = _result(encoding, "ones: nothing tells positions apart", head, (_ones(n) for n in wanted))
    return EncodingSpectrum(**{**_fields(made), "notes": (*notes, *made.notes)})


def contexts_up_to(context: int) -> tuple[int, ...]:
    """32, 128, 512, ... below the context, and the context itself."""
    context = _whole(context)
    powers = (32 * 4**i for i in range(64))
    return (*(n for n in powers if n < context), context)


# ------------------------------------------------------------------ rotary
def rotary_weights(rotary: Rotary, context: int | None = None) -> tuple[Array, Array]:
    """Frequencies and weights of the kernel that constant content gives: every channel alike, sum 1.

    A pair that turns weighs 2 c^2, c the attention factor on both query and key; channels that do not turn weigh 1
    each and stand together at frequency 0.
    """
    frequencies_F = rotary.frequencies(context)
    weights_F = np.full(len(frequencies_F), 2.0 * rotary.attention_factor**2)
    still = rotary.head_dim - rotary.channels
    if still:
        frequencies_F, weights_F = np.append(frequencies_F, 0.0), np.append(weights_F, float(still))
    return frequencies_F, weights_F / weights_F.sum()


def _rotary(encoding: Encoding, rotary: Rotary, contexts: Sequence[int], head: int) -> EncodingSpectrum:
    given = encoding.parameters
    lawful = given.get("scaling") == "default" and rotary.channels == rotary.head_dim and "divisors" not in given
    lawful = lawful and given.get("frequency_dim") is None

    def points() -> Iterator[Point]:
        for n in contexts:
            frequencies_F, weights_F = rotary_weights(rotary, n)
            law = contraction_law(n, float(given["base"]), rotary.head_dim) if lawful else None
            yield _of_values(
                kernel_spectrum(frequencies_F, weights_F, n),
                "closed form: Dirichlet sums",
                rank=rotary_rank(frequencies_F, n),
                law=law,
                law_bound=constant_vector_bound(frequencies_F, weights_F, n),
            )

    return _result(encoding, "rotary kernel, equal weights, unit diagonal", head, points())


def rotary_rank(frequencies_F: Array, n: int) -> int:
    """The rank of T_n(g) for positive weights: the number of different e^(i w), e^(-i w) among them, at most n.

    T_n(g) = V M V^T with V the Vandermonde matrix of these points, which has full rank where they differ.
    """
    turn_F = np.mod(np.abs(frequencies_F), 2 * np.pi)
    angles = np.unique(np.minimum(turn_F, 2 * np.pi - turn_F))  # two points on the circle each; at 0 and pi one
    return min(n, 2 * len(angles) - int(((angles == 0) | (angles == np.pi)).sum()))


def _decaying(encoding: Encoding, rotary: Rotary, contexts: Sequence[int], head: int) -> EncodingSpectrum:
    frequencies_F, weights_F = rotary_weights(rotary)
    assert rotary.decay_F is not None
    contexts, skipped = _affordable(contexts, LAGS_LIMIT)
    if not contexts:
        return _result(encoding, DECAYING, head, (), skipped=skipped)
    decay_F = np.append(rotary.decay_F, np.zeros(len(frequencies_F) - len(rotary.pairs_F2)))
    foresee(64 * contexts[-1], f"a kernel at {contexts[-1]:,} positions", "Use a shorter context.")
    past = np.empty(contexts[-1])
    for first in range(0, len(past), _ROWS):
        at = np.arange(first, min(first + _ROWS, len(past)))[:, None]
        past[at[:, 0]] = (np.exp(-at * decay_F) * np.cos(at * frequencies_F)) @ weights_F
    points = _toeplitz(np.concatenate([np.zeros(len(past) - 1), past]), contexts, positive=False)
    return _result(encoding, DECAYING, head, points, skipped=skipped)


# ------------------------------------------------------------------ biases
def _bias(encoding: Encoding, contexts: Sequence[int], head: int) -> EncodingSpectrum:
    bias = encoding.bias
    assert bias is not None
    kernel = "exp(bias) over exp(bias at 0); the bias itself in logit_points"
    if not bias.toeplitz:
        return _two_sided(encoding, contexts, head, kernel)
    near = bias.by_offset([-1, 0, 1])[head]
    if encoding.name == "alibi" and near[1] == 0:
        if near[0] == near[2] < 0:
            slope = float(-near[2])
            return _result(
                encoding,
                kernel,
                head,
                (_alibi_kernel(slope, n) for n in contexts),
                (_alibi_logits(slope, n) for n in contexts),
            )
        if near[0] == -near[2] != 0:
            return _one_sided_alibi(encoding, float(abs(near[2])), contexts, head, kernel)
    contexts, skipped = _affordable(contexts, LAGS_LIMIT)
    if not contexts:
        return _result(encoding, kernel, head, (), skipped=skipped)
    longest = contexts[-1]
    lags = _offsets(encoding, longest, head)
    own = lags[longest - 1]
    if (lags - own).max() > 700:
        raise BadValue(f"exp of head {head}'s bias leaves the range of float64 at {longest} positions.")
    positive = encoding.name == "kerple"  # a conditionally positive definite bias has a positive exp (Schoenberg)
    return _result(
        encoding,
        kernel,
        head,
        _toeplitz(np.exp(lags - own), contexts, positive=positive),
        _toeplitz(lags, contexts, positive=False),
        skipped=skipped,
    )


def _affordable(contexts: Sequence[int], most: float) -> tuple[list[int], tuple[str, ...]]:
    """The contexts that can be computed in minutes, and a sentence for each of the others."""
    inside = [n for n in contexts if n <= most]
    return inside, tuple(
        f"{n:,} positions: without a closed form that would take hours; at most {int(most):,} are computed."
        for n in contexts
        if n > most
    )


def _offsets(encoding: Encoding, longest: int, head: int) -> Array:
    """The bias of one head at offsets -(n-1) .. n-1, in pieces: a bias table holds all heads at once."""
    assert encoding.bias is not None
    foresee(64 * longest, f"a kernel at {longest:,} positions", "Use a shorter context.")
    lags = np.empty(2 * longest - 1)
    for first in range(0, len(lags), 2**16):
        piece = np.arange(first, min(first + 2**16, len(lags)))
        lags[piece] = encoding.bias.by_offset(piece - (longest - 1))[head]
    return lags


def _alibi_kernel(slope: float, n: int) -> Point:
    if n <= ALL_EIGENVALUES:
        values = bias_kernel.alibi_kernel_eigenvalues(slope, n)
        return _of_values(Spectrum(values, n), "closed form: roots of the KMS matrix", rank=n, regular=True)
    least, largest = bias_kernel.alibi_kernel_extremes(slope, n)
    return Point(
        context=n,
        lambda_max_over_n=largest / n,
        effective_rank=n * bias_kernel.alibi_effective_rank_limit(slope),
        condition=largest / least,
        rank=n,
        statement="theorem",
        method="closed form: extreme roots of the KMS matrix; effective rank from the symbol",
        effective_rank_statement="limit",
        negative=0,
        rank_statement="theorem",
        condition_statement="theorem",
    )


def _alibi_logits(slope: float, n: int) -> Point:
    if n <= ALL_EIGENVALUES:
        values = bias_kernel.alibi_logit_eigenvalues(slope, n)
        more = int(n > 1)  # at n = 1 the matrix is zero
        return _of_values(
            Spectrum(values, n), "closed form: roots of |i-j|", rank=n * more, regular=n > 1, negative=more
        )
    negative, _, least = bias_kernel.alibi_logit_extremes(slope, n)
    # |lambda| falls like 1/k^2 and keeps its ratios as n grows, so the effective rank has a limit.
    limit = effective_rank(bias_kernel.alibi_logit_eigenvalues(slope, ALL_EIGENVALUES))
    return Point(
        context=n,
        lambda_max_over_n=-negative / n,
        effective_rank=limit,
        condition=-negative / least,
        rank=n,
        statement="theorem",
        method=f"closed form: extreme roots of |i-j|; effective rank as at n = {ALL_EIGENVALUES}",
        effective_rank_statement="limit",
        negative=1,
        rank_statement="theorem",
        condition_statement="theorem",
    )


def _one_sided_alibi(
    encoding: Encoding, slope: float, contexts: Sequence[int], head: int, kernel: str
) -> EncodingSpectrum:
    """-m (i-j) has two equal singular values m n sqrt((n^2-1)/12); its exp has one, sinh(m n) / sinh(m)."""
    points, skipped = [], []
    for n in contexts:
        if slope * n > 700:
            skipped.append(
                f"exp(bias) at {n} positions leaves the range of float64: unmasked, it rewards the future."
            )
        else:
            top = math.sinh(slope * n) / math.sinh(slope)
            points.append(_of_values(Spectrum(np.array([top]), n), "closed form: rank one", rank=1, regular=True))
    logits = (
        _of_values(
            Spectrum(slope * n * math.sqrt((n * n - 1) / 12) * np.ones(2), n),
            "closed form: rank two",
            rank=2 if n > 1 else 0,
            regular=n > 1,
        )
        for n in contexts
    )
    return _result(encoding, kernel, head, points, logits, skipped=tuple(skipped))


def _two_sided(encoding: Encoding, contexts: Sequence[int], head: int, kernel: str) -> EncodingSpectrum:
    """A bias that depends on both positions has no structure to use: dense, where that is possible."""
    assert encoding.bias is not None
    limit = min(toeplitz.DENSE_LIMIT // 2, math.isqrt(BIASES_AT_ONCE // encoding.bias.heads))
    points: list[Point] = []
    logits: list[Point] = []
    for n in (n for n in contexts if n <= limit):
        table = encoding.bias.table(np.arange(n), np.arange(n))[head]
        shifted = np.exp(table - np.diagonal(table).max())
        for made, matrix in ((points, shifted), (logits, table)):
            values = np.linalg.svd(matrix, compute_uv=False)
            made.append(_of_values(Spectrum(values, n), "dense singular values", statement="measured", signed=False))
    skipped = tuple(
        f"{n} positions: this bias is not Toeplitz, and a dense matrix of {n} x {n} ({8 * n * n / 1e9:.2g} GB) is "
        f"refused (limit {limit})."
        for n in contexts
        if n > limit
    )
    return _result(encoding, kernel.replace("at 0", "largest on the diagonal"), head, points, logits, skipped=skipped)


def _toeplitz(lags: Array, contexts: Sequence[int], *, positive: bool) -> Iterator[Point]:
    """Any Toeplitz matrix, from the lags of the longest context; `positive`: known to be positive semidefinite.

    Dense to 2048, Lanczos to 2^17, beyond it, or where they are within a thousandth, bounds alone. Beyond 2048 the
    effective rank is that of the optimal circulant: a theorem ("at most") for positive matrices, for others an
    estimate that is given only where it is within a tenth of the dense one at n = 2048.
    """
    longest = (len(lags) + 1) // 2
    symmetric = bool(np.array_equal(lags, lags[::-1]))

    def cut(n: int) -> Array:
        return lags[longest - n : longest + n - 1]

    def dense(n: int) -> Spectrum:
        return Spectrum(toeplitz.dense_singular_values(cut(n)), n)

    checked: float | None = None  # the dense effective rank at the limit
    words = "at most"
    for n in contexts:
        if n <= toeplitz.DENSE_LIMIT:
            found = dense(n)
            checked = found.effective_rank if n == toeplitz.DENSE_LIMIT else None
            yield _of_values(found, "dense eigenvalues", statement="measured", signed=symmetric)
            continue
        rank = effective_rank(np.abs(toeplitz.optimal_circulant(cut(n))))
        if not positive:
            if checked is None:
                checked = dense(toeplitz.DENSE_LIMIT).effective_rank or 0.0
            guess = effective_rank(np.abs(toeplitz.optimal_circulant(cut(toeplitz.DENSE_LIMIT)))) or 0.0
            near = abs(guess - checked) <= 0.1 * checked
            rank, words = (rank, "estimate") if near else (None, "not computed")
        yield _long_toeplitz(cut(n), rank, words)


def _long_toeplitz(lags: Array, rank: float | None, words: str) -> Point:
    n = (len(lags) + 1) // 2
    below, above = toeplitz.norm_bounds(lags)
    statement: Statement = "bound"
    residual, top, method = None, below, "circulants inside and outside; the lower bound is shown"
    if n <= LANCZOS_LIMIT and above > 1.001 * below:
        found = toeplitz.top_singular_value(lags)
        if found.value >= below * (1 - 1e-9):  # Lanczos has reached what is known to be there
            residual, top, statement = found.residual, found.value, "measured"
            method = "Lanczos" if found.converged else "Lanczos, stopped early"
    return Point(
        context=n,
        lambda_max_over_n=top / n,
        effective_rank=rank,
        condition=None,
        rank=None,
        statement=statement,
        method=method if rank is None else f"{method}; effective rank of the optimal circulant",
        residual=residual,
        effective_rank_statement=words,
        lower=below / n,
        upper=above / n,
    )


# ------------------------------------------------------------------ absolute
def _absolute(encoding: Encoding, table: InputTable, contexts: Sequence[int], head: int) -> EncodingSpectrum:
    kernel = "Gram matrix of the position vectors over its mean diagonal"
    frequencies_F = _sinusoid(encoding, table)
    if frequencies_F is not None:
        weights_F = np.full(len(frequencies_F), 1 / len(frequencies_F))
        points = (
            _of_values(
                kernel_spectrum(frequencies_F, weights_F, n),
                "closed form: Dirichlet sums",
                rank=rotary_rank(frequencies_F, n),
                law_bound=constant_vector_bound(frequencies_F, weights_F, n),
            )
            for n in contexts
        )
        return _result(encoding, kernel, head, points)
    inside = [n for n in contexts if table.length is None or n <= table.length]
    skipped = tuple(
        f"{n} positions: the table holds {table.length}, and has no vectors beyond."
        for n in contexts
        if n not in inside
    )
    inside, dear = _affordable(inside, GRAM_LIMIT / table.width**2)
    return _result(encoding, kernel, head, _gram(table, inside), skipped=(*skipped, *dear))


def _gram(table: InputTable, contexts: Sequence[int]) -> Iterator[Point]:
    """P P^T from the triangular factor of P, grown block by block: P P^T and R R^T share their non-zero spectrum."""
    factor: Array = np.zeros((0, table.width))
    done, squares = 0, 0.0
    for n in contexts:
        while done < n:
            block = table.vectors(np.arange(done, min(done + _ROWS, n)))
            squares += float((block**2).sum())
            factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
            done += len(block)
        values = np.asarray(np.linalg.svd(factor, compute_uv=False) ** 2, dtype=np.float64)
        yield _of_values(
            Spectrum(values * (n / squares) if squares else values, n), "thin QR of the table", statement="measured"
        )


def _sinusoid(encoding: Encoding, table: InputTable) -> Array | None:
    """The frequencies of a sinusoid of even width, read from its own table: there P P^T is a rotary kernel."""
    if encoding.name != "sinusoidal" or table.width % 2 or encoding.parameters["scale"] == 0:
        return None
    vectors = table.vectors([1 - float(encoding.parameters["offset"])])[0]
    sine, cosine = (
        (vectors[0::2], vectors[1::2]) if encoding.parameters["layout"] == "interleaved" else np.split(vectors, 2)
    )
    return np.asarray(np.arctan2(sine, cosine), dtype=np.float64)


# ------------------------------------------------------------------ helpers
def _of_values(
    found: Spectrum,
    method: str,
    *,
    statement: Statement = "theorem",
    signed: bool = True,
    rank: int | None = None,
    regular: bool = False,
    negative: int | None = None,
    law: float | None = None,
    law_bound: float | None = None,
) -> Point:
    """A point from a list of values. `rank` is what a theorem says it is; `regular`: every listed value that is not 0
    is right to a few digits however small, so that largest over smallest is the condition number.
    """
    sizes = found.sizes[found.sizes > 0]
    counted = found.rank if rank is None else rank
    if regular:
        condition, how = (float(sizes[0] / sizes[-1]) if len(sizes) else None), "theorem"
    else:
        condition, how = found.condition, "at least" if found.rank < counted else "numerical"
    return Point(
        context=found.context,
        lambda_max_over_n=found.lambda_max_over_n,
        effective_rank=found.effective_rank,
        condition=condition,
        rank=counted,
        statement=statement,
        method=method,
        effective_rank_statement=statement,
        negative=negative if negative is not None else found.negative if signed else None,
        law=law,
        law_bound=law_bound,
        rank_statement="numerical" if rank is None else "theorem",
        condition_statement=None if condition is None else how,  # type: ignore[arg-type]
        tolerance=found.tolerance if rank is None or how != "theorem" else None,
    )


def _ones(n: int) -> Point:
    return _of_values(Spectrum(np.array([float(n)]), n), "closed form: rank one", rank=1, regular=True)


def _result(
    encoding: Encoding,
    kernel: str,
    head: int,
    points: Iterator[Point] | Sequence[Point],
    logits: Iterator[Point] | Sequence[Point] = (),
    *,
    skipped: tuple[str, ...] = (),
) -> EncodingSpectrum:
    return EncodingSpectrum(
        name=encoding.name,
        title=encoding.title,
        kernel=kernel,
        head=head,
        points=tuple(points),
        logit_points=tuple(logits),
        skipped=skipped,
    )


def _fields(made: EncodingSpectrum) -> dict[str, Any]:
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def _whole(n: int) -> int:
    if isinstance(n, bool) or not 1 <= n <= LARGEST["context"] or int(n) != n:
        most = f"{LARGEST['context']:,}"
        raise BadValue(f"a context is a whole number of positions, from 1 to {most}; got {printable(n, 40)}.")
    return int(n)
