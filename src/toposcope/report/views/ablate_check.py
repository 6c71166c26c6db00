"""The view of `ablate --check`: the proof that one head at a time, and nothing else, was taken out."""

from __future__ import annotations

from toposcope.models.ablation.check import AblateCheckResult, HeadProof
from toposcope.report.blocks import Column, HeadMap, Listing, Measure, Page, Pairs, Summary, count

CONDITIONS = {
    "replaced": "its slice is what it was replaced by",
    "others_same": "all other slices of the layer are the same to the bit",
    "earlier_same": "the inputs of earlier projections are the same to the bit",
    "undone": "the next plain run gives the first output again",
}
LETTERS = {"holds": "h", "fails": "X"}


def view(result: AblateCheckResult, page: Page) -> None:
    """Add the sections of a proof."""
    failed = [each for each in result.heads if not each.holds]
    right, total = len(result.heads) - len(failed), len(result.heads)
    same = result.weights_before == result.weights_after
    page.facts += [
        (str(total), "heads removed in turn"),
        (str(right), "proofs that hold"),
        ("the same" if same else "changed", "weights afterwards"),
    ]
    said = [
        f"The proof {'holds' if result.holds else 'does not hold'}: {right} of {count(total, 'head')} were taken out "
        "alone, and put back.",
        *(f"Head {each.name}: {_says(each)}" for each in failed[:8]),
    ]
    silent = [each.name for each in result.heads if not each.output_changed]
    if silent:
        said.append(f"Without these the output on this text stays the same to the bit: {', '.join(silent[:12])}.")
    page.add("Summary", Summary(tuple(said)))
    counted = [
        {"condition": words, "heads": sum(getattr(each, key) for each in result.heads), "of": total}
        for key, words in CONDITIONS.items()
    ]
    columns = (Column("heads", "heads"), Column("of", "of"), Column("condition", "condition", "plain"))
    page.add("Conditions", Listing("How often each holds", "", page.rows("conditions", counted), columns))
    if result.heads:
        _add_heads(page, result.heads)
    hashes = (("SHA-256 before", result.weights_before), ("SHA-256 after", result.weights_after))
    words = "No weight was touched." if same else "The weights are not what they were: do not use this model."
    page.add("Weights", Pairs("All weights of the model", hashes, words))


def _add_heads(page: Page, heads: tuple[HeadProof, ...]) -> None:
    keys = ("layer", "head", *CONDITIONS, "output_changed")
    rows = [
        {
            **{key: getattr(each, key) for key in keys},
            "proof": "holds" if each.holds else "fails",
            "says": _says(each),
            "shown_first": not each.holds,
        }
        for each in heads
    ]
    table = page.rows("proofs", rows)
    columns = tuple(Column(key, words, "text") for key, words in CONDITIONS.items())
    measure = Measure("proof", "Proof", "category", "All four conditions at the output projections.", words=LETTERS)
    page.add(
        "Head by head",
        HeadMap(
            "Was this head, and only this one, removed?",
            "Layers down, heads across: h where all conditions hold, X where one does not.",
            table,
            (measure,),
            facts=(*columns, Column("output_changed", "the model's output changed", "text")),
        ),
    )
    page.add(
        "Every head",
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
        detail=True,
    )


def _says(head: HeadProof) -> str:
    broken = [words for key, words in CONDITIONS.items() if not getattr(head, key)]
    if broken:
        return f"this does not hold: {'; '.join(broken)}."
    return "Taken out alone, and put back" + (
        "; the model's output changed." if head.output_changed else "; the model's output stayed the same."
    )
