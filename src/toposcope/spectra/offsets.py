"""The kernel of an encoding itself, at given offsets, and its symbol where one exists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings import Encoding
from toposcope.spectra.bias_kernel import alibi_symbol_range
from toposcope.spectra.rotary_kernel import kernel_values, rotary_weights

Array = NDArray[np.float64]
OFFSETS = (0, 1, 2, 4, 8, 16, 64, 256, 1024, 4096)


def kernel_at(encoding: Encoding, offsets: Sequence[int] = OFFSETS, head: int = 0) -> Array | None:
    """g(t) at offsets t = i - j, 1 at t = 0: the rotary kernel of constant content, or exp(b(t) - b(0)) of a bias.

    None for encodings without a kernel over offsets: absolute tables, biases that depend on both positions, rotations
    that decay.
    """
    at_T = np.asarray(offsets, dtype=np.float64)
    if encoding.rotary is not None:
        if encoding.rotary.decay_F is not None:
            return None
        return kernel_values(at_T, *rotary_weights(encoding.rotary))
    if encoding.bias is not None:
        if not encoding.bias.toeplitz:
            return None
        b_T = encoding.bias.by_offset(at_T)[head]
        with np.errstate(over="ignore"):  # a bias that rises with the distance
            return np.asarray(np.exp(b_T - encoding.bias.by_offset([0.0])[head, 0]))
    return np.ones(len(at_T)) if encoding.input is None else None


def symbol_range(encoding: Encoding, head: int = 0) -> tuple[float, float] | None:
    """Least and greatest value of the symbol sum_t g(t) e^{i t theta}, between which all eigenvalues lie at every n.

    It exists for summable kernels; the one with a closed form is two-sided ALiBi's exp(-m |t|). A rotary kernel has
    none: its spectral measure is discrete (2.5).
    """
    exact = encoding.name == "alibi" and encoding.parameters["symmetric"] and encoding.parameters["scale"] == 1.0
    if not exact or encoding.bias is None or not encoding.bias.toeplitz:
        return None
    slope = float(encoding.parameters["slopes"][head])
    return alibi_symbol_range(slope) if slope > 0 else None  # a flat bias has no summable kernel
