"""Scan layers in several processes of this machine: a layer is a job, and the caller alone writes.

Every process opens the checkpoint itself and holds one layer at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toposcope.checkpoints.identity import identity
from toposcope.checkpoints.view import Layer, Model
from toposcope.core.errors import BadValue
from toposcope.core.fields import plain
from toposcope.core.interpreters import START, InterpreterLost, Interpreters, as_done
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import product_fits
from toposcope.scanning.elsewhere import entry_of
from toposcope.scanning.layer import Entry, Moment, narrow
from toposcope.scanning.options import ScanOptions
from toposcope.spectra.of_heads import second_moment

LARGEST_LAYER = 64_000_000  # bytes in float64: of larger ones one is held, and threads share it


def pays(model: Model, numbers: Sequence[int], options: ScanOptions, workers: int) -> bool:
    """Whether the work is worth the start of so many interpreters, and their layers fit beside each other."""
    layers = [model.layers[number] for number in numbers]
    small = all(_bytes(layer) <= LARGEST_LAYER for layer in layers)
    seconds = sum(_seconds(layer, options) for layer in layers)
    return small and bool(sys.executable) and min(workers, len(numbers)) > 1 and seconds > 4 * START


def _bytes(layer: Layer) -> int:
    spec = layer.spec
    return 8 * spec.width * (spec.heads + spec.kv_heads) * (spec.head_dim + spec.value_width)


def _seconds(layer: Layer, options: ScanOptions) -> float:
    """About what one layer takes on one core: measured for heads of width 64 and sums of width 192."""
    spec = layer.spec
    judged = narrow(layer) if options.layer_sums is None else options.layer_sums
    heads = spec.heads * (0.008 + 0.008 * (spec.head_dim / 64) ** 3) * (1 + len(options.encoding) / 4)
    return heads + (0.08 * (min(spec.width, spec.kv_heads * spec.value_width) / 192) ** 3 if judged else 0.0)


def run(
    model: Model,
    numbers: Sequence[int],
    options: ScanOptions,
    keep: Callable[[Entry], None],
    *,
    where: Mapping[str, Any],
    workers: int,
) -> dict[int, Factored]:
    """Give `keep` one entry for each layer, as they come back; return what of them the stack needs."""
    factors: dict[int, Factored] = {}
    with Interpreters(min(workers, len(numbers)), ready=__name__) as pool:  # they start while this one reads
        with model.source.ledger.noted() as drawn:
            moment = second_moment(model)
        job = (dict(where), identity(model, options.context), plain(options), (moment, dict(drawn)))
        pool.share(*job, product_fits(model.layers))
        of_layer = {pool.submit(_scanned, number): number for number in numbers}
        for future in as_done(of_layer):
            number = of_layer[future]
            try:
                entry, parts = future.result()
            except InterpreterLost as error:
                raise BadValue(
                    f"layer {number}: its process {error}. If memory was short, scan with --jobs 1; with --out, "
                    "finished layers are kept."
                ) from None
            if parts is not None:
                factors[number] = parts
            keep(entry)
    return factors


def _scanned(
    where: Mapping[str, Any],
    expected: Mapping[str, str],
    options: Mapping[str, Any],
    shared: tuple[Moment, Mapping[str, str]],
    stays: bool,
    number: int,
) -> tuple[Entry, Factored | None]:
    """In another process: the entry of a layer, and its factors if those of all layers fit beside each other."""
    entry, factors = entry_of(where, expected, number, options, shared)
    return entry, factors if stays else None
