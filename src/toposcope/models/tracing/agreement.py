"""Do the weights alone tell what a head does on a text? The kernels and the ranking of `scan` against a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Model as View
from toposcope.models.rank import RankCorrelation, area_under_curve, rank_correlation
from toposcope.models.tracing.head import OFFSETS, in_input_only
from toposcope.spectra.head_kernel import HeadKernel, from_seen, seen_through
from toposcope.spectra.of_heads import FAST_ON_SMOLLM2, HeadSpectra, head_spectra, second_moment

if TYPE_CHECKING:
    from toposcope.models.tracing.result import HeadTrace


@dataclass(frozen=True)
class Agreement:
    """Weights-only indices beside what was traced, over `heads` heads that have a kernel over offsets.

    `peak`, `contraction`: rank correlation across heads of the kernel's peak offset and of its rho_n. `kernel`:
    median over heads of the rank correlation between both kernels across offsets. `contrast`: that of the weights'
    g(1) above the mean of its kernel, in its standard deviations, with the traced attention on the previous token.
    `listed` are the heads whose kernel peaks at 1, `traced` those named for the previous token on the text.

    `fast` does the same for the fast share by which `scan` ranks heads (`spectra.of_heads.fast_share`). `fast_auc` is
    the chance that a traced head has more of it than another head, `fast_listed` are the 10 heads with most of it;
    None and () where nothing turns. `hits` and `fast_hits` are those of each list that were traced as well.
    """

    heads: int
    peak: RankCorrelation
    contraction: RankCorrelation
    contrast: RankCorrelation
    kernel: float | None
    listed: tuple[str, ...]
    traced: tuple[str, ...]
    fast: RankCorrelation
    fast_auc: float | None
    fast_listed: tuple[str, ...]
    hits: tuple[str, ...]
    precision: float | None
    recall: float | None
    fast_hits: tuple[str, ...]
    fast_precision: float | None
    fast_recall: float | None


FromWeights = Mapping[str, tuple[HeadSpectra, HeadKernel]]  # by the head's name


def from_weights(view: View, heads: Mapping[int, Sequence[int]], tokens: int) -> FromWeights:
    """What `scan` knows of heads, by layer, for texts of so many tokens; those without a kernel are left out."""
    moment = second_moment(view)
    rows: dict[str, tuple[HeadSpectra, HeadKernel]] = {}
    last: tuple[int, int] | None = None  # the key-value group whose keys are known
    for number, each in [(layer, head) for layer, some in sorted(heads.items()) for head in sorted(some)]:
        layer = view.layers[number]
        bias = layer.encoding.bias
        if in_input_only(layer.encoding) or (bias is not None and not bias.toeplitz):
            continue
        head = fold(layer, layer.heads[each])
        known = moment if moment is not None and len(moment) == layer.spec.width else None
        if (group := (number, head.kv_group)) != last:
            last, keys = group, seen_through(known, head.k)
        seen = seen_through(known, head.q), keys
        found = head_spectra(layer, head, second_moment=known, context=tokens, seen=seen)
        shape = from_seen(
            *seen,
            layer.encoding,
            context=min(OFFSETS, tokens),
            causal=layer.spec.causal,
            scale=head.scale,
            head=head.head,
        )
        rows[f"{number}.{each}"] = found, shape
    return rows


def agreement(
    weights: FromWeights, traced: Sequence[HeadTrace], kernels: Mapping[str, Sequence[float]]
) -> Agreement | None:
    """Compare; `kernels` holds the traced kernels by head. None where no traced head has a kernel over offsets."""
    rows = [
        (each, *weights[each.name])
        for each in sorted(traced, key=lambda row: (row.layer, row.head))
        if each.name in weights and each.name in kernels
    ]
    fast = {each.name: found.fast_share for each, found, _ in rows}
    if not any(found.peak_offset is not None for _, found, _ in rows):
        return None
    by_head = [rank_correlation("", "", list(shape.total_T), list(kernels[each.name])).rho for each, _, shape in rows]
    known_rho = [rho for rho in by_head if rho is not None]
    listed = tuple(each.name for each, found, _ in rows if found.peak_offset == 1)
    named = tuple(each.name for each, _, _ in rows if "previous" in each.names)
    fastest = _largest(fast, FAST_ON_SMOLLM2.top)
    hits, fast_hits = (tuple(name for name in some if name in named) for some in (listed, fastest))
    return Agreement(
        heads=len(rows),
        peak=rank_correlation(
            "weights-only peak",
            "traced peak",
            [found.peak_offset for _, found, _ in rows],
            [each.peak_offset for each, _, _ in rows],
        ),
        contraction=rank_correlation(
            "weights-only rho_n",
            "traced rho_n",
            [found.lambda_max_over_n for _, found, _ in rows],
            [each.median("kernel_rho") for each, _, _ in rows],
        ),
        contrast=rank_correlation(
            "weights-only contrast at 1",
            "attention on the previous token",
            [_contrast(shape) for _, _, shape in rows],
            [each.score("previous") for each, _, _ in rows],
        ),
        kernel=float(np.median(known_rho)) if known_rho else None,
        listed=listed,
        traced=named,
        fast=rank_correlation(
            "weights-only fast share",
            "attention on the previous token",
            list(fast.values()),
            [each.score("previous") for each, _, _ in rows],
        ),
        fast_auc=area_under_curve(list(fast.values()), [each.name in named for each, _, _ in rows]),
        fast_listed=fastest,
        hits=hits,
        precision=_share(hits, listed),
        recall=_share(hits, named),
        fast_hits=fast_hits,
        fast_precision=_share(fast_hits, fastest),
        fast_recall=_share(fast_hits, named) if fastest else None,
    )


def _share(some: Sequence[str], whole: Sequence[str]) -> float | None:
    return len(some) / len(whole) if whole else None


def _largest(values: Mapping[str, float | None], count: int) -> tuple[str, ...]:
    known = {name: value for name, value in values.items() if value is not None}
    return tuple(sorted(known, key=lambda name: -known[name])[:count])


def _contrast(shape: HeadKernel) -> float | None:
    """How far g(1) stands above the kernel's mean, in its standard deviations."""
    spread = float(shape.total_T.std())
    at = np.flatnonzero(shape.offsets_T == 1)
    if spread == 0 or not len(at):
        return None
    return float((shape.total_T[at[0]] - shape.total_T.mean()) / spread)
