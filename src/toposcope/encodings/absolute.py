"""Encodings that add a vector p_i to the input at position i: sinusoidal, learned, random.

Two sinusoids are in use and differ in more than the order of their channels. With d the width:

* `interleaved`  p_i = (sin w_0 i, cos w_0 i, sin w_1 i, ...),        w_f = base^(-f / (d/2))       (the paper)
* `half`         p_i = (sin w_0 i, sin w_1 i, ... | cos w_0 i, ...),  w_f = base^(-f / (d/2 - 1))   (fairseq, Whisper)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.memory import require_memory
from toposcope.core.ranges import computable
from toposcope.encodings.parameter import SEED, Parameter
from toposcope.encodings.record import Array, Encoding, InputTable, short, stated
from toposcope.encodings.registry import Kind, Paper

Layout = Literal["interleaved", "half"]


def sinusoidal(
    width: int,
    *,
    layout: Layout = "interleaved",
    base: float = 10000.0,
    denominator: float | None = None,
    offset: int = 0,
    scale: float = 1.0,
) -> Encoding:
    """Sines and cosines of geometrically spaced frequencies, for any position.

    w_f = base^(-f / denominator); the denominator is d/2 for `interleaved` and d/2 - 1 for `half` unless given.
    Position i is read as i + offset, and the vectors are multiplied by `scale`.
    """
    if width < 1:
        raise BadEncoding(f"the width must be positive, got {width}.")
    if layout not in ("interleaved", "half"):
        raise BadEncoding(f"unknown layout '{layout}' of a sinusoid; give 'interleaved' or 'half'.")
    if layout == "half" and width % 2:
        raise BadEncoding(f"a half-split sinusoid needs an even width, got {width}. Use layout=interleaved.")
    if not (math.isfinite(base) and base > 1):
        raise BadEncoding(f"the base of a sinusoid must be greater than 1, got {base}. The usual value is 10000.")
    steps = denominator if denominator is not None else width / 2 - (1 if layout == "half" else 0)
    number_F = np.arange((width + 1) // 2)
    if steps < 0 or (steps == 0 and len(number_F) > 1):
        raise BadEncoding(f"the denominator of the exponents must be positive, got {steps}.")
    frequency_F = base ** -(number_F / steps) if len(number_F) > 1 else np.ones(1)

    def vectors_at(at_N: Array) -> Array:
        angle_NF = (at_N + offset)[:, None] * frequency_F
        if layout == "half":
            return scale * np.concatenate([np.sin(angle_NF), np.cos(angle_NF)], axis=1)
        vectors_ND = np.stack([np.sin(angle_NF), np.cos(angle_NF)], axis=2).reshape(len(at_N), -1)
        return scale * vectors_ND[:, :width]  # an odd width ends with a sine

    order = "sines then cosines" if layout == "half" else "sines and cosines in turn"
    return Encoding(
        name="sinusoidal",
        title=f"sinusoidal, base {short(base)}, {order}, width {width}",
        parameters=stated(
            width=width, layout=layout, base=base, denominator=float(steps), offset=offset, scale=float(scale)
        ),
        input=InputTable(width, vectors_at),
        citations=("vaswani2017attention",),
    )


def learned(table_ND: NDArray[Any], *, offset: int = 0) -> Encoding:
    """The learned vectors of a checkpoint: position i reads row i + offset.

    The first rows may be reserved: `offset` is 2 in OPT and padding_idx + 1 in RoBERTa.
    """
    rows = _rows(table_ND)
    length = len(rows) - offset
    if offset < 0 or length < 1:
        raise BadEncoding(f"offset {offset} leaves no position in a table of {len(rows)} rows.")
    return Encoding(
        name="learned",
        title=f"learned vectors, {length:,} positions" + (f", from row {offset}" if offset else ""),
        parameters=stated(length=length, width=rows.shape[1], offset=offset),
        input=_lookup(rows, offset),
        citations=("gehring2017convolutional",),
    )


def learned_init(width: int, length: int, *, std: float = 0.02, seed: int = 0) -> Encoding:
    """Learned vectors before training: `length` draws from N(0, std^2), the same for the same seed."""
    return Encoding(
        name="learned",
        title=f"learned vectors before training, {length:,} positions",
        parameters=stated(length=length, width=width, std=std, seed=seed),
        input=_lookup(_drawn(width, length, std, seed), 0),
        notes=("the vectors are a fresh initialisation, not those of a trained model.",),
        citations=("gehring2017convolutional",),
    )


def random(width: int, length: int, *, std: float = math.sqrt(0.5), seed: int = 0) -> Encoding:
    """Fixed random vectors that are never trained: position without geometry.

    With the default std their mean square is that of a sinusoid, 1/2 per channel.
    """
    return Encoding(
        name="random",
        title=f"fixed random vectors, {length:,} positions, seed {seed}",
        parameters=stated(length=length, width=width, std=std, seed=seed),
        input=_lookup(_drawn(width, length, std, seed), 0),
    )


def _rows(table_ND: NDArray[Any]) -> NDArray[Any]:
    rows = np.asarray(table_ND)
    if rows.ndim != 2:
        raise BadEncoding(f"a table of position vectors has the shape (positions, width), got {rows.shape}.")
    if rows.size and not computable(float(np.abs(rows).max())):
        raise BadEncoding(f"a position vector holds {np.abs(rows).max():.3g}; that cannot be computed with.")
    return rows


def _drawn(width: int, length: int, std: float, seed: int) -> Array:
    if width < 1 or length < 1:
        raise BadEncoding(f"a table of position vectors needs positions and width, got {length} x {width}.")
    if not (math.isfinite(std) and std >= 0):
        raise BadEncoding(f"std must not be negative, got {std}.")
    require_memory(16 * length * width, f"a table of {length:,} position vectors", "Give it a smaller length.")
    return std * np.random.default_rng(seed).standard_normal((length, width))


def _lookup(rows: NDArray[Any], offset: int) -> InputTable:
    def vectors_at(at_N: Array) -> Array:
        row_N = at_N.astype(np.intp)
        if (row_N != at_N).any():
            raise BadValue(
                f"position {at_N[row_N != at_N][0]} is not whole, and a learned table has no vector there."
            )
        return rows[row_N + offset].astype(np.float64)

    return InputTable(rows.shape[1], vectors_at, length=len(rows) - offset)


PAPERS = {
    "vaswani2017attention": Paper("Vaswani et al.", "Attention Is All You Need", "NeurIPS", 2017, "1706.03762"),
    "gehring2017convolutional": Paper(
        "Gehring et al.", "Convolutional Sequence to Sequence Learning", "ICML", 2017, "1705.03122"
    ),
}
KINDS = (
    Kind(
        "sinusoidal",
        "sines and cosines added to the input",
        "input",
        lambda sizes, given: sinusoidal(sizes.width, **given),
        (
            Parameter.choice(
                "layout",
                "interleaved",
                "sine and cosine alternate, or all sines before all cosines",
                "interleaved",
                "half",
            ),
            Parameter.number("base", 10000.0, "ratio of the fastest to the slowest frequency", above=1),
            Parameter.number("denominator", None, "of the exponents; default d/2, for layout=half d/2 - 1", above=0),
            Parameter.whole("offset", 0, "added to every position", least=0),
            Parameter.number("scale", 1.0, "multiplies the vectors", above=0),
        ),
        {"sin": {}, "sincos": {}, "sinusoid": {}},
        ("vaswani2017attention",),
    ),
    Kind(
        "learned",
        "a trained vector per position, added to the input",
        "input",
        lambda sizes, given: learned_init(sizes.width, **{"length": sizes.context, **given}),
        (
            Parameter.whole("length", None, "positions in the table; default: the model's context"),
            Parameter.number("std", 0.02, "standard deviation before training", least=0),
            SEED,
        ),
        {"absolute": {}, "ape": {}},
        ("gehring2017convolutional",),
        learns=("table",),
        trained=lambda sizes, said, tensors: learned(tensors["table"]),
    ),
    Kind(
        "random",
        "a fixed random vector per position, added to the input",
        "input",
        lambda sizes, given: random(sizes.width, **{"length": sizes.context, **given}),
        (
            Parameter.whole("length", None, "positions in the table; default: the model's context"),
            Parameter.number("std", 0.5**0.5, "standard deviation; the default is a sinusoid's", least=0),
            SEED,
        ),
    ),
)
