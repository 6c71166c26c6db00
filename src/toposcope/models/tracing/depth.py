"""Tokens through depth: what each layer does to the real hidden states, beside the flow and the weights.

For the residual stream x entering a layer and its attention branch a, over the tokens of a text:

* norm growth      mean_i log(|x_i + a_i| / |x_i|)
* cosine change    mean cosine over pairs of x + a, less that of x
* rank change      log(effective rank of x + a / that of x)
* radial rate      mean_i <x_i, a_i> / |x_i|^2
* dispersion rate  2 sum_i <x_i - x, a_i - a> / sum_i |x_i - x|^2 (x, a without index: means)

`attention` measures the step x -> x + a, of size 1 along the layer's flow; `whole` the step to the input of the next
layer, MLP and norms included (not for the last layer, whose output a final norm may hide). `flow` is dx/dt = a(x)
with the norm's per-token factor, followed for one unit of time from the same x. At t = 0 its rates are those of the
real branch by construction, so only what it does in a whole unit of time is called a prediction. `weights` holds
indices that have never seen a token. `step`, the attention step as a predictor of the whole one, is the control: the
flow earns credit for the whole layer only where it does better than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Layer, Model
from toposcope.core.progress import Progress, steps
from toposcope.dynamics.heads import pair_index
from toposcope.dynamics.observables import dispersion, effective_rank, mean_cosine, norms
from toposcope.dynamics.regime import positive_share
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import layer_problem
from toposcope.models.rank import RankCorrelation, rank_correlation
from toposcope.models.tracing.hidden import HiddenStates, attention_branch, self_layers

Array = NDArray[np.float64]

STEP_FIELDS = ("norm_growth", "cosine_change", "rank_change", "dispersion_growth")
WEIGHT_FIELDS = ("growth_index", "alpha", "rho_euler", "pair_index")
RATE_FIELDS = ("radial_rate", "dispersion_rate")


@dataclass(frozen=True)
class DepthStep:
    """What becomes of a cloud of tokens in one step; all four are 0 where nothing moves."""

    norm_growth: float  # mean over tokens of the logarithm of the norm's ratio
    cosine_change: float | None  # None for a single token
    rank_change: float  # logarithm of the ratio of effective ranks
    dispersion_growth: float | None  # logarithm of the ratio of root mean square distances from the mean token


@dataclass(frozen=True)
class LayerIndices:
    """Indices of a layer that need no text (`toposcope scan`); pair_index is the mean over its heads."""

    growth_index: float | None
    alpha: float | None
    rho_euler: float | None
    pair_index: float | None


@dataclass(frozen=True)
class LayerDepth:
    """One layer on one text: the tokens that enter it, what it does to them, and what was predicted."""

    layer: int
    norm: float  # mean norm of the tokens that enter
    cosine: float | None
    effective_rank: float
    radial_rate: float
    dispersion_rate: float | None
    attention: DepthStep
    whole: DepthStep | None
    flow: DepthStep | None  # None where the flow did not reach the end of its unit of time
    flow_status: str
    weights: LayerIndices


def through_depth(
    model: Model,
    hidden: HiddenStates,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> tuple[LayerDepth, ...]:
    """The layers of a model on the hidden states of a text."""
    own = self_layers(model, hidden)
    found = []
    chosen = range(len(own)) if layers is None else layers
    tick = steps(progress, "depth", len(chosen))
    for number in chosen:
        after = hidden.entering[number + 1] if number + 1 < len(own) else None
        found.append(layer_depth(model, own[number], hidden.entering[number], after))
        tick()
    return tuple(found)


def layer_depth(model: Model, layer: Layer, x_ND: Array, after_ND: Array | None) -> LayerDepth:
    """One layer: measure x, x + a and the next layer's input, follow the flow for a unit of time, ask the weights."""
    branch_ND = attention_branch(layer, x_ND)
    flowed, status = _flow(model, layer, x_ND)
    return LayerDepth(
        layer=layer.number,
        norm=float(norms(x_ND).mean()),
        cosine=_finite(mean_cosine(x_ND)),
        effective_rank=effective_rank(x_ND),
        radial_rate=radial_rate(x_ND, branch_ND),
        dispersion_rate=dispersion_rate(x_ND, branch_ND),
        attention=step(x_ND, x_ND + branch_ND),
        whole=None if after_ND is None else step(x_ND, after_ND),
        flow=None if flowed is None else step(x_ND, flowed),
        flow_status=status,
        weights=layer_indices(layer),
    )


def correlations(layers: Sequence[LayerDepth]) -> tuple[RankCorrelation, ...]:
    """Spearman's rho across layers: the flow against both measured steps, indices against steps and rates."""

    def column(which: str, name: str) -> list[float | None]:
        parts = [getattr(each, which) for each in layers]
        return [None if part is None else getattr(part, name) for part in parts]

    def by_weights(measured: str, values: Sequence[float | None]) -> list[RankCorrelation]:
        return [rank_correlation(index, measured, column("weights", index), values) for index in WEIGHT_FIELDS]

    found = []
    for measured in ("attention", "whole"):
        for name in STEP_FIELDS:
            values = column(measured, name)
            found.append(rank_correlation("flow", f"{measured} {name}", column("flow", name), values))
            if measured == "whole":
                found.append(rank_correlation("step", f"whole {name}", column("attention", name), values))
            found += by_weights(f"{measured} {name}", values)
    for name in RATE_FIELDS:
        found += by_weights(name, [getattr(each, name) for each in layers])
    return tuple(found)


def step(before_ND: Array, after_ND: Array) -> DepthStep:
    """What changed from one cloud of tokens to another."""
    first, last = norms(before_ND), norms(after_ND)
    moving = (first > 0) & (last > 0)
    spread, later = dispersion(before_ND), dispersion(after_ND)
    several = len(before_ND) > 1
    return DepthStep(
        norm_growth=float(np.log(last[moving] / first[moving]).mean()) if moving.any() else 0.0,
        cosine_change=_finite(mean_cosine(after_ND) - mean_cosine(before_ND)) if several else None,
        rank_change=_log_ratio(effective_rank(after_ND), effective_rank(before_ND)) or 0.0,
        dispersion_growth=_log_ratio(later, spread),
    )


def radial_rate(x_ND: Array, branch_ND: Array) -> float:
    """mean_i <x_i, a_i> / |x_i|^2: how fast attention alone makes tokens longer, to first order."""
    squares = np.einsum("nd,nd->n", x_ND, x_ND)
    there = squares > 0
    along = np.einsum("nd,nd->n", x_ND, branch_ND)
    return float((along[there] / squares[there]).mean()) if there.any() else 0.0


def dispersion_rate(x_ND: Array, branch_ND: Array) -> float | None:
    """2 sum_i <x_i - x, a_i - a> / sum_i |x_i - x|^2: the relative change of sum |x_i - x|^2, to first order."""
    centred = x_ND - x_ND.mean(axis=0)
    total = float((centred * centred).sum())
    return 2 * float((centred * branch_ND).sum()) / total if total > 0 else None


def _flow(model: Model, layer: Layer, x_ND: Array) -> tuple[Array | None, str]:
    """The tokens after one unit of time under this layer's flow, norms on, and how the run ended."""
    # Hidden states hold the positions that were added at the input: they are not to be added again.
    inside = replace(layer.encoding, input=None)
    problem = layer_problem(model, layer.number, x_ND, encoding=inside, norms="on", horizon=1.0)
    result = run(problem, rtol=1e-5, samples=2)
    return (result.final if result.end >= 1 - 1e-9 else None), str(result.status)


def layer_indices(layer: Layer) -> LayerIndices:
    """The layer's indices from the non-zero spectrum of U = sum_h O_h V_h, without the search for a certificate."""
    folded = [fold(layer, head) for head in layer.heads]
    groups = [[head for head in folded if head.kv_group == group] for group in range(layer.spec.kv_heads)]
    values_RD = np.concatenate([group[0].v for group in groups])
    outputs_DR = np.concatenate([np.sum([head.o for head in group], axis=0) for group in groups], axis=1)
    small = values_RD @ outputs_DR if len(values_RD) <= len(outputs_DR) else outputs_DR @ values_RD
    found = np.linalg.eigvals(small)
    found = found[np.abs(found) > 1e-10 * np.abs(found).max()]
    pairs = [value for head in folded if (value := pair_index(head)) is not None]
    return LayerIndices(
        growth_index=positive_share(found.real),
        alpha=float(found.real.max()) if len(found) else None,
        rho_euler=float(np.abs(1 + found).max()) if len(found) else None,
        pair_index=float(np.mean(pairs)) if pairs else None,
    )


def _log_ratio(after: float, before: float) -> float | None:
    return float(np.log(after / before)) if after > 0 and before > 0 else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
