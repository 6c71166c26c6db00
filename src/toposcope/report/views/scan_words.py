"""A scan in sentences: of one head, of the model as a whole, and why there is no head to speak of."""

from __future__ import annotations

import math

from toposcope.report.blocks import count
from toposcope.report.verdicts import adjective, meaning, scope_words, theorem
from toposcope.report.views import scan_spectra
from toposcope.scanning.result import ScanHead, ScanResult
from toposcope.spectra.of_heads import FAST_ON_SMOLLM2

NAMED = 5  # heads of the guess that are named
_REMARKS = {"left_out": "what inspect notes is left out", "post_norm": "post-norm"}


def says(head: ScanHead) -> str:
    """One head in a few sentences: what a theorem says, where its kernel peaks, and its share of fast pairs."""
    sense = meaning(head.verdict)
    if head.rule:
        words = f"For {scope_words(head.scope)}: {sense}, by {theorem(head.rule, head.verdict, head.scope)}"
        if head.margin is not None:
            words += f"; it survives a relative change of {head.margin:.2%} of V and O"
        words += "." if head.exact else ", though outside the theorem's exact reach."
    else:
        words = f"{sense[:1].upper()}{sense[1:]}."
    if head.peak_offset is None:
        return words
    clear = "" if head.peak_share is None else f" ({head.peak_share:.0%} of its amplitude agrees there)"
    words += f" Its kernel, for tokens that resemble one another, {head.looks}{clear}."
    fast = head.fast_share
    return words if fast is None else f"{words} {fast:.0%} of Q and K lie in fast rotary pairs (heuristic)."


def summary(result: ScanResult) -> list[str]:
    """The scan as a whole, in sentences."""
    return [*answer(result), *more(result)]


def answer(result: ScanResult) -> list[str]:
    """What is certified, for which weights; then the guess that weights allow at what heads do with position."""
    heads, model = result.heads, result.model
    total, counts = len(heads), model.counts
    sentences = []
    calm, grow = counts.get("converges", 0), counts.get("diverges", 0) + counts.get("not_convergent", 0)
    if calm or grow:
        parts = [f"{counts[key]} {adjective(key)}" for key in ("not_convergent", "diverges") if counts.get(key)]
        sum_of = f": {' + '.join(parts)}" if len(parts) > 1 else ""
        ways = [
            (grow, f"push at least {_pushed(result)} to infinity", sum_of),
            (calm, "draw what it moves to one point", ""),
        ]
        told = [f"{what} in {n} of {total} cases ({n / total:.0%}{rest})" for n, what, rest in ways if n]
        sentences.append(f"Certified: applied on its own again and again, a head would {', and '.join(told)}.")
    if counts.get("indeterminate"):
        sentences.append(f"For {counts['indeterminate']} of {total} heads no theorem decides.")
    bounded, above = counts.get("bounded", 0), counts.get("diverges_above", 0)
    if bounded or above:
        sentences.append(
            f"{count(bounded, 'head')} keep all tokens in a ball of known size; {above} let them grow once large."
        )
    if counts.get("inactive"):
        sentences.append(f"Heads that write nothing: {counts['inactive']}.")
    decided = total - counts.get("indeterminate", 0) - counts.get("inactive", 0)
    if decided > 0 and model.robust >= decided:
        sentences.append("Every verdict survives the rounding of the stored weights.")
    elif decided > 0:
        sentences.append(
            f"These verdicts are about the weights as stored; {model.robust or 'none'} of {decided} "
            f"{'is' if model.robust < 2 else 'are'} certain for the weights before rounding, too."
        )
    return [*sentences, *filter(None, [_guess(result)])]


def more(result: ScanResult) -> list[str]:
    """What else the same weights say, in sentences."""
    heads, sentences = result.heads, _growth_words(result)
    inexact = sum(not head.exact for head in heads)
    if inexact:
        reasons = sorted({warning for head in heads for warning in head.warnings})
        sentences.append(
            f"{inexact} of {len(heads)} heads lie outside the theorems' exact reach "
            f"({', '.join(_REMARKS.get(each, each.replace('_', ' ')) for each in reasons) or 'no theorem applies'})."
        )
    return sentences


def _guess(result: ScanResult) -> str | None:
    """Candidates for heads that look nearby, how often such a guess was right, and what measures it."""
    ranked = scan_spectra.by_fast_share(result.heads)
    if not ranked:
        return None
    names = ", ".join(f"{head.layer}.{head.head} ({head.fast_share:.0%})" for head in ranked[:NAMED])
    seen = FAST_ON_SMOLLM2
    return (
        f"A guess at the heads that look at the token before, by the share of Q and K in fast rotary pairs: {names}. "
        f"On {seen.model} it is right for {seen.hits} of its first {seen.top} heads; toposcope trace measures it."
    )


def _pushed(result: ScanResult) -> str:
    """Whom growth is certified for: the first token under a causal mask, else tokens that are at one place."""
    masked = {head.causal for head in result.heads}
    if masked == {True}:
        return "the first token"
    return (
        "tokens that have come together"
        if masked == {False}
        else "the first token, or tokens that have come together,"
    )


def _fold(log_growth: float) -> str:
    return f"{math.exp(log_growth):,.3g}" if log_growth < math.log(1000) else f"10^{log_growth / math.log(10):.0f}"


def _growth_words(result: ScanResult) -> list[str]:
    model, sentences = result.model, []
    growth = model.growth_index
    if growth is not None and 0.48 <= growth <= 0.52:
        sentences.append(
            f"On average {growth:.2f} of V O's spectrum lies on the growing side, as for random matrices."
        )
    elif growth is not None:
        side = "growing" if growth > 0.5 else "shrinking"
        sentences.append(
            f"On average {growth:.2f} of V O's spectrum lies on the growing side (random matrices: 0.50): {side} "
            "directions prevail."
        )
    if model.metastable and any(head.causal for head in result.heads):
        sentences.append(
            f"In {model.metastable} of {len(result.heads)} heads tokens can stand still for very long on the way "
            "(metastable): W sets how fast they go, V where."
        )
    if model.log_growth is not None:
        sentences.append(
            f"With attention only and no norms, one pass through all layers would make {_pushed(result).rstrip(',')} "
            f"grow {_fold(model.log_growth)}-fold (heuristic): the norms prevent that."
        )
    return sentences


def why_none(result: ScanResult) -> str:
    why = "; ".join(f"{entry.what}: {entry.why}" for entry in result.skipped[:3])
    return "This model has no self-attention head that could be analysed." + (f" Left out: {why}." if why else "")
