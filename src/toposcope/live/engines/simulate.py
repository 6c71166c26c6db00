"""Known bugs of positional encoding, put into a sound model while it runs: what would it say if it had this one?

Most bugs are another rotation in some layers (`models/swap_encoding.py` puts it in), a few are other positions; the
model itself is not changed. A bug that changes nothing here, or that no text can show, is told with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from toposcope.encodings.record import short
from toposcope.live.bugs import BY_KEY
from toposcope.live.engines import between, rotations, shifted
from toposcope.live.engines.rotations import BACKWARDS, LOST_BASE
from toposcope.live.engines.situation import NotSimulated, Simulation, Situation


def simulations(given: Situation) -> tuple[list[Simulation], list[NotSimulated]]:
    """Every known bug that changes something in this situation, in the ways it is known to happen; and the others."""
    found, left = [], []
    for bug, (make, why) in MAKERS.items():
        made = list(make(given))
        found += made
        if not made:
            left.append(NotSimulated(bug, why))
    return found, left


def title(bug: str) -> str:
    """A bug in a sentence, without its full stop."""
    return "Queries and keys turn the other way" if bug == BACKWARDS else BY_KEY[bug].title


def _never(given: Situation) -> Iterator[Simulation]:
    yield from ()


Maker = Callable[[Situation], Iterator[Simulation]]
_ROTATES = "no layer turns queries and keys"
_BY_LENGTH = "no scaling here changes with the length of a text, or the texts are too short for it"
MAKERS: Mapping[str, tuple[Maker, str]] = {
    "theta-lost": (rotations.theta_lost, f"the base is {short(LOST_BASE)} already, or not known"),
    "scaling-dropped": (rotations.scaling_dropped, "there is no scaling to drop"),
    "frequencies-uninitialised": (rotations.uninitialised, _ROTATES),
    "frequencies-rounded": (rotations.rounded, _ROTATES),
    "partial-ignored": (rotations.partial_ignored, "whole heads turn"),
    "partners-wrong": (rotations.partners_wrong, _ROTATES),
    "pairing-swapped": (rotations.pairing_swapped, "fewer than two pairs turn"),
    "attention-factor-dropped": (rotations.factor_dropped, "the attention factor is 1"),
    "attention-factor-twice": (rotations.factor_twice, "the attention factor is 1"),
    "logit-scale-missing": (rotations.logit_scale, "logits are scaled by 1 / sqrt(head width)"),
    "truncate-ignored": (rotations.truncate, "no layer is scaled by yarn, or rounding its ramp changes nothing"),
    "factor-ignored": (
        rotations.factor_ignored,
        "no layer has yarn, or its factor is context / original context",
    ),
    "longrope-choice": (between.longrope, "no layer is scaled by longrope"),
    "cache-stale": (between.cache_stale, _BY_LENGTH),
    "layers-confused": (between.layers_confused, "all layers turn alike"),
    "scaling-on-sliding-layers": (between.on_sliding, "no sliding layers beside scaled ones"),
    "no-position-layers-rotated": (between.no_position, "no layer without position stands among others that turn"),
    "left-padding": (shifted.left_padding, "a shift of all positions changes nothing here"),
    "cache-offset": (
        shifted.cache_offset,
        "texts part before a cache would begin to be used",
    ),
    "axes-dropped": (_never, "in a text all axes of a position are equal"),
    "rotated-twice": (rotations.rotated_twice, _ROTATES),
    "dynamic-not-reset": (between.not_reset, _BY_LENGTH),
    BACKWARDS: (rotations.backwards, _ROTATES),
}
