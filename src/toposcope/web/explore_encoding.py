"""The encoding explorer: kernel, spectrum, norm and law of one encoding, quickly enough to follow a hand on a slider.

Closed forms (rotary, sinusoidal, ALiBi, none) are exact at any context within milliseconds. Where only dense or
iterative routes exist, a moving hand gets what can be had at once (dense values of short contexts, else bounds of
two circulants), a resting one (`settled`) dense values of longer contexts and Lanczos. Every number says which it is.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.encodings import Encoding, EncodingSpec, Sizes, parse
from toposcope.spectra import bias_kernel, toeplitz
from toposcope.spectra.encoding_spectrum import spectrum_of
from toposcope.spectra.offsets import symbol_range
from toposcope.spectra.points import Point
from toposcope.spectra.rotary_kernel import contraction_law, kernel_spectrum, kernel_values, rotary_weights
from toposcope.web.query import Query

Array = NDArray[np.float64]

LONGEST = 2**24
WIDEST_HEAD = 256
MOST_HEADS = 64
WIDEST = 512  # model width, where position vectors have it
TABLE_LENGTH = 2048  # positions of a learned or random table where none are asked for
MOST = {"length": 4096, "buckets": 4096, "hidden": 64, "positions": 4096}  # parameters that set the size of a table
BUDGET = 0.03  # seconds a moving hand lets the curve take beside the point itself
DENSE_LIVE, BOUND_LIVE = 192, 2**13  # contexts of dense values and of bounds while the hand moves
DENSE_SETTLED, SETTLED = 1024, 2**17
TWO_SIDED = 2**20  # entries of all heads of a bias that depends on both positions
ALL_ALIBI = 2**12
CURVE = tuple(2**k for k in range(4, 21, 2))


def explore(query: Query) -> dict[str, Any]:
    """Everything the page shows for one position of its controls."""
    text = query.text("encoding", "rope")
    head_dim = query.whole("head_dim", 64, 2, WIDEST_HEAD)
    heads = query.whole("heads", 8, 1, MOST_HEADS)
    head = query.whole("head", 0, 0, MOST_HEADS - 1)
    context = query.whole("context", 4096, 1, LONGEST)
    settled = query.flag("settled", False)
    query.close()
    if head >= heads:
        raise BadValue(f"'head' is {head}, but there are {heads} heads, 0 to {heads - 1}.")
    started = time.perf_counter()
    encoding = _built(text, head_dim, heads, context)
    point, reason = _point(text, head_dim, heads, context, head, context, settled)
    curve, complete = _curve(text, head_dim, heads, context, head, settled, started)
    if point is not None and all(each["context"] != context for each in curve):
        curve = sorted([*curve, asdict(point)], key=lambda each: each["context"])
    offsets, values = _kernel(encoding, head, context)
    return {
        "encoding": text,
        "title": encoding.title,
        "words": _words(encoding),
        "notes": list(encoding.notes),
        "context": context,
        "point": None if point is None else asdict(point),
        "why_not": reason,
        "curve": curve,
        "law_line": _law_line(encoding),
        "kernel": None if values is None else {"offsets": offsets, "values": values},
        "spectrum": _values(encoding, head, context, settled),
        "symbol_range": symbol_range(encoding, head),
        "complete": complete and reason is None,
        "settled": settled,
        "milliseconds": 1e3 * (time.perf_counter() - started),
    }


# ---------------------------------------------------------------- building
@lru_cache(maxsize=16)  # a table of vectors may take 16 MB
def _built(text: str, head_dim: int, heads: int, context: int) -> Encoding:
    spec = within(parse(text))
    width = heads * head_dim
    if spec.kind.mechanism == "input" and width > WIDEST:
        raise BadValue(f"position vectors of width {width} are too wide to follow a slider; at most {WIDEST} here.")
    if spec.kind.parameter("length") is not None and "length" not in spec.parameters:
        spec = replace(spec, given=(("length", min(context, TABLE_LENGTH)), *spec.given))
    made = spec.build(Sizes(width, heads, head_dim, context, causal=True))
    made.tables()
    return made


def within(spec: EncodingSpec) -> EncodingSpec:
    """The same encoding, unless a parameter would make it larger than a page may ask for."""
    for name, value in spec.given:
        if name in MOST and isinstance(value, int) and value > MOST[name]:
            raise BadValue(f"'{name}' is {value}; on this page at most {MOST[name]}. The command line takes more.")
    return spec


def _family(encoding: Encoding, head: int) -> str:
    """By which route its spectrum can be had: closed, alibi, toeplitz, two-sided or table."""
    if encoding.rotary is not None:
        return "toeplitz" if encoding.rotary.decay_F is not None else "closed"
    if encoding.bias is not None:
        if not encoding.bias.toeplitz:
            return "two-sided"
        return "closed" if _slope(encoding, head) is not None else "toeplitz"
    if encoding.input is not None:
        return "closed" if encoding.name == "sinusoidal" and encoding.input.width % 2 == 0 else "table"
    return "closed"


def _slope(encoding: Encoding, head: int) -> float | None:
    """The slope of a two-sided ALiBi, for which everything is known in closed form."""
    if encoding.name != "alibi" or encoding.bias is None:
        return None
    before, own, after = encoding.bias.by_offset([-1, 0, 1])[head]
    return float(-after) if own == 0 and before == after < 0 else None


# ---------------------------------------------------------------- the norm, at one context and at all
@lru_cache(maxsize=8192)
def _point(
    text: str, head_dim: int, heads: int, model_context: int, head: int, n: int, settled: bool
) -> tuple[Point | None, str | None]:
    """The point at n positions, or the reason why there is none."""
    encoding = _built(text, head_dim, heads, model_context)
    family = _family(encoding, head)
    slope = _slope(encoding, head)
    if slope is not None and n > ALL_ALIBI:
        return _alibi(slope, n), None
    if family == "table" and encoding.input is not None:
        rows = encoding.input.length or LONGEST
        if n > rows:
            return None, f"the table holds {rows} positions, and has no vectors beyond"
        if not settled and min(n, encoding.input.width) ** 2 * n > 2e7:
            return None, "computed when the slider rests"
    longest = math.isqrt(TWO_SIDED // heads)
    if family == "two-sided" and n > longest:
        return None, f"this bias depends on both positions: dense, up to {longest} here, not {n}"
    if family == "two-sided" and not settled and n > 96:
        return None, "computed when the slider rests"
    if family == "toeplitz" and n > (DENSE_SETTLED if settled else DENSE_LIVE):
        return _long(encoding, head, n, settled)
    found = spectrum_of(encoding, [n], head)
    return (found.points[0], None) if found.points else (None, found.skipped[0])


def _long(encoding: Encoding, head: int, n: int, settled: bool) -> tuple[Point | None, str | None]:
    """A Toeplitz kernel without a closed form: bounds from two circulants; for a resting hand Lanczos as well."""
    if n > (SETTLED if settled else BOUND_LIVE):
        if n > SETTLED:
            return None, f"no closed form: up to {SETTLED} here; 'toposcope spectrum' goes further"
        return None, "computed when the slider rests"
    lags = _lags(encoding, head, n)
    below, above = toeplitz.norm_bounds(lags)
    point = Point(
        context=n,
        lambda_max_over_n=below / n,
        effective_rank=None,
        condition=None,
        rank=None,
        statement="bound",
        method="circulants inside and outside; the lower bound is shown",
        effective_rank_statement="not computed",
        lower=below / n,
        upper=above / n,
    )
    if not settled or above <= 1.001 * below:
        return point, None
    found = toeplitz.top_singular_value(lags)
    if found.value < below * (1 - 1e-9):
        return point, None
    method = "Lanczos" if found.converged else "Lanczos, stopped early"
    top = found.value / n
    return replace(point, lambda_max_over_n=top, statement="measured", method=method, residual=found.residual), None


def _alibi(slope: float, n: int) -> Point:
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


def _curve(
    text: str, head_dim: int, heads: int, context: int, head: int, settled: bool, started: float
) -> tuple[list[dict[str, Any]], bool]:
    """The points at other contexts; while the hand moves, as many as there is time for, the others at rest."""
    found, complete = [], True
    # A model's context matters to tables and to stretched frequencies; for all others a point serves every context.
    spec = parse(text)
    stretched = spec.parameters.get("scaling", "default") != "default" or spec.kind.parameter("length") is not None
    built_for = context if stretched else LONGEST
    for n in CURVE:
        late = not settled and time.perf_counter() - started > BUDGET
        if late:
            complete = False
            break
        if stretched and n > context:
            continue
        limit = settled and n > 2**14 and _family(_built(text, head_dim, heads, built_for), head) == "toeplitz"
        if limit:  # seconds each: the chosen context alone is worth them
            continue
        point, _ = _point(text, head_dim, heads, built_for, head, n, settled)
        if point is not None:
            found.append(asdict(point))
    return found, complete


def _law_line(encoding: Encoding) -> list[list[float]] | None:
    """The law of S5g along n, where it applies: plain RoPE on all channels."""
    given, rotary = encoding.parameters, encoding.rotary
    if rotary is None or encoding.name != "rope" or given.get("scaling") != "default" or "divisors" in given:
        return None
    if rotary.channels != rotary.head_dim or given.get("frequency_dim") is not None or float(given["base"]) < 8:
        return None
    base = float(given["base"])
    contexts = np.unique(np.round(np.geomspace(8, min(base, 2**20), 48)).astype(np.int64))
    laws = ((int(n), contraction_law(int(n), base, rotary.head_dim)) for n in contexts)
    return [[n, law] for n, law in laws if law is not None]


# ---------------------------------------------------------------- kernel and eigenvalues
def _kernel(encoding: Encoding, head: int, context: int) -> tuple[list[int], list[float] | None]:
    """g(t) at offsets 0 .. context - 1, evenly spread over their logarithms; None where there is no such kernel."""
    reach = max(context - 1, 1)
    spread = np.geomspace(1, reach, 400) if reach > 1 else np.ones(1)
    offsets_T = np.unique(np.concatenate([np.arange(0, min(64, reach) + 1), np.round(spread)]).astype(np.int64))
    values_T = kernel_at(encoding, offsets_T.astype(np.float64), head, context)
    return offsets_T.tolist(), None if values_T is None else values_T.tolist()


def kernel_at(encoding: Encoding, offsets_T: Array, head: int, context: int) -> Array | None:
    """The kernel that `spectrum` speaks of, at the given offsets, for a text of `context` tokens."""
    rotary, bias = encoding.rotary, encoding.bias
    if rotary is not None:
        if rotary.turning_heads is not None and head >= rotary.turning_heads:
            return np.ones(len(offsets_T))
        w_F, a_F = rotary_weights(rotary, context)
        if rotary.decay_F is None:
            return kernel_values(offsets_T, w_F, a_F)
        decay_F = np.append(rotary.decay_F, np.zeros(len(w_F) - len(rotary.pairs_F2)))
        at_T1 = offsets_T[:, None]
        return np.asarray((np.exp(-at_T1 * decay_F) * np.cos(at_T1 * w_F)) @ a_F)
    if bias is not None:
        if not bias.toeplitz:
            return None
        b_T = bias.by_offset(np.append(offsets_T, 0.0))[head]
        return np.asarray(np.exp(np.minimum(b_T[:-1] - b_T[-1], 700.0)))
    if encoding.input is None:
        return np.ones(len(offsets_T))
    if encoding.name != "sinusoidal":
        return None
    start = encoding.input.vectors([0.0])[0]
    return np.asarray(encoding.input.vectors(offsets_T) @ start / (start @ start))


def _lags(encoding: Encoding, head: int, n: int) -> Array:
    """The kernel at offsets -(n-1) .. n-1; a decaying rotation counts for the past only."""
    past = kernel_at(encoding, np.arange(n, dtype=np.float64), head, n)
    assert past is not None
    if encoding.bias is None:
        return np.concatenate([np.zeros(n - 1), past])
    ahead = kernel_at(encoding, -np.arange(n - 1, 0, -1, dtype=np.float64), head, n)
    assert ahead is not None
    return np.concatenate([ahead, past])


def _values(encoding: Encoding, head: int, context: int, settled: bool) -> dict[str, Any] | None:
    """Eigenvalues (or singular values) over n, largest first, with their numbers; None where they take too long."""
    family, slope = _family(encoding, head), _slope(encoding, head)
    if slope is not None:
        numbers = np.unique(np.round(np.geomspace(1, context, 200)).astype(np.int64))
        sizes = bias_kernel.alibi_kernel_eigenvalues_at(slope, context, numbers)
        return _shown(numbers, sizes / context, "eigenvalues, closed form", context)
    if family == "closed":
        if encoding.rotary is not None and (
            encoding.rotary.turning_heads is None or head < encoding.rotary.turning_heads
        ):
            found = kernel_spectrum(*rotary_weights(encoding.rotary, context), context)
        elif encoding.input is not None:
            found = kernel_spectrum(*_sinusoid(encoding), context)
        else:
            return _shown(np.array([1]), np.ones(1), "one eigenvalue", context)
        kept = found.values[: found.rank]
        return _shown(np.arange(1, len(kept) + 1), kept / context, "eigenvalues, closed form", context)
    if family == "toeplitz" and context <= (DENSE_SETTLED if settled else DENSE_LIVE):
        sizes = np.sort(np.abs(toeplitz.dense_singular_values(_lags(encoding, head, context))))[::-1]
        return _shown(np.arange(1, len(sizes) + 1), sizes / context, "singular values, dense", context)
    return None


def _sinusoid(encoding: Encoding) -> tuple[Array, Array]:
    """The frequencies of a sinusoid, read from its own table, with equal weights."""
    assert encoding.input is not None
    vectors = encoding.input.vectors([1 - float(encoding.parameters["offset"])])[0]
    halves = (
        (vectors[0::2], vectors[1::2]) if encoding.parameters["layout"] == "interleaved" else np.split(vectors, 2)
    )
    frequencies_F = np.asarray(np.arctan2(*halves), dtype=np.float64)
    return frequencies_F, np.full(len(frequencies_F), 1 / len(frequencies_F))


def _shown(numbers: NDArray[np.int64], sizes: Array, what: str, context: int) -> dict[str, Any]:
    return {"numbers": numbers.tolist(), "values": sizes.tolist(), "what": what, "of": context}


def _words(encoding: Encoding) -> str:
    """What the kernel is, in a sentence."""
    if encoding.rotary is not None:
        if encoding.rotary.decay_F is not None:
            return "What rotation and decay make of constant content, for i >= j: 1 at offset 0."
        return "What rotation makes of constant content: a mean of cosines, 1 at offset 0."
    if encoding.bias is not None:
        return "The factor exp(bias) that this encoding puts on exp(logit), over its value at offset 0."
    if encoding.input is not None:
        return "The scalar product of two position vectors over their mean square."
    return "Nothing tells positions apart: the kernel is 1 everywhere."
