"""The report of `inspect`: where position enters, how strongly heads look and write, what was not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.core.ranges import show_range
from toposcope.report.blocks import Column, HeadMap, Listing, Measure, Page, Paragraphs

_MEASURES = (
    Measure(
        "logit_strength", "Looks", "logarithmic", "Size of scale QᵀK, norm gains folded in: how strongly it can look."
    ),
    Measure("write_strength", "Writes", "logarithmic", "Size of O V, norm gains folded in: how strongly it writes."),
    Measure(
        "rotating_share",
        "Rotates",
        "sequential",
        "Share of QᵀK's energy in channels that RoPE turns.",
        "percent",
        0.0,
    ),
)
_COLUMNS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("kv_group", "group"),
    Column("logit_strength", "|QK|"),
    Column("write_strength", "|OV|"),
    Column("rotating_share", "rotating", "percent"),
)


def build(result: Mapping[str, Any], page: Page) -> None:
    layers, heads = result["layers"], result["heads"]
    page.facts += [
        (f"{len(layers)}", "attention layers"),
        (f"{len(heads)}", "heads"),
        (f"{result['width']:,}", "model width"),
        *([(f"{layers[0]['head_dim']}", "head width")] if layers else []),
        (f"{result['parameters'] / 1e6:,.1f} M", "parameters"),
        *([(f"{result['context']:,}", "claimed context")] if result["context"] else []),
    ]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for row in layers:
        groups.setdefault((row["stack"], row["kind"], row["encoding_title"]), []).append(row["layer"])
    rows = [
        {"layers": show_range(numbers), "stack": stack, "kind": kind, "encoding": title}
        for (stack, kind, title), numbers in groups.items()
    ]
    if not rows:
        page.add("Where position enters", Paragraphs(("No attention layer was read.",)))
        return
    columns = (
        Column("layers", "layers", "plain"), Column("stack", "stack", "plain"), Column("kind", "attention", "plain"),
        Column("encoding", "encoding", "wrap"),
    )  # fmt: skip
    words = "Layers that encode position alike, together."
    page.add("Where position enters", Listing("Encoding by layer", words, page.rows("encodings", rows), columns))
    if not heads:
        return
    table = page.rows("head strengths", heads)
    measures = tuple(measure for measure in _MEASURES if any(head[measure.key] is not None for head in heads))
    words = "Layers down, heads across; the switch chooses what the colour shows."
    page.add("Heads by layer", HeadMap("How strongly heads look and write", words, table, measures))
    words = "|QK| is the size of scale QᵀK and |OV| that of O V (Frobenius norms, norm gains folded in)."
    page.add("Strength of every head", Listing("All heads", words, table, _COLUMNS))
