"""What is known of a positional kernel at one context, and how: by a theorem, measured, or between two bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.spectra.toeplitz import Spectrum

Statement = Literal["theorem", "measured", "bound"]
RankStatement = Literal["theorem", "numerical"]
ConditionStatement = Literal["theorem", "numerical", "at least"]


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
class KernelPoints:
    """A kernel in words and its points; `logit_points` is the summand B of a bias, `skipped` what is not there."""

    kernel: str
    points: tuple[Point, ...]
    logit_points: tuple[Point, ...] = ()
    skipped: tuple[str, ...] = ()


def along(
    kernel: str, points: Iterable[Point], logits: Iterable[Point] = (), *, skipped: Iterable[str] = ()
) -> KernelPoints:
    """The points of a kernel, computed one after the other."""
    return KernelPoints(kernel, tuple(points), tuple(logits), tuple(skipped))


def of_values(
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


def ones(n: int) -> Point:
    """The matrix of ones: nothing tells positions apart."""
    return of_values(Spectrum(np.array([float(n)]), n), "closed form: rank one", rank=1, regular=True)


def affordable(contexts: Sequence[int], most: float) -> tuple[list[int], tuple[str, ...]]:
    """The contexts that can be computed in minutes, and a sentence for each of the others."""
    inside = [n for n in contexts if n <= most]
    return inside, tuple(
        f"{n:,} positions: without a closed form that would take hours; at most {int(most):,} are computed."
        for n in contexts
        if n > most
    )
