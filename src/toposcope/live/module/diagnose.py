"""From what probes measured to what is wrong with a module, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toposcope.checks.findings import Finding
from toposcope.live.module.inside import Split
from toposcope.live.module.probes import Observation, OutputChanges

Position = Literal["none", "relative", "absolute", "absolute+relative", "unclear"]

# On the large token, what absolute positions leave is about 1e-4; what a rotation does is of order 1.
TURNS = 0.01


@dataclass(frozen=True)
class Diagnosis:
    """The encoding of a module, and the findings that led to it."""

    position: Position
    findings: tuple[Finding, ...]


def diagnose(out: OutputChanges, observed: Observation, tolerance: float) -> Diagnosis:
    """Name the encoding and its faults."""
    findings = [_batch(out, observed, tolerance)]
    rotation, rotates = _rotation(observed)
    findings += rotation
    broken = any(finding.status == "fault" for finding in findings)
    bias, biased = _bias(observed, tolerance)
    findings += bias
    absolute, why = _absolute(out, observed, tolerance, broken)
    relative = rotates or biased or _relative_by_logits(observed, broken, absolute)
    if not relative and not absolute and out.moved > tolerance and not broken:
        relative, absolute, sure = _by_outputs(out, tolerance)
        if not sure:
            findings.append(_unclear(out))
            return Diagnosis("unclear", tuple(findings))
        why = f"the output changes by {out.shifted or 0:.1e} when all positions grow by the same number"
    if absolute and relative:
        findings.append(_both(why))
        return Diagnosis("absolute+relative", tuple(findings))
    if any(finding.status == "fault" for finding in rotation) and not relative and not absolute:
        return Diagnosis("unclear", tuple(findings))  # position acts, but through the fault alone
    kind: Position = "relative" if relative else "absolute" if absolute else "none"
    findings.append(_kind(kind, out, why))
    return Diagnosis(kind, tuple(findings))


def _batch(out: OutputChanges, observed: Observation, tolerance: float) -> Finding:
    numbers = {"output_difference": out.batch, "query_key_difference": observed.batch}
    if observed.q_turning is not None and observed.batch > TURNS:
        still = max(observed.q_turning, observed.k_turning or 0.0) < TURNS
        where = "and not with the position of the token" if still else "as well as with the position of the token"
        effect = (
            " The two rotations cancel in the logits, so the module has no position at all."
            if still and out.batch <= tolerance
            else ""
        )
        return Finding(
            "batch-axis",
            "fault",
            "the rotation runs along the batch axis",
            "With the same tokens in every sample, queries and keys still differ between samples by "
            f"{observed.batch:.2g} of their size, {where}.{effect}",
            "Check the order of the axes where the sin/cos table meets queries and keys: its first axis must be "
            "the tokens'. Often the input is (batch, tokens, ...) and the rotation expects (tokens, batch, ...).",
            evidence={"acts": "rotation", **numbers},
        )
    if out.batch > tolerance:
        return Finding(
            "batch-axis",
            "fault",
            "samples of a batch act on one another",
            f"A sample's output changes by {out.batch:.1e} of its size when the samples trade places or one stands "
            "alone. Attention or the encoding runs along the batch axis.",
            "Check the order of the axes (batch_first?) and every view, transpose and flatten on the way.",
            evidence={"acts": "samples", **numbers},
        )
    by = f" (by {out.batch:.1e} of its size at most)" if out.batch else ""
    return Finding(
        "batch-axis",
        "ok",
        "samples do not act on one another",
        f"Trading the samples of a batch changes no sample's output{by}.",
        evidence=numbers,
    )


def _rotation(observed: Observation) -> tuple[list[Finding], bool]:
    """Faults of the rotation, and whether there is one that acts on the logits by offset."""
    if (
        observed.q_turning is None
        or observed.k_turning is None
        or observed.large is None
        or observed.large_evened is None
    ):
        return _rotation_by_logits(observed)
    if observed.batch > TURNS:
        return [], False
    q, k, split, even = observed.q_turning > TURNS, observed.k_turning > TURNS, observed.large, observed.large_evened
    numbers = {"query_turning": observed.q_turning, "key_turning": observed.k_turning, "not_by_offset": split.rest}
    if q != k:
        return [_one_side("keys" if q else "queries", numbers)], False
    if not q:
        return [], False
    if min(split.rest, even.rest) <= TURNS:
        start = _start(observed)
        return [_rotates(split, observed, numbers), *([start] if start else [])], True
    numbers["stretching"] = observed.stretching
    if observed.stretching > TURNS:
        return [_mispaired(split, observed, numbers)], False
    if split.off_sums <= TURNS:
        return [_opposite(numbers)], False
    return [_not_relative(split, numbers)], False


def _rotation_by_logits(observed: Observation) -> tuple[list[Finding], bool]:
    split = observed.logits_large
    if split is None or split.total <= TURNS:
        return [], False
    numbers = {"not_by_offset": split.rest, "within_rows": split.within_rows}
    if split.within_rows <= TURNS:
        return [_one_side("keys", numbers)], False
    if split.rest <= TURNS:
        return [], True
    return [_not_relative(split, numbers)], False


def _rotates(split: Split, observed: Observation, numbers: dict[str, float]) -> Finding:
    scaled = split.rest > TURNS
    more = " Queries are also scaled by position (a temperature), which is left out of this." if scaled else ""
    pairing = observed.q_turns.pairing if observed.q_turns is not None else None
    pairs = "" if pairing is None else f" Channels turn in {pairing} pairs."
    return Finding(
        "rotation",
        "ok",
        "queries and keys are rotated, and their logits depend on the offset only",
        f"With one token everywhere, what depends on more than i - j is {min(split.rest, 1.0):.1e} of the "
        f"logits.{pairs}{more}",
        evidence={"pairing": pairing, **numbers},
    )


def _one_side(side: str, numbers: dict[str, float]) -> Finding:
    other = "queries" if side == "keys" else "keys"
    letter = "i" if side == "keys" else "j"
    effect = (
        "how far away a key stands never matters, only where the query does"
        if side == "keys"
        else "a key is favoured for where it stands, not for how far away it is"
    )
    return Finding(
        "keys-not-rotated" if side == "keys" else "queries-not-rotated",
        "fault",
        f"{side} are not rotated",
        f"With one token everywhere, {other} turn with the position and {side} do not. The logits then depend on "
        f"{letter} alone: {effect}.",
        f"Rotate {side} with the same table, at their own positions, before the product.",
        evidence=numbers,
    )


def _mispaired(split: Split, observed: Observation, numbers: dict[str, float]) -> Finding:
    return Finding(
        "not-a-rotation",
        "fault",
        "what is applied to queries and keys is not a rotation: sine and cosine are mispaired",
        f"The length of queries or keys changes with the position by up to {observed.stretching:.0%}, and "
        f"{split.rest:.2g} of the logits depends on more than the offset. A rotation keeps lengths. This is what "
        "happens when a table [sin.. | cos..] is read with the wrong stride, so that a sine is paired with another "
        "sine.",
        "Check that each pair's two entries are the sine and the cosine of the same frequency: sin^2 + cos^2 must "
        "be 1 in every column, and at position 0 the rotation must change nothing.",
        evidence=numbers,
    )


def _opposite(numbers: dict[str, float]) -> Finding:
    return Finding(
        "opposite-turns",
        "fault",
        "queries and keys turn in opposite directions",
        "The logits depend on i + j instead of i - j: the sign of the sine differs between queries and keys.",
        "Use the same rotation for queries and keys.",
        evidence=numbers,
    )


def _not_relative(split: Split, numbers: dict[str, float]) -> Finding:
    return Finding(
        "not-relative",
        "fault",
        "the rotation's logits depend on more than the offset",
        f"With one token everywhere, {split.rest:.2g} of the logits is left when the mean of each diagonal is taken "
        "away; a rotation leaves nothing. Queries and keys may turn at different rates, or at positions that do "
        "not belong together, or by a table whose sines and cosines are mispaired.",
        "Compare the tables and positions used for queries with those used for keys.",
        evidence=numbers,
    )


def _start(observed: Observation) -> Finding | None:
    q, k = observed.q_start, observed.k_start
    if q is None or k is None:
        return None
    if q == k:
        return Finding(
            "offset-zero",
            "ok",
            "queries and keys are counted from the same position",
            f"The first query and the first key are turned by the same number of positions ({q}).",
            evidence={"query_start": q, "key_start": k},
        )
    return Finding(
        "offset-zero",
        "fault",
        f"query and key positions are off by {abs(q - k)}",
        f"The first query is turned to position {q}, the first key to position {k}: a token looking at itself is "
        f"treated as one {abs(q - k)} {'ahead' if q < k else 'back'}.",
        "Use the same positions for queries and keys (with a cache: count both from the start of the text).",
        evidence={"query_start": q, "key_start": k, "apart": abs(q - k)},
    )


def _bias(observed: Observation, tolerance: float) -> tuple[list[Finding], bool]:
    split = observed.bias
    if split is None or split.total <= 10 * tolerance:
        return [], False
    numbers = {"size": split.total, "not_by_offset": split.rest}
    if split.rest <= 0.01 * split.total:
        return [
            Finding(
                "logit-bias",
                "ok",
                "a bias that depends on the offset is added to the logits",
                f"Its size is {split.total:.2g} of the logits'; {split.rest:.1e} of it depends on more than i - j.",
                evidence=numbers,
            )
        ], True
    return [
        Finding(
            "logit-bias",
            "warning",
            "a bias that depends on both positions is added to the logits",
            f"Its size is {split.total:.2g} of the logits', and {split.rest / split.total:.0%} of it depends on "
            "more than i - j.",
            "Right for a table over a fixed window or image; otherwise check how query and key positions are "
            "combined.",
            evidence=numbers,
        )
    ], split.by_offset > 0.5 * split.total


def _absolute(out: OutputChanges, observed: Observation, tolerance: float, broken: bool) -> tuple[bool, str]:
    if out.repeated > tolerance and not observed.extra_keys:
        return True, (
            f"with one token everywhere the output still varies over positions by {out.repeated:.1e} of its size: "
            "position reaches the values"
        )
    if broken:
        return False, ""
    split, large = observed.ordinary, observed.large
    if split is None or large is None:
        split, large = observed.logits_ordinary, observed.logits_large
    if split is None or large is None or large.rest > TURNS:
        return False, ""
    if split.rest > 10 * tolerance and split.rest > 10 * large.rest:
        return True, (
            f"with one token everywhere, {split.rest:.1e} of the logits depends on more than i - j, and that share "
            "vanishes when the token is made large: position is added to what queries and keys read"
        )
    return False, ""


def _relative_by_logits(observed: Observation, broken: bool, absolute: bool) -> bool:
    """Where only logits are known: an offset-dependent part that no absolute position explains."""
    if observed.q_turning is not None or observed.logits_ordinary is None or broken or absolute:
        return False
    return observed.logits_ordinary.by_offset > 1e-3


def _by_outputs(out: OutputChanges, tolerance: float) -> tuple[bool, bool, bool]:
    """(relative, absolute, sure) from the outputs alone."""
    if out.shifted is None:
        return False, False, False
    return out.shifted <= 10 * tolerance, out.shifted > 10 * tolerance, True


def _both(why: str) -> Finding:
    return Finding(
        "absolute-beside-relative",
        "fault",
        "absolute positions are added beside a relative encoding",
        f"Two encodings act at once: the logits depend on the offset, and {why}. The module is no longer blind to "
        "where the text starts, which is what the relative encoding is for.",
        "Leave out the added positions (often an embedding or a sinusoid left from an earlier design), or say "
        "expects='absolute+relative' if both are meant.",
    )


def _kind(kind: Position, out: OutputChanges, why: str) -> Finding:
    if kind == "none":
        mask = " The causal mask alone still tells the first tokens from later ones." if out.causal else ""
        return Finding(
            "encoding",
            "ok",
            "no position acts inside this module",
            f"When the tokens it sees trade places its output changes by {out.moved:.1e} only.{mask} That is right "
            "where positions are added before the module.",
        )
    if kind == "relative":
        return Finding(
            "encoding",
            "ok",
            "position is relative",
            "Logits depend on how far apart two tokens stand, and with one token everywhere the output is the same "
            f"at all positions (to {out.repeated:.1e}).",
        )
    return Finding("encoding", "ok", "position is absolute", f"It is added inside the module: {why}.")


def _unclear(out: OutputChanges) -> Finding:
    return Finding(
        "encoding",
        "warning",
        "position acts, but how could not be told",
        f"The output changes by {out.moved:.1e} when tokens trade places, and neither logits nor positions could be "
        "reached: the module hides its softmax and takes no positions.",
        "Give logits= or qk= (functions that return what the module forms inside), or a call= that takes positions.",
    )
