"""Position at the input: the same token everywhere, and what differs in what the first layer is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from toposcope.checkpoints.generic.copied import SmallCopy
from toposcope.checkpoints.generic.encode import Recipe
from toposcope.checkpoints.generic.match import same
from toposcope.checkpoints.generic.record import Array, Recorded, double, flat
from toposcope.checkpoints.generic.texts import inputs
from toposcope.encodings.absolute import sinusoidal

_LENGTH, _TOKEN = 12, 40


def input_positions(copy: SmallCopy, widths: dict[int, int]) -> dict[str, Recipe]:
    """For each stack whose input changes with position, by the prefix of its layers: what is added there.

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
