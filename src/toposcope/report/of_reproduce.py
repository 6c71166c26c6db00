"""The report of `reproduce`: each claim of the papers, what was measured, and whether it held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from toposcope.report.blocks import Column, Listing, Page, Says

_SHOWN = ("id", "claim", "paper", "status", "verdict", "expected", "measured", "words", "why")


def build(result: Mapping[str, Any], page: Page) -> None:
    """`claims` is a list of flat records; known columns come first, in this order, the others after them."""
    claims = result["claims"]
    counts = Counter(str(claim.get("status") or claim.get("verdict")) for claim in claims)
    words = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in counts.items())
    page.facts += [
        (str(len(claims)), "claims"),
        *((str(count), word.replace("_", " ")) for word, count in counts.items()),
    ]
    page.add("What to make of it", Says((f"{len(claims)} claims were put to the test: {words}.",)))
    flat = [{key: _cell(value) for key, value in claim.items()} for claim in claims]
    keys = [key for key in _SHOWN if any(key in claim for claim in flat)]
    keys += [key for claim in flat for key in claim if key not in keys]
    keys = list(dict.fromkeys(keys))
    columns = tuple(Column(key, key.replace("_", " "), _how(flat, key)) for key in keys)
    page.add(
        "Claim by claim",
        Listing("Claims", "What the papers say beside what came out here.", page.rows("claims", flat, keys), columns),
    )


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return "; ".join(f"{key} {each}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _how(rows: list[dict[str, Any]], key: str) -> str:
    if all(isinstance(row.get(key), int | float | None) for row in rows):
        return "number"
    return "wrap" if any(len(str(row.get(key) or "")) > 30 for row in rows) else "text"
