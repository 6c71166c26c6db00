"""`toposcope inspect MODEL`: architecture, encoding per layer, head table, what was skipped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from toposcope.cli.common import (
    CsvOption,
    FamilyOption,
    HeadsOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    console,
    progress,
    safe,
)
from toposcope.core.printable import LONGEST_PATH, LONGEST_TEXT

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.checkpoints.summary import HeadRow, Inspection

FEW = 48  # a head table of this many rows is printed without being asked for


def run(
    model: ModelArgument,
    layers: LayersOption = None,
    head_table: Annotated[
        bool, typer.Option("--head-table", help="Print every head, however many there are.")
    ] = False,
    family: FamilyOption = None,
    heads: HeadsOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """Show what a checkpoint is made of: its layers, how each encodes position, its heads, and what was not read."""
    from dataclasses import asdict

    from toposcope.checkpoints import load
    from toposcope.checkpoints.summary import summarise
    from toposcope.core.ranges import parse_range
    from toposcope.core.results import emit_csv, emit_json, envelope, subject

    started = time.perf_counter()
    with load(model, family=family, heads=heads) as opened:
        chosen = parse_range(layers, len(opened.layers))
        with progress("reading layers", len(chosen)) as tick:
            found = summarise(opened, chosen, tick=tick)
        if html:
            from toposcope.checks import check_model

            checked = time.perf_counter()
            findings = check_model(opened).as_dict()
            checked = time.perf_counter() - checked
        about = subject(opened)
    result = envelope(
        "inspect",
        found.as_dict(),
        about=about,
        options={"layers": layers, "family": family, "heads": heads},
        seconds=time.perf_counter() - started,
        skipped=found.skipped,
    )
    if json:
        emit_json(result, json)
    if csv:
        emit_csv([asdict(row) for row in found.heads], csv)
    if html:
        from toposcope.cli.pictures import title_of, write_pictures

        check = envelope("check", findings, about=about, options={}, seconds=checked)
        write_pictures([check, result], html, None, title=title_of(model, opened.path))
    if json != "-" and csv != "-":
        out = console()
        _print_summary(out, found, about["path"])
        _print_encodings(out, found)
        if head_table or len(found.heads) <= FEW:
            _print_heads(out, found.heads)
        else:
            _print_layers(out, found)
            out.print(f"\n{len(found.heads)} heads; --head-table prints each, --json or --csv writes them.")
        _print_skipped(out, found)
        if html:
            out.print(f"\nReport: {html}")


def _print_summary(out: Console, found: Inspection, path: str) -> None:
    out.print(f"[bold]{safe(path, LONGEST_PATH)}[/bold]", soft_wrap=True)
    size = f"{found.parameters / 1e6:,.1f}M parameters, {found.stored_bytes / 1e6:,.1f} MB"
    types = ", ".join(f"{safe(name)} x{count}" for name, count in list(found.dtypes.items())[:4])
    out.print(f"{safe(found.family)} ({found.format}); {size}; {types}")
    for stack in dict.fromkeys((row.stack, row.kind) for row in found.layers):
        rows = [row for row in found.layers if (row.stack, row.kind) == stack]
        first = rows[0]
        groups = "" if first.kv_heads == first.heads else f" in {first.kv_heads} key-value groups"
        value = "" if first.value_dim == first.head_dim else f" (values {first.value_dim})"
        mask = "cross-attention" if first.kind == "cross" else "causal" if first.causal else "both directions"
        extras = [
            f"{first.norm}-norm" if first.norm != "none" else "no norm",
            *(["q/k norm"] if first.qk_norm else []),
            *([f"softcap {first.softcap:g}"] if first.softcap else []),
            *([f"biases {''.join(first.biases)}"] if first.biases else []),
            *(["latent (MLA)"] if first.latent else []),
        ]
        out.print(
            f"{safe(stack[0])}: {len(rows)} layers x {first.heads} heads{groups}, width {found.width}, "
            f"head {first.head_dim}{value}; {mask}; {', '.join(extras)}"
        )
    if found.context:
        out.print(f"claimed context: {found.context:,} positions")


def _print_encodings(out: Console, found: Inspection) -> None:
    from toposcope.checkpoints.summary import same_encoding
    from toposcope.core.ranges import show_range

    out.print("\n[bold]Position[/bold]")
    for row, numbers in same_encoding(found.layers):
        window = "" if row.reach is None else f"; sees {row.reach} tokens back" + ("" if row.causal else " and ahead")
        cross = " (cross-attention)" if row.kind == "cross" else ""
        out.print(f"  layers {show_range(numbers)}{cross}: {safe(row.encoding_title)}{window}")
    shared = sum(row.shared_with is not None for row in found.layers)
    if shared:
        out.print(f"  {shared} layers use another layer's weights")
    for warning in sorted({warning for row in found.layers for warning in row.warnings}):
        out.print(f"  note: {safe(warning, LONGEST_TEXT)}")


def _print_heads(out: Console, heads: tuple[HeadRow, ...]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="\nHeads", title_justify="left")
    for column in ("layer", "head", "group", "|QK|", "|OV|", "rotating"):
        table.add_column(column, justify="right")
    for row in heads:
        share = "-" if row.rotating_share is None else f"{row.rotating_share:.0%}"
        numbers = (f"{row.logit_strength:.3g}", f"{row.write_strength:.3g}", share)
        table.add_row(str(row.layer), str(row.head), str(row.kv_group), *numbers)
    out.print(table)
    out.print("|QK|: size of scale Q'K, |OV|: size of O V (Frobenius, norm gains folded in)")


def _print_layers(out: Console, found: Inspection) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title="\nLayers", title_justify="left")
    for column in ("layer", "heads", "|QK| least", "median", "most", "|OV| least", "median", "most"):
        table.add_column(column, justify="right")
    for layer in found.layers:
        rows = [row for row in found.heads if row.layer == layer.layer]
        looks = sorted(row.logit_strength for row in rows)
        writes = sorted(row.write_strength for row in rows)
        numbers = [f"{v[i]:.3g}" for v in (looks, writes) for i in (0, len(v) // 2, -1)]
        table.add_row(str(layer.layer), str(layer.heads), *numbers)
    out.print(table)
    out.print("|QK|: size of scale Q'K, |OV|: size of O V (Frobenius, norm gains folded in)")


def _print_skipped(out: Console, found: Inspection) -> None:
    if not found.skipped:
        return
    out.print("\n[bold]Not read[/bold]")
    for entry in found.skipped:
        count = f" ({len(entry.tensors)} tensors)" if len(entry.tensors) > 1 else ""
        out.print(f"  {safe(entry.what)}{count}: {safe(entry.why, LONGEST_TEXT)}", soft_wrap=True)
