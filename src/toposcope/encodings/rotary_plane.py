"""RoPE in a plane: half of the channel pairs turn with a patch's row, half with its column."""

from __future__ import annotations

import math

import numpy as np

from toposcope.core.errors import BadEncoding
from toposcope.encodings.record import Array, Encoding, Rotary, short, stated
from toposcope.encodings.rotary import channel_pairs, check_base, pairs_in_words

AXES = ("row", "column")
CENTRES, NUMBERS = "centres", "numbers"


def centred_rope(head_dim: int, *, base: float = 100.0) -> Encoding:
    """DINOv3's rotation: positions are the patches' centres in [-1, 1] along each side, (0, 0) for other tokens.

    A pair turns by 2 pi base^(-4f/d) for each unit of its axis; the first d/4 pairs follow the row.
    """
    exponents = _exponents(head_dim, base)
    return _in_plane(head_dim, base, np.tile(2 * math.pi * base ** -exponents[::2], 2), CENTRES)


def numbered_rope(head_dim: int, *, base: float = 10000.0) -> Encoding:
    """Pixtral's rotation: positions are the numbers of a patch's row and column.

    Of the frequencies base^(-2f/d) rows have the even ones, columns the odd ones.
    """
    exponents = _exponents(head_dim, base)
    return _in_plane(head_dim, base, base ** -np.concatenate([exponents[::2], exponents[1::2]]), NUMBERS)


def patches(encoding: Encoding, rows: int, columns: int, others: int = 0) -> Array:
    """The positions (N, 2) of so many patches, row by row, behind `others` tokens that are not turned."""
    along = [np.arange(count, dtype=np.float64) for count in (rows, columns)]
    if encoding.parameters["positions"] == CENTRES:
        along = [(at + 0.5) / len(at) * 2 - 1 for at in along]
    grid = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([np.zeros((others, 2)), grid])


def _exponents(head_dim: int, base: float) -> Array:
    check_base(base)
    if head_dim < 4 or head_dim % 4:
        raise BadEncoding(f"a rotation by rows and columns needs a multiple of 4 channels, got {head_dim}.")
    return np.arange(head_dim // 2) * 2.0 / head_dim


def _in_plane(head_dim: int, base: float, frequencies_F: Array, positions: str) -> Encoding:
    rotary = Rotary(
        head_dim,
        channel_pairs(head_dim, "half"),
        lambda context: frequencies_F.copy(),
        "half",
        axis_F=np.repeat(np.arange(2), head_dim // 4),
        axes=AXES,
    )
    return Encoding(
        name="rope-2d",
        title=f"RoPE by row and column, base {short(base)}, {pairs_in_words(rotary)}",
        parameters=stated(base=base, positions=positions),
        rotary=rotary,
        exact_tables=False,
        notes=("patches are turned by row and column of an image, and no offset between tokens tells both",),
    )
