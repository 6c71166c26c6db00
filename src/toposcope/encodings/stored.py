"""A table of position vectors that is a sinusoid: found by its numbers, whatever it is called and however it is kept.

With z_n^f = cosine channel + i sine channel of pair f in row n, a sinusoid is z_n^f = s e^{i w_f (n + c)} with
w_f = base^(-f / m). The phases of each pair, unwrapped along the rows, give w_f; the line through log w_f gives the
base; what is left is the scale s and the start c. The rows before the first position may be reserved (zeros).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.absolute import Layout, learned, sinusoidal
from toposcope.encodings.record import Array, Encoding, short

CLOSE = 0.01  # of the scale: rounding to half precision stays below, any learned table is far above
FEWEST_ROWS = 6
RESERVED = 4  # rows at the start that may be zero
_ROUND = 5e-3  # how near to a round number a measured base must be to be called that
_LARGEST_ROWS = 4096  # looked at to measure; all are compared


@dataclass(frozen=True)
class StoredSinusoid:
    """A sinusoid that equals a table: `encoding` by its formula, and `first`, the row of position 0.

    `error` is the largest difference of an entry from the formula, in units of the scale.
    """

    encoding: Encoding
    first: int
    error: float


def table_encoding(rows_ND: NDArray[np.floating], *, note: str = "") -> Encoding:
    """The encoding of a stored table: a sinusoid where it is one, else learned vectors; the rows stay as stored."""
    found = stored_sinusoid(rows_ND)
    notes = (note,) if note else ()
    if found is None:
        return replace(learned(rows_ND), notes=notes)
    kept = learned(rows_ND, offset=found.first)
    assert kept.input is not None
    said = found.encoding.parameters
    where = f" The first {found.first} rows are no positions." if found.first else ""
    return replace(
        found.encoding,
        title=f"{found.encoding.title}, stored for {kept.input.length:,} positions",
        input=kept.input,
        notes=(
            *notes,
            f"the stored table is a sinusoid of base {short(said['base'])}, scale {short(said['scale'])}, counted "
            f"from {said['offset']}: no entry differs by more than {found.error:.1e} of the scale.{where}",
        ),
    )


def stored_sinusoid(rows_ND: NDArray[np.floating]) -> StoredSinusoid | None:
    """The sinusoid that a table equals to a hundredth of its scale, or None."""
    rows = np.asarray(rows_ND)
    if rows.ndim != 2 or rows.shape[1] < 4 or len(rows) < FEWEST_ROWS:
        return None
    zero = np.flatnonzero(~rows[:RESERVED].any(axis=1))
    first = int(zero[-1]) + 1 if len(zero) else 0
    body = rows[first:]
    if len(body) < FEWEST_ROWS:
        return None
    for layout in ("interleaved", "half"):
        for encoding in _candidates(body[:_LARGEST_ROWS], layout, first):
            error = _difference(encoding, body)
            if error <= CLOSE:
                return StoredSinusoid(encoding, first, error)
    return None


def _candidates(body: NDArray[np.floating], layout: Layout, first: int) -> Iterator[Encoding]:
    """The sinusoids of one layout that the measured frequencies allow, the likeliest first."""
    width = body.shape[1]
    if layout == "half" and width % 2:
        return
    pairs = width // 2
    sine, cosine = (
        (body[:, 0 : 2 * pairs : 2], body[:, 1::2]) if layout == "interleaved" else (body[:, :pairs], body[:, pairs:])
    )
    turning = np.asarray(cosine, dtype=np.float64) + 1j * np.asarray(sine, dtype=np.float64)
    lengths = np.abs(turning)
    scale = float(np.median(lengths))
    if not scale > 0 or np.abs(lengths - scale).max() > 2 * CLOSE * scale:
        return
    phases = np.unwrap(np.angle(turning), axis=0)
    at = np.arange(len(body), dtype=np.float64) - (len(body) - 1) / 2
    frequencies = (at @ phases) / (at @ at)
    if (frequencies <= 0).any():
        return
    number = np.arange(pairs)
    logs = np.log(frequencies)
    weight = frequencies  # what is slow is known less well
    slope = -float((weight * number) @ logs / ((weight * number) @ number))
    usual, other = (width / 2, width / 2 - 1) if layout == "interleaved" else (width / 2 - 1, width / 2)
    bases = [(float(np.exp(min(slope * steps, 80.0))), steps) for steps in (usual, other) if steps > 0]
    for base, steps in sorted(bases, key=lambda each: not _is_round(each[0])):
        rounded = float(f"{base:.1g}") if _is_round(base) else base
        if rounded > 1:
            for offset in dict.fromkeys((first, 0, 1, 2)):
                yield sinusoidal(width, layout=layout, base=rounded, denominator=steps, offset=offset, scale=scale)


def _is_round(base: float) -> bool:
    """Whether a number is one digit and zeros, as far as it was measured."""
    return abs(float(f"{base:.1g}") / base - 1) < _ROUND


def _difference(encoding: Encoding, body: NDArray[np.floating]) -> float:
    """The largest difference of a table's entry from a sinusoid, in units of its scale."""
    assert encoding.input is not None
    largest = 0.0
    for start in range(0, len(body), _LARGEST_ROWS):
        part = body[start : start + _LARGEST_ROWS]
        theirs: Array = encoding.input.vectors(np.arange(start, start + len(part)))
        largest = max(largest, float(np.abs(part - theirs).max()))
    return largest / float(encoding.parameters["scale"])
