"""Known bugs between layers and between lengths: one has the encoding that belongs to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from toposcope.encodings.changed import rebuilt
from toposcope.encodings.record import Array, Encoding, Rotary
from toposcope.live.engines.rotations import (
    at_all_lengths,
    put,
    same,
    scaling_dropped,
    scaling_of,
    with_rotary,
)
from toposcope.live.engines.situation import Simulation, Situation
from toposcope.models.swap_encoding import Swap


def longrope(given: Situation) -> Iterator[Simulation]:
    for variant, length in (("the long list at every length", 2**40), ("the short list at every length", 1)):

        def change(own: Encoding, length: int = length) -> Rotary | None:
            if own.rotary is None or scaling_of(own) != "longrope":
                return None
            fixed_F = own.rotary.frequencies(length)
            return at_all_lengths(own.rotary, lambda w_F: fixed_F)

        yield from put(given, "longrope-choice", variant, change)


def cache_stale(given: Situation) -> Iterator[Simulation]:
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


def layers_confused(given: Situation) -> Iterator[Simulation]:
    kinds: list[Encoding] = []
    for own in given.rotating.values():
        if not any(same(own, kind, given.longest) for kind in kinds):
            kinds.append(own)
    if len(kinds) < 2 or len({len(kind.rotary.pairs_F2) for kind in kinds if kind.rotary}) > 1:
        return
    if len(kinds) == 2:
        first, second = kinds
        yield from put(
            given, "layers-confused", "each has the other's",
            lambda own: (second if same(own, first, given.longest) else first).rotary,
        )  # fmt: skip
    for kind in kinds:
        said = f"all have those of layer {next(n for n, own in given.rotating.items() if own is kind)}"
        yield from put(given, "layers-confused", said, lambda own, kind=kind: kind.rotary)  # type: ignore[misc]


def on_sliding(given: Situation) -> Iterator[Simulation]:
    full = [own for number, own in given.rotating.items() if number not in given.sliding]
    scaled = next((own for own in full if scaling_of(own) not in ("default", "proportional")), None)
    sliding = {number: own for number, own in given.rotating.items() if number in given.sliding}
    some = replace(given, encodings=sliding)
    if scaled is not None:
        also = {
            name: value for name, value in scaled.parameters.items() if name not in ("head_dim", "pairing", "base")
        }
        yield from put(
            some, "scaling-on-sliding-layers", "sliding layers scaled as the others are",
            lambda own: rebuilt(own, **also) if scaling_of(own) == "default" else None,
        )  # fmt: skip
    if full:
        for each in scaling_dropped(some):
            yield replace(each, bug="scaling-on-sliding-layers", variant="sliding layers without their scaling")


def no_position(given: Situation) -> Iterator[Simulation]:
    still = {number: own for number, own in given.encodings.items() if own.rotary is None}
    turning = given.rotating
    if not still or not turning:
        return
    rotary = next(iter(turning.values())).rotary
    turned = {number: Swap(with_rotary(own, rotary)) for number, own in still.items()}
    yield Simulation("no-position-layers-rotated", "all layers turn", turned)
    unturned = {number: Swap(with_rotary(own, None)) for number, own in turning.items()}
    yield Simulation("no-position-layers-rotated", "the pattern inverted", {**turned, **unturned})


def not_reset(given: Situation) -> Iterator[Simulation]:
    def longest(own: Encoding) -> Rotary | None:
        if own.rotary is None or scaling_of(own) != "dynamic":
            return None
        fixed_F = own.rotary.frequencies(given.longest)
        return at_all_lengths(own.rotary, lambda w_F: fixed_F)

    def constant(own: Encoding) -> Rotary | None:
        return rebuilt(own, scaling="ntk") if scaling_of(own) == "dynamic" else None

    yield from put(given, "dynamic-not-reset", "always those of the longest text", longest)
    yield from put(given, "dynamic-not-reset", "stretched by the factor at every length", constant)
