"""How `toposcope refine` looks on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "before": "the model as it is",
    "start": "with D at its start",
    "diagonal": "D tuned",
    "control": "control tuned",
}


def print_refine(out: Console, result: dict[str, Any], place: Path) -> None:
    """Losses on held-out text, paired differences with their intervals, and how far D went."""
    settings, counts = result["settings"], result["parameters"]
    out.print(
        f"[bold]{safe(Path(result['subject']['path']).name)}[/bold], {settings['form']} form, "
        f"on {safe(result['text'])}",
        soft_wrap=True,
    )
    out.print(
        f"  {counts['diagonal']} numbers tuned in D; control: {counts['control']} factors of what attention reads"
        + (" (norms among both)" if settings["norms"] else ""),
        soft_wrap=True,
    )
    held = result["held_out"]
    out.print(f"\n[bold]Held out[/bold]: {result['held_text']}", soft_wrap=True)
    for name, losses in held.items():
        out.print(f"  {TITLES[name]:<24s} {sum(losses) / len(losses):8.4f} nats per token")
    out.print("\n[bold]Differences[/bold] (95 % over sequences, paired)")
    for row in result["differences"]:
        half = row["half_width"]
        said = "" if half is None else f" ± {half:.4f}  {_verdict(row['mean'], half)}"
        out.print(f"  {TITLES[row['of']]:<20s} less {TITLES[row['against']]:<20s} {row['mean']:+9.4f}{said}")
    out.print(f"\n[bold]How far D went[/bold] (in units of its start, {len(result['moved'])} layers)")
    least = min(row["least"] for row in result["moved"])
    largest = max(row["largest"] for row in result["moved"])
    medians = sorted(row["median"] for row in result["moved"])
    out.print(f"  least {least:.3f}, medians of layers {medians[0]:.3f} to {medians[-1]:.3f}, largest {largest:.3f}")
    reach = max(row["largest"] * row["start"] / row["bound"] for row in result["moved"] if row["bound"])
    if settings["diagonal"] != "bound":
        out.print(
            f"  the bound for positive logits at every offset is {1 / reach:.0f} times the largest D",
            soft_wrap=True,
        )
    times = result["seconds_per_step"]
    out.print(f"\n  {times['diagonal']:.2f} s per step with D, {times['control']:.2f} s with the control")
    out.print(f"  {place / 'result.json'}, {place / 'diagonal.safetensors'}", soft_wrap=True)


def _verdict(mean: float, half: float) -> str:
    if abs(mean) <= half:
        return "undecided"
    return "better" if mean < 0 else "worse"
