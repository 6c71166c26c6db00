"""The words for verdicts that maps, tables and sentences share; theorems are named in `dynamics.theorems`."""

from __future__ import annotations

from toposcope.dynamics import theorems
from toposcope.dynamics.regime import Verdict

LETTERS = {
    Verdict.CONVERGES.value: "c",
    Verdict.DIVERGES.value: "D",
    Verdict.NOT_CONVERGENT.value: "n",
    Verdict.BOUNDED.value: "b",
    Verdict.DIVERGES_ABOVE.value: "a",
    Verdict.INDETERMINATE.value: "?",
    Verdict.INACTIVE.value: ".",
}
# After a number of heads: 14 convergent.
ADJECTIVES = {
    Verdict.CONVERGES.value: "convergent",
    Verdict.DIVERGES.value: "divergent",
    Verdict.DIVERGES_ABOVE.value: "divergent once large",
}


def adjective(verdict: str) -> str:
    """A verdict as it is written after a count."""
    return ADJECTIVES.get(verdict, word(verdict))


def theorem(rule: str | None, verdict: Verdict | None = None, scope: str | None = None) -> str:
    """A rule's name with the number of its theorem."""
    return "none applies" if rule is None else theorems.theorem(rule, verdict, scope)


def scope_words(scope: str | None) -> str:
    """Of whom a verdict speaks."""
    return theorems.SCOPES.get(scope or "", str(scope))


def meaning(verdict: str) -> str:
    """What a verdict says, in a sentence without its end."""
    return Verdict(verdict).meaning


def word(verdict: str) -> str:
    """A verdict as it is written in sentences."""
    return verdict.replace("_", " ")
