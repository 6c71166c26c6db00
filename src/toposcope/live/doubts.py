"""What is not as expected in a layer, or cannot be told; and the findings that layers with the same fault share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toposcope.checks.findings import Finding, Status, say_layers
from toposcope.live.bugs import BY_KEY

SLOW = 10  # thresholds that a pair must turn within the positions looked at
_SOON = 20  # tokens: what matters nearer than that matters everywhere


@dataclass(frozen=True)
class Doubt:
    """One thing of one layer that is not as expected, or cannot be told; those of one group share a finding."""

    kind: str
    layer: int
    side: str
    bug: str | None = None
    expected: str = ""
    seen: str = ""
    error: float = 0.0
    since: int | None = None
    pairs: tuple[int, ...] = ()
    says: str = ""
    status: Status = "fault"
    layers: tuple[int, ...] = ()
    factor: float | None = None  # the attention factor that belongs to what was named
    rounds: bool = False  # a matter of precision

    @property
    def group(self) -> tuple[object, ...]:
        return self.kind, self.bug, self.status, self.says

    @property
    def in_radians(self) -> bool:
        return self.kind in ("frequencies", "still", "turns", "partners") and bool(self.pairs)

    def named(self, bug: str) -> Doubt:
        return replace(self, bug=bug)


@dataclass
class Verified:
    """What was found right, in numbers: the largest of each. Errors of scale, bias and input are relative."""

    context: int  # positions looked at
    dtype: str
    mode: str
    layers: set[int] = field(default_factory=set)
    pairs: int = 0
    slow: int = 0
    angle: float = 0.0
    share: float = 0.0
    frequency: float = 0.0
    length: float = 0.0
    remainder: float = 0.0
    still: int = 0  # sides that should not turn, and do not
    scales: int = 0  # layers whose scale was seen
    scale: float = 0.0
    biases: int = 0
    bias: float = 0.0
    inputs: int = 0
    input: float = 0.0


_TITLES = {
    "not-finite": "queries or keys are not numbers once they are turned",
    "frequencies": "the rotation is not the one the configuration asks for",
    "still": "nothing turns where rotation is configured",
    "turns": "layers turn that should not",
    "partners": "channels turn with the wrong partners",
    "no-rotation": "what is applied to queries or keys is not a rotation",
    "length": "lengths of queries or keys change with position",
    "ignored": "position_ids are ignored",
    "scale": "the logits have another scale than configured",
    "scale-unseen": "the scale of the logits could not be measured",
    "bias": "the bias on the logits is not the configured one",
    "input": "what position adds to the input is not the configured table",
    "unseen": "some attentions could not be looked into",
    "no-tables": "the encoding is not given by tables",
    "small": "some factors are too small to tell",
}
_WHY = {
    "unseen": "what enters their product does not belong to the contents and positions that were given.",
    "no-tables": "position depends on content there.",
    "scale-unseen": "which map gives the queries and keys was not seen, or no number explains the logits.",
    "small": "in this precision such a factor cannot be told from none.",
}
_CURES = {
    "unseen": "Their weights can still be read: 'toposcope check' without --live.",
    "no-tables": "Compare runs of the model instead: parity and lengths still apply.",
    "ignored": "Pass position_ids on to the rotary embedding, in prefill and in decoding.",
    "scale-unseen": "Compare the scale that attention is called with by hand.",
    "small": "Load the model in float32 to tell.",
}
_GENERAL_CURE = "Compare the rotary module's frequencies and factor with those of the configuration, layer by layer."


def findings(doubts: Sequence[Doubt], probe: str, total: int) -> Iterator[Finding]:
    groups: dict[Any, list[Doubt]] = {}
    for each in doubts:
        groups.setdefault(each.group, []).append(each)
    for group in groups.values():
        yield _finding(group, probe, total)


def _finding(group: Sequence[Doubt], probe: str, total: int) -> Finding:
    worst = max(group, key=lambda each: each.error)
    layers = tuple(sorted({number for each in group for number in (each.layers or (each.layer,))}))
    sides = sorted({each.side for each in group if each.side}, reverse=True)
    probe = "precision" if worst.rounds else probe
    where = f"{say_layers(layers, total)}{', ' + ' and '.join(sides) if sides else ''}"
    bug = BY_KEY.get(worst.bug or "")
    title = _TITLES[worst.kind] if bug is None else _first_lower(bug.title)
    sinces = [each.since for each in group if each.since is not None]
    since = min(sinces) if sinces else None
    parts = [f"In {where}:"]
    if worst.seen:
        parts.append(f"{worst.seen}; expected: {worst.expected}." if worst.expected else f"{worst.seen}.")
    elif worst.expected:
        parts.append(f"expected: {worst.expected}.")
    if worst.kind in _WHY:
        parts.append(_WHY[worst.kind])
    if worst.status == "fault" and np.isfinite(worst.error):
        parts.append(f"The largest error is {worst.error:.2g}{' rad' if worst.in_radians else ''}.")
    if worst.pairs:
        parts.append(f"{len(worst.pairs)} channel pairs are off, the first is pair {worst.pairs[0]}.")
    if since is not None and since >= _SOON and worst.in_radians:
        parts.append(f"Below about {since} tokens of distance nothing shows.")
    if bug is None and worst.status == "fault":
        parts.append("It is none of the known mistakes.")
    cure = bug.how_to_avoid if bug is not None else _CURES.get(worst.kind, _GENERAL_CURE)
    evidence = {
        "probe": probe,
        "bug": worst.bug,
        "expected": worst.expected,
        "seen": worst.seen,
        "largest_error": worst.error if np.isfinite(worst.error) else None,
        "since": since,
        "pairs": list(worst.pairs),
        "sides": sides,
    }
    ident = f"live-{probe}" if worst.status == "fault" else f"live-{probe}-{worst.kind}"
    status: Status = worst.status
    return Finding(ident, status, title, " ".join(parts), cure, layers, evidence)


def _first_lower(text: str) -> str:
    """For the middle of a sentence; names such as YaRN stay."""
    word = text.split(" ", 1)[0]
    return text if word[1:] != word[1:].lower() else text[:1].lower() + text[1:]


def _beside(right: Verified) -> str:
    seen = [
        f"{what} of {count} layer{'s' * (count > 1)} to {error:.1g}"
        for what, count, error in (
            ("the scale of the logits", right.scales, right.scale),
            ("the bias", right.biases, right.bias),
            ("the table at the input", right.inputs, right.input),
        )
        if count
    ]
    return f" Also {', '.join(seen)}." if seen else ""


def what_is_right(right: Verified, probe: str) -> Iterator[Finding]:
    """What was verified, and what turns too slowly to tell."""
    layers = tuple(sorted(right.layers))
    numbers = {
        "probe": probe, "bug": None, "pairs": right.pairs, "slow": right.slow, "largest_error": right.angle,
        "share_of_threshold": right.share, "frequency_error": right.frequency, "length_error": right.length,
        "remainder": right.remainder, "scales": right.scales, "scale_error": right.scale, "biases": right.biases,
        "bias_error": right.bias, "inputs": right.inputs, "input_error": right.input,
        "positions": right.context, "dtype": right.dtype, "mode": right.mode,
    }  # fmt: skip
    if right.slow:
        yield Finding(
            f"live-{probe}-slow",
            "cannot_tell",
            f"{right.slow} of {right.pairs} channel pairs turn too slowly to tell",
            f"Within {right.context} positions they turn by less than {SLOW} times what {right.dtype} leaves "
            "uncertain; they stay within it.",
            "Give a longer context, or load the model in float32.",
            layers,
            {"probe": probe, "bug": None, "slow": right.slow, "pairs": right.pairs},
        )
    if right.pairs - right.slow > 0:
        precise = f", frequencies to {right.frequency:.1g}" if right.frequency else ""
        yield Finding(
            f"live-{probe}",
            "ok",
            "queries and keys turn as configured",
            f"{right.pairs - right.slow:,} channel pairs, up to position {right.context - 1:,}: angles to "
            f"{right.angle:.1g} rad{precise}, in {right.dtype}.{_beside(right)}",
            layers=layers,
            evidence=numbers,
        )
    elif right.still:
        yield Finding(
            f"live-{probe}",
            "ok",
            "queries and keys do not turn, as configured",
            f"Up to position {right.context - 1} nothing moves beyond the rounding of {right.dtype}.{_beside(right)}",
            layers=layers,
            evidence=numbers,
        )
