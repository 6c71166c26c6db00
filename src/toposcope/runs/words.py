"""How a run, an accuracy and a time are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.core.ranges import computable


def title(config: Mapping[str, Any]) -> str:
    """A run in a few words: 'distance, rope, seed 0'."""
    what = config.get("task", config.get("regime", "?"))
    cell = [config["cell"]] if "cell" in config else []
    return ", ".join(map(str, (what, config.get("encoding", "?"), *cell, f"seed {config.get('seed', '?')}")))


def percent(value: float | None) -> str:
    """An accuracy, to a tenth of a percent."""
    return f"{100 * value:.1f}%" if isinstance(value, int | float) and computable(value) else "-"


def duration(seconds: float | None) -> str:
    """A time as a person would say it: 21 s, 3 min 20 s, 2 h 05 min."""
    if not isinstance(seconds, int | float) or not computable(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
