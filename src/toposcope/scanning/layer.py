"""One layer's part of a scan, and as the line of a journal.

In a journal a record is JSON: numbers survive it to the last bit, so a result that was assembled from records of
several runs is the result of one undisturbed run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.identity import refuse_difference
from toposcope.checkpoints.view import Layer, Model
from toposcope.core.errors import BadFile
from toposcope.core.fields import plain, rebuilt
from toposcope.core.result import Skipped
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import HeadDynamics, at_start, describe_head, layer_turns, rotary_of
from toposcope.dynamics.layers import layer_dynamics
from toposcope.dynamics.products import Products
from toposcope.dynamics.rotation import Turns
from toposcope.dynamics.storage import layer_storage_error
from toposcope.scanning.baseline import randomised
from toposcope.scanning.options import OWN, ScanOptions
from toposcope.scanning.result import BaselineHead, ScanHead, ScanLayer, baseline_row, head_row, layer_row
from toposcope.spectra.head_kernel import TokenRows
from toposcope.spectra.of_heads import HeadSpectra, LogitShares
from toposcope.spectra.of_model import LayerLook, LayerSpectra, tokens_of

WIDEST_SUM = 1024  # a sum over heads wider than this takes minutes a layer
WIDEST_MODEL = 4096  # in a wider one even a narrow sum takes half a layer's memory again
Moment = NDArray[np.float64] | TokenRows | None


@dataclass(frozen=True)
class LayerRecord:
    """Everything a scan says of one layer; `whole` is None where it was not judged as one."""

    heads: tuple[ScanHead, ...]
    whole: ScanLayer | None
    baseline: tuple[BaselineHead, ...]
    skipped: tuple[Skipped, ...]
    tokens: str
    first_layer: tuple[LogitShares, ...]
    what_if: Mapping[str, LayerSpectra]


@dataclass(frozen=True)
class Entry:
    """A layer's number and record, and the lines of the ledger for each tensor it was made from."""

    layer: int
    record: LayerRecord
    read: Mapping[str, str]

    def line(self) -> dict[str, Any]:
        """What a journal keeps."""
        text = json.dumps(plain(self.record), allow_nan=False)
        return {"layer": self.layer, "record": text, "read": dict(self.read)}


def layer_entry(
    model: Model, number: int, options: ScanOptions, moment: Moment, drawn: Mapping[str, str], pool: Executor
) -> tuple[Entry, Factored | None]:
    """A layer's record with the lines of all that it was made from; `drawn` are those of the tokens' moment."""
    with model.source.ledger.noted() as read:
        record, factors = layer_record(model, number, options, moment, pool)
    return Entry(number, record, {**drawn, **read}), factors


def kept(
    model: Model, lines: Sequence[Mapping[str, Any]], numbers: Sequence[int], where: str, step: Callable[[], None]
) -> dict[int, Entry]:
    """The entries of a journal's lines for these layers; refused where a tensor is not what it was."""
    found = {}
    for number, line in {line["layer"]: line for line in lines if line["layer"] in numbers}.items():
        what, advice = f"layer {number} in {where}", "Give another --out, or remove the journal to begin anew."
        refuse_difference(model.source, line["read"], what, advice)
        try:
            record = rebuilt(LayerRecord, json.loads(line["record"]), f"the record of layer {number}")
        except (BadFile, LookupError, ValueError, TypeError, RecursionError) as error:
            raise BadFile(f"{what} is not what this version writes. {advice}") from error
        found[number] = Entry(number, record, line["read"])
        step()
    return found


def layer_record(
    model: Model, number: int, options: ScanOptions, moment: Moment, pool: Executor
) -> tuple[LayerRecord, Factored | None]:
    """Everything a scan says of one layer, and its O' and V' if it was judged as a whole.

    Each thread of the pool has one head in float64 at a time, and the keys and values that heads share.
    """
    layer = model.layers[number]
    if layer.spec.kind == "cross":
        what = f"layer {layer.number} ({layer.spec.stack} {layer.spec.index})"
        why = "cross-attention: no theorem speaks of tokens driven by other tokens"
        if layer.spec.keys_of is not None:
            why = f"keys and values of layer {layer.spec.keys_of}: no theorem speaks of tokens driven by others"
        none: dict[str, LayerSpectra] = {name: LayerSpectra(()) for name in options.encoding}
        return LayerRecord((), None, (), (Skipped(what, why),), tokens_of(moment), (), none), None
    error = layer_storage_error(model, layer)
    _ = layer.weights  # read once, before threads share it
    every = range(layer.spec.heads)
    judged = options.layer_sums if options.layer_sums is not None else narrow(layer)
    whole = pool.submit(layer_dynamics, layer, storage_error=error) if judged else None
    look = LayerLook(model, number, moment, context=options.context, encodings=options.encodings)
    turns = layer_turns(layer, model.spec.context)
    each = pool.map(partial(_group, layer, error, turns, look), _groups(layer))
    drawn = every if options.random_baseline else ()
    baseline = pool.map(partial(_baseline, layer, error, options.seed), drawn)
    found = [row for rows in each for row in rows]
    spectra = look.gathered([kernels for _, kernels in found])
    own = spectra.pop(OWN)
    summed = None if whole is None else whole.result()
    record = LayerRecord(
        heads=tuple(head_row(head, kernel) for (head, _), kernel in zip(found, own.heads, strict=True)),
        whole=None if summed is None else layer_row(summed),
        baseline=tuple(map(baseline_row, baseline)),
        skipped=() if judged or options.layer_sums is not None else (_too_wide(layer),),
        tokens=tokens_of(moment),
        first_layer=own.first_layer,
        what_if=spectra,
    )
    return record, None if summed is None else summed.factors


def _groups(layer: Layer) -> list[range]:
    """The heads of each key-value group."""
    many = layer.spec.heads // layer.spec.kv_heads
    return [range(first, first + many) for first in range(0, layer.spec.heads, many)]


def _group(
    layer: Layer, error: float, turns: Turns | None, look: LayerLook, heads: Sequence[int]
) -> list[tuple[HeadDynamics, list[HeadSpectra]]]:
    """The heads of one key-value group, one after another: what is made of their keys and values is made once."""
    found = []
    shared, keys, turn = None, None, None
    for place, index in enumerate(heads):
        head = fold(layer, layer.heads[index])
        if place == 0 or rotary_of(layer, head) is not turn:  # not all heads of a group need turn
            shared, keys, turn = None, look.keys(head), rotary_of(layer, head)
        products = Products(at_start(layer, head), shared)
        shared = products.shared
        said = describe_head(layer, head, storage_error=error, turns=turns, products=products)
        found.append((said, look.rows(head, keys)))
    return found


def _too_wide(layer: Layer) -> Skipped:
    wide = WIDEST_SUM if layer.spec.width <= WIDEST_MODEL else WIDEST_MODEL
    return Skipped(
        f"layer {layer.number} as a whole", f"wider than {wide}: ask for it if you can wait (--layer-sums)"
    )


def _baseline(layer: Layer, error: float, seed: int, index: int) -> HeadDynamics:
    """The random baseline of one head: what is drawn depends on the seed and on its place, not on other heads."""
    drawn = randomised(fold(layer, layer.heads[index]), np.random.default_rng([seed, layer.number, index]))
    return describe_head(layer, drawn, storage_error=error, rotary=False)


def narrow(layer: Layer) -> bool:
    """Whether the sum over heads is small enough to be decided in seconds."""
    spec = layer.spec
    return min(spec.width, spec.kv_heads * spec.value_width) <= WIDEST_SUM and spec.width <= WIDEST_MODEL
