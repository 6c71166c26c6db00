"""Which heads are positional: how much of their logits position alone makes, beside what they are worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from toposcope.checkpoints.identity import fingerprint
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.progress import Progress
from toposcope.core.sealed import Number, OrNull, fault
from toposcope.models.ablation.runner import AblationRunner, Heads, name_of
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, read_text
from toposcope.models.tracing import SEQUENCES, TOKENS
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import MOSTLY

POSITIONAL = "positional"  # what stands for these heads where heads are named
SHARES = "shares of position"  # the entries of a journal that hold them
FEW = 5  # heads that are taken where none is positional


@dataclass(frozen=True)
class PositionShares:
    """The share of position in heads' logits, where it could be measured, and in words on what."""

    of: Mapping[Heads, float]
    on: str


def shares_of_position(
    runner: AblationRunner,
    reference: Reference,
    text: str,
    heads: Sequence[Heads],
    *,
    begin: int = 0,
    lines: bool = False,
    progress: Progress | None = None,
) -> PositionShares:
    """The share of position in each head's logits: what `trace` measures on this text where nobody says more.

    What is in the runner's journal, which is that of this model in this precision, is not measured again.
    """
    corpus = cut(reference, read_text(text), tokens=TOKENS, count=SEQUENCES, name=text, begin=begin, lines=lines)
    on = fingerprint(corpus.sequences)
    known: dict[str, float | None] = {}
    entries = 0
    for entries in count():
        kept = runner.known(SHARES, on, entries)
        if kept is None:
            break
        known |= _checked(kept, runner)
    missing: defaultdict[int, list[int]] = defaultdict(list)
    for ((layer, head),) in heads:
        if f"{layer}.{head}" not in known:
            missing[layer].append(head)
    if missing:
        found = trace_corpus(
            reference, corpus, layers=sorted(missing), heads=missing, only="position", seed=runner.seed,
            progress=progress,
        )  # fmt: skip
        traced = {row.name: row.positional for row in found.heads}
        names = [f"{layer}.{head}" for layer, some in missing.items() for head in some]
        new = {name: traced.get(name) for name in names}  # None: cannot be measured, and need not be tried again
        runner.note(SHARES, on, entries, new)
        known |= new
    return PositionShares({each: share for each in heads if (share := known[name_of(each)]) is not None}, corpus.cut)


def _checked(kept: Any, runner: AblationRunner) -> Mapping[str, float | None]:
    """What a journal holds of them, if it is that."""
    wrong = fault(kept, dict.fromkeys(kept if isinstance(kept, Mapping) else (), OrNull(Number())))
    if wrong and runner.journal is not None:
        raise BadFile(f"{runner.journal.path} holds {SHARES} that are none ({wrong}). Remove it to begin anew.")
    found: Mapping[str, float | None] = kept
    return found


def positional_heads(shares: PositionShares) -> tuple[list[Heads], str]:
    """The heads in whose logits position alone makes more than half, and who they are in words.

    Where it is so in none, the few in whose logits it makes most.
    """
    if not shares.of:
        raise BadValue(f"no head's share of position can be measured on {shares.on}: name the heads in --heads.")
    ranked = sorted(shares.of, key=lambda each: -shares.of[each])
    found = [each for each in ranked if shares.of[each] > MOSTLY]
    if found:
        verb = "is" if len(found) == 1 else "are"
        return sorted(found), f"{len(found)} of {len(ranked)} heads {verb} positional, measured on {shares.on}."
    few, most = sorted(ranked[:FEW]), f"{shares.of[ranked[0]]:.0%}"
    return few, (
        f"No head is positional, measured on {shares.on}: position alone accounts for {most} of a head's logits at "
        f"most. The {len(few)} with most are removed."
    )
