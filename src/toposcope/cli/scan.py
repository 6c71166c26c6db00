"""`toposcope scan MODEL`: where do these weights drive the tokens, head by head?"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import (
    CsvOption,
    FamilyOption,
    FigureOption,
    HeadsOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    console,
    progress,
)
from toposcope.cli.scan_spectra import print_spectra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from toposcope.checkpoints.view import Model
    from toposcope.dynamics.heads import HeadDynamics
    from toposcope.dynamics.scan import ScanResult

ORDER = ("converges", "diverges", "not_convergent", "bounded", "diverges_above", "indeterminate", "inactive")
LETTERS = {
    "converges": "c",
    "diverges": "D",
    "not_convergent": "n",
    "bounded": "b",
    "diverges_above": "a",
    "indeterminate": "?",
    "inactive": ".",
}


def run(
    model: ModelArgument,
    layers: LayersOption = None,
    head_table: Annotated[bool, typer.Option("--head-table", help="Print every head.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Compare with a twin of random orientation.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the twin.")] = 0,
    context: Annotated[
        int | None, typer.Option("--context", metavar="N", min=2, help="Context for kernels (default: the model's).")
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option("--what-if", metavar="ENCODING", help="The same under another encoding.")
    ] = None,
    layer_sums: Annotated[
        bool | None, typer.Option("--layer-sums/--no-layer-sums", help="Judge layers as wholes too (slow when wide).")
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
    from toposcope.dynamics.scan import scan
    from toposcope.encodings import parse
    from toposcope.ranges import parse_range
    from toposcope.results import emit_csv, emit_json, envelope, subject
    from toposcope.spectra.of_model import model_spectra

    started = time.perf_counter()
    checked_figure(figure)
    encodings = [("own", None), *((name, parse(name)) for name in what_if or [])]
    with load(model, family=family, heads=heads) as opened:
        chosen = parse_range(layers, len(opened.layers))
        with progress("scanning layers", len(chosen)) as tick:
            workers = os.cpu_count() or 1
            found = scan(opened, chosen, null=null, seed=seed, sums=layer_sums, workers=workers, tick=tick)
        length = context or opened.spec.context or 4096
        spectra = model_spectra(opened, chosen, context=length, encodings=encodings)
        about = subject(opened)
        findings = _checked(opened, about) if html else []
    result = envelope(
        "scan",
        {
            **found.as_dict(),
            "spectra": spectra[0].as_dict(),
            "what_if": [other.as_dict() for other in spectra[1:]],
        },
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
        skipped=found.skipped,
    )
    if json:
        emit_json(result, json)
    if csv:
        emit_csv([_flat(row) for row in result["heads"]], csv)
    written = write_pictures([*findings, result], html, figure, title=title_of(model, opened.path))
    if json != "-" and csv != "-":
        out = console()
        out.print(f"[bold]{about['path']}[/bold] ({about['family']})", soft_wrap=True)
        if not found.heads:
            out.print("no self-attention head to analyse")
        else:
            _print_map(out, found)
            _print_counts(out, found)
            _print_extremes(out, found.heads)
            print_spectra(out, spectra)
            _print_meaning(out, found)
        if head_table:
            _print_heads(out, found.heads)
        for entry in found.skipped[:6]:
            out.print(f"skipped {entry.what}: {entry.why}", soft_wrap=True)
        for name in written:
            out.print(f"Written: {name}", soft_wrap=True)
        out.print(f"{result['seconds']:.1f} s; --head-table prints every head, --json writes all numbers")


def _checked(opened: Model, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of `check`, which stand on top of a report."""
    from toposcope.check import check_model
    from toposcope.results import envelope

    started = time.perf_counter()
    body = check_model(opened).as_dict()
    return [envelope("check", body, about=about, options={}, seconds=time.perf_counter() - started)]


def _print_map(out: Console, found: ScanResult) -> None:
    """One line per layer, one letter per head: the whole model at a glance."""
    widest = max(5, max(Counter(head.layer for head in found.heads).values()))
    out.print("\nlayer  heads" + " " * (widest - 3) + "mean growth")
    for layer in dict.fromkeys(head.layer for head in found.heads):
        mine = [head for head in found.heads if head.layer == layer]
        letters = "".join(LETTERS[head.regime.verdict.value] for head in mine)
        indices = [head.regime.growth_index for head in mine if head.regime.growth_index is not None]
        mean = sum(indices) / len(indices) if indices else 0.0
        bar = "#" * round(20 * mean)
        out.print(f"{layer:5d}  {letters:<{widest}}  {mean:.2f} {bar}", soft_wrap=True)
    used = [f"{LETTERS[word]} {word}" for word in ORDER if word in found.model["counts"]]
    out.print(f"       {', '.join(used)}")
    out.print("       mean growth: positive share of eig(V O), an index; random gives 0.5")


def _print_counts(out: Console, found: ScanResult) -> None:
    from toposcope.dynamics.regime import Verdict

    total = len(found.heads)
    out.print("\n[bold]Verdicts[/bold] (each certified by the rule named; a head acting alone)")
    for word in ORDER:
        mine = [head for head in found.heads if head.regime.verdict.value == word]
        if mine:
            rules = ", ".join(sorted({head.regime.rule for head in mine if head.regime.rule}))
            robust, exact = sum(head.robust for head in mine), sum(head.regime.exact for head in mine)
            out.print(f"  {word:15s} {len(mine):4d} of {total}  {rules:6s} {exact} exact, {robust} robust to storage")
            out.print(f"    {Verdict(word).meaning}")
    if found.twin:
        from toposcope.dynamics.scan import summary

        twin = summary(found.twin)
        counts = ", ".join(f"{count} {word}" for word, count in twin["counts"].items())
        out.print(f"  randomised twin (same spectra, random orientation): {counts}")
        names = ("growth_index", "spread_index", "pair_index")
        pairs = (
            f"{name} {found.model[name]:.3f} against {twin[name]:.3f}" for name in names if twin[name] is not None
        )
        out.print(f"  {'; '.join(pairs)}")


def _print_extremes(out: Console, heads: Sequence[HeadDynamics]) -> None:
    sure = [head for head in heads if head.regime.rule in ("T5", "T6") and head.regime.margin is not None]
    ranked = sorted(sure, key=lambda head: -(head.regime.margin or 0.0))[:5]
    if not ranked:
        return
    out.print("\n[bold]Surest verdicts[/bold] (relative change of V and O that they survive)")
    for head in ranked:
        g = head.regime
        out.print(
            f"  {f'{head.layer}.{head.head}':6s} {g.verdict.value:15s} {g.rule} {g.scope:12s} {g.margin:6.2%}  "
            f"Re eig {g.omega:.2f} to {g.alpha:.2f}"
        )


def _print_meaning(out: Console, found: ScanResult) -> None:
    total, counts = len(found.heads), found.model["counts"]
    out.print("\n[bold]What to make of it[/bold]")
    share = counts.get("converges", 0) / total
    grows = (counts.get("diverges", 0) + counts.get("not_convergent", 0)) / total
    out.print(f"  {share:.0%} of the heads would, alone and for long, draw what they move to 0;")
    out.print(f"  {grows:.0%} would push at least the first token (or consensus) to infinity.")
    metastable = found.model["metastable"]
    if metastable and any(head.causal for head in found.heads):
        out.print(f"  {metastable} can freeze on the way (metastable): W sets the speed, V the regime.")
    if found.model["log_growth"] is not None:
        size = found.model["log_growth"] / 2.302585
        out.print(f"  Looped, norm-free, attention only: token 1 grows by 10^{size:.0f} a pass (an index).")
    inexact = sum(not head.regime.exact for head in found.heads)
    if inexact:
        reasons = sorted({warning for head in found.heads for warning in head.regime.warnings})
        out.print(f"  {inexact} heads lie outside the theorems' exact reach ({', '.join(reasons) or 'no rule'}).")


def _print_heads(out: Console, heads: Sequence[HeadDynamics]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("head", "verdict", "rule", "margin", "robust", "alpha", "omega", "growth", "spread", "pair"):
        table.add_column(column, justify="left" if column in ("head", "verdict", "rule") else "right")
    for head in heads:
        g = head.regime
        table.add_row(
            f"{head.layer}.{head.head}",
            g.verdict.value + ("" if g.exact else "*"),
            g.rule or "-",
            "-" if g.margin is None else f"{g.margin:.2g}",
            "yes" if head.robust else "no",
            *(_short(value) for value in (g.alpha, g.omega, g.growth_index, g.spread_index, head.pair_index)),
        )
    out.print(table)
    out.print("* outside the theorems' exact reach. growth, spread, pair are indices, not verdicts.")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


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
