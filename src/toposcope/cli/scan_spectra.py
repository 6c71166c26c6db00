"""How the spectral half of `toposcope scan` looks on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.spectra.of_heads import HeadSpectra
    from toposcope.spectra.of_model import ModelSpectra


def print_spectra(out: Console, found: Sequence[ModelSpectra]) -> None:
    """Where heads look by their weights, layer 0's split, and what another encoding would change."""
    own, others = found[0], found[1:]
    with_kernel = [row for row in own.heads if row.peak_offset is not None]
    out.print("\n[bold]Where heads look[/bold] (an index: kernel of the weights over offsets)")
    if not with_kernel:
        out.print("  no rotation or bias by offset: position enters the input only, or not at all")
    else:
        previous = [row for row in with_kernel if row.peak_offset == 1]
        _print_names(out, "1 back (previous token)", previous)
        _print_names(out, "at themselves", [row for row in with_kernel if row.peak_offset == 0])
        near = Counter(row.peak_offset for row in with_kernel if 1 < abs(row.peak_offset or 0) <= 8)
        out.print(f"  2 to 8 away: {sum(near.values())} heads; farther: {_far(with_kernel)} heads")
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
            f"  position table: rank {part.rank}, effective {part.effective_rank or 0:.1f} of {part.positions} rows;"
        )
        out.print(f"    Gram is {share} Toeplitz; one frequency explains {part.sinusoid_likeness:.0%} of a column")
    for other in others:
        _print_difference(out, own, other)


def _print_difference(out: Console, own: ModelSpectra, other: ModelSpectra) -> None:
    pairs = list(zip(own.heads, other.heads, strict=True))
    moved = [(mine, theirs) for mine, theirs in pairs if mine.peak_offset != theirs.peak_offset]
    out.print(f"\n[bold]What if[/bold] {other.encoding}: {len(moved)} of {len(pairs)} heads look elsewhere")
    out.print(f"  mean lambda_max/n {_mean(own)} -> {_mean(other)} at {own.context:,}")
    for mine, theirs in moved[:6]:
        out.print(f"  {f'{mine.layer}.{mine.head}':6s} {mine.looks} -> {theirs.looks}")
    if len(moved) > 6:
        out.print(f"  ... {len(moved) - 6} more in --json")
    for name in ("content", "position", "coupling"):
        if own.first_layer and other.first_layer:
            before, after = (_average(part.first_layer, name) for part in (own, other))
            out.print(f"  layer 0, mean {name} {before:.2f} -> {after:.2f}")


def _print_names(out: Console, what: str, rows: Sequence[HeadSpectra]) -> None:
    ranked = sorted(rows, key=lambda row: -(row.peak_share or 0.0))
    names = " ".join(f"{row.layer}.{row.head}" for row in ranked[:12])
    more = f" and {len(ranked) - 12} more" if len(ranked) > 12 else ""
    out.print(f"  {what}: {len(ranked)} head{'s' if len(ranked) != 1 else ''}{': ' if names else ''}{names}{more}")


def _far(rows: Sequence[HeadSpectra]) -> int:
    return sum(abs(row.peak_offset or 0) > 8 for row in rows)


def _mean(found: ModelSpectra) -> str:
    values = [row.lambda_max_over_n for row in found.heads if row.lambda_max_over_n is not None]
    return f"{sum(values) / len(values):.3f}" if values else "-"


def _average(rows: Sequence[dict[str, float | None]], name: str) -> float:
    values = [value for row in rows if (value := row[name]) is not None]
    return sum(values) / len(values) if values else float("nan")
