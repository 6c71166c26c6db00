"""The rotation that is declared against the one that the weights were trained with.

What can be told, and only where the declared pairs stand out at all (`overlaps.py`):

* the pairs, and how many channels turn; whether the rows of queries or keys alone are in another order
* the direction: a causal model has learned to look back, so a rotation the wrong way round shows in the sign
* the base and the context, roughly: a pair that turns by less than a radian within the context has no use for its
  sine part, so the sine part falls at the pair with w L near 1. One number cannot tell base and context apart
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.checks.overlaps import Overlaps
from toposcope.checks.pairing import APART, PairingEvidence
from toposcope.checks.rotary import groups, same_rotation
from toposcope.encodings.record import Encoding, Rotary, short

ONE_LAYER = 10.0  # z-score at which a single layer's pairing is taken as shown; 5.8 is the highest false one measured
SHOWN = 10.0  # the same of another width or order of rows; 5.9 is the highest false one measured
BACK = 4.0  # standard errors from which a model is taken to look back, and below 0 to look ahead with AHEAD
AHEAD = 6.0
FITS, FAR = 3.0, 24.0  # w L at the fall: within this factor of 1 it fits, beyond that one it does not


def trained_rotation(
    model: Model, overlaps: Mapping[Hashable, Overlaps], single: Mapping[int, PairingEvidence | None]
) -> Iterator[Finding]:
    """All findings about the rotation that the weights were trained with.

    `overlaps` holds those of all layers of an encoding, by `same_rotation`; `single` the pairing of each layer.
    """
    for encoding, rotary, layers in groups(model):
        found = overlaps.get(same_rotation(model.layers[layers[0]]))
        evidence = None if found is None else found.pairing()
        if found is None or evidence is None or evidence.verdict == "open":
            yield _open(model, encoding, rotary, layers, found, evidence)
            continue
        fault = _other_pairing(model, rotary, layers, evidence, single)
        if fault is not None:
            yield fault
            continue
        declared = _words(rotary)
        yield Finding(
            "pairing",
            "ok",
            f"the weights were trained with {declared} pairs, as declared",
            _figures(evidence),
            layers=layers,
            evidence=_numbers(evidence, declared, declared),
        )
        yield from _still(model, rotary, layers, found)
        yield from _direction(model, layers, found)
        yield from _base(model, encoding, rotary, layers, found)


def _words(rotary: Rotary, *, other: bool = False) -> str:
    return "half-split" if (rotary.pairing == "half") != other else "interleaved"


def _open(
    model: Model,
    encoding: Encoding,
    rotary: Rotary,
    layers: tuple[int, ...],
    found: Overlaps | None,
    evidence: PairingEvidence | None,
) -> Finding:
    """The declared pairs do not stand out: others may; else the weights tell nothing of the rotation."""
    declared, where = _words(rotary), say_layers(layers, len(model.layers))
    if found is not None and evidence is not None:
        least = max(SHOWN, APART * evidence.declared, APART * evidence.other)
        sides = found.sides()
        side = max(sides, key=lambda each: sides[each], default=None)
        if side is not None and sides[side] >= max(least, APART * min(sides.values())):
            return Finding(
                "row-order",
                "fault",
                f"the rows of the {'queries' if side == 'query' else 'keys'} alone are in another order",
                f"In {where} the declared pairs do not stand out ({evidence.declared:.1f} standard deviations); with "
                f"the rows of one side put into the other layout's order they do ({sides[side]:.1f}).",
                "Only one of the two projections was converted, or one was converted twice: convert both alike.",
                layers=layers,
                evidence={"side": side, "z": sides[side], **_numbers(evidence, declared, None)},
            )
        widths = found.other_widths()
        best = max(widths, key=lambda each: widths[each], default=None)
        if best is not None and widths[best] >= least:
            return _width(model, rotary, layers, best[0], f"{best[1]} pairs of them", widths[best])
    base = encoding.parameters.get("base")
    said = "" if base is None else f"base ({short(base)}), "
    return Finding(
        "pairing",
        "cannot_tell",
        "these weights cannot tell the rotation that they were trained with",
        f"{_figures(evidence)} Pairs ({declared}), {said}direction and the "
        "part of each head that turns are taken as declared: weights that are few, or were trained for a short time, "
        "show none of them.",
        layers=layers,
        evidence=_numbers(evidence, declared, None),
    )


def _width(model: Model, rotary: Rotary, layers: tuple[int, ...], width: int, how: str, z: float) -> Finding:
    return Finding(
        "rotated-part",
        "fault",
        f"{rotary.channels} channels of each head turn, but {width} were trained to",
        f"In {say_layers(layers, len(model.layers))}, of {rotary.head_dim} channels: {how} stand out from random "
        f"pairs by {z:.1f} standard deviations.",
        "The fraction that turns (partial_rotary_factor, rotary_pct, rotary_dim) was lost or added: restore it.",
        layers=layers,
        evidence={"turning": rotary.channels, "trained": width, "z": z},
    )


def _other_pairing(
    model: Model,
    rotary: Rotary,
    layers: tuple[int, ...],
    evidence: PairingEvidence,
    single: Mapping[int, PairingEvidence | None],
) -> Finding | None:
    declared, other = _words(rotary), _words(rotary, other=True)
    odd = tuple(n for n in layers if _clearly_other(single.get(n)))
    if evidence.verdict != "other" and not odd:
        return None
    wrong = layers if evidence.verdict == "other" else odd
    shown = evidence if evidence.verdict == "other" else single[odd[0]]
    return Finding(
        "pairing",
        "fault",
        f"{other} weights with {declared} rotation",
        f"In {say_layers(wrong, len(model.layers))} the weights were trained with {other} pairs. " + _figures(shown),
        "Query and key rows are in the wrong order for this family. Convert them (interleaved rows 2m, "
        "2m+1 of a head belong at m, m + width/2), or use the code that rotates neighbouring channels.",
        layers=wrong,
        evidence=_numbers(shown, declared, other),
    )


def _clearly_other(evidence: PairingEvidence | None) -> bool:
    return evidence is not None and evidence.verdict == "other" and evidence.other >= ONE_LAYER


def _still(model: Model, rotary: Rotary, layers: tuple[int, ...], found: Overlaps) -> Iterator[Finding]:
    """Channels that are said not to turn and were trained to: told where pairs are neighbours."""
    z = found.still() if rotary.pairing == "interleaved" else 0.0
    if z >= SHOWN:
        yield _width(model, rotary, layers, rotary.head_dim, "neighbours among those that should not turn", z)


def _direction(model: Model, layers: tuple[int, ...], found: Overlaps) -> Iterator[Finding]:
    """Whether a causal model was trained to look back, as the declared rotation has it."""
    if not all(model.layers[n].spec.causal for n in layers):
        return  # seen from both sides nothing is the wrong way round
    z, fall = found.forward(), found.fall()
    numbers = {"z": z}
    if z is not None and z <= -AHEAD and (fall is None or fall.factor > 1):
        yield Finding(
            "direction",
            "warning",
            "the rotation turns the wrong way round",
            f"In {say_layers(layers, len(model.layers))} the fast pairs favour tokens that are still to come, by "
            f"{-z:.1f} standard errors; a causal model never sees them in training.",
            "The two halves of the rotary channels were swapped, or the sign of the sine is wrong.",
            layers=layers,
            evidence=numbers,
        )
    elif z is not None and z >= BACK:
        yield Finding(
            "direction",
            "ok",
            "the weights were trained to look back, as this rotation does",
            f"The fast pairs favour tokens that came before, by {z:.1f} standard errors.",
            layers=layers,
            evidence=numbers,
        )
    else:
        yield Finding(
            "direction",
            "cannot_tell",
            "these weights cannot tell in which direction they turn",
            "The fast pairs favour neither what came before nor what comes"
            + ("." if z is None else f" ({z:.1f} standard errors)."),
            layers=layers,
            evidence=numbers,
        )


def _base(
    model: Model, encoding: Encoding, rotary: Rotary, layers: tuple[int, ...], found: Overlaps
) -> Iterator[Finding]:
    """Whether the sine part falls where the declared base and context say that pairs stop turning."""
    reach = [model.layers[n].spec.reach for n in layers]
    window = max((each + 1 for each in reach if each is not None), default=None) if None not in reach else None
    length = model.spec.context if window is None else min(window, model.spec.context or window)
    base = encoding.parameters.get("base")
    if length is None or base is None:
        return
    fall = found.fall()
    said = f"base {short(base)} and {'context' if window is None else 'window'} {length:,}"
    if fall is None:
        yield Finding(
            "base",
            "cannot_tell",
            f"these weights cannot tell whether {said} fit",
            "The sine part of the pairs does not fall at one pair, which is where they would stop turning.",
            layers=layers,
        )
        return
    w_F = rotary.frequencies(model.spec.context)
    if fall.factor < 1:
        yield Finding(
            "frequency-order",
            "fault",
            "the slow pairs were trained as fast ones",
            f"In {say_layers(layers, len(model.layers))} the pairs up to {fall.at - 1}, the fast ones, have a sine "
            f"part {1 / fall.factor:.1f} times smaller than the slow ones, which hardly turn within {length:,}.",
            "The channels of each head are in reverse order, or the frequencies are.",
            layers=layers,
            evidence={"pair": fall.at, "factor": fall.factor, "fit": fall.fit},
        )
        return
    turn = float((w_F[fall.at - 1] * w_F[fall.at]) ** 0.5) * length
    numbers = {"pair": fall.at, "factor": fall.factor, "fit": fall.fit, "turn": turn}
    shown = (
        f"In {say_layers(layers, len(model.layers))} the sine part of the logits falls {fall.factor:.1f}-fold "
        f"at pair {fall.at}. Training puts that fall at the pair that turns by about 1 rad within the context; this "
        f"one turns by {turn:.2g} rad within {length:,} tokens (docs/check.md)."
    )
    if 1 / FITS <= turn <= FITS:
        status, title, cure = "ok", f"{said} fit these weights", ""
    elif 1 / FAR <= turn <= FAR:
        status, title = "cannot_tell", f"these weights cannot tell whether {said} fit"
        cure = _what_may_be(encoding)
    else:
        status, title = "warning", f"{said} do not fit these weights"
        cure = (
            "The base is too small, or the model was trained on much shorter texts than it claims."
            if turn > 1
            else "The base is too large, or a scaling was added that the model was not trained with."
        )
    yield Finding("base", status, title, shown, cure, layers=layers, evidence=numbers)  # type: ignore[arg-type]


def _what_may_be(encoding: Encoding) -> str:
    """What to try where base and context fit the weights neither well nor badly."""
    kind = encoding.parameters.get("scaling", "default")
    if kind in ("default", "proportional"):
        return (
            "A lost scaling looks like this: if a fault above names one, mend that first. If not, compare base, "
            "context and scaling with the configuration that the model was published with. A base or context that "
            "was changed late in training looks like this too."
        )
    return (
        f"Most likely the {kind} scaling was added by hand to weights that were not trained with it: 'toposcope loss "
        "MODEL --encoding rope' gives the loss without it. A base, context or scaling that came late in training "
        "looks like this too."
    )


def _figures(evidence: PairingEvidence | None) -> str:
    if evidence is None:
        return "There are too few channel pairs for a test."
    return (
        f"The declared pairs stand out from random pairs by {evidence.declared:.1f} standard deviations, the other "
        f"pairing's by {evidence.other:.1f}."
    )


def _numbers(evidence: PairingEvidence | None, rotation: str, weights: str | None) -> dict[str, Any]:
    """The pairs that turn, those that the weights were trained with (None where they cannot tell), and z-scores."""
    scores = {} if evidence is None else {"z_declared": evidence.declared, "z_other": evidence.other}
    return {"rotation": rotation, "weights": weights, **scores}
