"""`toposcope spectrum ENCODING...`: positional kernels at any context, side by side, without a model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import FigureOption, HtmlOption, JsonOption, console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from toposcope.encodings import EncodingSpec
    from toposcope.spectra.encoding_spectrum import EncodingSpectrum, Point

TABLE_LENGTH = 8192  # positions of a learned or random table where none are asked for
MARKS = {"theorem": "exact", "measured": "measured", "bound": "bound"}


def run(
    encodings: Annotated[
        list[str],
        typer.Argument(metavar="ENCODING...", help="Such as rope, alibi, rope:base=500000.", show_default=False),
    ],
    context: Annotated[int, typer.Option("--context", metavar="N", min=1, help="The longest context.")] = 131072,
    head_dim: Annotated[int, typer.Option("--head-dim", metavar="h", min=1, help="Width of a head.")] = 64,
    heads: Annotated[int, typer.Option("--heads", metavar="H", min=1, help="Heads of a layer.")] = 8,
    width: Annotated[
        int | None, typer.Option("--width", metavar="D", min=1, help="Width of the model (default: H x h).")
    ] = None,
    head: Annotated[int, typer.Option("--head", metavar="I", min=0, help="Which head of a bias, from 0.")] = 0,
    json: JsonOption = None,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw to .png, .svg or .pdf.")] = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Show what encodings do to constant content: norm, effective rank and condition of their kernels, by context.

    No model is needed. 'toposcope ls encodings' lists the encodings and their parameters.
    """
    from toposcope.cli.pictures import checked_figure, write_pictures
    from toposcope.core.results import emit_json, envelope
    from toposcope.encodings import Sizes, parse
    from toposcope.spectra.encoding_spectrum import contexts_up_to, spectrum
    from toposcope.spectra.offsets import OFFSETS, kernel_at, symbol_range

    started = time.perf_counter()
    checked_figure(figure)
    if plot:
        _checked_name(plot)
    sizes = Sizes(width or heads * head_dim, heads, head_dim, context, causal=True)
    specs = [parse(text) for text in encodings]
    built = [_sized(spec, sizes).build(sizes) for spec in specs]
    for encoding in built:
        encoding.tables()  # refuse before the work, not after it
    contexts = contexts_up_to(context)
    found = [spectrum(each, contexts, head) for each in built]
    names = [str(spec) for spec in specs]
    kernels = [kernel_at(each, OFFSETS, head) for each in built]
    symbols = [symbol_range(each, head) for each in built]
    body = {
        "contexts": contexts,
        "encodings": [
            {
                "spec": name,
                **each.as_dict(),
                "offsets": None if kernel is None else OFFSETS,
                "kernel_at": kernel,
                "symbol_range": symbol,
                "parameters": dict(made.parameters),
            }
            for name, each, made, kernel, symbol in zip(names, found, built, kernels, symbols, strict=True)
        ],
    }
    options = {"context": context, "head_dim": head_dim, "heads": heads, "width": sizes.width, "head": head}
    result = envelope("spectrum", body, about=None, options=options, seconds=time.perf_counter() - started)
    if json:
        emit_json(result, json)
    written = write_pictures([result], html, figure, title=f"Positional kernels: {', '.join(names)}")
    if plot:
        draw(found, names, plot)
    if json != "-":
        out = console()
        for name, each, kernel, symbol in zip(names, found, kernels, symbols, strict=True):
            _print_one(out, name, each)
            if kernel is not None:
                cells = "  ".join(f"{t}: {value:.3g}" for t, value in zip(OFFSETS[1:7], kernel[1:7], strict=True))
                out.print(f"  kernel at  {cells}")
            if symbol is not None:
                out.print(
                    f"  symbol from {symbol[0]:.4g} to {symbol[1]:.4g}: all eigenvalues lie between, at every n"
                )
        if len(found) > 1:
            _print_together(out, names, found, contexts)
        _print_legend(out, found)
        for each_file in ([plot] if plot else []) + written:
            out.print(f"Written: {each_file}", soft_wrap=True)


def _sized(spec: EncodingSpec, sizes: Any) -> EncodingSpec:
    """A table of position vectors has a length; where none is given, it is not made longer than real ones are."""
    from dataclasses import replace

    if spec.kind.parameter("length") is None or "length" in spec.parameters:
        return spec
    return replace(spec, given=(("length", min(sizes.context, TABLE_LENGTH)), *spec.given))


# ------------------------------------------------------------------ words
def _print_one(out: Console, name: str, found: EncodingSpectrum) -> None:
    out.print(f"\n[bold]{name}[/bold]: {found.title}", soft_wrap=False)
    out.print(f"  {found.kernel}")
    for note in found.notes:
        out.print(f"  note: {note}")
    if found.points:
        _print_points(out, found.points)
    if found.logit_points:
        out.print(f"  as a summand of the logits (head {found.head})")
        _print_points(out, found.logit_points)
    for sentence in found.skipped[:2]:
        out.print(f"  not computed: {sentence}")
    if len(found.skipped) > 2:
        out.print(f"  not computed: {len(found.skipped) - 2} longer contexts, for the same reason")


def _print_points(out: Console, points: Sequence[Point]) -> None:
    from rich.table import Table

    lawful = any(point.law is not None for point in points)
    bounded = any(point.upper is not None for point in points)
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["context", "max/n", "eff. rank", "rank", "condition"]
    columns += (["S5g law"] if lawful else []) + (["at most", "residual"] if bounded else [])
    for column in [*columns, "norm"]:
        table.add_column(column, justify="right", no_wrap=True)
    for point in points:
        cells = [
            f"{point.context:,}",
            _norm(point),
            _effective_rank(point),
            _rank(point),
            _condition(point),
        ]
        if lawful:
            cells.append(_number(point.law))
        if bounded:
            cells += [_number(point.upper), "-" if point.residual is None else f"{point.residual:.0e}"]
        table.add_row(*cells, MARKS[point.statement])
    out.print(table)


def _print_together(
    out: Console, names: Sequence[str], found: Sequence[EncodingSpectrum], contexts: Sequence[int]
) -> None:
    """lambda_max / n of all kernels, a column each, as many as fit a line."""
    from rich.table import Table

    fit = 5
    for first in range(0, len(found), fit):
        table = Table(
            box=None, pad_edge=False, header_style="bold", title="\nmax/n side by side", title_justify="left"
        )
        table.add_column("context", justify="right", no_wrap=True)
        for name in names[first : first + fit]:
            table.add_column(name, justify="right", overflow="fold", max_width=13)
        for n in contexts:
            cells = []
            for each in found[first : first + fit]:
                point = next((point for point in each.points if point.context == n), None)
                cells.append("-" if point is None else _norm(point))
            table.add_row(f"{n:,}", *cells)
        out.print(table)


def _print_legend(out: Console, found: Sequence[EncodingSpectrum]) -> None:
    points = [point for each in found for point in (*each.points, *each.logit_points)]
    used = {point.statement for point in points}
    words = {
        "theorem": "exact: by a closed form, up to rounding",
        "measured": "measured: by a dense route or by Lanczos",
        "bound": "bound (>=): at least max/n, 'at most' what that column says",
    }
    out.print("\nmax/n: spectral norm over context; eff. rank: exp of the spectrum's entropy.")
    out.print("The norm is " + "; ".join(words[each] for each in words if each in used) + ".", soft_wrap=False)
    if any(point.rank_statement == "numerical" for point in points):
        out.print("* after a rank: numerical, values above n eps (eps 2.2e-16) times the largest.")
    if any(point.condition_statement == "at least" for point in points):
        out.print(">= before a condition: values below n eps times the largest exist; it is larger.")
    if any(point.law is not None for point in points):
        out.print("S5g law: 1 - ln(n/2.52)/ln(base) - 1/h, an approximation for 1 << n << base.")
    marks = {point.effective_rank_statement for point in points if point.effective_rank is not None}
    if "at most" in marks:
        out.print("<= before an effective rank: a bound, from a circulant.")
    if marks & {"estimate", "limit"}:
        out.print("~ before an effective rank: its limit for long contexts, or an estimate from a circulant.")


def _norm(point: Point) -> str:
    """max/n, marked where it is a lower bound."""
    return (">= " if point.statement == "bound" else "") + _number(point.lambda_max_over_n)


def _rank(point: Point) -> str:
    if point.rank is None:
        return "-"
    return f"{point.rank:,}" + ("*" if point.rank_statement == "numerical" else "")


def _condition(point: Point) -> str:
    if point.condition is None:
        return "-"
    return (">= " if point.condition_statement == "at least" else "") + f"{point.condition:.3g}"


def _effective_rank(point: Point) -> str:
    if point.effective_rank is None:
        return "-"
    mark = {"at most": "<= ", "estimate": "~ ", "limit": "~ "}.get(point.effective_rank_statement, "")
    value = point.effective_rank
    return mark + (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"


# ------------------------------------------------------------------ picture
def _checked_name(plot: str) -> None:
    from toposcope.core.errors import BadValue
    from toposcope.dynamics.plots import require_matplotlib

    if not plot.lower().endswith((".png", ".svg", ".pdf")):
        raise BadValue(f"cannot draw to '{plot}': its name must end in .png, .svg or .pdf.")
    require_matplotlib()


def draw(found: Sequence[EncodingSpectrum], names: Sequence[str], path: str) -> None:
    """Two pictures side by side: lambda_max / n against the context with the law of S5g, and the effective rank."""
    import io
    from pathlib import Path

    from toposcope.core.files import write_bytes
    from toposcope.dynamics.plots import drawn, require_matplotlib

    require_matplotlib().use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
    try:
        for name, each in zip(names, found, strict=True):
            known = [point for point in each.points if point.statement != "bound"]
            n, norms = [point.context for point in known], [point.lambda_max_over_n for point in known]
            (line,) = left.plot(n, norms, "o-", ms=3.5, lw=1.3, label=drawn(name))
            for point in each.points:
                if point.statement == "bound" and point.upper is not None:  # from the lower to the upper bound
                    ends = [point.lambda_max_over_n, point.upper]
                    left.plot([point.context] * 2, ends, "_-", lw=1, color=line.get_color())
            lawful = [(point.context, point.law) for point in each.points if point.law is not None]
            if lawful:
                left.plot(
                    *zip(*lawful, strict=True),
                    ":",
                    color=line.get_color(),
                    lw=1.6,
                    label=f"{drawn(name)}: law of S5g",
                )
            ranked = [(p.context, p.effective_rank) for p in each.points if p.effective_rank is not None]
            if ranked:
                right.plot(*zip(*ranked, strict=True), "o-", ms=3.5, lw=1.3, color=line.get_color(), label=name)
        for axis, title in ((left, "norm of the kernel over context"), (right, "effective rank of the kernel")):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel("context")
            axis.set_title(title, loc="left", fontsize=10)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        left.legend(fontsize=8, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=Path(path).suffix.lower().lstrip("."), dpi=130)
    finally:
        plt.close(figure)
    write_bytes(path, buffer.getvalue())
