"""Walk through a model's layers and say, head by head, where its weights drive the tokens: `toposcope scan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.spec import Skipped
from toposcope.checkpoints.view import Layer, Model
from toposcope.dynamics.heads import HeadDynamics, describe_head, head_dynamics
from toposcope.dynamics.layers import LayerDynamics, layer_dynamics, stack_growth
from toposcope.dynamics.null import randomised
from toposcope.dynamics.storage import layer_storage_error

WIDEST_SUM = 1024  # a sum over heads wider than this takes minutes a layer


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
    random = np.random.default_rng(seed)
    with ThreadPoolExecutor(workers) as pool:
        for layer in chosen:
            if layer.spec.kind == "cross":
                what = f"layer {layer.number} ({layer.spec.stack} {layer.spec.index})"
                skipped.append(Skipped(what, "cross-attention: no theorem speaks of tokens driven by other tokens"))
                tick()
                continue
            error = layer_storage_error(model, layer)
            _ = layer.weights  # read once, before threads share it
            judged = sums if sums is not None else _narrow(layer)
            whole = pool.submit(layer_dynamics, layer, storage_error=error) if judged else None
            decide_one = partial(head_dynamics, layer, storage_error=error, context=model.spec.context)
            heads.extend(pool.map(decide_one, range(layer.spec.heads)))
            if whole is not None:
                wholes.append(whole.result())
            elif sums is None:
                what = f"layer {layer.number} as a whole"
                skipped.append(Skipped(what, f"wider than {WIDEST_SUM}: ask for it if you can wait (--layer-sums)"))
            if null:
                drawn = [randomised(fold(layer, head), random) for head in layer.heads]
                twins.extend(pool.map(partial(describe_head, layer, storage_error=error, rotary=False), drawn))
            tick()
    return ScanResult(
        heads=tuple(heads),
        layers=tuple(wholes),
        model=_whole(heads, wholes, complete=len(chosen) == len(model.layers)),
        skipped=tuple(skipped),
        twin=tuple(twins),
    )


def _narrow(layer: Layer) -> bool:
    """Whether the sum over heads is small enough to be decided in seconds."""
    spec = layer.spec
    return min(spec.width, spec.kv_heads * spec.value_width) <= WIDEST_SUM


def summary(heads: Sequence[HeadDynamics]) -> dict[str, Any]:
    """Counts of verdicts and means of the indices."""

    def mean(values: list[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else None

    return {
        "heads": len(heads),
        "counts": dict(Counter(head.regime.verdict.value for head in heads)),
        "robust": sum(head.robust for head in heads),
        "metastable": sum(bool(head.metastable) for head in heads),
        "growth_index": mean([head.regime.growth_index for head in heads]),
        "spread_index": mean([head.regime.spread_index for head in heads]),
        "pair_index": mean([head.pair_index for head in heads]),
        "ov_positivity": mean([head.symU["pos_mass"] for head in heads]),
    }


def _whole(heads: Sequence[HeadDynamics], layers: Sequence[LayerDynamics], *, complete: bool) -> dict[str, Any]:
    """The model's row: counts, and an index of the looped, norm-free, attention-only stack (never exact)."""
    verdict = rule = None
    growth = stack_growth(list(layers)) if complete and len({layer.stack for layer in layers}) == 1 else None
    if complete and layers and all(part.symU["max"] < 0 and part.rank_U == len(part.factors.left) for part in layers):
        verdict, rule = "contracting_first_token", "max lambda_max(sym U_l) < 0"
    elif growth is not None and growth > 1 + 1e-6:
        verdict, rule = "expanding_first_token", "rho(prod exp U_l) > 1"
    return {
        **summary(heads),
        "layer_counts": dict(Counter(layer.regime.verdict.value for layer in layers)),
        "verdict": verdict,
        "rule": rule,
        "exact": False,
        "log_growth": None if growth is None or growth <= 0 else float(np.log(growth)),
    }
