"""`toposcope scan MODEL`: where do these weights drive the tokens, head by head?"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from toposcope.cli.common import (
    CsvOption,
    FamilyOption,
    FigureOption,
    HeadsOption,
    HtmlOption,
    JsonOption,
    ModelArgument,
    console,
    progress,
    safe,
)
from toposcope.cli.scan_spectra import print_spectra
from toposcope.cli.scan_words import (
    print_counts,
    print_estimate,
    print_extremes,
    print_heads,
    print_map,
    print_meaning,
)
from toposcope.core.printable import LONGEST_PATH

if TYPE_CHECKING:
    from toposcope.checkpoints.view import Model
    from toposcope.checks import CheckResult
    from toposcope.scanning.record import Entry
    from toposcope.scanning.sample import Sample

JOURNAL, RESULT = "journal.jsonl", "result.json"


def run(
    model: ModelArgument,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="0-3,7", help="Only these layers; sample:12 draws twelve and estimates."),
    ] = None,
    head_table: Annotated[bool, typer.Option("--head-table", help="Print every head.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Compare with a twin of random orientation.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the twin, and of a sample of layers.")] = 0,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="N", min=2, max=2**40, help="Context for kernels (default: the model's)."),
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option("--what-if", metavar="ENCODING", help="The same under another encoding.")
    ] = None,
    layer_sums: Annotated[
        bool | None, typer.Option("--layer-sums/--no-layer-sums", help="Judge layers as wholes too (slow when wide).")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Keep each finished layer there: a stopped scan continues."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Threads, or layers at once on a cluster.")
    ] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option("--engine", help="Where the work is done.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="The cluster (default: one of our own).")
    ] = None,
    family: FamilyOption = None,
    heads: HeadsOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """From the weights alone: are tokens driven together or apart, to zero or to infinity; which theorem says so?"""
    if "numpy" not in sys.modules:
        # Matrices here are small and heads are decided in parallel: threads inside BLAS would only get in the way.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.checkpoints import load
    from toposcope.cli.pictures import checked_figure, title_of, write_pictures
    from toposcope.core.errors import BadValue
    from toposcope.core.journal import Journal
    from toposcope.core.results import emit_csv, emit_json, envelope, subject
    from toposcope.runs.local import cores
    from toposcope.scanning import local
    from toposcope.scanning.asked import DEFAULT_CONTEXT, Asked, determines
    from toposcope.scanning.record import kept, put_together

    started = time.perf_counter()
    checked_figure(figure)
    if ray_address and engine != "ray":
        raise BadValue(
            f"--ray-address {ray_address} is given without --engine ray. Add it, or leave the address out."
        )
    with load(model, family=family, heads=heads) as opened:
        chosen, sample = _chosen(opened, layers, seed)
        length = context or opened.spec.context or DEFAULT_CONTEXT
        asked = Asked(null, seed, layer_sums, length, tuple(what_if or ()))
        _ = asked.encodings  # a wrong name is said before any work
        with Journal(Path(out) / JOURNAL, determines(opened, asked)) if out else nullcontext() as journal:
            entries: dict[int, Entry] = {}
            if journal and journal.entries:
                with progress("comparing kept layers", len(journal.entries)) as tick:
                    entries = kept(opened, journal.entries, chosen, str(journal.path), tick)
            todo = [number for number in chosen if number not in entries]
            if entries:
                done = len(chosen) - len(todo)
                console(to_stderr=True).print(f"{done} of {len(chosen)} layers are kept in {out}.", soft_wrap=True)
            with progress("scanning layers", len(todo)) as tick:

                def keep(entry: Entry) -> None:
                    if journal:
                        journal.add(entry)
                    entries[entry["layer"]] = entry
                    tick()

                if engine == "ray":
                    from toposcope.scanning import on_ray

                    place: dict[str, Any] = {"target": model, "family": family, "heads": heads}
                    on_ray.run(opened, todo, asked, keep, **place, address=ray_address, workers=jobs)
                    factors = {}
                else:
                    factors = local.run(opened, todo, asked, keep, threads=jobs or cores())
            found = put_together(opened, chosen, entries, asked, factors)
        about = {**subject(opened), "sha256": found.sha256}
        findings = _checked(opened) if html else []
        estimate = {"estimate": _estimate(opened, sample, found.heads)} if sample else {}
    result = envelope(
        "scan",
        {**found.body, **estimate},
        about=about,
        options={
            "layers": layers,
            "layer_sums": layer_sums,
            "null": null,
            "seed": seed,
            "family": family,
            "heads": heads,
        },
        seconds=time.perf_counter() - started,
    )
    if out:
        emit_json(result, str(Path(out) / RESULT))
    if json:
        emit_json(result, json)
    if csv:
        emit_csv([_flat(row) for row in result["heads"]], csv)
    written = write_pictures([*findings, result], html, figure, title=title_of(model, opened.path))
    if json != "-" and csv != "-":
        said = console()
        said.print(f"[bold]{safe(about['path'], LONGEST_PATH)}[/bold] ({safe(about['family'])})", soft_wrap=True)
        if not result["heads"]:
            said.print("no self-attention head to analyse")
        else:
            print_map(said, result["heads"])
            print_counts(said, result)
            if sample:
                print_estimate(said, result["estimate"])
            print_extremes(said, result["heads"])
            print_spectra(said, found.spectra)
            print_meaning(said, result)
        if head_table:
            print_heads(said, result["heads"])
        for entry in result["skipped"][:6]:
            said.print(f"skipped {safe(entry['what'])}: {safe(entry['why'])}", soft_wrap=True)
        for name in written:
            said.print(f"Written: {name}", soft_wrap=True)
        said.print(f"{result['seconds']:.1f} s; --head-table prints every head, --json writes all numbers")


def _chosen(opened: Model, layers: str | None, seed: int) -> tuple[list[int], Sample | None]:
    """The layers to scan, and how they were drawn if they were."""
    from toposcope.core.ranges import parse_range
    from toposcope.scanning.sample import asked_for, draw

    count = asked_for(layers)
    if count is None:
        return parse_range(layers, len(opened.layers)), None
    own = [layer.number for layer in opened.layers if layer.spec.kind == "self"]
    sample = draw(own, count, seed) if own else None
    return (sample.layers, sample) if sample else ([], None)


def _estimate(opened: Model, sample: Sample, rows: list[dict[str, Any]]) -> dict[str, Any]:
    from toposcope.scanning.sample import estimates

    sizes = {layer.number: layer.spec.heads for layer in opened.layers if layer.spec.kind == "self"}
    verdicts = {number: [row["verdict"] for row in rows if row["layer"] == number] for number in sample.layers}
    return estimates(sample, sizes, verdicts)


def _checked(opened: Model) -> list[CheckResult]:
    """The findings of `check`, which stand on top of a report."""
    from toposcope.checks import check

    return [check(opened)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A head's record for CSV: nested values become columns of their own, lists and certificates are left to JSON."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and key in ("symU", "symW"):
            flat |= {f"{key}_{name}": part for name, part in value.items() if name != "inertia"}
        elif key == "rope":
            for name in ("rho", "tau_uniform"):
                flat[f"rope_{name}"] = None if value is None else value[name]
        elif key == "warnings":
            flat[key] = " ".join(value)
        elif key not in ("certificate", "eigenvalues"):
            flat[key] = value
    return flat
