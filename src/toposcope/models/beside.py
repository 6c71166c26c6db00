"""The discrete model beside the flow: what each layer does to the real hidden states, and what was predicted.

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

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import load
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Layer, Model
from toposcope.dynamics.heads import pair_index
from toposcope.dynamics.observables import dispersion, effective_rank, mean_cosine, norms
from toposcope.dynamics.regime import positive_share
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import layer_problem
from toposcope.models.hidden import HiddenStates, attention_branch, hidden_states, self_layers
from toposcope.models.load import load_reference, read_text
from toposcope.models.rank import RankCorrelation, rank_correlation

Array = NDArray[np.float64]

STEP_FIELDS = ("norm_growth", "cosine_change", "rank_change", "dispersion_growth")
WEIGHT_FIELDS = ("growth_index", "alpha", "rho_euler", "pair_index")
RATE_FIELDS = ("radial_rate", "dispersion_rate")


@dataclass(frozen=True)
class Step:
    """What becomes of a cloud of tokens in one step; all four are 0 where nothing moves."""

    norm_growth: float  # mean over tokens of the logarithm of the norm's ratio
    cosine_change: float | None  # None for a single token
    rank_change: float  # logarithm of the ratio of effective ranks
    dispersion_growth: float | None  # logarithm of the ratio of root mean square distances from the mean token


@dataclass(frozen=True)
class Weights:
    """Indices of a layer that need no text (`toposcope scan`); pair_index is the mean over its heads."""

    growth_index: float | None
    alpha: float | None
    rho_euler: float | None
    pair_index: float | None


@dataclass(frozen=True)
class LayerBeside:
    """One layer on one text: the tokens that enter it, what it does to them, and what was predicted."""

    layer: int
    norm: float  # mean norm of the tokens that enter
    cosine: float | None
    effective_rank: float
    radial_rate: float
    dispersion_rate: float | None
    attention: Step
    whole: Step | None
    flow: Step | None  # None where the flow did not reach the end of its unit of time
    flow_status: str
    weights: Weights


@dataclass(frozen=True)
class TextBeside:
    """All layers on one text, and the rank correlations across layers."""

    text: str
    tokens: int
    layers: tuple[LayerBeside, ...]

    @property
    def correlations(self) -> tuple[RankCorrelation, ...]:
        """Spearman's rho across layers: the flow against both measured steps, indices against steps and rates."""
        found = []
        for measured in ("attention", "whole"):
            for name in STEP_FIELDS:
                column = self._steps(measured, name)
                found.append(rank_correlation("flow", f"{measured} {name}", self._steps("flow", name), column))
                if measured == "whole":
                    found.append(rank_correlation("step", f"whole {name}", self._steps("attention", name), column))
                found += [self._by_weights(index, f"{measured} {name}", column) for index in WEIGHT_FIELDS]
        for name in RATE_FIELDS:
            column = [getattr(each, name) for each in self.layers]
            found += [self._by_weights(index, name, column) for index in WEIGHT_FIELDS]
        return tuple(found)

    def _by_weights(self, index: str, measured: str, column: Sequence[float | None]) -> RankCorrelation:
        return rank_correlation(index, measured, [getattr(each.weights, index) for each in self.layers], column)

    def _steps(self, which: str, name: str) -> list[float | None]:
        steps = [getattr(each, which) for each in self.layers]
        return [None if step is None else getattr(step, name) for step in steps]


@dataclass(frozen=True)
class Beside:
    """A model on one or more texts; the second text is a check on what the first one shows."""

    model: str
    texts: tuple[TextBeside, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model,
            "texts": [
                {**asdict(each), "correlations": [asdict(found) for found in each.correlations]}
                for each in self.texts
            ],
        }


def beside(
    target: str | Path,
    texts: Sequence[str | Path] = ("wiki", "c4"),
    *,
    tokens: int = 64,
    begin: int = 0,
    layers: Sequence[int] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Beside:
    """Run a model on texts (files, or names of installed ones) and measure its layers; `tick` is called per layer."""
    contents = [read_text(text) for text in texts]
    reference = load_reference(target)
    with load(reference.path) as model:
        found = []
        known: dict[int, Weights] = {}
        for text, content in zip(texts, contents, strict=True):
            hidden = hidden_states(reference, content, tokens=tokens, name=str(text), begin=begin)
            found.append(beside_states(model, hidden, layers, tick, known))
        return Beside(model.path.name, tuple(found))


def beside_states(
    model: Model,
    hidden: HiddenStates,
    layers: Sequence[int] | None = None,
    tick: Callable[[], None] = lambda: None,
    known: dict[int, Weights] | None = None,
) -> TextBeside:
    """The same for hidden states that are already there; `known` keeps the indices from one text to the next."""
    known = {} if known is None else known
    own = self_layers(model, hidden)
    found = []
    for number in range(len(own)) if layers is None else layers:
        after = hidden.entering[number + 1] if number + 1 < len(own) else None
        if number not in known:
            known[number] = layer_weights(own[number])
        found.append(layer_beside(model, own[number], hidden.entering[number], after, known[number]))
        tick()
    return TextBeside(hidden.cut, hidden.count, tuple(found))


def layer_beside(
    model: Model, layer: Layer, x_ND: Array, after_ND: Array | None, weights: Weights | None = None
) -> LayerBeside:
    """One layer: measure x, x + a and the next layer's input, follow the flow for a unit of time, ask the weights."""
    branch_ND = attention_branch(layer, x_ND)
    flowed, status = _flow(model, layer, x_ND)
    return LayerBeside(
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
        weights=layer_weights(layer) if weights is None else weights,
    )


def step(before_ND: Array, after_ND: Array) -> Step:
    """What changed from one cloud of tokens to another."""
    first, last = norms(before_ND), norms(after_ND)
    moving = (first > 0) & (last > 0)
    spread, later = dispersion(before_ND), dispersion(after_ND)
    several = len(before_ND) > 1
    return Step(
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


def layer_weights(layer: Layer) -> Weights:
    """The layer's indices from the non-zero spectrum of U = sum_h O_h V_h, without the search for a certificate."""
    folded = [fold(layer, head) for head in layer.heads]
    groups = [[head for head in folded if head.kv_group == group] for group in range(layer.spec.kv_heads)]
    values_RD = np.concatenate([group[0].v for group in groups])
    outputs_DR = np.concatenate([np.sum([head.o for head in group], axis=0) for group in groups], axis=1)
    small = values_RD @ outputs_DR if len(values_RD) <= len(outputs_DR) else outputs_DR @ values_RD
    found = np.linalg.eigvals(small)
    found = found[np.abs(found) > 1e-10 * np.abs(found).max()]
    pairs = [value for head in folded if (value := pair_index(head)) is not None]
    return Weights(
        growth_index=positive_share(found.real),
        alpha=float(found.real.max()) if len(found) else None,
        rho_euler=float(np.abs(1 + found).max()) if len(found) else None,
        pair_index=float(np.mean(pairs)) if pairs else None,
    )


def _log_ratio(after: float, before: float) -> float | None:
    return float(np.log(after / before)) if after > 0 and before > 0 else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
