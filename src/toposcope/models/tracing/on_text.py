"""One text under a model that is loaded: all its heads, or one head's attention; as it is, or with another encoding.

What is put in may act in some heads only (`loss.Wanted`, as `toposcope loss` reads it). Heads that have it are traced
under it; the others keep their own encoding, but see what the changed ones hand on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from toposcope.core.errors import BadValue
from toposcope.models.content import Content, ContentReader
from toposcope.models.corpus import Corpus, Ids
from toposcope.models.instrument import Call, attached
from toposcope.models.load import Reference
from toposcope.models.loss import Wanted
from toposcope.models.sites import checked_heads, checked_site
from toposcope.models.swap_encoding import Chosen, built, chosen_heads, swap_encoding
from toposcope.models.tracing.attention import (
    WINDOW,
    AttentionWindow,
    HeadAttention,
    attention_of,
    labels,
    window_starts,
)
from toposcope.models.tracing.collect import sink_of
from toposcope.models.tracing.measure import trace_corpus, watch
from toposcope.models.tracing.result import TraceResult


def heads_on(reference: Reference, corpus: Corpus, wanted: Wanted | None = None, *, seed: int = 0) -> TraceResult:
    """What every head attends to on a corpus; the same numbers as a trace of patterns alone."""
    if wanted is None:
        return trace_corpus(reference, corpus, only="patterns", seed=seed)
    with attached(reference) as instrument:
        changed = chosen_heads(instrument, wanted.layers, wanted.heads)
        if _everywhere(changed, instrument.sites):
            return trace_corpus(reference, corpus, only="patterns", seed=seed, encoding=wanted.spec)
        found = trace_corpus(
            reference, corpus, only="patterns", seed=seed, encoding=wanted.spec, layers=sorted(changed),
            heads=changed,
        )  # fmt: skip
        every = {site.number: range(site.heads) for site in instrument.sites if not site.cross}
        rest = {
            number: tuple(head for head in heads if head not in changed.get(number, ()))
            for number, heads in every.items()
        }
        with swap_encoding(reference, wanted.spec, layers=wanted.layers, heads=wanted.heads):
            others = trace_corpus(reference, corpus, only="patterns", seed=seed, layers=sorted(rest), heads=rest)
    rows = sorted((*found.heads, *others.heads), key=lambda row: (row.layer, row.head))
    return replace(found, heads=tuple(rows))


def head_on(
    reference: Reference,
    ids: Ids,
    layer: int,
    head: int,
    wanted: Wanted | None = None,
    *,
    window: int | None = None,
) -> tuple[AttentionWindow, ...]:
    """One head's attention on a sequence, pair by pair."""
    starts = window_starts(len(ids), window)
    found: list[HeadAttention] = []

    def visit(ids: Ids, content: Content, call: Call, output_BNHV: Any) -> None:
        found.extend(attention_of(content, head, sink_of(call, head), starts))

    with attached(reference) as instrument, ExitStack() as stack:
        reader = ContentReader.of(instrument)
        site = checked_site(instrument.sites, layer)
        checked_heads(site, (head,))
        if site.cross or not reader.encoding(site).exact_tables:
            raise BadValue(f"the attention of layer {layer} cannot be shown: its logits have no tables of positions.")
        used = reader.encoding(site)
        if wanted is not None:
            changed = chosen_heads(instrument, wanted.layers, wanted.heads)
            stack.enter_context(swap_encoding(reference, wanted.spec, layers=wanted.layers, heads=wanted.heads))
            if head in changed.get(layer, ()):
                used = built(wanted.spec, reader, layer)
        watch(instrument, reader, [ids], {layer}, visit, lambda: None, {layer: used})
    return tuple(
        AttentionWindow(first, len(ids), labels(reference.tokenizer, ids[first : first + WINDOW]), (each,))
        for first, each in zip(starts, found, strict=True)
    )


def _everywhere(changed: Chosen, sites: Any) -> bool:
    return all(len(changed.get(site.number, ())) == site.heads for site in sites if not site.cross)
