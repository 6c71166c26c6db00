"""The spectral half of `toposcope scan` for a whole model: heads, layer 0's split, biases and position tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Head, Layer, Model
from toposcope.encodings import Encoding, EncodingSpec, Sizes
from toposcope.spectra.encoding_spectrum import spectrum_of
from toposcope.spectra.head_kernel import Projected, TokenRows, seen_through
from toposcope.spectra.of_heads import HeadSpectra, LogitShares, first_layer_shares, head_spectra
from toposcope.spectra.singular import effective_rank, numerical_rank
from toposcope.spectra.toeplitz import toeplitz_share

Array = NDArray[np.float64]
Encodings = Sequence[tuple[str, EncodingSpec | None]]
LONGEST_BIAS = 2048  # positions at which biases and tables are looked at


@dataclass(frozen=True)
class BiasSpectrum:
    """The kernel exp(b) of one head's bias: its norm over n, its effective rank, and whether a theorem gives them."""

    head: int
    context: int
    lambda_max_over_n: float | None
    effective_rank: float | None
    statement: str


@dataclass(frozen=True)
class TableSpectrum:
    """The position vectors as a matrix. A sinusoid has a Toeplitz Gram matrix and one frequency in each column."""

    positions: int
    rank: int
    effective_rank: float | None
    toeplitz_share: float | None
    sinusoid_likeness: float


@dataclass(frozen=True)
class EncodingSpectra:
    """What an encoding does in a model as a whole.

    `tokens` says where the second moment of tokens comes from ("embedding", so many tokens of it, or "identity");
    `first_layer` is layer 0's split (empty where it cannot be had), `biases` the spectrum of each head's bias and
    `table` that of the position table, for encodings that have them.
    """

    encoding: str
    context: int
    tokens: str
    first_layer: tuple[LogitShares, ...]
    biases: tuple[BiasSpectrum, ...]
    table: TableSpectrum | None


@dataclass(frozen=True)
class WhatIf(EncodingSpectra):
    """The same of another encoding in the model's place, with the rows of its heads."""

    heads: tuple[HeadSpectra, ...]


@dataclass(frozen=True)
class LayerSpectra:
    """The rows of one layer under one encoding; `first_layer` is empty but for layer 0."""

    heads: tuple[HeadSpectra, ...]
    first_layer: tuple[LogitShares, ...] = ()


class LayerLook:
    """One layer under each encoding: what its heads have in common, and their rows."""

    def __init__(
        self, model: Model, number: int, moment: Array | TokenRows | None, *, context: int, encodings: Encodings
    ) -> None:
        self._model, self._layer, self._context = model, model.layers[number], context
        layer = self._layer
        self._names = tuple(name for name, _ in encodings)
        self._silent = not layer.encoding.exact_tables or bool(layer.spec.logit_path(context))
        # towers differ in width
        self._moment = moment if moment is not None and len(moment) == layer.spec.width else None
        self._used = () if self._silent else tuple(
            layer.encoding if spec is None else built(spec, layer, context) for _, spec in encodings
        )  # fmt: skip

    def keys(self, head: Head) -> Projected | None:
        """The keys of a head's group as tokens meet them."""
        return None if self._silent else seen_through(self._moment, head.k)

    def rows(self, head: Head, keys: Projected | None) -> list[HeadSpectra]:
        """A row for each encoding of one head with its norms folded in."""
        if keys is None:
            return [HeadSpectra(layer=head.layer, head=head.head)] * len(self._names)
        seen = seen_through(self._moment, head.q), keys
        return [
            head_spectra(
                self._layer, head, second_moment=self._moment, context=self._context, encoding=encoding, seen=seen
            )
            for encoding in self._used
        ]

    def gathered(self, rows: Sequence[Sequence[HeadSpectra]]) -> dict[str, LayerSpectra]:
        """All heads' rows by encoding, and the split of layer 0."""
        return {
            name: LayerSpectra(tuple(row[place] for row in rows), self._split(place))
            for place, name in enumerate(self._names)
        }

    def _split(self, place: int) -> tuple[LogitShares, ...]:
        if self._silent or self._layer.number != 0:
            return ()
        return first_layer_shares(self._model, self._used[place])


def whole_spectra(
    model: Model,
    layers: Sequence[int],
    first_layer: tuple[LogitShares, ...],
    *,
    name: str,
    spec: EncodingSpec | None,
    context: int,
    tokens: str,
) -> EncodingSpectra:
    """What is said once for these layers under an encoding: biases and tables are those of the first to have any.

    Layers share their biases and tables in all models but UMT5.
    """
    biases: tuple[BiasSpectrum, ...] = ()
    table: TableSpectrum | None = None
    for layer in (model.layers[number] for number in layers):
        if layer.spec.kind != "cross" and layer.encoding.exact_tables:
            used = layer.encoding if spec is None else built(spec, layer, context)
            biases = biases or bias_spectra(used, context)
            table = table or table_spectrum(used, context)
    return EncodingSpectra(name, context, tokens, first_layer, biases, table)


def tokens_of(moment: Array | TokenRows | None) -> str:
    """Where the second moment of tokens comes from, in a word."""
    if isinstance(moment, TokenRows):
        return f"embedding, {len(moment.rows_TD):,} of {moment.vocabulary:,} tokens"
    return "identity" if moment is None else "embedding"


def bias_spectra(encoding: Encoding, context: int) -> tuple[BiasSpectrum, ...]:
    """What each head's bias does as a kernel exp(b), at 2048 positions at most: exact for ALiBi, else dense."""
    if encoding.bias is None or not encoding.bias.toeplitz:
        return ()
    length = min(context, LONGEST_BIAS)
    found = []
    for head in range(encoding.bias.heads):
        point = spectrum_of(encoding, [length], head).points[-1]
        found.append(BiasSpectrum(head, length, point.lambda_max_over_n, point.effective_rank, point.statement))
    return tuple(found)


def table_spectrum(encoding: Encoding, context: int) -> TableSpectrum | None:
    """Rank, Toeplitz share of the Gram matrix P P^T (mean removed) and sinusoid-likeness of the position vectors."""
    table = encoding.input
    if table is None:
        return None
    length = min(context, LONGEST_BIAS) if table.length is None else min(table.length, context, LONGEST_BIAS)
    rows_ND = table.vectors(np.arange(length))
    values = np.linalg.svd(rows_ND, compute_uv=False)
    return TableSpectrum(
        positions=length,
        rank=numerical_rank(values, max(rows_ND.shape)),
        effective_rank=effective_rank(values),
        toeplitz_share=toeplitz_share(rows_ND, rows_ND, centred=True),
        sinusoid_likeness=_one_frequency(rows_ND),
    )


def _one_frequency(rows_ND: Array) -> float:
    """The median over columns of the energy that the strongest frequency and its neighbours hold, mean removed."""
    window_N1 = np.hanning(len(rows_ND) + 2)[1:-1, None]
    energy_KD = np.abs(np.fft.rfft((rows_ND - rows_ND.mean(axis=0)) * window_N1, axis=0)) ** 2
    total_D = energy_KD.sum(axis=0)
    alive = total_D > 0
    if not alive.any():
        return 0.0
    top_D = energy_KD.argmax(axis=0)
    near_KD = np.abs(np.arange(len(energy_KD))[:, None] - top_D) <= 2
    return float(np.median(((energy_KD * near_KD).sum(axis=0) / np.where(alive, total_D, 1.0))[alive]))


def built(spec: EncodingSpec, layer: Layer, context: int) -> Encoding:
    """An encoding in a layer's sizes."""
    sizes = Sizes(layer.spec.width, layer.spec.heads, layer.spec.head_dim, context, layer.spec.causal)
    return spec.build(sizes)
