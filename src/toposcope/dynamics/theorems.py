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
    "T3": "without a mask, all tokens go to 0 where W is positive and W V^-1 negative, and one of the two symmetric",
    "T4": "without a mask, tokens go to infinity where W and W V^-1 are positive, and one of the two is symmetric",
    "T5": (
        "with a causal mask the first token sees only itself, so {moves} alone moves it; without a mask the same is "
        "true of tokens that have come together"
    ),
    "T6": (
        "with a causal mask all tokens are drawn to one point exactly where every eigenvalue of {moves} has negative "
        "real part, whatever W is and whatever position does to the logits"
    ),
    "T8": (
        "where W is positive by more than rotation, biases and asymmetry can take away, tokens end in a ball of "
        "known size, or grow for ever once beyond one"
    ),
}
SCOPES = {
    "first_token": "the first token",
    "all_tokens": "every token",
    "consensus": "tokens that have come together",
    "nu_zero": "tokens that lie in the range of O",
}


def theorem(rule: str, verdict: Verdict | None = None) -> str:
    """The rule T5 as "first-token growth (Thm 5)", T3a as "collapse without a mask (Thm 3a)"."""
    number = f"Thm {rule.removeprefix('T')}"
    name = OTHER_NAMES.get((rule[:2], verdict)) if verdict is not None else None
    name = name or NAMES.get(rule[:2])
    return number if name is None else f"{name} ({number})"


def in_words(rule: str, moves: str = "V O") -> str:
    """What the theorem behind a rule says, in a sentence without its end."""
    return IN_WORDS[rule[:2]].format(moves=moves)
