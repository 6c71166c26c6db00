"""Walk through a model's layers and say, head by head, where its weights drive the tokens and what position does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.opened import ModelLike, opened, said, subject
from toposcope.checkpoints.view import Model
from toposcope.core.cluster import cores, one_thread
from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.files import present
from toposcope.core.journal import Journal, key_of
from toposcope.core.progress import Progress, silent, steps
from toposcope.core.ranges import parse_length, parse_range, written_layers
from toposcope.core.result import Provenance
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.layers import layer_factors, product_fits
from toposcope.encodings.registry import listed
from toposcope.scanning import on_cores
from toposcope.scanning.layer import Entry, kept, layer_entry
from toposcope.scanning.options import DEFAULT_CONTEXT, OWN, ScanOptions, fingerprint
from toposcope.scanning.result import ScanResult, tally, whole_model
from toposcope.scanning.sample import LayerSample, SampleEstimate, draw, estimates, sample_size
from toposcope.spectra.of_heads import first_layer_shares, second_moment
from toposcope.spectra.of_model import WhatIf, tokens_of, whole_spectra

JOURNAL, RESULT = "journal.jsonl", "result.json"


def scan(
    model: ModelLike,
    *,
    layers: str | int | Sequence[int] | None = None,
    encoding: str | Sequence[str] = (),
    context: int | str | None = None,
    layer_sums: bool | None = None,
    random_baseline: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    progress: Progress | None = None,
) -> ScanResult:
    """From the weights alone: are tokens driven together or apart, to zero or to infinity; which theorem says so?

    `model` is a name, a path, a `Model`, or a loaded model of transformers or TransformerLens. `layers` is "0-3,7" or
    "sample:12", which draws twelve and estimates the rest. `encoding` names others to put in the place of the model's
    own; `context` is the length at which kernels are looked at ("128k"; by default the model's). `layer_sums` asks
    for the layers as wholes, whose cost grows with the cube of the width; None leaves out wide ones.
    `random_baseline` compares with the same heads in random orientation; `seed` draws these, and samples.

    `family` and `num_heads` say how a file is to be read; `adapter` is one of PEFT, merged as it is read.

    With `out` each finished layer is kept in that directory: a stopped scan continues there, and leaves result.json.
    `jobs` is the number of threads (of processes, where layers are many and small), or of layers at once on a Ray
    cluster (`engine`, `ray_address`).
    """
    started = time.perf_counter()
    if engine not in ("local", "ray"):
        raise BadValue(f"unknown engine '{engine}': expected local or ray.")
    if ray_address and engine != "ray":
        raise BadValue(
            f"--ray-address {ray_address} is given without --engine ray. Add it, or leave the address out."
        )
    names, layers = listed(encoding), written_layers(layers)
    length = None if context is None else parse_length(context, least=2, what="context")
    with opened(model, family=family, num_heads=num_heads, adapter=adapter) as view:
        chosen, sample = _chosen(view, layers, seed)
        options = ScanOptions(
            length or view.spec.context or DEFAULT_CONTEXT, names, layer_sums, random_baseline, seed
        )
        _ = options.encodings  # a wrong name is said before any work
        where = None
        if engine == "ray" or (isinstance(model, str | Path) and view.hub is None):
            merged = None if view.adapter is None else _reachable(view.adapter)
            where = {"target": _target(model, view), "family": family, "num_heads": num_heads, "adapter": merged}
        entries, factors = _entries(
            view,
            chosen,
            options,
            out=out,
            jobs=jobs,
            where=where,
            cluster=engine == "ray",
            address=ray_address,
            progress=progress,
        )
        found = assemble(view, chosen, entries, options, factors)
        estimate = None if sample is None else _estimate(view, sample, found)
        about = subject(view, model, sha256=_digest(view, chosen, entries))
    asked = {
        "layers": layers, "encoding": list(names), "context": length, "layer_sums": layer_sums,
        "random_baseline": random_baseline, "seed": seed, "family": family, "num_heads": num_heads,
        "adapter": said(adapter),
    }  # fmt: skip
    found = replace(found, estimate=estimate, provenance=Provenance((about,), asked, time.perf_counter() - started))
    if out is not None:
        found.save(Path(out) / RESULT)
    return found


def _chosen(model: Model, layers: str | None, seed: int) -> tuple[list[int], LayerSample | None]:
    """The layers to scan, and how they were drawn if they were."""
    count = sample_size(layers)
    if count is None:
        return parse_range(layers, len(model.layers)), None
    own = [layer.number for layer in model.layers if layer.spec.kind == "self"]
    sample = draw(own, count, seed) if own else None
    return (sample.layers, sample) if sample else ([], None)


def _target(model: ModelLike, view: Model) -> str:
    """What nodes of a cluster can open themselves."""
    if view.hub is not None:
        return str(view.path)  # the commit, whatever the name stands for by then
    if not isinstance(model, str | Path | Model) or not view.path.exists():
        raise BadValue(
            "the nodes of a cluster read the checkpoint themselves: give its name or path to scan with ray."
        )
    return str(view.path) if isinstance(model, Model) else str(model)


def _reachable(adapter: str) -> str:
    """An adapter as a node of a cluster finds it, whatever its own directory is."""
    return str(Path(adapter).resolve()) if present(adapter) else adapter


def _entries(
    model: Model,
    numbers: Sequence[int],
    options: ScanOptions,
    *,
    out: str | Path | None,
    jobs: int | None,
    where: Mapping[str, Any] | None,
    cluster: bool,
    address: str | None,
    progress: Progress | None,
) -> tuple[dict[int, Entry], dict[int, Factored]]:
    """An entry for each layer: kept ones from the journal, the others made here or on a cluster, and kept as well.

    `where` is what another process opens the checkpoint by, if it can.
    """
    tell = progress or silent
    entries: dict[int, Entry] = {}
    with Journal(Path(out) / JOURNAL, fingerprint(model, options)) if out is not None else nullcontext() as journal:
        if journal and journal.entries:
            step = steps(progress, "comparing kept layers", len(journal.entries))
            entries = kept(model, journal.entries, numbers, str(journal.path), step)
        todo = [number for number in numbers if number not in entries]
        tell("scanning layers", len(entries), len(numbers))

        def keep(entry: Entry) -> None:
            if journal:
                journal.add(entry.line())
            entries[entry.layer] = entry
            tell("scanning layers", len(entries), len(numbers))

        if cluster and where is not None:
            from toposcope.scanning import on_ray

            on_ray.run(model, todo, options, keep, **where, address=address, workers=jobs)
            return entries, {}
        model.expect(todo, progress)
        many = jobs or cores()
        if where is not None and on_cores.pays(model, todo, options, many):
            return entries, on_cores.run(model, todo, options, keep, where=where, workers=many)
        return entries, scan_here(model, todo, options, keep, threads=many)


def scan_here(
    model: Model, numbers: Sequence[int], options: ScanOptions, keep: Callable[[Entry], None], *, threads: int = 2
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
    with ThreadPoolExecutor(threads) as pool, one_thread() if threads > 1 else nullcontext():
        for number in numbers:
            entry, parts = layer_entry(model, number, options, moment, drawn, pool)
            if parts is not None and stays:
                factors[number] = parts
            keep(entry)
    return factors


def assemble(
    model: Model,
    numbers: Sequence[int],
    entries: Mapping[int, Entry],
    options: ScanOptions,
    factors: Mapping[int, Factored],
) -> ScanResult:
    """One result from the records of these layers; `factors` that are missing are read again where they matter."""
    records = [entries[number].record for number in numbers]
    heads = tuple(row for record in records for row in record.heads)
    layers = tuple(record.whole for record in records if record.whole is not None)
    baseline = [row for record in records for row in record.baseline]
    plain = not any(layer.spec.value_path for layer in model.layers)  # O V is what moves tokens
    complete = plain and len(numbers) == len(model.layers)
    parts: list[Factored] = []
    if complete and product_fits(model.layers):
        judged = [each.layer for each in layers]
        parts = [factors[n] if n in factors else layer_factors(model.layers[n]) for n in judged]
    tokens = records[0].tokens if records else tokens_of(None)
    whole = partial(whole_spectra, model, numbers, context=options.context, tokens=tokens)
    first = next((record.first_layer for record in records if record.first_layer), ())
    others = []
    for name, spec in options.encodings[1:]:
        mine = [record.what_if[name] for record in records]
        split = next((part.first_layer for part in mine if part.first_layer), ())
        said = whole(split, name=name, spec=spec)
        others.append(WhatIf(**vars(said), heads=tuple(row for part in mine for row in part.heads)))
    return ScanResult(
        heads=heads,
        layers=layers,
        model=whole_model(heads, layers, complete=complete, factors=parts),
        spectra=whole(first, name=OWN, spec=None),
        what_if=tuple(others),
        random_baseline=tally(baseline) if baseline else None,
        fingerprint=key_of(fingerprint(model, options)),
        skipped=(*model.skipped, *(each for record in records for each in record.skipped)),
    )


def is_scan_of(result: ScanResult, model: Model) -> bool:
    """Whether a stored scan is what a scan of this freshly opened model, with the same options, would give.

    It is where all layers were scanned, everything but the weights has the same fingerprint, and the weights have the
    same hash; they are read for that.
    """
    own = {layer.number for layer in model.layers if layer.spec.kind == "self"}
    if {head.layer for head in result.heads} != own or not result.provenance.subjects:
        return False
    asked = result.provenance.options
    options = ScanOptions(
        result.spectra.context,
        tuple(other.encoding for other in result.what_if),
        asked.get("layer_sums"),
        result.random_baseline is not None,
        asked.get("seed", 0),
    )
    try:
        if key_of(fingerprint(model, options)) != result.fingerprint:
            return False
    except ToposcopeError:  # an encoding that is not known here
        return False
    _ = second_moment(model), first_layer_shares(model)
    for layer in model.layers:
        _ = layer.weights
    return model.source.digest() == result.provenance.subjects[0].sha256


def _digest(model: Model, numbers: Sequence[int], entries: Mapping[int, Entry]) -> str:
    """The sha256 of all tensors that the records were made from, and of those read to describe the model."""
    read = Ledger({name: line for number in numbers for name, line in entries[number].read.items()})
    return read.digest(model.source.ledger)


def _estimate(model: Model, sample: LayerSample, found: ScanResult) -> SampleEstimate:
    sizes = {layer.number: layer.spec.heads for layer in model.layers if layer.spec.kind == "self"}
    verdicts = {number: [row.verdict.value for row in found.heads if row.layer == number] for number in sample.layers}
    return estimates(sample, sizes, verdicts)
