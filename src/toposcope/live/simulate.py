"""Known bugs of positional encoding, put into a sound model while it runs: what would it say if it had this one?

Most bugs are another rotation in some layers (`models/swap_encoding.py` puts it in), a few are other positions; the
model itself is not changed. A bug that changes nothing here, or that no text can show, is told with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadEncoding
from toposcope.encodings.record import Array, Encoding, Rotary
from toposcope.encodings.rotary import channel_pairs, rope
from toposcope.live.bugs import BY_KEY
from toposcope.models.content import ContentReader
from toposcope.models.instrument import attached
from toposcope.models.swap_encoding import Swap, swapped

BACKWARDS = "turned-backwards"  # no report of it, but any sign may be lost
LOST_BASE = 10000.0  # what libraries fall back to
REBUILT = ("rope", "rope-partial", "mla")  # encodings whose parameters `rope` takes
SHIFTS = (1, 2, 3, 4, 8, 16)  # by how many padding tokens positions may be off
EARLIEST_CHUNK = 8  # where texts part before, no cache has begun to be used
SAME = 1e-9  # relative: frequencies that differ by less are the same

Positions = Callable[[int], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Simulation:
    """One way to have a bug: something else in some layers, or other positions for so many tokens."""

    bug: str
    variant: str
    swaps: Mapping[int, Swap] = field(default_factory=dict)
    positions: Positions | None = None

    @contextmanager
    def put_into(self, model: Any) -> Iterator[None]:
        """The bug is there inside the block; other positions must be given to the model by whoever calls it."""
        if not self.swaps:
            yield
            return
        with swapped(model, self.swaps):
            yield


@dataclass(frozen=True)
class NotSimulated:
    """A known bug that was not tried on this model, and why."""

    bug: str
    why: str


@dataclass(frozen=True, eq=False)
class Situation:
    """What a bug is made from: the encodings of self-attention as the model runs them, and the texts.

    `longest` is the length of the longest text; `parts_at` is where the other engine was seen to part, None where
    it does from the beginning or never. `takes_positions`: whether the model can be told where its tokens stand.
    """

    encodings: Mapping[int, Encoding]
    sliding: frozenset[int]
    scales: Mapping[int, float]
    widths: Mapping[int, int]
    longest: int
    parts_at: int | None = None
    takes_positions: bool = True

    @property
    def rotating(self) -> dict[int, Encoding]:
        return {number: each for number, each in self.encodings.items() if each.rotary is not None}


Maker = Callable[[Situation], Iterator[Simulation]]


def situation(model: Any, *, longest: int, parts_at: int | None = None) -> Situation:
    """The situation of a loaded model; a `BadConfig` where its encoding is not known or not what it does."""
    with attached(model) as instrument:
        reader = ContentReader.of(instrument)
        layers = {layer.number: layer for layer in reader.layers if layer.spec.kind == "self"}
        return Situation(
            encodings={number: reader.encoding(instrument.sites[number]) for number in layers},
            sliding=frozenset(number for number, layer in layers.items() if layer.spec.reach is not None),
            scales={number: layer.spec.scale for number, layer in layers.items()},
            widths={number: layer.spec.head_dim for number, layer in layers.items()},
            longest=longest,
            parts_at=parts_at,
            takes_positions="position_ids" in inspect.signature(instrument.model.forward).parameters,
        )


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


# ------------------------------------------------------------------ another rotation
def _rebuilt(own: Encoding, **changes: Any) -> Rotary | None:
    """The rotation of the same settings with some changed, on the same pairs; None where it cannot be built."""
    rotary = own.rotary
    if rotary is None or own.name not in REBUILT:
        return None
    stated = {name: value for name, value in own.parameters.items() if name not in ("nope_dim", "rope_dim")}
    usual = _attention_factor({**stated, "attention_factor": None})
    if usual is not None and np.isclose(usual, rotary.attention_factor):
        stated.pop("attention_factor", None)  # it follows from the rest, and so it does after a change
    try:
        made = rope(**{**stated, **changes}).rotary
    except BadEncoding:
        return None
    if made is None or len(made.pairs_F2) != len(rotary.pairs_F2):
        return None
    return replace(rotary, frequencies_at=made.frequencies_at, attention_factor=made.attention_factor)


def _attention_factor(stated: Mapping[str, Any]) -> float | None:
    try:
        made = rope(**stated).rotary
    except BadEncoding:
        return None
    return None if made is None else made.attention_factor


def _at(rotary: Rotary, change: Callable[[Array], Array]) -> Rotary:
    """The same rotation with its frequencies changed, at every length."""
    return replace(rotary, frequencies_at=lambda length: change(rotary.frequencies(length)))


def _with(encoding: Encoding, rotary: Rotary | None) -> Encoding:
    return replace(encoding, rotary=rotary)


def _same(a: Encoding, b: Encoding, length: int) -> bool:
    """Whether two encodings turn alike a text of so many tokens."""
    x, y = a.rotary, b.rotary
    if x is None or y is None:
        return x is y
    if x.pairs_F2.shape != y.pairs_F2.shape or not np.array_equal(x.pairs_F2, y.pairs_F2):
        return False
    alike = np.allclose(x.frequencies(length), y.frequencies(length), rtol=SAME, atol=0)
    return alike and bool(np.isclose(x.attention_factor, y.attention_factor, rtol=SAME))


def _put(
    given: Situation, bug: str, variant: str, change: Callable[[Encoding], Rotary | None]
) -> Iterator[Simulation]:
    """The bug in every layer that turns and that it changes."""
    made = {number: (own, change(own)) for number, own in given.rotating.items()}
    swaps = {
        number: Swap(_with(own, new))
        for number, (own, new) in made.items()
        if new is not None and not _same(own, _with(own, new), given.longest)
    }
    if swaps:
        yield Simulation(bug, variant, swaps)


def _theta_lost(given: Situation) -> Iterator[Simulation]:
    yield from _put(given, "theta-lost", f"base {LOST_BASE:g}", lambda own: _rebuilt(own, base=LOST_BASE))
    if any(_scaling(own) != "default" for own in given.rotating.values()):
        plain = {"base": LOST_BASE, "scaling": "default", "attention_factor": None}
        said = f"base {LOST_BASE:g}, and no scaling either"
        yield from _put(given, "theta-lost", said, lambda own: _rebuilt(own, **plain))


def _scaling(own: Encoding) -> str:
    return str(own.parameters.get("scaling", "default"))


def _scaling_dropped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        if _scaling(own) in ("default", "proportional"):
            return None
        return _rebuilt(own, scaling="default", attention_factor=None)

    yield from _put(given, "scaling-dropped", "plain frequencies", change)


def _uninitialised(given: Situation) -> Iterator[Simulation]:
    def zero(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else _at(own.rotary, np.zeros_like)

    yield from _put(given, "frequencies-uninitialised", "all are zero: nothing turns", zero)


def _rounded(given: Situation) -> Iterator[Simulation]:
    for dtype in ("bfloat16", "float16"):

        def change(own: Encoding, dtype: str = dtype) -> Rotary | None:
            return None if own.rotary is None else _at(own.rotary, lambda w_F: _round(w_F, dtype))

        yield from _put(given, "frequencies-rounded", f"frequencies in {dtype}", change)
    swaps = {number: Swap(own, by_position=_rounded_angles(own)) for number, own in given.rotating.items()}
    if swaps:
        yield Simulation("frequencies-rounded", "positions and angles in bfloat16", swaps)


def _rounded_angles(own: Encoding) -> Callable[[Array], Array]:
    rotary = own.rotary
    assert rotary is not None

    def by_position(at_BN: Array) -> Array:
        at_BN1, w_F = at_BN[..., None], rotary.frequencies(int(at_BN.max()) + 1)
        angle_BNF = _round(_round(at_BN1, "bfloat16") * _round(w_F, "bfloat16"), "bfloat16")
        return np.divide(angle_BNF, at_BN1, out=np.zeros_like(angle_BNF), where=at_BN1 != 0)

    return by_position


def _round(values: Array, dtype: str) -> Array:
    import torch

    exact = torch.from_numpy(np.ascontiguousarray(values)).float()
    rounded: Array = exact.to(getattr(torch, dtype)).double().numpy()
    return rounded


def _partial_ignored(given: Situation) -> Iterator[Simulation]:
    def everything(own: Encoding) -> Rotary | None:
        if own.rotary is None or own.name == "mla" or own.rotary.channels == own.rotary.head_dim:
            return None
        width = own.rotary.head_dim
        made = rope(width, base=float(own.parameters["base"]), pairing=_layout(own.rotary)).rotary
        assert made is not None
        return replace(own.rotary, pairs_F2=made.pairs_F2, frequencies_at=made.frequencies_at)

    def first_of_all(own: Encoding) -> Rotary | None:
        whole = everything(own)
        if whole is None or own.rotary is None:
            return None
        count = len(own.rotary.pairs_F2)
        return replace(_at(whole, lambda w_F: w_F[:count]), pairs_F2=whole.pairs_F2[:count])

    bug = "partial-ignored"
    if any(own.name in REBUILT and "base" in own.parameters for own in given.rotating.values()):
        yield from _put(given, bug, "all channels of a head turn", everything)
        yield from _put(given, bug, "pairs and exponents of the whole head, the first of which turn", first_of_all)
        over_head = "exponents over the whole head"
        yield from _put(
            given, bug, over_head, lambda own: None if everything(own) is None else _at_width(own, own.rotary)
        )


def _at_width(own: Encoding, rotary: Rotary | None) -> Rotary | None:
    return None if rotary is None else _rebuilt(own, frequency_dim=rotary.head_dim)


def _layout(rotary: Rotary) -> Any:
    first, second = rotary.pairs_F2[0]
    return "interleaved" if len(rotary.pairs_F2) > 1 and second == first + 1 else "half"


def _partners_wrong(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        rotary = own.rotary
        if rotary is None:
            return None
        first_F, second_F = rotary.pairs_F2[:, 0], rotary.pairs_F2[:, 1]
        count, half = len(first_F), rotary.head_dim // 2
        if own.name == "mla" or rotary.channels == rotary.head_dim or _layout(rotary) == "interleaved":
            second_F = second_F[::-1]
        else:  # the partner half a head away, or half the turning block away: the other of the two
            second_F = first_F + (half if second_F[0] - first_F[0] != half else count)
        return replace(rotary, pairs_F2=np.stack([first_F, second_F], axis=1))

    yield from _put(given, "partners-wrong", "the right frequencies on the first channel, another partner", change)


def _pairing_swapped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        rotary = own.rotary
        if rotary is None or len(rotary.pairs_F2) < 2:
            return None
        other: Any = "half" if _layout(rotary) == "interleaved" else "interleaved"
        return replace(rotary, pairs_F2=channel_pairs(rotary.channels, other, int(rotary.pairs_F2.min())))

    yield from _put(given, "pairing-swapped", "half-split for interleaved, or the reverse", change)


def _factor_dropped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else replace(own.rotary, attention_factor=1.0)

    yield from _put(given, "attention-factor-dropped", "factor 1", change)


def _factor_twice(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else replace(own.rotary, attention_factor=own.rotary.attention_factor**2)

    yield from _put(given, "attention-factor-twice", "the factor squared", change)


def _logit_scale(given: Situation) -> Iterator[Simulation]:
    swaps = {}
    for number, own in given.encodings.items():
        plain = given.widths[number] ** -0.5
        if not np.isclose(given.scales[number], plain):
            swaps[number] = Swap(own, scaling=plain)
    if swaps:
        yield Simulation("logit-scale-missing", "1 / sqrt(head width)", swaps)


def _truncate(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        if _scaling(own) != "yarn":
            return None
        return _rebuilt(own, truncate=not own.parameters.get("truncate", True))

    yield from _put(given, "truncate-ignored", "the other way", change)


def _factor_ignored(given: Situation) -> Iterator[Simulation]:
    def ratio(own: Encoding) -> Rotary | None:
        p = own.parameters
        known = p.get("context") and p.get("original_context")
        return (
            _rebuilt(own, factor=p["context"] / p["original_context"]) if _scaling(own) == "yarn" and known else None
        )

    yield from _put(given, "factor-ignored", "context / original context in its place", ratio)


def _longrope(given: Situation) -> Iterator[Simulation]:
    for variant, length in (("the long list at every length", 2**40), ("the short list at every length", 1)):

        def change(own: Encoding, length: int = length) -> Rotary | None:
            if own.rotary is None or _scaling(own) != "longrope":
                return None
            fixed_F = own.rotary.frequencies(length)
            return _at(own.rotary, lambda w_F: fixed_F)

        yield from _put(given, "longrope-choice", variant, change)


def _cache_stale(given: Situation) -> Iterator[Simulation]:
    swaps = {}
    for number, own in given.rotating.items():
        rotary = own.rotary
        if rotary is not None and not np.array_equal(rotary.frequencies(1), rotary.frequencies(given.longest)):
            swaps[number] = Swap(own, by_position=_by_time(rotary))
    if swaps:
        yield Simulation("cache-stale", "each key turned by the frequencies of its time", swaps)


def _by_time(rotary: Rotary) -> Callable[[Array], Array]:
    def by_position(at_BN: Array) -> Array:
        every = {length: rotary.frequencies(length) for length in np.unique(at_BN.astype(np.int64) + 1).tolist()}
        return np.stack([np.stack([every[int(at) + 1] for at in row]) for row in at_BN])

    return by_position


def _layers_confused(given: Situation) -> Iterator[Simulation]:
    kinds: list[Encoding] = []
    for own in given.rotating.values():
        if not any(_same(own, kind, given.longest) for kind in kinds):
            kinds.append(own)
    if len(kinds) < 2 or len({len(kind.rotary.pairs_F2) for kind in kinds if kind.rotary}) > 1:
        return
    if len(kinds) == 2:
        first, second = kinds
        yield from _put(
            given, "layers-confused", "each has the other's",
            lambda own: (second if _same(own, first, given.longest) else first).rotary,
        )  # fmt: skip
    for kind in kinds:
        said = f"all have those of layer {next(n for n, own in given.rotating.items() if own is kind)}"
        yield from _put(given, "layers-confused", said, lambda own, kind=kind: kind.rotary)  # type: ignore[misc]


def _on_sliding(given: Situation) -> Iterator[Simulation]:
    full = [own for number, own in given.rotating.items() if number not in given.sliding]
    scaled = next((own for own in full if _scaling(own) not in ("default", "proportional")), None)
    sliding = {number: own for number, own in given.rotating.items() if number in given.sliding}
    some = replace(given, encodings=sliding)
    if scaled is not None:
        also = {
            name: value for name, value in scaled.parameters.items() if name not in ("head_dim", "pairing", "base")
        }
        yield from _put(
            some, "scaling-on-sliding-layers", "sliding layers scaled as the others are",
            lambda own: _rebuilt(own, **also) if _scaling(own) == "default" else None,
        )  # fmt: skip
    if full:
        for each in _scaling_dropped(some):
            yield replace(each, bug="scaling-on-sliding-layers", variant="sliding layers without their scaling")


def _no_position(given: Situation) -> Iterator[Simulation]:
    still = {number: own for number, own in given.encodings.items() if own.rotary is None}
    turning = given.rotating
    if not still or not turning:
        return
    rotary = next(iter(turning.values())).rotary
    turned = {number: Swap(_with(own, rotary)) for number, own in still.items()}
    yield Simulation("no-position-layers-rotated", "all layers turn", turned)
    unturned = {number: Swap(_with(own, None)) for number, own in turning.items()}
    yield Simulation("no-position-layers-rotated", "the pattern inverted", {**turned, **unturned})


def _rotated_twice(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        rotary = own.rotary
        if rotary is None:
            return None
        return replace(_at(rotary, lambda w_F: 2 * w_F), attention_factor=rotary.attention_factor**2)

    yield from _put(given, "rotated-twice", "queries and keys", change)


def _backwards(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else _at(own.rotary, np.negative)

    yield from _put(given, BACKWARDS, "angles of the other sign", change)


def _not_reset(given: Situation) -> Iterator[Simulation]:
    def longest(own: Encoding) -> Rotary | None:
        if own.rotary is None or _scaling(own) != "dynamic":
            return None
        fixed_F = own.rotary.frequencies(given.longest)
        return _at(own.rotary, lambda w_F: fixed_F)

    def constant(own: Encoding) -> Rotary | None:
        return _rebuilt(own, scaling="ntk") if _scaling(own) == "dynamic" else None

    shorter = replace(given, longest=1)  # a text of the longest length shows nothing
    yield from _put(shorter, "dynamic-not-reset", "always those of the longest text", longest)
    yield from _put(given, "dynamic-not-reset", "stretched by the factor at every length", constant)


# ------------------------------------------------------------------ other positions
def _left_padding(given: Situation) -> Iterator[Simulation]:
    if not given.takes_positions:
        return
    if any(own.input is not None for own in given.encodings.values()):
        lengths = [own.input.length for own in given.encodings.values() if own.input is not None]
        room = min((length for length in lengths if length is not None), default=2**40) - given.longest
        for shift in SHIFTS:
            if shift <= room:
                yield _moved("left-padding", f"all positions {shift} too far", 0, shift)
    elif _chunk(given):
        for shift in SHIFTS[1:]:
            yield _moved("left-padding", f"from position {given.parts_at} on {shift} too far", _chunk(given), shift)


def _cache_offset(given: Situation) -> Iterator[Simulation]:
    at = _chunk(given)
    if not given.takes_positions or not at:
        return
    bug = "cache-offset"
    yield Simulation(
        bug, f"positions begin again after every {at} tokens", positions=lambda count: _count(count) % at
    )

    def again(count: int) -> NDArray[np.int64]:
        return _count(count) - at * (_count(count) >= at)

    yield Simulation(bug, f"positions begin again at {at}", positions=again)
    yield _moved(bug, f"from position {at} on one too far", at, 1)
    yield _moved(bug, f"from position {at} on one too early", at, -1)


def _chunk(given: Situation) -> int:
    """Where a cache may have begun to be used; 0 where texts part before."""
    return given.parts_at if given.parts_at is not None and given.parts_at >= EARLIEST_CHUNK else 0


def _moved(bug: str, variant: str, begin: int, shift: int) -> Simulation:
    return Simulation(bug, variant, positions=lambda count: _count(count) + shift * (_count(count) >= begin))


def _count(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64)


def _never(given: Situation) -> Iterator[Simulation]:
    yield from ()


_ROTATES = "no layer turns queries and keys"
_BY_LENGTH = "no scaling here changes with the length of a text, or the texts are too short for it"
MAKERS: Mapping[str, tuple[Maker, str]] = {
    "theta-lost": (_theta_lost, f"the base is {LOST_BASE:g} already, or not known"),
    "scaling-dropped": (_scaling_dropped, "there is no scaling to drop"),
    "frequencies-uninitialised": (_uninitialised, _ROTATES),
    "frequencies-rounded": (_rounded, _ROTATES),
    "partial-ignored": (_partial_ignored, "whole heads turn"),
    "partners-wrong": (_partners_wrong, _ROTATES),
    "pairing-swapped": (_pairing_swapped, "fewer than two pairs turn"),
    "attention-factor-dropped": (_factor_dropped, "the attention factor is 1"),
    "attention-factor-twice": (_factor_twice, "the attention factor is 1"),
    "logit-scale-missing": (_logit_scale, "logits are scaled by 1 / sqrt(head width)"),
    "truncate-ignored": (_truncate, "no layer is scaled by yarn, or rounding its ramp changes nothing"),
    "factor-ignored": (_factor_ignored, "no layer is scaled by yarn, or its factor is context / original context"),
    "longrope-choice": (_longrope, "no layer is scaled by longrope"),
    "cache-stale": (_cache_stale, _BY_LENGTH),
    "layers-confused": (_layers_confused, "all layers turn alike"),
    "scaling-on-sliding-layers": (_on_sliding, "no sliding layers beside scaled ones"),
    "no-position-layers-rotated": (_no_position, "no layer without position stands among others that turn"),
    "left-padding": (_left_padding, "a shift of all positions changes nothing here"),
    "cache-offset": (_cache_offset, "texts do not part at a later position, where a cache would begin to be used"),
    "axes-dropped": (_never, "in a text all axes of a position are equal"),
    "rotated-twice": (_rotated_twice, _ROTATES),
    "dynamic-not-reset": (_not_reset, _BY_LENGTH),
    BACKWARDS: (_backwards, _ROTATES),
}
