"""The kernels of absolute position vectors: their Gram matrix over its mean diagonal, at every context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding, InputTable
from toposcope.spectra.points import KernelPoints, Point, affordable, along, of_values
from toposcope.spectra.rotary_kernel import constant_vector_bound, kernel_spectrum, rotary_rank
from toposcope.spectra.toeplitz import Spectrum

Array = NDArray[np.float64]
GRAM_LIMIT = 2e12  # operations on a table of position vectors: some minutes
_ROWS = 4096


def table_points(encoding: Encoding, table: InputTable, contexts: Sequence[int]) -> KernelPoints:
    """P P^T over its mean diagonal: a rotary kernel for sinusoids, else from the table itself."""
    kernel = "Gram matrix of the position vectors over its mean diagonal"
    frequencies_F = sinusoid(encoding, table)
    if frequencies_F is not None:
        weights_F = np.full(len(frequencies_F), 1 / len(frequencies_F))
        points = (
            of_values(
                kernel_spectrum(frequencies_F, weights_F, n),
                "closed form: Dirichlet sums",
                rank=rotary_rank(frequencies_F, n),
                law_bound=constant_vector_bound(frequencies_F, weights_F, n),
            )
            for n in contexts
        )
        return along(kernel, points)
    inside = [n for n in contexts if table.length is None or n <= table.length]
    skipped = tuple(
        f"{n} positions: the table holds {table.length}, and has no vectors beyond."
        for n in contexts
        if n not in inside
    )
    inside, dear = affordable(inside, GRAM_LIMIT / table.width**2)
    return along(kernel, _gram(table, inside), skipped=(*skipped, *dear))


def _gram(table: InputTable, contexts: Sequence[int]) -> Iterator[Point]:
    """P P^T from the triangular factor of P, grown block by block: P P^T and R R^T share their non-zero spectrum."""
    factor: Array = np.zeros((0, table.width))
    done, squares = 0, 0.0
    for n in contexts:
        while done < n:
            block = table.vectors(np.arange(done, min(done + _ROWS, n)))
            squares += float((block**2).sum())
            factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
            done += len(block)
        values = np.asarray(np.linalg.svd(factor, compute_uv=False) ** 2, dtype=np.float64)
        yield of_values(
            Spectrum(values * (n / squares) if squares else values, n), "thin QR of the table", statement="measured"
        )


def sinusoid(encoding: Encoding, table: InputTable) -> Array | None:
    """The frequencies of a sinusoid of even width, read from its own table: there P P^T is a rotary kernel."""
    if encoding.name != "sinusoidal" or table.length is not None or table.width % 2:
        return None
    if encoding.parameters["scale"] == 0:
        return None
    vectors = table.vectors([1 - float(encoding.parameters["offset"])])[0]
    sine, cosine = (
        (vectors[0::2], vectors[1::2]) if encoding.parameters["layout"] == "interleaved" else np.split(vectors, 2)
    )
    return np.asarray(np.arctan2(sine, cosine), dtype=np.float64)
