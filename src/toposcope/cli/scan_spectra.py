"""How the spectral half of `toposcope scan` looks on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.spectra.of_heads import HeadSpectra
    from toposcope.spectra.of_model import ModelSpectra

RANKED = 12


def print_spectra(out: Console, found: Sequence[ModelSpectra]) -> None:
    """The order of heads by fast pairs, their kernels, layer 0's split, and what another encoding would change."""
    own, others = found[0], found[1:]
    _print_ranking(out, own.heads)
    with_kernel = [row for row in own.heads if row.peak_offset is not None]
    out.print("\n[bold]Kernels over offsets[/bold] (heuristic: not what heads attend to)")
    if not with_kernel:
        out.print("  no rotation or bias by offset: position enters the input only, or not at all")
    else:
        far = [abs(row.peak_offset or 0) for row in with_kernel]
        counts = (sum(each == 0 for each in far), sum(each == 1 for each in far), sum(each > 8 for each in far))
        near = len(far) - sum(counts)
        out.print(f"  peaks at offset 0: {counts[0]}; 1: {counts[1]}; 2 to 8: {near}; farther: {counts[2]} heads")
        out.print(f"  mean lambda_max/n of the kernel at {own.context:,}: {_mean(own)}")
    if own.first_layer:
        out.print("  layer 0, share of logits' variance (exact for tokens of the vocabulary):")
        for name in ("content", "position", "coupling"):
            values = [row[name] for row in own.first_layer]
            cells = "  ".join("-" if value is None else f"{value:.2f}" for value in values[:12])
            out.print(f"    {name:9s} {cells}" + ("  ..." if len(values) > 12 else ""))
    if own.biases:
        norms = ", ".join(
            "-" if row.lambda_max_over_n is None else f"{row.lambda_max_over_n:.3f}" for row in own.biases[:8]
        )
        out.print(f"  bias as a kernel, lambda_max/n by head at {own.biases[0].context:,}: {norms}")
    if own.table is not None:
        part = own.table
        share = "-" if part.toeplitz_share is None else f"{part.toeplitz_share:.2f}"
        out.print(
            f"  position table: numerical rank {part.rank}, effective {part.effective_rank or 0:.1f} "
            f"of {part.positions} rows;"
        )
        out.print(f"    Gram is {share} Toeplitz; one frequency explains {part.sinusoid_likeness:.0%} of a column")
    for other in others:
        _print_difference(out, own, other)


def _print_difference(out: Console, own: ModelSpectra, other: ModelSpectra) -> None:
    pairs = list(zip(own.heads, other.heads, strict=True))
    moved = [(mine, theirs) for mine, theirs in pairs if mine.peak_offset != theirs.peak_offset]
    out.print(f"\n[bold]What if[/bold] {other.encoding}: {len(moved)} of {len(pairs)} kernels peak elsewhere")
    out.print(f"  mean lambda_max/n {_mean(own)} -> {_mean(other)} at {own.context:,}")
    for mine, theirs in moved[:6]:
        out.print(f"  {f'{mine.layer}.{mine.head}':6s} {mine.looks} -> {theirs.looks}")
    if len(moved) > 6:
        out.print(f"  ... {len(moved) - 6} more in --json")
    for name in ("content", "position", "coupling"):
        if own.first_layer and other.first_layer:
            before, after = (_average(part.first_layer, name) for part in (own, other))
            out.print(f"  layer 0, mean {name} {before:.2f} -> {after:.2f}")


def _print_ranking(out: Console, rows: Sequence[HeadSpectra]) -> None:
    """The heads with most of Q and K in fast pairs, and what that order is worth."""
    from toposcope.report.scan_words import about_fast_share, by_fast_share

    ranked = by_fast_share([asdict(row) for row in rows])
    if not ranked:
        return
    out.print("\n[bold]Heads that can tell neighbours apart[/bold] (share of Q and K in fast rotary pairs)")
    listed = ", ".join(f"{row['layer']}.{row['head']} {row['fast_share']:.0%}" for row in ranked[:RANKED])
    more = f" and {len(ranked) - RANKED} more" if len(ranked) > RANKED else ""
    for words in (f"{listed}{more}", about_fast_share()):
        lines = textwrap.wrap(words, 79, initial_indent="  ", subsequent_indent="  ")
        out.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def _mean(found: ModelSpectra) -> str:
    values = [row.lambda_max_over_n for row in found.heads if row.lambda_max_over_n is not None]
    return f"{sum(values) / len(values):.3f}" if values else "-"


def _average(rows: Sequence[dict[str, float | None]], name: str) -> float:
    values = [value for row in rows if (value := row[name]) is not None]
    return sum(values) / len(values) if values else float("nan")
