"""A module as a description names it: the rows that are used of a weight; a norm, its kind and epsilon measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.match import Index, ModuleFlow
from toposcope.checkpoints.generic.record import Array, double
from toposcope.checkpoints.spec import Linear, NormSpec, RowPattern

_USUAL = (1e-5, 1e-6, 1e-12, 1e-8, float(np.finfo(np.float32).eps))
_FITS = 2e-5


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


@dataclass(frozen=True)
class NormKind:
    """What a norm computes, apart from its tensors."""

    kind: Literal["rms", "layer"]
    eps: float
    offset: float
    gain: bool
    bias: bool


def norm_kind(module: Any, x: Array) -> NormKind:
    """The norm that gives what the module gives, for the inputs it had and for tiny ones, where epsilon counts."""
    import torch

    weight, bias = (getattr(module, name, None) for name in ("weight", "bias"))
    gain = double(weight) if torch.is_tensor(weight) else None
    shift = double(bias) if torch.is_tensor(bias) else None
    dtype = next((each.dtype for each in module.parameters()), torch.float64)
    own = sorted({each for each in vars(module).values() if isinstance(each, float) and 0 <= each < 0.1})
    several = gain is not None and gain.ndim > 1 and x.size % gain.size == 0  # a gain for each head
    rows = x.reshape(-1, *gain.shape)[:16] if several and gain is not None else x.reshape(-1, x.shape[-1])[:64]
    sizes = (1.0, 1e-3 / max(float(np.abs(rows).max()), 1e-30))
    inputs = [torch.as_tensor(rows * size, dtype=dtype) for size in sizes]
    try:
        with torch.no_grad():
            outputs = [double(module(each)) for each in inputs]
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise Refused(f"a norm of kind {type(module).__name__} cannot be tried by itself") from error
    best: tuple[float, NormKind] | None = None
    for kind in ("rms", "layer"):
        for eps in (*own, *(each for each in _USUAL if each not in own)):
            for offset in (0.0, 1.0) if gain is not None else (0.0,):
                worst = max(
                    _error(double(a), b, kind, eps, gain, shift, offset) for a, b in zip(inputs, outputs, strict=True)
                )
                if best is None or worst < 0.9 * best[0]:
                    best = (worst, NormKind(kind, eps, offset, gain is not None, shift is not None))
    if best is None or best[0] > _FITS:
        raise Refused(f"a norm of kind {type(module).__name__}, which is neither RMS nor layer norm")
    return best[1]


def _error(
    x: Array, y: Array, kind: str, eps: float, gain: Array | None, shift: Array | None, offset: float
) -> float:
    centred = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    mine = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)
    try:
        if gain is not None:
            mine = mine * (gain + offset)
        if shift is not None:
            mine = mine + shift
        return float(np.abs(mine - y).max() / max(float(np.abs(y).max()), 1e-12))
    except ValueError:  # a gain of another width
        return np.inf
