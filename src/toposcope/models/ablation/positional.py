"""Which heads are positional: how much of their logits position alone makes, beside what they are worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from toposcope.core.errors import BadValue
from toposcope.models.ablation.runner import Heads
from toposcope.models.corpus import Corpus
from toposcope.models.load import Reference
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import MOSTLY

POSITIONAL = "positional"  # what stands for these heads where heads are named
SEQUENCES = 4  # on which it is measured
FEW = 5  # heads that are taken where none is positional


def shares_of_position(reference: Reference, corpus: Corpus, heads: Sequence[Heads]) -> dict[Heads, float]:
    """The share of position in each head's logits, as `trace` measures it, on the first sequences."""
    wanted: defaultdict[int, list[int]] = defaultdict(list)
    for ((layer, head),) in heads:
        wanted[layer].append(head)
    few = replace(corpus, sequences=corpus.sequences[:SEQUENCES])
    found = trace_corpus(reference, few, layers=sorted(wanted), heads=wanted, compare=False)
    return {((row.layer, row.head),): row.positional for row in found.heads if row.positional is not None}


def positional_heads(shares: Mapping[Heads, float]) -> tuple[list[Heads], str]:
    """The heads in whose logits position alone makes more than half, and who they are in words.

    Where it is so in none, the few in whose logits it makes most.
    """
    if not shares:
        raise BadValue(f"no head's share of position can be measured: name --heads instead of '{POSITIONAL}'.")
    ranked = sorted(shares, key=lambda each: -shares[each])
    found = [each for each in ranked if shares[each] > MOSTLY]
    if found:
        verb = "is" if len(found) == 1 else "are"
        return sorted(found), f"Of {len(shares)} heads {len(found)} {verb} positional: these are removed in turn."
    few, most = sorted(ranked[:FEW]), f"{shares[ranked[0]]:.0%} of the logits' variance at most"
    said = f"No head is positional (position alone makes {most}): the {len(few)} in which it makes most are removed."
    return few, said
