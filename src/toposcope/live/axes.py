"""Probe: which channel pairs turn when a position moves along one axis only?

Vision-language models give a token a position in time, height and width. On text all three are equal, so a model that
drops two of them passes every test on text; here each axis is moved by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.core.progress import Progress, steps
from toposcope.encodings.record import Rotary
from toposcope.live.ruler import Array, doubled
from toposcope.live.running import Running
from toposcope.live.subject import Subject
from toposcope.live.turning import turned

FARTHEST = 4096  # positions that an axis is moved by: slow pairs of the last axis need it in half precision
Answer = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Answers:
    """Of one layer: which pairs turned with each axis (A, F), and which should; those too slow to tell do neither."""

    layer: int
    seen_AF: Answer
    expected_AF: Answer

    @property
    def right(self) -> bool:
        return np.array_equal(self.seen_AF, self.expected_AF)


def axes(running: Running, model: Model, progress: Progress | None = None) -> list[Finding]:
    """Which pairs answer to which axis of a position, as findings; none where positions have one axis."""
    subject = Subject.of(running, model)
    several = {
        number: rotary for number, layer in subject.layers.items() if (rotary := _with_axes(layer)) is not None
    }
    if not several:
        return []
    layers = tuple(subject.layers[number].number for number in several)
    names = next(iter(several.values())).axes
    step = steps(progress, "axes of a position", len(names) + 1)
    at_P = _grid(min(FARTHEST, model.spec.context or FARTHEST))
    moved = []
    try:
        for axis in (None, *range(len(names))):
            moved.append(_moved(subject, list(several), at_P, len(names), axis))
            step()
    except (IndexError, RuntimeError, ValueError, TypeError) as error:
        return [_open(layers, f"The model does not take positions of {len(names)} axes: {str(error)[:160]}")]
    answers = []
    for place, (layer, rotary) in enumerate(zip(layers, several.values(), strict=True)):
        found = _answers(layer, rotary, at_P, [each[place] for each in moved], subject.precision)
        if found is None:
            return [_open(layers, f"Layer {layer} does not turn as configured even where all axes move together.")]
        answers.append(found)
    wrong = [each for each in answers if not each.right]
    return [_fault(model, names, wrong)] if wrong else [_sound(model, names, answers)]


def _with_axes(layer: Layer) -> Rotary | None:
    rotary = layer.encoding.rotary
    return None if rotary is None or layer.spec.kind != "self" or rotary.axis_F is None else rotary


def _grid(length: int) -> Array:
    powers = 2 ** np.arange(int(np.log2(length)) + 1)
    some = np.unique(np.concatenate([[0, 3, 5, 7], powers, 3 * powers // 2 - 1, [length - 1]]))
    return np.asarray(some[some < length], dtype=np.float64)


def _moved(
    subject: Subject, numbers: Sequence[int], at_P: Array, axes: int, axis: int | None
) -> list[tuple[Array, Array]]:
    """Queries and keys of sequences of one token, at these positions of one axis (None: of all)."""
    positions_AP1 = np.zeros((axes, len(at_P), 1), dtype=np.int64)
    positions_AP1[slice(None) if axis is None else axis] = at_P[:, None].astype(np.int64)
    with subject.content(len(at_P)):
        seen = subject.running.attentions(subject.text.ids(len(at_P), 1), positions_AP1)
    return [(doubled(seen[n].query_BHNR)[:, :, 0], doubled(seen[n].key_BGMR)[:, :, 0]) for n in numbers]


def _answers(
    layer: int, rotary: Rotary, at_P: Array, moved: Sequence[tuple[Array, Array]], precision: str
) -> Answers | None:
    """Which pairs of the queries and keys answer; None where they do not even turn when all axes move."""
    frequencies_F = rotary.frequencies(int(at_P.max()) + 1)
    together, *alone = [[turned(side, at_P, rotary, precision) for side in sides] for sides in moved]
    if any(side is None or not side.fits(frequencies_F) for side in together):
        return None
    expected_AF = np.arange(len(alone))[:, None] == rotary.axis_F
    seen_AF = expected_AF.copy()
    for axis, sides in enumerate(alone):
        for side in sides:
            if side is None:
                return None
            tells_F = side.tells_F(frequencies_F)
            turns_F = side.misfit_F(frequencies_F) < side.misfit_F(np.zeros_like(frequencies_F))
            seen_AF[axis] = np.where(tells_F & (turns_F != expected_AF[axis]), turns_F, seen_AF[axis])
    return Answers(layer, seen_AF, expected_AF)


def _fault(model: Model, names: Sequence[str], wrong: Sequence[Answers]) -> Finding:
    first = wrong[0]
    seen, expected = ([int(each.sum()) for each in table] for table in (first.seen_AF, first.expected_AF))
    told = "; ".join(
        f"moving {name} alone turns {count} of {len(first.seen_AF[0])} pairs, {due} should"
        for name, count, due in zip(names, seen, expected, strict=True)
        if count != due
    )
    layers = tuple(each.layer for each in wrong)
    return Finding(
        "axes",
        "fault",
        "pairs turn with another axis of the position than the configuration says",
        f"In {say_layers(layers, len(model.layers))}: {told or 'as many pairs as should turn, but others'} (layer "
        f"{first.layer}). Texts do not show it, since all axes are equal there; images and video do, from the first "
        "patch on that is not on the diagonal.",
        "Give each pair the position of its own axis (mrope_section), not that of the first.",
        layers,
        _evidence("axes-dropped", layer=first.layer, axes=tuple(names), seen=seen, expected=expected),
    )


def _sound(model: Model, names: Sequence[str], answers: Sequence[Answers]) -> Finding:
    layers = tuple(each.layer for each in answers)
    counts = [int(each.sum()) for each in answers[0].expected_AF]
    told = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    return Finding(
        "axes",
        "ok",
        "each axis of a position turns the pairs that it should",
        f"In {say_layers(layers, len(model.layers))}, moved by itself up to position {FARTHEST - 1}: {told} pairs.",
        layers=layers,
        evidence=_evidence(None, axes=tuple(names), expected=counts),
    )


def _open(layers: tuple[int, ...], why: str) -> Finding:
    title = "which pairs turn with which axis could not be read"
    return Finding("axes", "cannot_tell", title, why, layers=layers, evidence=_evidence(None))


def _evidence(bug: str | None, **more: Any) -> dict[str, Any]:
    return {"probe": "axes", "bug": bug, **more}
