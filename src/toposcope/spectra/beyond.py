"""What a model that was trained up to some position meets beyond it: phases, biases and vectors it has never seen.

A pair of channels that turns by w radians per token has passed every angle once w L >= 2 pi, L the trained context.
One that has not turned once knows the angles below w L alone; at the offset t with v t >= w L, v its frequency in
use, it comes to an angle that training never showed. Likewise a bias comes to values, and a table to positions.

The verdict that is drawn from this is a heuristic: it looks at the encoding and not at a model. docs/spectrum.md has
it beside measured losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding, Rotary
from toposcope.spectra.table_points import sinusoid

Array = NDArray[np.float64]
Verdict = Literal["good", "after training", "bad", "cannot tell"]
Reason = Literal[
    "within",
    "window",
    "nothing new",
    "slowed",
    "new phases",
    "new values",
    "new positions",
    "no position",
    "not by distance",
]
KEPT = 0.99  # of the fastest pair's frequency: below, neighbours look nearer than in training
_EVERY = 65536  # offsets that are looked at one by one; beyond, some
_SOME = 2048
_TINY = 1e-9  # rounding of a quotient of frequencies


@dataclass(frozen=True)
class Beyond:
    """One encoding at `context` positions, after training on `trained` (`assumed`, where nobody said how many).

    `unturned` of the `pairs` that turn have not turned once within the trained context. From `new_from` on (an
    offset, or a position of vectors that are added) something is met that training did not show: None where nothing
    ever is (for scalings that go by the length of the text: up to the context). `new_pairs` come to new angles within
    the context. `step` is the frequency of the fastest pair over the one in training: below 1, neighbouring tokens
    look nearer to one another than they did.
    """

    context: int
    trained: int
    assumed: bool
    verdict: Verdict
    reason: Reason
    pairs: int | None = None
    unturned: int | None = None
    new_from: int | None = None
    new_pairs: int | None = None
    step: float | None = None


def beyond_training(
    encoding: Encoding, before: Encoding, context: int, trained: int, *, assumed: bool = False, head: int = 0
) -> Beyond:
    """What `encoding` shows at `context` to a model that was trained on `trained` positions under `before`.

    `before` is the same encoding but for its scaling; both have the same channel pairs. `head` chooses the head of a
    bias.
    """
    found = _Trained(context, trained, assumed)
    if encoding.rotary is not None and before.rotary is not None:
        if encoding.rotary.turning_heads is not None and head >= encoding.rotary.turning_heads:
            return found.told("no position")
        return _of_phases(found, encoding.rotary, before.rotary.frequencies(trained))
    if encoding.bias is not None:
        if not encoding.bias.toeplitz:
            return found.told("not by distance")
        return found.told("new values", new_from=_new_value(encoding, found, head))
    if encoding.input is None:
        return found.told("no position")
    turning_F = sinusoid(encoding, encoding.input)
    if turning_F is not None:
        return found.of_pairs(turning_F, turning_F, _first_new(turning_F, turning_F, trained))
    length = encoding.input.length
    return found.told("new positions", new_from=trained if length is None else min(trained, length))


@dataclass(frozen=True)
class _Trained:
    """How far training went, and how far is asked for."""

    context: int
    trained: int
    assumed: bool

    def told(self, reason: Reason, *, new_from: int | None = None) -> Beyond:
        """The answer for what does not turn; nothing new within the context is good, whatever else it is."""
        verdict: Verdict = "cannot tell"
        if reason == "new positions":
            verdict = "bad"
        if reason in ("new values", "new positions") and (new_from is None or new_from >= self.context):
            verdict, reason = "good", "nothing new"
        if self.context <= self.trained and reason != "new positions":
            verdict, reason = "good", "within"
        return Beyond(self.context, self.trained, self.assumed, verdict, reason, new_from=new_from)

    def of_pairs(self, before_F: Array, used_F: Array, new_from: int | None) -> Beyond:
        """The answer for channel pairs: the frequencies of training, and those in use at the context."""
        unturned_F = _unturned(before_F, self.trained)
        fastest = int(np.argmax(np.abs(before_F)))
        step = float(abs(used_F[fastest] / before_F[fastest])) if before_F[fastest] else 1.0
        new_F = unturned_F & (np.abs(used_F) * self.context * (1 + _TINY) > np.abs(before_F) * self.trained)
        verdict: Verdict = "good"
        reason: Reason = "within" if self.context <= self.trained else "nothing new"
        if step < KEPT:
            verdict, reason = "after training", "slowed"
        if new_from is not None and new_from < self.context:
            verdict, reason = "bad", "new phases"
        return Beyond(
            self.context, self.trained, self.assumed, verdict, reason,
            pairs=len(before_F), unturned=int(unturned_F.sum()), new_from=new_from,
            new_pairs=int(new_F.sum()) if reason == "new phases" else 0, step=step,
        )  # fmt: skip


def _of_phases(found: _Trained, rotary: Rotary, before_F: Array) -> Beyond:
    used_F = rotary.frequencies(found.context)
    if not rotary.by_length:
        return found.of_pairs(before_F, used_F, _first_new(before_F, used_F, found.trained))
    return found.of_pairs(before_F, used_F, _first_new_length(rotary, before_F, found))


def _unturned(before_F: Array, trained: int) -> NDArray[np.bool_]:
    """Pairs that turn, and have not turned once; one that stands still has no phase to be new."""
    angle_F = np.abs(before_F) * trained
    return np.asarray((angle_F > 0) & (angle_F < 2 * math.pi))


def _first_new(before_F: Array, used_F: Array, trained: int) -> int | None:
    """The smallest offset at which a pair that has not turned once comes to an angle it has not seen."""
    chosen = _unturned(before_F, trained) & (used_F != 0)
    if not chosen.any():
        return None
    return math.ceil(float(np.abs(before_F[chosen] / used_F[chosen]).min()) * trained * (1 - _TINY))


def _first_new_length(rotary: Rotary, before_F: Array, found: _Trained) -> int | None:
    """The same where frequencies go by the length of the text: in the shortest text that has a new angle."""

    def new_in(length: int) -> bool:
        first = _first_new(before_F, rotary.frequencies(length), found.trained)
        return first is not None and first < length

    lengths = [found.trained, *_spread(found.trained + 1, found.context)]
    at = next((i for i, length in enumerate(lengths) if new_in(length)), None)
    if at is None:
        return None
    low, high = (lengths[at - 1] if at else 0), lengths[at]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if new_in(middle) else (middle, high)
    return _first_new(before_F, rotary.frequencies(high), found.trained)


def _new_value(encoding: Encoding, found: _Trained, head: int) -> int | None:
    """The smallest offset at which a bias has a value that training did not show; of many offsets, some."""
    bias = encoding.bias
    assert bias is not None
    shown = np.sort(bias.by_offset([*range(min(found.trained, _EVERY)), *_spread(_EVERY, found.trained - 1)])[head])
    later = _spread(found.trained, found.context - 1)
    if not later:
        return None
    value_T, slack = bias.by_offset(later)[head], _TINY * max(1.0, float(np.abs(shown).max()))
    after_T = np.searchsorted(shown, value_T).clip(1, len(shown) - 1) if len(shown) > 1 else np.zeros(len(later), int)
    nearest_T = np.minimum(np.abs(shown[after_T] - value_T), np.abs(shown[after_T - 1] - value_T))
    new_T = np.flatnonzero(nearest_T > slack)
    return later[int(new_T[0])] if len(new_T) else None


def _spread(first: int, last: int) -> list[int]:
    """Whole numbers from the first to the last, both among them, closer together where they are small."""
    if last < first:
        return []
    return sorted({first, last, *map(int, np.geomspace(max(first, 1), max(last, 1), _SOME))})
