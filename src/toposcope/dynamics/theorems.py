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
