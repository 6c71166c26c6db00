"""One layer's part of a scan, as text that a journal or a network can carry, and the parts put together.

A record is JSON: numbers survive it to the last bit and entries keep their order, so a result that was put together
from records of several runs or machines is the result of one undisturbed run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.identity import refuse_difference
from toposcope.checkpoints.view import Model
from toposcope.core.results import plain
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import layer_factors, product_fits
from toposcope.dynamics.scan import LayerScan, brief, scan_layer, summary_of, whole_model
from toposcope.scanning.asked import Asked
from toposcope.spectra.head_kernel import TokenRows
from toposcope.spectra.of_heads import HeadSpectra
from toposcope.spectra.of_model import LayerSpectra, ModelSpectra, gathered, layer_spectra, tokens_of

Moment = NDArray[np.float64] | TokenRows | None
Tick = Callable[[], None]
# {"layer": its number, "record": its record, "read": the lines of the ledger for each tensor it was made from}
Entry = dict[str, Any]


def layer_entry(
    model: Model, number: int, asked: Asked, moment: Moment, drawn: Mapping[str, str], pool: Executor
) -> tuple[Entry, Factored | None]:
    """A layer's record with the lines of all that it was made from; `drawn` are those of the tokens' moment."""
    with model.source.ledger.noted() as read:
        record, factors = layer_record(model, number, asked, moment, pool)
    return {"layer": number, "record": record, "read": {**drawn, **read}}, factors


def layer_record(
    model: Model, number: int, asked: Asked, moment: Moment, pool: Executor
) -> tuple[str, Factored | None]:
    """Everything a scan says of one layer, and its O' and V' if it was judged as a whole."""
    layer = model.layers[number]
    found: LayerScan = scan_layer(model, layer, pool, null=asked.null, seed=asked.seed, sums=asked.layer_sums)
    spectra = layer_spectra(model, number, moment, context=asked.context, encodings=asked.encodings, pool=pool)
    record = {
        "heads": [head.as_dict() for head in found.heads],
        "whole": None if found.whole is None else found.whole.as_dict(),
        "twin": [brief(head) for head in found.twin],
        "skipped": found.skipped,
        "tokens": tokens_of(moment),
        "spectra": {name: asdict(part) for name, part in spectra.items()},
    }
    return json.dumps(plain(record), allow_nan=False), None if found.whole is None else found.whole.factors


def kept(model: Model, entries: Sequence[Entry], numbers: Sequence[int], where: str, tick: Tick) -> dict[int, Entry]:
    """Those of a journal's entries that belong to these layers; refused where a tensor is not what it was."""
    found = {entry["layer"]: entry for entry in entries if entry["layer"] in numbers}
    for number, entry in found.items():
        refuse_difference(
            model.source,
            entry["read"],
            f"layer {number} in {where}",
            "Give another --out, or remove the journal to begin anew.",
        )
        tick()
    return found


@dataclass(frozen=True)
class Scanned:
    """The records of all chosen layers as one result: `body` is what JSON gets, the rest what a terminal prints."""

    body: dict[str, Any]
    spectra: list[ModelSpectra]
    sha256: str

    @property
    def heads(self) -> list[dict[str, Any]]:
        return self.body["heads"]


def put_together(
    model: Model, numbers: Sequence[int], entries: Mapping[int, Entry], asked: Asked, factors: Mapping[int, Factored]
) -> Scanned:
    """One result from the records of these layers; `factors` that are missing are read again where they matter."""
    records = [json.loads(entries[number]["record"]) for number in numbers]
    heads = [row for record in records for row in record["heads"]]
    twin = [row for record in records for row in record["twin"]]
    judged = [number for number, record in zip(numbers, records, strict=True) if record["whole"] is not None]
    complete = len(numbers) == len(model.layers)
    parts: list[Factored] = []
    if complete and product_fits(model.layers):
        parts = [factors[n] if n in factors else layer_factors(model.layers[n]) for n in judged]
    layers = [record["whole"] for record in records if record["whole"] is not None]
    spectra = gathered(
        model,
        numbers,
        [{name: _spectra(part) for name, part in record["spectra"].items()} for record in records],
        context=asked.context,
        encodings=asked.encodings,
        tokens=records[0]["tokens"] if records else tokens_of(None),
    )
    body = {
        "heads": heads,
        "layers": layers,
        "model": whole_model(heads, layers, complete=complete, factors=parts),
        "skipped": [*plain(model.skipped), *(entry for record in records for entry in record["skipped"])],
        **({"null": summary_of(twin)} if twin else {}),
        "spectra": spectra[0].as_dict(),
        "what_if": [other.as_dict() for other in spectra[1:]],
    }
    read = Ledger({name: line for number in numbers for name, line in entries[number]["read"].items()})
    return Scanned(body, spectra, read.digest(model.source.ledger))


def _spectra(part: Mapping[str, Any]) -> LayerSpectra:
    tuples = ("query_energy", "key_energy", "kernel")
    rows = ({**row, **{name: tuple(row[name]) for name in tuples}} for row in part["heads"])
    return LayerSpectra(tuple(HeadSpectra(**row) for row in rows), tuple(part["first_layer"]))
