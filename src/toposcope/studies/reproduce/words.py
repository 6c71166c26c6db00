"""The measures of studies in words and with their units, for tables and axes; no torch is needed to read them."""

from __future__ import annotations

from collections.abc import Mapping

_BITS = "bits per byte"
# The name that rules have for a measure: what it is, and its unit.
MEASURES: Mapping[str, tuple[str, str]] = {
    "steps to 90 %": ("training steps to 90 % accuracy", "steps"),
    "accuracy": ("accuracy", "points"),
    "loss": ("loss", "nats"),
    "deposit": ("deposit index of layer 0", ""),
    "largest deposit": ("largest deposit index of a layer", ""),
    "largest drop": ("largest drop of accuracy by one head of layer 0", "points"),
    "lost with one head": ("share of the skill lost with one head", ""),
    "lost with two": ("share of the skill lost with two heads", ""),
    "two beyond one": ("share of the skill lost with two heads beyond one", ""),
    "logit ratio at the start": ("logit norm ratio at the start", ""),
    "logit ratio at the end": ("logit norm ratio at the end", ""),
    "sharpness": ("largest Hessian eigenvalue", "log10"),
    "largest learning rate": ("largest learning rate that learns the task", "log2"),
    "bits": ("loss on held-out text", _BITS),
    "bits of another text": ("loss on another text", _BITS),
    "cosine": ("mean cosine between tokens after the last layer", ""),
    "rank": ("effective rank after the last layer", ""),
    "noise": ("what 10 % noise costs", _BITS),
    "longer": ("what a context twice as long costs", _BITS),
    "shuffled": ("what a shuffled first half costs", _BITS),
    "parameters": ("parameters", ""),
    "time": ("time", "log2"),
}


def unit_of(name: str) -> str:
    """The unit of a measure; none where it is a pure number."""
    return MEASURES[name][1]


def axis_title(name: str) -> str:
    """A measure in words with its unit, as an axis has it; the name itself where it is of no study known here."""
    words, unit = MEASURES.get(name, (name, ""))
    return f"{words}, {unit}" if unit else words
