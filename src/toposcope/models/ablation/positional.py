"""Which heads are positional: how much of their logits position alone makes, beside what they are worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from toposcope.core.errors import BadValue
from toposcope.models.ablation.runner import Heads
from toposcope.models.corpus import Corpus
from toposcope.models.load import Reference
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import MOSTLY

POSITIONAL = "positional"  # what stands for these heads where heads are named
SEQUENCES = 4  # on which it is measured


def shares_of_position(reference: Reference, corpus: Corpus, heads: Sequence[Heads]) -> dict[Heads, float]:
    """The share of position in each head's logits, as `trace` measures it, on the first sequences."""
    wanted: defaultdict[int, list[int]] = defaultdict(list)
    for ((layer, head),) in heads:
        wanted[layer].append(head)
    few = replace(corpus, sequences=corpus.sequences[:SEQUENCES])
    found = trace_corpus(reference, few, layers=sorted(wanted), heads=wanted, compare=False)
    return {((row.layer, row.head),): row.positional for row in found.heads if row.positional is not None}


def positional_heads(reference: Reference, corpus: Corpus, heads: Sequence[Heads]) -> list[Heads]:
    """Those of the heads in whose logits position alone makes more than half."""
    shares = shares_of_position(reference, corpus, heads)
    found = [each for each in heads if shares.get(each, 0.0) > MOSTLY]
    if found:
        return found
    if not shares:
        raise BadValue(
            f"the share of position could not be measured in any head: name --heads instead of {POSITIONAL}."
        )
    most = max(shares, key=lambda each: shares[each])
    raise BadValue(
        f"none of {len(shares)} heads is positional here: position alone makes {shares[most]:.0%} of the logits' "
        f"variance at most (head {most[0][0]}.{most[0][1]}), not {MOSTLY:.0%}. Name --heads, or leave it out."
    )
