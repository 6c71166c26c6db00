"""Scan layers here, one after the other, with a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from toposcope.checkpoints.view import Model
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import product_fits
from toposcope.scanning.asked import Asked
from toposcope.scanning.record import Entry, layer_entry
from toposcope.spectra.of_heads import second_moment


def run(
    model: Model, numbers: Sequence[int], asked: Asked, keep: Callable[[Entry], None], *, threads: int = 2
) -> dict[int, Factored]:
    """Give `keep` one entry for each layer, when it is finished; return what of them the stack needs.

    One layer is in memory at a time, and one head in float64 for each thread. Factors are kept only where those of
    the whole stack fit in memory.
    """
    factors: dict[int, Factored] = {}
    if not numbers:
        return factors
    with model.source.ledger.noted() as drawn:
        moment = second_moment(model)
    stays = product_fits(model.layers)
    with ThreadPoolExecutor(threads) as pool:
        for number in numbers:
            entry, parts = layer_entry(model, number, asked, moment, drawn, pool)
            if parts is not None and stays:
                factors[number] = parts
            keep(entry)
    return factors
