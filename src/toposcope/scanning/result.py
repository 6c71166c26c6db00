"""What a scan says: a row for each head and layer, the model as a whole, and the same under other encodings.

A column of the head table is a field of `HeadDynamicsRow` or of `HeadSpectra`: JSON, CSV, frames, the web page and
`compare` take it from there, by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.core.fields import fields_of, plain, rebuilt
from toposcope.core.result import Result
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import HeadDynamics, upper_half
from toposcope.dynamics.layers import LayerDynamics, growth_of
from toposcope.dynamics.regime import Verdict
from toposcope.dynamics.rotation import RotaryFacts
from toposcope.scanning.sample import SampleEstimate
from toposcope.spectra.of_heads import HeadSpectra
from toposcope.spectra.of_model import EncodingSpectra, WhatIf

MEANS = ("growth_index", "spread_index", "pair_index", "ov_positivity")


@dataclass(frozen=True)
class SymmetricPart:
    """The eigenvalues of a symmetric part: least, greatest, positive share, and how many are +, -, 0."""

    min: float
    max: float
    pos_mass: float | None
    inertia: tuple[int, int, int]


@dataclass(frozen=True)
class BallCertificate:
    """What certifies a verdict of Thm 8: S and N = s S V with w' > 0, and the ball or threshold that follows."""

    S: tuple[tuple[float, ...], ...]
    N: tuple[tuple[float, ...], ...]
    w_prime: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class HeadDynamicsRow:
    """What a theorem says of one head acting alone, and the numbers it rests on (docs/dynamics.md)."""

    layer: int
    head: int
    kv_group: int
    causal: bool
    pe: str
    verdict: Verdict
    rule: str | None
    scope: str | None
    exact: bool
    margin: float | None
    robust: bool
    alpha: float | None
    omega: float | None
    n_pos: int
    n_neg: int
    n_zero: int
    growth_index: float | None
    ov_positivity: float | None
    w_min: float | None
    w_max: float | None
    a_min: float | None
    a_max: float | None
    spread_index: float | None
    asym_A: float | None
    asym_W: float | None
    pair_index: float | None
    symU: SymmetricPart
    symW: SymmetricPart
    cond_VO: float | None
    self_logit_min: float | None
    metastable: bool | None
    rope: RotaryFacts | None
    eigenvalues: tuple[tuple[float, float], ...]
    certificate: BallCertificate | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScanHead(HeadSpectra, HeadDynamicsRow):
    """One head: where its weights drive the tokens, and what its positional kernel looks like."""


@dataclass(frozen=True, kw_only=True)
class ScanLayer:
    """All heads of a layer together: what a theorem says of its first token, or of its consensus."""

    layer: int
    stack: str
    causal: bool
    pe: str
    verdict: Verdict
    rule: str | None
    scope: str | None
    exact: bool
    margin: float | None
    robust: bool
    alpha: float | None
    omega: float | None
    n_pos: int
    n_neg: int
    n_zero: int
    growth_index: float | None
    rank_U: int
    rho_euler: float | None
    symU: SymmetricPart
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HeadTally:
    """Counts of verdicts and means of the heuristics over heads."""

    heads: int
    counts: Mapping[str, int]
    robust: int
    metastable: int
    growth_index: float | None
    spread_index: float | None
    pair_index: float | None
    ov_positivity: float | None


@dataclass(frozen=True, kw_only=True)
class ScanModel(HeadTally):
    """The same with what can be said of the whole stack, looped, norm-free and attention only (never exact)."""

    layer_counts: Mapping[str, int]
    verdict: str | None
    rule: str | None
    exact: bool
    log_growth: float | None


@dataclass(frozen=True)
class BaselineHead:
    """Of a head's random baseline, what a tally is made of."""

    verdict: Verdict
    robust: bool
    metastable: bool | None
    growth_index: float | None
    spread_index: float | None
    pair_index: float | None
    ov_positivity: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanResult(Result):
    """Where a model's weights drive the tokens, and what position does to each head's logits.

    `random_baseline` is the tally of the same heads in random orientation, and `estimate` what a sample of layers
    says of all, where they were asked for. `fingerprint` is a hash of all that decides the numbers beside the weights
    (version, configuration, options); with the subject's sha256 it says whether a stored scan is the one you need.
    """

    kind = "scan"
    table = "heads"

    heads: tuple[ScanHead, ...]
    layers: tuple[ScanLayer, ...]
    model: ScanModel
    spectra: EncodingSpectra
    what_if: tuple[WhatIf, ...] = ()
    random_baseline: HeadTally | None = None
    estimate: SampleEstimate | None = None
    fingerprint: str = ""


def head_row(found: HeadDynamics, kernel: HeadSpectra) -> ScanHead:
    """A head's row, from its two halves."""
    given = {"eigenvalues": upper_half(found.regime.eigenvalues)}
    row: ScanHead = _row(ScanHead, given, found, found.regime, kernel)
    return row


def layer_row(found: LayerDynamics) -> ScanLayer:
    """A layer's row."""
    row: ScanLayer = _row(ScanLayer, {}, found, found.regime)
    return row


def baseline_row(found: HeadDynamics) -> BaselineHead:
    """What a tally needs of a head."""
    row: BaselineHead = _row(BaselineHead, {}, found, found.regime)
    return row


def _row(kind: type, given: Mapping[str, Any], *sources: Any) -> Any:
    """A row whose fields are the attributes of that name, each of the first source that has one."""

    def value(name: str) -> Any:
        return given[name] if name in given else next(getattr(s, name) for s in sources if hasattr(s, name))

    return rebuilt(kind, {name: plain(value(name)) for name in fields_of(kind)}, kind.__name__)


def tally(heads: Sequence[ScanHead | BaselineHead]) -> HeadTally:
    """Counts of verdicts, and means of the heuristics."""
    return HeadTally(**_counted(heads))


def _counted(heads: Sequence[ScanHead | BaselineHead]) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        present = [value for head in heads if (value := getattr(head, name)) is not None]
        return float(np.mean(present)) if present else None

    return {
        "heads": len(heads),
        "counts": dict(Counter(head.verdict.value for head in heads)),
        "robust": sum(head.robust for head in heads),
        "metastable": sum(bool(head.metastable) for head in heads),
        **{name: mean(name) for name in MEANS},
    }


def whole_model(
    heads: Sequence[ScanHead], layers: Sequence[ScanLayer], *, complete: bool, factors: Sequence[Factored]
) -> ScanModel:
    """The model's row: counts, and a heuristic for the looped, norm-free, attention-only stack (never exact).

    `factors` are those of all layers in order, or none where they do not fit in memory. Where not all layers were
    looked at (`complete`), nothing is said of the stack.
    """
    verdict = rule = None
    one_stack = len({layer.stack for layer in layers}) == 1
    growth = _finite_growth(layers, factors) if complete and one_stack else None
    shrinks = all(layer.symU.max < 0 and layer.rank_U == sum(layer.symU.inertia) for layer in layers)
    if complete and layers and shrinks:
        verdict, rule = "contracting_first_token", "max lambda_max(sym U_l) < 0"
    elif growth is not None and growth > 1 + 1e-6:
        verdict, rule = "expanding_first_token", "rho(prod exp U_l) > 1"
    return ScanModel(
        **_counted(heads),
        layer_counts=dict(Counter(layer.verdict.value for layer in layers)),
        verdict=verdict,
        rule=rule,
        exact=False,
        log_growth=None if growth is None or growth <= 0 else float(np.log(growth)),
    )


def _finite_growth(layers: Sequence[ScanLayer], factors: Sequence[Factored]) -> float | None:
    """`growth_of` the factors; None where the exponentials of such large weights leave the range of float64.

    Of a single layer rho(exp U) = exp(max Re lambda), and its spectrum is known; what it does not move stays at 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            growth = _of_one(layers[0], factors[0]) if len(layers) == len(factors) == 1 else growth_of(factors)
        except (np.linalg.LinAlgError, ValueError):  # what LAPACK says of infinities
            return None
    return growth if growth is not None and np.isfinite(growth) else None


def _of_one(layer: ScanLayer, factors: Factored) -> float | None:
    if layer.alpha is None:
        return None
    return float(np.exp(layer.alpha if layer.rank_U == len(factors.left) else max(layer.alpha, 0.0)))
