"""How `models.trace` looks on a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.models.rank import RankCorrelation
    from toposcope.models.trace_agreement import Agreement
    from toposcope.models.trace_result import HeadTrace, TraceResult

SHOWN = 12  # heads of the short table
NAMED = 8  # heads listed after a pattern


def print_trace(screen: Console, found: TraceResult) -> None:
    """What was read, patterns with their heads, the most positional heads, and what the weights would have said."""
    about = found.about
    screen.print(
        f"[bold]{safe(about['path'])}[/bold] ({safe(about['family'])}): {safe(', '.join(about['encodings']))}",
        soft_wrap=True,
    )
    layers = len({each.layer for each in found.heads})
    _say(screen, f"{found.text}; {len(found.heads)} heads of {layers} layers", "")
    if found.other is not None:
        _say(screen, f"with the encoding {found.other} put into these heads", "")
    for each in found.skipped:
        _say(screen, f"left out: {each.what}: {each.why}")
    if not found.heads:
        screen.print("no head to trace")
        return
    _print_patterns(screen, found)
    _print_positions(screen, found)
    ranked = sorted(found.heads, key=lambda each: -(each.positional or 0.0))
    print_heads(screen, found, ranked[:SHOWN], "Most positional heads")
    if found.agreement is not None:
        _print_agreement(screen, found.agreement)
    _print_gaps(screen, found)


def print_heads(screen: Console, found: TraceResult, heads: Sequence[HeadTrace], title: str = "All heads") -> None:
    """One row per head: medians over sequences, the quartiles of rho beside it."""
    from rich.table import Table

    absolute = all(each.median("position") is None for each in heads) and any(
        each.median("gram_position") is not None for each in heads
    )
    shares = ("gram_content", "gram_mixed", "gram_position") if absolute else ("content", "position", "coupling")
    labels = ("G cc", "G cp", "G pp") if absolute else ("cont", "pos", "coup")
    screen.print(f"\n[bold]{title}[/bold] (medians of {found.sequences})")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for label in ("head", "rho", "quartiles", "erank", "maj", "Toep", *labels, "peak", "prev", "1st", "self", "ind"):
        table.add_column(label, justify="left" if label == "head" else "right", no_wrap=True)
    table.add_column("dist", justify="right", no_wrap=True)
    for each in heads:
        rho = each.metrics["rho"]
        table.add_row(
            each.name,
            _number(each.median("rho")),
            "-" if rho is None else f"{_number(rho.low)}-{_number(rho.high)}",
            _number(each.median("erank_ratio")),
            _number(each.median("maj_gap")),
            _number(each.median("toeplitz_centred")),
            *(_number(each.median(name)) for name in shares),
            "-" if each.peak_offset is None else str(each.peak_offset),
            *(_number(each.score(name)) for name in ("previous", "first", "self", "induction")),
            "-" if each.median("distance") is None else f"{each.median('distance'):.0f}",
        )
    screen.print(table)


def _print_patterns(screen: Console, found: TraceResult) -> None:
    from toposcope.models.patterns import THRESHOLDS, WORDS, together

    screen.print("\n[bold]What heads attend to[/bold] (share of attention, median over sequences)")
    for pattern, threshold in THRESHOLDS.items():
        named = found.named(pattern)
        if all(each.scores[pattern] is None for each in found.heads):
            continue
        listed = " ".join(f"{each.name} {_number(each.score(pattern))}," for each in named[:NAMED]).rstrip(",")
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        what = f"{WORDS[pattern]} ({_number(threshold)} or more): {len(named)}"
        _say(screen, f"{what}{': ' if named else ''}{listed}{more}")
    several = Counter(together(each.names) for each in found.heads if len(each.names) > 1)
    if several:
        counts = (f"{' and '.join(WORDS[name] for name in some)} {count}" for some, count in several.most_common())
        _say(screen, f"of these, two patterns or more: {', '.join(counts)}")
    none = sum(not each.names for each in found.heads)
    screen.print(f"  no name: {none} of {len(found.heads)} heads")


def _print_positions(screen: Console, found: TraceResult) -> None:
    """How the heads are spread: contraction is counted, never asserted."""
    import numpy as np

    rho = [value for each in found.heads if (value := each.median("rho")) is not None]
    if not rho:
        return
    low, middle, high = np.percentile(rho, (25, 50, 75))
    routes = sorted({each.route for each in found.heads})
    screen.print("\n[bold]What position does to the logits[/bold]")
    _say(
        screen,
        f"rho (norm over that without position): median {middle:.2f}, quartiles {low:.2f} to {high:.2f}; "
        f"below 1 in {sum(value < 1 for value in rho)} of {len(rho)} heads ({', '.join(routes)})",
    )
    gaps = [value for each in found.heads if (value := each.median("maj_gap")) is not None]
    if gaps:
        _say(screen, f"every Ky Fan norm contracts in {sum(value <= 1e-9 for value in gaps)} of {len(gaps)} heads")
    if found.null_share is not None:
        few = f"means of {found.sequences} sequences"
        _say(screen, f"G pp: up to about {found.null_share:.2f} of it is content that {few} do not average out")


def _print_agreement(screen: Console, found: Agreement) -> None:
    screen.print(f"\n[bold]Would the weights have told?[/bold] ({found.heads} heads; 'toposcope scan')")
    if found.kernel is not None:
        screen.print(f"  kernels over offsets: median rank correlation {found.kernel:+.2f}")
    _print_correlation(screen, "peak offset", found.peak)
    _print_correlation(screen, "rho_n of the kernel", found.contraction)
    _print_correlation(screen, "g(1) against attention on the previous token", found.contrast)
    _print_correlation(screen, "share of fast pairs against the same", found.fast)
    _say(
        screen,
        f"{len(found.traced)} previous-token heads traced; {len(found.hits)} of the {len(found.listed)} heads whose "
        f"kernel peaks at 1: precision {_number(found.precision)}, recall {_number(found.recall)}",
    )
    if found.fast_listed:
        area = "" if found.fast_auc is None else f"; AUC of the whole order {_number(found.fast_auc)}"
        _say(
            screen,
            f"{len(found.fast_hits)} of the {len(found.fast_listed)} with most fast pairs: precision "
            f"{_number(found.fast_precision)}, recall {_number(found.fast_recall)}{area}",
        )


def _print_correlation(screen: Console, what: str, found: RankCorrelation) -> None:
    if found.rho is not None and found.p is not None:
        chance = f"p = {found.p:.2g}" if found.p >= 1e-4 else "p < 0.0001"
        screen.print(f"  {what}: rho {found.rho:+.2f} ({chance})")


def _print_gaps(screen: Console, found: TraceResult) -> None:
    by_reason: dict[str, list[str]] = {}
    for gap in found.gaps:
        if not gap.why.endswith(("see the Gram shares", "see content, position, coupling")):
            by_reason.setdefault(gap.why, []).append(gap.metric)
    if by_reason:
        screen.print()
    for why, metrics in by_reason.items():
        _say(screen, f"not measured: {', '.join(metrics)}: {why}", "")


def _say(screen: Console, text: str, indent: str = "  ") -> None:
    wrapped = textwrap.wrap(text, 79, initial_indent=indent, subsequent_indent=indent + "  ")
    screen.print("\n".join(wrapped), soft_wrap=True, markup=False)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.2f}"
    if text in ("0.00", "-0.00"):
        return "0"
    return text.replace("0.", ".", 1) if abs(value) < 0.995 else text if abs(value) < 99.5 else f"{value:.0f}"
