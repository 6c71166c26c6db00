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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from toposcope.core.errors import BadValue
from toposcope.core.printable import printable
from toposcope.encodings.record import Encoding
from toposcope.encodings.registry import LARGEST
from toposcope.spectra.beyond import Beyond
from toposcope.spectra.bias_points import bias_points
from toposcope.spectra.offsets import OFFSETS, kernel_at, symbol_range
from toposcope.spectra.points import KernelPoints, Point, along, ones
from toposcope.spectra.rotary_points import decaying_points, rotary_points
from toposcope.spectra.table_points import table_points


@dataclass(frozen=True)
class EncodingSpectrum:
    """The spectrum of one encoding over contexts. `logit_points` is the summand B of a bias; empty for the others.

    `decay` is d ln(lambda_max/n) / d ln n from each point to the next, None where either is a bound; `kernel_at` the
    kernel itself at `offsets`, and `symbol_range` the range of its symbol, where it has one. `beyond` is what a model
    meets at the longest context that was trained on a shorter one; None where that was not asked.
    """

    spec: str
    name: str
    title: str
    kernel: str
    head: int
    points: tuple[Point, ...]
    logit_points: tuple[Point, ...]
    notes: tuple[str, ...]
    skipped: tuple[str, ...]
    decay: tuple[float | None, ...]
    offsets: tuple[int, ...] | None
    kernel_at: tuple[float, ...] | None
    symbol_range: tuple[float, float] | None
    parameters: Mapping[str, Any]
    beyond: Beyond | None = None


def spectrum_of(
    encoding: Encoding, contexts: Sequence[int], head: int = 0, *, spec: str | None = None
) -> EncodingSpectrum:
    """The spectrum of an encoding's positional kernel at the given contexts, by the fastest route that is exact.

    `head` chooses the head of a bias. An encoding that is not given by tables is refused (`Encoding.tables`); one
    with several mechanisms is taken at its rotary part, then its bias, then its input, and says so. `spec` is how the
    encoding was asked for, if not by its name.
    """
    encoding.tables()
    wanted = sorted({_whole(n) for n in contexts})
    if not wanted:
        raise BadValue("a spectrum needs at least one context.")
    if head < 0:
        raise BadValue(f"heads are counted from 0, got {head}.")
    found = _points(encoding, wanted, head)
    used = encoding.rotary or encoding.bias or encoding.input
    others = [part for part in encoding.mechanisms if getattr(encoding, part) is not used]
    kernel = kernel_at(encoding, OFFSETS, head)
    return EncodingSpectrum(
        spec=spec or encoding.name,
        name=encoding.name,
        title=encoding.title,
        kernel=found.kernel,
        head=head,
        points=found.points,
        logit_points=found.logit_points,
        notes=(*encoding.notes, *(f"its {part} part is left aside here." for part in others)),
        skipped=found.skipped,
        decay=decay(found.points),
        offsets=None if kernel is None else OFFSETS,
        kernel_at=None if kernel is None else tuple(map(float, kernel)),
        symbol_range=symbol_range(encoding, head),
        parameters=dict(encoding.parameters),
    )


def _points(encoding: Encoding, contexts: Sequence[int], head: int) -> KernelPoints:
    rotary, bias, table = encoding.rotary, encoding.bias, encoding.input
    if rotary is not None:
        if rotary.turning_heads is not None and head >= rotary.turning_heads:
            return along("ones: this head does not turn", map(ones, contexts))
        if rotary.decay_F is not None:
            return decaying_points(rotary, contexts)
        return rotary_points(encoding, rotary, contexts)
    if bias is not None:
        if head >= bias.heads:
            raise BadValue(f"'{encoding.name}' has heads 0 to {bias.heads - 1}, head {head} was asked for.")
        return bias_points(encoding, contexts, head)
    if table is not None:
        return table_points(encoding, table, contexts)
    return along("ones: nothing tells positions apart", map(ones, contexts))


def contexts_up_to(context: int) -> tuple[int, ...]:
    """32, 128, 512, ... below the context, and the context itself."""
    context = _whole(context)
    powers = (32 * 4**i for i in range(64))
    return (*(n for n in powers if n < context), context)


def decay(points: Sequence[Point]) -> tuple[float | None, ...]:
    """How fast lambda_max / n falls: d ln(lambda_max/n) / d ln n from each point to the next; None for bounds."""
    return tuple(_slope(a, b) for a, b in pairwise(points))


def _slope(a: Point, b: Point) -> float | None:
    known = a.lambda_max_over_n > 0 and b.lambda_max_over_n > 0 and "bound" not in (a.statement, b.statement)
    if not known:
        return None
    return math.log(b.lambda_max_over_n / a.lambda_max_over_n) / math.log(b.context / a.context)


def _whole(n: int) -> int:
    if isinstance(n, bool) or not 1 <= n <= LARGEST["context"] or int(n) != n:
        most = f"{LARGEST['context']:,}"
        raise BadValue(f"a context is a whole number of positions, from 1 to {most}; got {printable(n, 40)}.")
    return int(n)
