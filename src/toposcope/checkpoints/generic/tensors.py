"""Names of a module's tensors, as a description gives them: rows of a weight, a norm with its measured kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.match import Index, ModuleFlow
from toposcope.checkpoints.generic.norms import norm_kind
from toposcope.checkpoints.spec import Linear, NormSpec, RowPattern


def linear(modules: dict[str, Any], name: str, rows: Index, factor: float = 1.0) -> Linear:
    """The rows that are used of a module's weight and bias."""
    module = modules[name]
    transposed = type(module).__name__ == "Conv1D"
    held = module.weight.shape[1 if transposed else 0]
    bias = None if getattr(module, "bias", None) is None else f"{name}.bias"
    return Linear(f"{name}.weight", bias, transposed, rows=row_pattern(rows, held), factor=factor)


def row_pattern(rows: Index, held: int) -> RowPattern | None:
    """Rows as runs of equal size and distance; None where they are all rows in their order."""
    if np.array_equal(rows, np.arange(held)):
        return None
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate([[0], cuts])
    sizes = np.diff(np.concatenate([starts, [len(rows)]]))
    steps = np.diff(rows[starts])
    if np.ptp(sizes) or (len(steps) and (np.ptp(steps) or steps[0] < sizes[0])):
        raise Refused("rows of a tensor are used in an irregular order")
    step = int(steps[0]) if len(steps) else 0
    return RowPattern(int(rows[0]), int(sizes[0]), len(starts), step)


def norm_spec(modules: dict[str, Any], flow: ModuleFlow) -> NormSpec:
    """The norm of a module, measured."""
    module = modules[flow.name]
    kind = norm_kind(module, flow.x.reshape(-1, flow.wide))
    return NormSpec(
        kind.kind,
        kind.eps,
        f"{flow.name}.weight" if kind.gain else None,
        f"{flow.name}.bias" if kind.bias else None,
        kind.offset,
    )
