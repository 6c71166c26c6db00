"""Position at the input: the same token everywhere, and what differs in what the first layer is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from toposcope.checkpoints.generic.copied import Copy
from toposcope.checkpoints.generic.encode import Recipe
from toposcope.checkpoints.generic.record import Array, Recorded, double, flat
from toposcope.encodings.absolute import sinusoidal

_LENGTH, _TOKEN = 12, 40


def input_positions(copy: Copy, widths: dict[int, int]) -> dict[str, Recipe]:
    """For each stack whose input changes with position, by the prefix of its layers: what is added there.

    `widths` says how wide a stream of the copy is in the model itself.
    """
    import torch

    ids = torch.full((1, _LENGTH), _TOKEN)
    more: dict[str, Any] = {"input_ids": ids}
    if getattr(copy.model.config, "is_encoder_decoder", False):
        more["decoder_input_ids"] = ids
    noted = copy.run(_LENGTH, 1, 1, lambda name: False, **more)
    found: dict[str, Recipe] = {}
    stacks = dict.fromkeys(each.layer.rpartition(".")[0] for each in noted.calls if each.layer)
    for stack in stacks:
        first = next(name for name in noted.layers if name.rpartition(".")[0] == stack)
        x = flat(noted.layer_inputs[first], 1, _LENGTH)
        if x is None or np.ptp(x[0], axis=0).max() < 1e-6 * np.abs(x).max():
            continue
        found[stack] = _table(copy, noted, stack) or _sinusoid(x[0], widths) or Recipe("unnamed")
    return found


def _table(copy: Copy, noted: Recorded, stack: str) -> Recipe | None:
    """The embedding that was asked for consecutive rows: the stack's own, else the only one."""
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
    own = stack.rpartition(".")[0]
    inside = {name: row for name, row in tables.items() if name.startswith(f"{own}.")} or tables
    if len(inside) != 1:
        return None
    name, row = next(iter(inside.items()))
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
