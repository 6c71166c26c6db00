"""An encoding as plain tables for texts up to one length: arrays only, so that another process can have it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FixedFrequencies:
    """`Rotary.frequencies_at` where the length of the text plays no part."""

    frequencies_F: Array

    def __call__(self, context: int | None) -> Array:
        return self.frequencies_F


@dataclass(frozen=True, eq=False)
class BiasByOffset:
    """`LogitBias.bias_at` from a table over t = -(n-1) .. n-1, at whole positions."""

    entries_HT: Array

    def __call__(self, query_N: Array, key_M: Array) -> Array:
        offset_NM = (query_N[:, None] - key_M).astype(np.intp)
        return np.asarray(self.entries_HT[:, offset_NM + self.entries_HT.shape[1] // 2])


def tabulated(encoding: Encoding, length: int) -> Encoding | None:
    """What acts inside a head at positions 0 .. length - 1; None where tables over offsets do not say all of it.

    They do not for frequencies that depend on the length of the text, and for biases that depend on both positions.
    What is added to the input has acted before, and is left out.
    """
    rotary, bias = encoding.rotary, encoding.bias
    if (rotary is not None and rotary.by_length) or (bias is not None and not bias.toeplitz):
        return None
    if rotary is not None:
        rotary = replace(rotary, frequencies_at=FixedFrequencies(rotary.frequencies(length)))
    if bias is not None:
        bias = replace(bias, bias_at=BiasByOffset(bias.by_offset(np.arange(1 - length, length))))
    return replace(encoding, parameters={}, input=None, rotary=rotary, bias=bias)
