"""The theorems that decide a verdict, as readers are told them: their name first, then their number."""

from __future__ import annotations

NAMES = {
    "T3": "collapse without a mask",
    "T4": "growth without a mask",
    "T5": "first-token growth",
    "T6": "causal collapse",
    "T8": "absorbing ball",
}
SCOPES = {
    "first_token": "the first token",
    "all_tokens": "every token",
    "consensus": "tokens that have come together",
    "nu_zero": "tokens without bias",
}


def theorem(rule: str | None) -> str:
    """The rule T5 as "first-token growth (Thm 5)", T3a as "collapse without a mask (Thm 3a)"."""
    if not rule:
        return "no theorem"
    name = NAMES.get(rule[:2])
    number = f"Thm {rule.removeprefix('T')}"
    return number if name is None else f"{name} ({number})"
