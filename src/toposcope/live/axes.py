"""Probe: which channel pairs turn when a position moves along one axis only?

Vision-language models give a token a position in time, height and width. On text all three are equal, so a model that
drops two of them passes every test on text; here each axis is moved by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.live import view
from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.core.progress import Progress, steps
from toposcope.encodings.record import Rotary
from toposcope.live.reference import fresh
from toposcope.live.ruler import Array
from toposcope.live.running import Running
from toposcope.live.stretched import columns, grid
from toposcope.live.subject import LiveSubject
from toposcope.live.turning import Turned, tells_F, turned

FARTHEST = 32768  # the position up to which an axis is moved: slow pairs answer only there
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
    subject = LiveSubject.of(running, model)
    rotaries = {
        number: layer.encoding.rotary
        for number, layer in subject.layers.items()
        if layer.encoding.rotary is not None and layer.spec.kind == "self"
    }
    described = {number: rotary for number, rotary in rotaries.items() if rotary.axis_F is not None}
    sections = _sections(running)
    if described:
        names = next(iter(described.values())).axes
    elif sections > 1 and rotaries:
        names, described = tuple(f"axis {number}" for number in range(sections)), rotaries
    else:
        return []
    layers = tuple(subject.layers[number].number for number in described)
    step = steps(progress, "axes of a position", 1)
    at_P = grid(min(FARTHEST, model.spec.context or FARTHEST))
    try:
        seen = _answers(subject, described, at_P, len(names))
        expected = _expected(running, described, at_P, len(names))
    except (IndexError, RuntimeError, ValueError, TypeError) as error:
        return [_open(layers, f"The model does not take positions of {len(names)} axes: {str(error).strip()[:160]}")]
    step()
    if seen is None:
        return [_open(layers, "Pairs do not turn as configured even where all axes move together.")]
    if expected is None:
        return [
            _open(layers, "The configuration shares pairs among axes (mrope_section) in a way that is not known.")
        ]
    tells = [tells_F(rotary.frequencies(), int(at_P.max()), subject.precision) for rotary in described.values()]
    answers = [
        Answers(layer, one & fast_F, other & fast_F)
        for layer, one, other, fast_F in zip(layers, seen, expected, tells, strict=True)
    ]
    wrong = [each for each in answers if not each.right]
    if wrong:
        return [_fault(model, names, wrong)]
    slow = [
        name
        for name, due, told in zip(names, expected[0], answers[0].expected_AF, strict=True)
        if due.any() and not told.any()
    ]
    if slow:
        return [_open(layers, f"The pairs of {' and '.join(slow)} turn too slowly for this precision to tell.")]
    return [_sound(model, names, answers)]


def _sections(running: Running) -> int:
    """How many axes the configuration shares its pairs among."""
    settings = getattr(running.config, "rope_parameters", None) or getattr(running.config, "rope_scaling", None)
    found = settings.get("mrope_section") if isinstance(settings, dict) else None
    return len(found) if isinstance(found, list | tuple) else 1


def _expected(running: Running, rotaries: Mapping[int, Rotary], at_P: Array, axes: int) -> list[Answer] | None:
    """Which pairs should turn with each axis: as described, or as they do in a fresh copy of transformers' class."""
    if all(rotary.axis_F is not None for rotary in rotaries.values()):
        return [np.arange(axes)[:, None] == rotary.axis_F for rotary in rotaries.values()]
    copy = fresh(running)
    if copy is None:
        return None
    other = LiveSubject.of(copy, view(copy.model))
    first = {number: rotary for number, rotary in rotaries.items() if number in other.layers}
    found = _answers(other, first, at_P, axes) if first else None
    return None if found is None else [found[0]] * len(rotaries)


def _moved(
    subject: LiveSubject, numbers: Sequence[int], at_P: Array, axes: int, axis: int | None
) -> list[tuple[Array, Array]]:
    """Queries and keys of tokens at these positions of one axis (None: of all), at 0 of the others."""
    positions_A1P = np.zeros((axes, 1, len(at_P)), dtype=np.int64)
    positions_A1P[slice(None) if axis is None else axis] = at_P.astype(np.int64)
    with subject.content(1):
        seen = subject.running.attentions(subject.text.ids(1, len(at_P)), positions_A1P)
    return [columns(seen[number], np.arange(len(at_P))) for number in numbers]


def _answers(subject: LiveSubject, rotaries: Mapping[int, Rotary], at_P: Array, axes: int) -> list[Answer] | None:
    """Which pairs turn with each axis (A, F), by layer; None where they do not even turn when all axes move."""
    moved = [_moved(subject, list(rotaries), at_P, axes, axis) for axis in (None, *range(axes))]
    found = []
    for place, rotary in enumerate(rotaries.values()):
        frequencies_F = rotary.frequencies(int(at_P.max()) + 1)
        sides = [[turned(side, at_P, rotary, subject.precision) for side in each[place]] for each in moved]
        if any(side is None for each in sides for side in each):
            return None
        together, *alone = [[side for side in each if side is not None] for each in sides]
        if not all(side.fits(frequencies_F) for side in together):
            return None
        found.append(np.array([_turns(each, frequencies_F) for each in alone]))
    return found


def _turns(sides: Sequence[Turned], frequencies_F: Array) -> Answer:
    """Which pairs of queries or keys turn by their frequency rather than stand still."""
    still_F = np.zeros_like(frequencies_F)
    told = [side.misfit_F(frequencies_F) < side.misfit_F(still_F) for side in sides]
    found: Answer = np.any(told, axis=0)
    return found


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
        f"In {say_layers(layers, len(model.layers))}, of {answers[0].seen_AF.shape[1]} pairs: {told}.",
        layers=layers,
        evidence=_evidence(None, axes=tuple(names), expected=counts),
    )


def _open(layers: tuple[int, ...], why: str) -> Finding:
    title = "which pairs turn with which axis could not be read"
    return Finding("axes", "cannot_tell", title, why, layers=layers, evidence=_evidence(None))


def _evidence(bug: str | None, **more: Any) -> dict[str, Any]:
    return {"probe": "axes", "bug": bug, **more}
