"""Scan layers here, one after the other, with a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from toposcope.checkpoints.view import Model
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import product_fits
from toposcope.scanning.asked import Asked
from toposcope.scanning.record import Entry, layer_record
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
    moment = second_moment(model)
    stays = product_fits(model.layers)
    told: dict[str, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for number in numbers:
            record, parts = layer_record(model, number, asked, moment, pool)
            if parts is not None and stays:
                factors[number] = parts
            read = {name: line for name, line in model.source.ledger.lines.items() if name not in told}
            told |= read
            keep({"layer": number, "record": record, "read": read})
    return factors
