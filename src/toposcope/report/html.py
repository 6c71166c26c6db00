"""One self-contained HTML file from the results of `check` and `inspect`: no network, nothing to install."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope._version import __version__
from toposcope.files import write_text
from toposcope.ranges import show_range

MAPS = (
    ("logit_strength", "How strongly each head can look", "Size of scale·QᵀK, norm gains folded in."),
    ("write_strength", "How strongly each head writes", "Size of O·V, norm gains folded in."),
    ("rotating_share", "How much of its logit rotates", "Share of QᵀK's energy in channels that RoPE turns."),
)


def write_report(
    where: str | Path,
    *,
    title: str,
    check: Mapping[str, Any] | None = None,
    inspection: Mapping[str, Any] | None = None,
) -> None:
    """Render the results, as `envelope` made them, into the file `where`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("toposcope.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    any_result = check or inspection or {}
    page = environment.get_template("report.html.j2").render(
        title=title,
        version=__version__,
        check=check,
        inspection=inspection,
        subject=any_result.get("subject"),
        encodings=_encodings(inspection["layers"]) if inspection else [],
        maps=_maps(inspection) if inspection else [],
        results={"check": check, "inspect": inspection},
        embedded=_embeddable({"check": check, "inspect": inspection}),
    )
    write_text(Path(where), page)


def _embeddable(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _encodings(layers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], list[int]] = {}
    for row in layers:
        groups.setdefault((row["stack"], row["kind"], row["encoding_title"]), []).append(row["layer"])
    return [
        {"stack": stack, "kind": kind, "title": title, "layers": show_range(numbers)}
        for (stack, kind, title), numbers in groups.items()
    ]


def _maps(inspection: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Layer x head maps: for each cell its place, its value and where that stands between least and most."""
    found = []
    for key, title, sentence in MAPS:
        cells = [row for row in inspection["heads"] if row[key] is not None]
        if not cells:
            continue
        scaled = [row[key] if key == "rotating_share" else math.log(max(row[key], 1e-12)) for row in cells]
        least, most = min(scaled), max(scaled)
        if key == "rotating_share" and most - least < 1e-9:
            continue  # all heads alike: a map would only show one colour
        spread = (most - least) or 1.0
        rows = {row["layer"]: i for i, row in enumerate(inspection["layers"])}
        found.append(
            {
                "title": title,
                "sentence": sentence,
                "rows": len(rows),
                "numbers": list(rows),
                "columns": 1 + max(row["head"] for row in inspection["heads"]),
                "least": min(row[key] for row in cells),
                "most": max(row[key] for row in cells),
                "cells": [
                    {
                        "x": row["head"],
                        "y": rows[row["layer"]],
                        "at": (value - least) / spread,
                        "tip": f"layer {row['layer']}, head {row['head']}: {row[key]:.3g}",
                    }
                    for row, value in zip(cells, scaled, strict=True)
                ],
            }
        )
    return found
