"""Known bugs that put another rotation into each layer: other settings, frequencies, partners, factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from toposcope.encodings.changed import REBUILT, rebuilt
from toposcope.encodings.record import Array, Encoding, Rotary, short
from toposcope.encodings.rotary import channel_pairs, rope
from toposcope.live.engines.situation import Simulation, Situation
from toposcope.models.swap_encoding import Swap

BACKWARDS = "turned-backwards"  # no report of it, but any sign may be lost
LOST_BASE = 10000.0  # what libraries fall back to
SAME = 1e-9  # relative: frequencies that differ by less are the same


def at_all_lengths(rotary: Rotary, change: Callable[[Array], Array]) -> Rotary:
    """The same rotation with its frequencies changed, at every length."""
    return replace(rotary, frequencies_at=lambda length: change(rotary.frequencies(length)))


def with_rotary(encoding: Encoding, rotary: Rotary | None) -> Encoding:
    """The encoding with another rotation."""
    return replace(encoding, rotary=rotary)


def same(a: Encoding, b: Encoding, length: int) -> bool:
    """Whether two encodings turn alike a text of so many tokens."""
    x, y = a.rotary, b.rotary
    if x is None or y is None:
        return x is y
    if x.pairs_F2.shape != y.pairs_F2.shape or not np.array_equal(x.pairs_F2, y.pairs_F2):
        return False
    alike = np.allclose(x.frequencies(length), y.frequencies(length), rtol=SAME, atol=0)
    return alike and bool(np.isclose(x.attention_factor, y.attention_factor, rtol=SAME))


def put(
    given: Situation, bug: str, variant: str, change: Callable[[Encoding], Rotary | None]
) -> Iterator[Simulation]:
    """The bug in every layer that turns and that it changes, in a text of the longest length or in a short one."""
    made = {number: (own, change(own)) for number, own in given.rotating.items()}
    swaps = {
        number: Swap(with_rotary(own, new))
        for number, (own, new) in made.items()
        if new is not None and not all(same(own, with_rotary(own, new), n) for n in (1, given.longest))
    }
    if swaps:
        yield Simulation(bug, variant, swaps)


def theta_lost(given: Situation) -> Iterator[Simulation]:
    yield from put(given, "theta-lost", f"base {short(LOST_BASE)}", lambda own: rebuilt(own, base=LOST_BASE))
    if any(scaling_of(own) != "default" for own in given.rotating.values()):
        plain = {"base": LOST_BASE, "scaling": "default", "attention_factor": None}
        said = f"base {short(LOST_BASE)}, and no scaling either"
        yield from put(given, "theta-lost", said, lambda own: rebuilt(own, **plain))


def scaling_of(own: Encoding) -> str:
    return str(own.parameters.get("scaling", "default"))


def scaling_dropped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        if scaling_of(own) in ("default", "proportional"):
            return None
        return rebuilt(own, scaling="default", attention_factor=None)

    yield from put(given, "scaling-dropped", "plain frequencies", change)


def uninitialised(given: Situation) -> Iterator[Simulation]:
    def zero(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else at_all_lengths(own.rotary, np.zeros_like)

    yield from put(given, "frequencies-uninitialised", "all are zero: nothing turns", zero)


def rounded(given: Situation) -> Iterator[Simulation]:
    for dtype in ("bfloat16", "float16"):

        def change(own: Encoding, dtype: str = dtype) -> Rotary | None:
            return None if own.rotary is None else at_all_lengths(own.rotary, lambda w_F: _round(w_F, dtype))

        yield from put(given, "frequencies-rounded", f"frequencies in {dtype}", change)
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


def partial_ignored(given: Situation) -> Iterator[Simulation]:
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
        return replace(at_all_lengths(whole, lambda w_F: w_F[:count]), pairs_F2=whole.pairs_F2[:count])

    bug = "partial-ignored"
    if any(own.name in REBUILT and "base" in own.parameters for own in given.rotating.values()):
        yield from put(given, bug, "all channels of a head turn", everything)
        yield from put(given, bug, "pairs and exponents of the whole head, the first of which turn", first_of_all)
        over_head = "exponents over the whole head"
        yield from put(
            given, bug, over_head, lambda own: None if everything(own) is None else _at_width(own, own.rotary)
        )


def _at_width(own: Encoding, rotary: Rotary | None) -> Rotary | None:
    return None if rotary is None else rebuilt(own, frequency_dim=rotary.head_dim)


def _layout(rotary: Rotary) -> Any:
    first, second = rotary.pairs_F2[0]
    return "interleaved" if len(rotary.pairs_F2) > 1 and second == first + 1 else "half"


def partners_wrong(given: Situation) -> Iterator[Simulation]:
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

    yield from put(given, "partners-wrong", "the right frequencies on the first channel, another partner", change)


def pairing_swapped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        rotary = own.rotary
        if rotary is None or len(rotary.pairs_F2) < 2:
            return None
        other: Any = "half" if _layout(rotary) == "interleaved" else "interleaved"
        return replace(rotary, pairs_F2=channel_pairs(rotary.channels, other, int(rotary.pairs_F2.min())))

    yield from put(given, "pairing-swapped", "half-split for interleaved, or the reverse", change)


def factor_dropped(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else replace(own.rotary, attention_factor=1.0)

    yield from put(given, "attention-factor-dropped", "factor 1", change)


def factor_twice(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else replace(own.rotary, attention_factor=own.rotary.attention_factor**2)

    yield from put(given, "attention-factor-twice", "the factor squared", change)


def logit_scale(given: Situation) -> Iterator[Simulation]:
    swaps = {}
    for number, own in given.encodings.items():
        plain = given.widths[number] ** -0.5
        if not np.isclose(given.scales[number], plain):
            swaps[number] = Swap(own, scaling=plain)
    if swaps:
        yield Simulation("logit-scale-missing", "1 / sqrt(head width)", swaps)


def truncate(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        if scaling_of(own) != "yarn":
            return None
        return rebuilt(own, truncate=not own.parameters.get("truncate", True))

    yield from put(given, "truncate-ignored", "the other way", change)


def factor_ignored(given: Situation) -> Iterator[Simulation]:
    def ratio(own: Encoding) -> Rotary | None:
        p = own.parameters
        known = p.get("context") and p.get("original_context")
        return (
            rebuilt(own, factor=p["context"] / p["original_context"]) if scaling_of(own) == "yarn" and known else None
        )

    yield from put(given, "factor-ignored", "context / original context in its place", ratio)


def rotated_twice(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        rotary = own.rotary
        if rotary is None:
            return None
        return replace(at_all_lengths(rotary, lambda w_F: 2 * w_F), attention_factor=rotary.attention_factor**2)

    yield from put(given, "rotated-twice", "queries and keys", change)


def backwards(given: Situation) -> Iterator[Simulation]:
    def change(own: Encoding) -> Rotary | None:
        return None if own.rotary is None else at_all_lengths(own.rotary, np.negative)

    yield from put(given, BACKWARDS, "angles of the other sign", change)
