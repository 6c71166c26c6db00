"""Models of equal size: the width of the MLPs with which a model has as many parameters as another."""

from __future__ import annotations

from collections.abc import Callable

from toposcope.core.errors import BadValue


def nearest_ff(count: Callable[[int], int], wanted: int) -> int:
    """The width at which `count`, the parameters of a model by that width, comes nearest to `wanted`."""
    first, each = count(1), count(2) - count(1)
    found = 1 + round((wanted - first) / each)
    if found < 1:
        raise BadValue(f"the model has {first:,} parameters with MLPs of width 1; it cannot have {wanted:,}.")
    return found


def trained_parameters(model: object) -> int:
    """How many numbers of a torch module are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)  # type: ignore[attr-defined]
