"""The words for verdicts: letters of maps, names of theorems, who is meant. They stand here and nowhere else."""

from __future__ import annotations

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
THEOREMS = {
    "T3": "convergence without a mask (Thm 3)",
    "T4": "divergence without a mask (Thm 4)",
    "T5": "first-token growth (Thm 5)",
    "T6": "causal convergence (Thm 6)",
    "T8": "a ball of known size (Thm 8)",
}
SCOPES = {
    "first_token": "the first token",
    "all_tokens": "every token",
    "consensus": "tokens that have come together",
    "nu_zero": "tokens in the range of O",
}


def theorem(rule: str | None) -> str:
    """A rule's name with the number of its theorem."""
    return "none applies" if rule is None else THEOREMS.get(rule[:2], rule)


def scope_words(scope: str | None) -> str:
    """Of whom a verdict speaks."""
    return SCOPES.get(scope or "", str(scope))


def meaning(verdict: str) -> str:
    """What a verdict says, in a sentence without its end."""
    return Verdict(verdict).meaning


def word(verdict: str) -> str:
    """A verdict as it is written in sentences."""
    return verdict.replace("_", " ")
