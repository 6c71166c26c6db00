"""How position enters, as recipes: a layer's rotation, bias and factor on queries; and what is added at the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.describe import Drafted
from toposcope.checkpoints.generic.encode import Recipe, rotation, sections
from toposcope.checkpoints.generic.match import same
from toposcope.checkpoints.generic.record import Array, Recorded, double, flat
from toposcope.checkpoints.generic.texts import inputs
from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.absolute import sinusoidal
from toposcope.encodings.bias_alibi import alibi
from toposcope.encodings.bias_t5 import t5
from toposcope.encodings.record import LogitBias, QueryScale

if TYPE_CHECKING:
    from toposcope.checkpoints.generic.copied import SmallCopy

_NEAR = 5e-4  # of a bias
_LENGTH, _TOKEN = 12, 40  # of a text that is one token everywhere


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


def input_positions(copy: SmallCopy, widths: dict[int, int]) -> dict[str, Recipe]:
    """For each stack whose input changes with position, by the prefix of its layers: what is added there.

    The same token stands everywhere, so what differs in the input of the first layer is position.

    `widths` says how wide a stream of the copy is in the model itself.
    """
    import torch

    given = inputs(copy.model, copy.sense, 1, _LENGTH, 1)
    for name, each in given.items():
        if torch.is_tensor(each):  # one token everywhere, an image or a sound of one colour
            given[name] = torch.full_like(each, _TOKEN) if not each.is_floating_point() else torch.ones_like(each)
    noted = copy.run(_LENGTH, 1, 1, lambda name: False, **given)
    found: dict[str, Recipe] = {}
    stacks = dict.fromkeys(each.layer.rpartition(".")[0] for each in noted.calls if each.layer)
    for stack in stacks:
        first = next(name for name in noted.layers if name.rpartition(".")[0] == stack)
        x_ND = double(noted.layer_inputs[first]).reshape(-1, noted.layer_inputs[first].shape[-1])
        if np.ptp(x_ND, axis=0).max() < 1e-6 * np.abs(x_ND).max():
            continue
        found[stack] = (
            _table(copy, noted, stack) or _parameter(copy, x_ND) or _sinusoid(x_ND, widths) or Recipe("unnamed")
        )
    return found


def _shared(one: list[str], other: list[str]) -> int:
    """How many parts two names share from the beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _parameter(copy: SmallCopy, x_ND: Array) -> Recipe | None:
    """The table, stored as a plain parameter, whose differences from row to row the input has."""
    steps = np.diff(x_ND[1:], axis=0)  # the first may be a token of its own
    for name, tensor in copy.names.held.items():
        if tensor.dim() not in (2, 3) or tensor.shape[-1] != x_ND.shape[1] or tensor.numel() < x_ND[1:].size:
            continue
        rows = double(tensor)
        if rows.ndim == 3 and len(rows) != 1:
            continue
        rows = rows.reshape(-1, x_ND.shape[1])
        for offset in range(min(4, len(rows) - len(x_ND) + 2)):
            if same(np.diff(rows[offset : offset + len(x_ND) - 1], axis=0), steps, 1e-5) and offset >= 1:
                return Recipe("learned", {"tensor": name, "offset": offset - 1})
            if offset == 0 and same(np.diff(rows[: len(x_ND) - 1], axis=0), steps, 1e-5):
                return None  # the first vector of the input has no row: positions would be off by one
    return None


def _table(copy: SmallCopy, noted: Recorded, stack: str) -> Recipe | None:
    """The embedding that gave consecutive rows: of several the one whose name is nearest to the stack's."""
    tables: dict[str, int] = {}
    for each in noted.embeddings:
        given = flat(each.y, 1, _LENGTH)
        given = given if given is not None else double(each.y).reshape(1, -1, each.y.shape[-1])
        table = double(copy.model.get_submodule(each.name).weight)
        if given.shape[1:] != (_LENGTH, table.shape[1]):
            continue
        starts = np.flatnonzero((table == given[0, 0]).all(axis=1))
        for row in starts[:1]:
            if np.array_equal(table[row : row + _LENGTH], given[0]):
                tables[f"{each.name}.weight"] = int(row)
    near = {name: _shared(name.split("."), stack.split(".")) for name in tables}
    best = [name for name in near if near[name] == max(near.values())]
    if len(best) != 1:
        return None
    name, row = best[0], tables[best[0]]
    return Recipe("learned", {"tensor": name, "offset": row}) if name in copy.names.held else None


def _sinusoid(x_ND: Array, widths: dict[int, int]) -> Recipe | None:
    """The sinusoid whose changes from position to position these are."""
    width = x_ND.shape[1]
    if width not in widths or width % 2:
        return None
    steps = x_ND - x_ND[0]
    for layout in ("half", "interleaved"):
        for offset in (0, 1, 2):
            for less in (0, 1):
                options: dict[str, Any] = {"layout": layout, "offset": offset}
                tried = sinusoidal(width, denominator=width / 2 - less, **options).input
                if tried is None:
                    continue
                theirs = tried.vectors(np.arange(len(x_ND)))
                theirs = theirs - theirs[0]
                scale = float((theirs * steps).sum() / (theirs * theirs).sum())
                if np.abs(scale * theirs - steps).max() < 1e-5 * np.abs(steps).max():
                    true = widths[width]
                    return Recipe(
                        "sinusoidal",
                        {"width": true, "denominator": true / 2 - less, "scale": round(scale, 6), **options},
                    )
    return None
