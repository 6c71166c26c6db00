"""Walk through a model's layers and say, head by head, where its weights drive the tokens: `toposcope scan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.spec import Skipped
from toposcope.checkpoints.view import Layer, Model
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import HeadDynamics, describe_head, head_dynamics
from toposcope.dynamics.layers import LayerDynamics, growth_of, layer_dynamics, product_fits
from toposcope.dynamics.null import randomised
from toposcope.dynamics.storage import layer_storage_error

WIDEST_SUM = 1024  # a sum over heads wider than this takes minutes a layer
WIDEST_MODEL = 4096  # in a wider one even a narrow sum takes half a layer's memory again


@dataclass(frozen=True, eq=False)
class ScanResult:
    """Heads, layers and the model as a whole; `twin` holds the randomised twin's heads where it was asked for."""

    heads: tuple[HeadDynamics, ...]
    layers: tuple[LayerDynamics, ...]
    model: dict[str, Any]
    skipped: tuple[Skipped, ...]
    twin: tuple[HeadDynamics, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "heads": [head.as_dict() for head in self.heads],
            "layers": [layer.as_dict() for layer in self.layers],
            "model": self.model,
            "skipped": self.skipped,
        }
        if self.twin:
            found["null"] = summary(self.twin)
        return found


def scan(
    model: Model,
    layers: Sequence[int] | None = None,
    *,
    null: bool = False,
    seed: int = 0,
    sums: bool | None = None,
    workers: int = 2,
    tick: Callable[[], None] = lambda: None,
) -> ScanResult:
    """Decide every self-attention head and layer, one layer in memory at a time; `tick` is called after each.

    `sums` asks for the layers as wholes, whose cost grows with the cube of the width; None leaves out wide ones.
    """
    chosen = model.layers if layers is None else [model.layers[i] for i in layers]
    heads: list[HeadDynamics] = []
    wholes: list[LayerDynamics] = []
    twins: list[HeadDynamics] = []
    skipped = list(model.skipped)
    keep = product_fits(chosen)
    with ThreadPoolExecutor(workers) as pool:
        for layer in chosen:
            found = scan_layer(model, layer, pool, null=null, seed=seed, sums=sums)
            heads += found.heads
            twins += found.twin
            skipped += found.skipped
            if found.whole is not None:
                wholes.append(found.whole if keep else replace(found.whole, factors=None))
            tick()
    return ScanResult(
        heads=tuple(heads),
        layers=tuple(wholes),
        model=whole_model(
            [brief(head) for head in heads],
            [layer.as_dict() for layer in wholes],
            complete=len(chosen) == len(model.layers),
            factors=[part.factors for part in wholes if part.factors is not None],
        ),
        skipped=tuple(skipped),
        twin=tuple(twins),
    )


@dataclass(frozen=True, eq=False)
class LayerScan:
    """What one layer gave; `whole` is None where it was not judged as one."""

    heads: tuple[HeadDynamics, ...] = ()
    whole: LayerDynamics | None = None
    twin: tuple[HeadDynamics, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def scan_layer(
    model: Model, layer: Layer, pool: Executor, *, null: bool = False, seed: int = 0, sums: bool | None = None
) -> LayerScan:
    """Decide every head of one layer, each thread of the pool with one head in float64 at a time."""
    if layer.spec.kind == "cross":
        what = f"layer {layer.number} ({layer.spec.stack} {layer.spec.index})"
        why = "cross-attention: no theorem speaks of tokens driven by other tokens"
        return LayerScan(skipped=(Skipped(what, why),))
    error = layer_storage_error(model, layer)
    _ = layer.weights  # read once, before threads share it
    every = range(layer.spec.heads)
    judged = sums if sums is not None else _narrow(layer)
    whole = pool.submit(layer_dynamics, layer, storage_error=error) if judged else None
    heads = pool.map(partial(head_dynamics, layer, storage_error=error, context=model.spec.context), every)
    twin = pool.map(partial(_twin, layer, error, seed), every if null else ())
    skipped = []
    if whole is None and sums is None:
        what = f"layer {layer.number} as a whole"
        wide = WIDEST_SUM if layer.spec.width <= WIDEST_MODEL else WIDEST_MODEL
        skipped.append(Skipped(what, f"wider than {wide}: ask for it if you can wait (--layer-sums)"))
    return LayerScan(tuple(heads), None if whole is None else whole.result(), tuple(twin), tuple(skipped))


def _twin(layer: Layer, error: float, seed: int, index: int) -> HeadDynamics:
    """The randomised twin of one head: what is drawn depends on the seed and on its place, not on other heads."""
    drawn = randomised(fold(layer, layer.heads[index]), np.random.default_rng([seed, layer.number, index]))
    return describe_head(layer, drawn, storage_error=error, rotary=False)


def _narrow(layer: Layer) -> bool:
    """Whether the sum over heads is small enough to be decided in seconds."""
    spec = layer.spec
    return min(spec.width, spec.kv_heads * spec.value_width) <= WIDEST_SUM and spec.width <= WIDEST_MODEL


def brief(head: HeadDynamics) -> dict[str, Any]:
    """The entries of a head's row that summaries are made of."""
    return {
        "verdict": head.regime.verdict.value,
        "robust": head.robust,
        "metastable": head.metastable,
        "growth_index": head.regime.growth_index,
        "spread_index": head.regime.spread_index,
        "pair_index": head.pair_index,
        "ov_positivity": head.ov_positivity,
    }


def summary(heads: Sequence[HeadDynamics]) -> dict[str, Any]:
    """Counts of verdicts and means of the indices."""
    return summary_of([brief(head) for head in heads])


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same, from heads' rows."""

    def mean(name: str) -> float | None:
        present = [row[name] for row in rows if row[name] is not None]
        return float(np.mean(present)) if present else None

    return {
        "heads": len(rows),
        "counts": dict(Counter(row["verdict"] for row in rows)),
        "robust": sum(row["robust"] for row in rows),
        "metastable": sum(bool(row["metastable"]) for row in rows),
        **{name: mean(name) for name in ("growth_index", "spread_index", "pair_index", "ov_positivity")},
    }


def whole_model(
    heads: Sequence[Mapping[str, Any]],
    layers: Sequence[Mapping[str, Any]],
    *,
    complete: bool,
    factors: Sequence[Factored],
) -> dict[str, Any]:
    """The model's row: counts, and an index of the looped, norm-free, attention-only stack (never exact).

    `heads` and `layers` are rows; `factors` those of all layers in order, or none where they do not fit in memory.
    Where not all layers were looked at (`complete`), nothing is said of the stack.
    """
    verdict = rule = None
    one_stack = len({layer["stack"] for layer in layers}) == 1
    growth = _finite_growth(factors) if complete and one_stack else None
    shrinks = all(layer["symU"]["max"] < 0 and layer["rank_U"] == sum(layer["symU"]["inertia"]) for layer in layers)
    if complete and layers and shrinks:
        verdict, rule = "contracting_first_token", "max lambda_max(sym U_l) < 0"
    elif growth is not None and growth > 1 + 1e-6:
        verdict, rule = "expanding_first_token", "rho(prod exp U_l) > 1"
    return {
        **summary_of(heads),
        "layer_counts": dict(Counter(layer["verdict"] for layer in layers)),
        "verdict": verdict,
        "rule": rule,
        "exact": False,
        "log_growth": None if growth is None or growth <= 0 else float(np.log(growth)),
    }


def _finite_growth(factors: Sequence[Factored]) -> float | None:
    """`growth_of` the factors; None where the exponentials of such large weights leave the range of float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            growth = growth_of(factors)
        except (np.linalg.LinAlgError, ValueError):  # what LAPACK says of infinities
            return None
    return growth if growth is not None and np.isfinite(growth) else None
