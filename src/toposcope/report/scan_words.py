"""What a scan says in plain words, computed from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.dynamics.regime import Verdict
from toposcope.spectra.of_heads import FAST, FAST_ON_SMOLLM2

SCOPES = {
    "first_token": "the first token",
    "all_tokens": "every token",
    "consensus": "tokens that have come together",
    "nu_zero": "tokens without bias",
}


def says(head: Mapping[str, Any], spectra: Mapping[str, Any]) -> str:
    """One head in a few sentences: what a theorem says, where its kernel peaks, and its share of fast pairs."""
    verdict = Verdict(head["verdict"])
    if head["rule"]:
        scope = SCOPES.get(head["scope"] or "", str(head["scope"]))
        words = f"{head['rule']} certifies for {scope}: {verdict.meaning}"
        if head["margin"] is not None:
            words += f"; it survives a relative change of {head['margin']:.2%} of V and O"
        words += "." if head["exact"] else ", though outside the theorem's exact reach."
    else:
        words = f"{verdict.meaning[:1].upper()}{verdict.meaning[1:]}."
    offset = spectra.get("peak_offset")
    if offset is None:
        return words
    share = spectra.get("peak_share")
    clear = "" if share is None else f" ({share:.0%} of its amplitude agrees there)"
    words += f" Its kernel {spectra['looks']}{clear}."
    fast = spectra.get("fast_share")
    return words if fast is None else f"{words} {fast:.0%} of Q and K lie in fast rotary pairs (heuristic)."


def by_fast_share(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The heads by the share of Q and K in fast pairs, most first; those without any rotation are left out."""
    known = [row for row in rows if row.get("fast_share") is not None]
    return sorted(known, key=lambda row: -row["fast_share"])


def about_fast_share() -> str:
    """What the order by fast pairs is worth, as it was measured."""
    seen = FAST_ON_SMOLLM2
    return (
        "A heuristic: heads that look at the previous token need rotary pairs that turn by a radian or more in "
        f"{FAST} tokens, but many heads with such pairs do something else. On {seen.model} ({seen.text}, "
        f"{seen.previous} such heads of {seen.heads}) this order had an AUC of {seen.auc:.2f}, and {seen.hits} of "
        f"its first {seen.top} were such heads. "
        "'toposcope trace MODEL --text random' measures what heads attend to."
    )


def meaning(result: Mapping[str, Any]) -> list[str]:
    """The scan as a whole, in sentences."""
    heads, model, spectra = result["heads"], result["model"], result["spectra"]
    total, counts = len(heads), model["counts"]
    sentences = []
    calm, grow = counts.get("converges", 0), counts.get("diverges", 0) + counts.get("not_convergent", 0)
    if calm or grow:
        sentences.append(
            f"{calm} of {total} heads ({calm / total:.0%}) would, alone and for long, draw what they move to 0; "
            f"{grow} ({grow / total:.0%}) would push at least the first token, or a consensus, to infinity."
        )
    open_ = counts.get("indeterminate", 0)
    if open_:
        sentences.append(f"For {open_} of {total} heads no theorem decides.")
    bounded, above = counts.get("bounded", 0), counts.get("diverges_above", 0)
    if bounded or above:
        sentences.append(
            f"{bounded} heads keep all tokens in a ball of known size; {above} let them grow once large."
        )
    if counts.get("inactive"):
        sentences.append(f"Heads that write nothing: {counts['inactive']}.")
    sentences.append(_robustness(total, model["robust"]))
    growth = model["growth_index"]
    if growth is not None:
        side = "growing" if growth > 0.52 else "shrinking" if growth < 0.48 else "neither growing nor shrinking"
        sentences.append(
            f"On average {growth:.2f} of V O's spectrum lies on the growing side (random matrices: 0.50): {side} "
            "directions prevail."
            if side != "neither growing nor shrinking"
            else f"On average {growth:.2f} of V O's spectrum lies on the growing side, as for random matrices."
        )
    ranked = by_fast_share(spectra["heads"])
    if ranked:
        names = ", ".join(f"{row['layer']}.{row['head']} ({row['fast_share']:.0%})" for row in ranked[:5])
        sentences.append(
            f"Heads with the largest share of Q and K in fast rotary pairs: {names}. They can tell neighbours apart "
            "best (heuristic; 'toposcope trace' measures what heads attend to)."
        )
    metastable = model.get("metastable")
    if metastable and any(head["causal"] for head in heads):
        sentences.append(
            f"{metastable} of {total} heads can freeze on the way (metastable): W sets the speed, V the regime."
        )
    if model.get("log_growth") is not None:
        sentences.append(
            f"Looped, without norms and with attention only, the first token would grow by "
            f"10^{model['log_growth'] / 2.302585:.0f} in one pass (an index): the norms are what holds it."
        )
    inexact = sum(not head["exact"] for head in heads)
    if inexact:
        reasons = sorted({warning for head in heads for warning in head["warnings"]})
        sentences.append(
            f"{inexact} of {total} heads lie outside the theorems' exact reach "
            f"({', '.join(reasons).replace('_', ' ') or 'no rule'})."
        )
    return sentences


def _robustness(total: int, robust: int) -> str:
    if robust == 0:
        return "No verdict is robust to the rounding of the stored weights: read them as a picture, not as a promise."
    return f"{robust} of {total} verdicts are robust to the rounding of the stored weights."
