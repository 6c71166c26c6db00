"""The theorems that decide a verdict, as readers are told them: their name first, then their number."""

from __future__ import annotations

from toposcope.dynamics.regime import Verdict

NAMES = {
    "T3": "collapse without a mask",
    "T4": "growth without a mask",
    "T5": "first-token growth",
    "T6": "causal collapse",
    "T8": "absorbing ball",
}
OTHER_NAMES = {  # of theorems that decide two ways
    ("T5", Verdict.CONVERGES): "first-token limit",
    ("T8", Verdict.DIVERGES_ABOVE): "growth beyond a threshold",
}
IN_WORDS = {  # {moves}: the matrix that moves tokens, V O for a head and V where there is no O
    "T5": (
        "with a causal mask the first token sees only itself, so {moves} alone moves it, whatever position does to "
        "the logits"
    ),
    "T6": (
        "with a causal mask the first token sees only itself, so {moves} alone moves it; each later one comes to "
        "rest after those before it, whatever W is and whatever position does to the logits"
    ),
    "T8": "W is positive by more than rotation, biases and asymmetry can take away",
}
AT_ONE_PLACE = "consensus growth"  # Thm 5 without a mask
CONSENSUS = "tokens at one place all see the same, so {moves} alone moves them"  # Thm 5 without a mask
SCOPES = {
    "first_token": "the first token",
    "all_tokens": "every token",
    "consensus": "tokens that have come together",
    "nu_zero": "tokens that lie wholly in the range of O",
}


def theorem(rule: str, verdict: Verdict | None = None, scope: str | None = None) -> str:
    """The rule T5 as "first-token growth (Thm 5)", T3a as "collapse without a mask (Thm 3a)"."""
    number = f"Thm {rule.removeprefix('T')}"
    name = OTHER_NAMES.get((rule[:2], verdict)) if verdict is not None else None
    name = name or (AT_ONE_PLACE if rule == "T5" and scope == "consensus" else NAMES.get(rule[:2]))
    return number if name is None else f"{name} ({number})"


def in_words(rule: str, moves: str = "V O", scope: str | None = None) -> str:
    """How the theorem behind a rule comes about: a clause, empty where what it says of a system says that too."""
    words = CONSENSUS if rule == "T5" and scope == "consensus" else IN_WORDS.get(rule[:2], "")
    return words.format(moves=moves)
