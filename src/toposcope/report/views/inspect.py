"""The view of `inspect`: what the model is, where position enters, how strongly heads look and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from toposcope.checkpoints.inspect import InspectedHead, InspectedLayer, InspectResult
from toposcope.core.ranges import show_range
from toposcope.report.blocks import Column, HeadMap, Listing, Measure, Page, Paragraphs, Summary, count

FEW = 48  # a table of this many heads is shown without being asked for
STRENGTHS = "|QK| is the size of scale QᵀK and |OV| that of O V (Frobenius norms, norm gains folded in)."
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
_HEADS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("kv_group", "group"),
    Column("logit_strength", "|QK|", ".3g"),
    Column("write_strength", "|OV|", ".3g"),
    Column("rotating_share", "rotating", ".0%"),
)
_POSITION = (
    Column("layers", "layers", "plain"),
    Column("stack", "stack", "plain"),
    Column("attention", "attention", "plain"),
    Column("encoding", "encoding", "wrap"),
    Column("sees", "sees", "wrap"),
)


def view(result: InspectResult, page: Page) -> None:
    """Add the sections of an inspection."""
    layers, heads, size = result.layers, result.heads, result.parameters
    page.facts += [
        (f"{len(layers)}", "attention layer" if len(layers) == 1 else "attention layers"),
        (f"{len(heads)}", "heads"),
        (f"{result.width:,}", "model width"),
        *([(f"{layers[0].head_dim}", "head width")] if layers else []),
        (f"{size / 1e6:,.1f} M" if size >= 1e6 else f"{size:,}", "parameters"),
        *([(f"{result.context:,}", "claimed context")] if result.context else []),
    ]
    page.add("Summary", Summary(tuple(_summary(result))))
    page.add("Where position enters", *_position(page, layers))
    if heads:
        table = page.rows("head strengths", [asdict(head) for head in heads])
        present = tuple(each for each in _MEASURES if any(getattr(head, each.key) is not None for head in heads))
        words = "Layers down, heads across; the switch chooses what the colour shows."
        few = len(heads) <= FEW
        if not few:
            page.add("Layers", _strengths(page, layers))
        page.add("Heads by layer", HeadMap("How strongly heads look and write", words, table, present), detail=True)
        every = Listing("All heads", STRENGTHS, table, _columns(heads), top=FEW)
        page.add("Strength of every head", every, detail=not few)
    page.add("Not read", _not_read(result))


def _columns(heads: Sequence[InspectedHead]) -> tuple[Column, ...]:
    """Those that say something: no share that turns where none does, no groups of one head each."""
    told = {column.key for column in _HEADS if any(getattr(head, column.key) is not None for head in heads)}
    if all(head.kv_group == head.head for head in heads):
        told.discard("kv_group")
    return tuple(column for column in _HEADS if column.key in told)


def _summary(result: InspectResult) -> list[str]:
    sentences = []
    for stack, kind in dict.fromkeys((row.stack, row.kind) for row in result.layers):
        rows = [row for row in result.layers if (row.stack, row.kind) == (stack, kind)]
        sentences.append(f"{stack.capitalize()}: {count(len(rows), 'layer')} of {_shape(rows[0])}.")
    stored = ", ".join(f"{name} x{number}" for name, number in list(result.dtypes.items())[:4])
    sentences.append(f"{result.stored_bytes / 1e6:,.1f} MB of tensors: {stored}.")
    shared = sum(row.shared_with is not None for row in result.layers)
    return [*sentences, f"{shared} layers use another layer's weights."] if shared else sentences


def _shape(row: InspectedLayer) -> str:
    groups = "" if row.kv_heads == row.heads else f" in {row.kv_heads} key-value groups"
    value = "" if row.value_dim == row.head_dim else f" (values {row.value_dim})"
    extras = [
        "cross-attention" if row.kind == "cross" else "causal" if row.causal else "both directions",
        f"{row.norm}-norm" if row.norm != "none" else "no norm",
        *(["q/k norm"] if row.qk_norm else []),
        *([f"softcap {row.softcap:g}"] if row.softcap else []),
        *(extra.replace("_", " ") for extra in row.extras),
        *([f"biases {''.join(row.biases)}"] if row.biases else []),
        *(["latent (MLA)"] if row.latent else []),
    ]
    return f"{row.heads} heads{groups}, head width {row.head_dim}{value}; {', '.join(extras)}"


def _position(page: Page, layers: Sequence[InspectedLayer]) -> list[Listing | Paragraphs]:
    """Layers that encode position alike, together, and what their adapter has to say."""
    if not layers:
        return [Paragraphs(("No attention layer was read.",))]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for row in layers:
        groups.setdefault((row.stack, row.kind, row.encoding_title, _sees(row)), []).append(row.layer)
    rows = [
        {"layers": show_range(numbers), "stack": stack, "attention": kind, "encoding": title, "sees": sees}
        for (stack, kind, title, sees), numbers in groups.items()
    ]
    words = "Layers that encode position alike, together."
    columns = tuple(each for each in _POSITION if each.key != "sees" or any(row["sees"] for row in rows))
    brief = ("layers", "stack", "encoding", "sees")
    notes = tuple(f"Note: {each}" for each in sorted({note for row in layers for note in row.warnings}))
    listing = Listing("Encoding by layer", words, page.rows("encodings", rows), columns, top=64, brief=brief)
    return [listing, *([Paragraphs(notes)] if notes else [])]


def _sees(row: InspectedLayer) -> str:
    return "" if row.reach is None else f"{row.reach} tokens back{'' if row.causal else ' and ahead'}"


def _strengths(page: Page, layers: Sequence[InspectedLayer]) -> Listing:
    parts = ("least", "median", "most")
    rows = [
        {"layer": row.layer, "heads": row.heads}
        | {f"looks {part}": getattr(row.logit_strength, part, None) for part in parts}
        | {f"writes {part}": getattr(row.write_strength, part, None) for part in parts}
        for row in layers
    ]
    columns = [Column("layer", "layer"), Column("heads", "heads")]
    for key, sign in (("looks", "|QK|"), ("writes", "|OV|")):
        columns += [Column(f"{key} {part}", f"{sign} {part}" if part == "least" else part, ".3g") for part in parts]
    return Listing("Strength by layer", STRENGTHS, page.rows("layer strengths", rows), tuple(columns), top=200)


def _not_read(result: InspectResult) -> Paragraphs | None:
    entries = [
        f"{each.what}{f' ({len(each.tensors)} tensors)' if len(each.tensors) > 1 else ''}: {each.why}"
        for each in result.skipped
    ]
    return Paragraphs(tuple(entries)) if entries else None
