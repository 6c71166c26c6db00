"""How position enters a layer, as recipes: its rotation, its bias, and what multiplies its queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.describe import Drafted
from toposcope.checkpoints.generic.encode import Recipe, rotation, sections
from toposcope.checkpoints.generic.record import Array, double
from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.bias_alibi import alibi
from toposcope.encodings.bias_t5 import t5
from toposcope.encodings.record import LogitBias, QueryScale

_NEAR = 5e-4  # of a bias


def position(
    drafted: Drafted, config: Mapping[str, Any], tensors: Mapping[str, Any]
) -> tuple[LayerSpec, tuple[Recipe, ...], QueryScale | None]:
    """The layer with the factors that belong to its rotation taken out of its scale, its recipes, its query scale."""
    spec, fitted, recipes = drafted.spec, drafted.fitted, []
    length = fitted.q.shape[2]
    if fitted.turn is not None and drafted.pairs_F2 is not None:
        recipe, factor = rotation(
            config, spec.head_dim, drafted.pairs_F2, fitted.turn.frequencies_F, drafted.attention_factor, length
        )
        recipes.append(recipe)
        if drafted.attention_factor is None:  # all channels turn: the factor is seen in the scale only
            spec = replace(spec, scale=spec.scale / factor**2)
    if fitted.logits.bias_HNM is not None:
        recipes.append(_bias(fitted.logits.bias_HNM, fitted.probabilities[0, 0] > 0, config, tensors))
    return spec, tuple(recipes), query_scale(fitted.query_sizes_N)


def query_scale(sizes_N: Array | None) -> QueryScale | None:
    """The steps by which queries grow, as 1 + rate log(1 + floor((i + shift) / period))."""
    if sizes_N is None:
        return None
    at_N = np.arange(len(sizes_N))
    for period in range(2, len(sizes_N)):
        for shift in (0, 1):
            steps = np.log1p(np.floor((at_N + shift) / period))
            rate = float(steps @ (sizes_N - 1) / (steps @ steps))
            if 0 < rate < 1e6 and np.abs(1 + rate * steps - sizes_N).max() < 1e-5:
                return QueryScale(round(rate, 6), period, shift)
    raise Refused("queries are scaled by position in an unknown way")


def _bias(bias_HNM: Array, visible_NM: Any, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Recipe:
    """The known bias that this is. A table that was learned must be found among the model's tensors."""
    heads, length = bias_HNM.shape[:2]
    at = np.arange(length)

    def fits(bias: LogitBias | None) -> bool:
        if bias is None or bias.heads != heads:
            return False
        table = bias.table(at, at)
        last = np.array([np.flatnonzero(row)[-1] for row in visible_NM])
        table = np.where(visible_NM, table - np.take_along_axis(table, last[None, :, None], axis=2), 0)
        return bool(np.abs(table - bias_HNM).max() < _NEAR)

    for options in _alibis(heads, config):
        if fits(alibi(**options).bias):
            return Recipe("alibi", options)
    distances = {128, *(v for s in sections(config) for k, v in s.items() if "max_distance" in k and _count(v))}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or tensor.shape[1] != heads or len(tensor) > 4096:
            continue
        for distance in sorted(distances):
            for both in (True, False):
                try:
                    found = t5(double(tensor), bidirectional=both, max_distance=distance)
                except ToposcopeError:
                    continue
                if fits(found.bias):
                    return Recipe("t5", {"tensor": name, "bidirectional": both, "max_distance": distance})
    raise Refused("a bias is added to the logits that is neither ALiBi's nor T5's")


def _alibis(heads: int, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    largest = {8.0, *(float(v) for s in sections(config) for k, v in s.items() if "bias_max" in k and _count(v))}
    for symmetric in (True, False):
        for most in sorted(largest):
            yield {"heads": heads, "symmetric": symmetric, "max_bias": most}


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 24
