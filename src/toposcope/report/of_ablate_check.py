"""The report of `ablate --check`: the proof that one head at a time, and nothing else, was taken out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report.blocks import Column, HeadMap, Listing, Measure, Page, Pairs, Summary, count

CONDITIONS = {
    "replaced": "its slice is what it was replaced by",
    "others_same": "all other slices of the layer are the same to the bit",
    "earlier_same": "so is all that enters earlier projections",
    "undone": "the next plain run gives the first output again",
}
_WORDS = {"holds": "h", "fails": "X"}


def build(result: Mapping[str, Any], page: Page) -> None:
    heads = result["heads"]
    rows = [
        {**each, "proof": _proof(each), "says": _says(each), "shown_first": _proof(each) == "fails"} for each in heads
    ]
    failed = [row for row in rows if row["proof"] == "fails"]
    same = result["weights_before"] == result["weights_after"]
    page.facts += [
        (str(len(rows)), "heads removed in turn"),
        (str(len(rows) - len(failed)), "proofs that hold"),
        ("the same" if same else "changed", "weights afterwards"),
    ]
    said = [
        f"The proof {'holds' if result['holds'] else 'does not hold'}: {len(rows) - len(failed)} of "
        f"{count(len(rows), 'head')} were taken out alone, and put back."
    ]
    said += [f"Head {row['layer']}.{row['head']}: {row['says']}" for row in failed[:8]]
    silent = [f"{row['layer']}.{row['head']}" for row in rows if not row["output_changed"]]
    if silent:
        said.append(f"Without these the output on this text stays the same to the bit: {', '.join(silent[:12])}.")
    page.add("What to make of it", Summary(tuple(said)))
    if rows:
        table = page.rows("proofs", rows)
        columns = tuple(Column(key, words, "text") for key, words in CONDITIONS.items())
        page.add(
            "Head by head",
            HeadMap(
                "Was this head, and only this one, removed?",
                "Layers down, heads across: h where all conditions hold, X where one does not.",
                table,
                (
                    Measure(
                        "proof", "Proof", "category", "All four conditions at the output projections.", words=_WORDS
                    ),
                ),
                facts=(*columns, Column("output_changed", "the model's output changed", "text")),
            ),
            Listing(
                "All conditions",
                "What was seen at the output projections, by hooks that know nothing of the removal.",
                table,
                (
                    Column("layer", "layer"),
                    Column("head", "head"),
                    *columns,
                    Column("output_changed", "output changed", "text"),
                ),
                folded=True,
            ),
        )
    hashes = (("SHA-256 before", result["weights_before"]), ("SHA-256 after", result["weights_after"]))
    words = "No weight was touched." if same else "The weights are not what they were: do not use this model."
    page.add("Weights", Pairs("All weights of the model", hashes, words))


def _proof(head: Mapping[str, Any]) -> str:
    return "holds" if all(head[key] for key in CONDITIONS) else "fails"


def _says(head: Mapping[str, Any]) -> str:
    broken = [words for key, words in CONDITIONS.items() if not head[key]]
    if broken:
        return f"this does not hold: {'; '.join(broken)}."
    return "Taken out alone, and put back" + (
        "; the model's output changed." if head["output_changed"] else "; the model's output stayed the same."
    )
