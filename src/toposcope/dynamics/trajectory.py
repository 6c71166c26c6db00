"""What a flow leaves behind: times, tokens, observables, events, a status; kept on disk as .npz, shown in a plane."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.arrays import read_npz
from toposcope.core.errors import BadFile
from toposcope.core.fields import plain
from toposcope.core.files import write_bytes
from toposcope.dynamics.observables import OBSERVABLES, norms

Array = NDArray[np.float64]
SCHEMA = "toposcope/flow-record/1"
FRAMES, MOST_DRAWN = 60, 64  # moments, and tokens, of a picture


class Status(StrEnum):
    """How a flow ended; `meaning` is a sentence."""

    HORIZON = "horizon"
    CONVERGED = "converged"
    GREW = "grew"
    AT_REST = "at_rest"
    STIFF = "stiff"
    EXHAUSTED = "exhausted"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Status.HORIZON: "its time was up while tokens were still moving",
    Status.CONVERGED: "every token came within a millionth of its limit",
    Status.GREW: "tokens had grown so far that runs stop (--growth-cap)",
    Status.AT_REST: "its time was up with all tokens at rest, not at 0",
    Status.STIFF: "the equations turned stiff and the run stopped; what comes later is not known",
    Status.EXHAUSTED: "the allowed evaluations were used up; what comes later is not known",
}


@dataclass(frozen=True)
class FlowEvent:
    """Something that happened on the way, with its time and a sentence."""

    name: str
    time: float
    words: str


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One flow.

    `tokens` (times, kept tokens, width) are the tokens' own coordinates, or for a head those of the part it can move;
    `token_numbers` says which tokens were kept. `observables` holds one array over time per name. `log_growth` is
    log(largest norm at the end / at the start), `growth_rate` its slope over the last third of the run, and
    `token_log_growth` the same ratio token by token (NaN for one that starts at 0, -inf never: a token at 0 counts as
    the smallest positive number).
    """

    title: str
    status: Status
    times: Array
    tokens: Array
    token_numbers: NDArray[np.intp]
    observables: Mapping[str, Array]
    events: tuple[FlowEvent, ...]
    final: Array
    log_growth: float
    growth_rate: float
    token_log_growth: Array
    evaluations: int
    accepted: int
    rejected: int
    speed: float  # the largest |dx/dt| at the end over the largest norm there
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        """The time at which the run stopped."""
        return float(self.times[-1])

    @property
    def count(self) -> int:
        """How many tokens flowed."""
        return len(self.final)

    def change(self, name: str) -> tuple[float, float]:
        """An observable at the start and at the end."""
        values = self.observables[name]
        return float(values[0]), float(values[-1])

    def save(self, path: str | Path) -> Path:
        """Write everything as one .npz file: arrays, and the rest as JSON text inside it."""
        named = (
            "title",
            "status",
            "evaluations",
            "log_growth",
            "growth_rate",
            "speed",
            "events",
            "settings",
            "notes",
        )
        described = {
            "schema": SCHEMA,
            **{name: plain(getattr(self, name)) for name in named},
            "accepted_steps": self.accepted,
            "rejected_steps": self.rejected,
        }
        arrays: dict[str, Any] = {
            "times": self.times,
            "tokens": self.tokens,
            "token_numbers": self.token_numbers,
            "final": self.final,
            "token_log_growth": self.token_log_growth,
            **{f"observable_{name}": values for name, values in self.observables.items()},
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, description=np.array(json.dumps(described, allow_nan=False)), **arrays)
        return write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Trajectory:
        """Read back what `save` wrote."""
        try:
            arrays = read_npz(path, "a flow saved by Toposcope")
            described = json.loads(str(arrays["description"][()]))
            if described["schema"] != SCHEMA:
                raise BadFile(f"{path} is written as {described['schema']}; expected {SCHEMA}.")
            return cls(
                title=described["title"],
                status=Status(described["status"]),
                times=arrays["times"],
                tokens=arrays["tokens"],
                token_numbers=arrays["token_numbers"],
                observables={
                    each.name: arrays[f"observable_{each.name}"]
                    for each in OBSERVABLES
                    if f"observable_{each.name}" in arrays
                },
                events=tuple(FlowEvent(**event) for event in described["events"]),
                final=arrays["final"],
                log_growth=described["log_growth"],
                growth_rate=described["growth_rate"],
                token_log_growth=arrays["token_log_growth"],
                evaluations=described["evaluations"],
                accepted=described["accepted_steps"],
                rejected=described["rejected_steps"],
                speed=described["speed"],
                settings=described["settings"],
                notes=tuple(described["notes"]),
            )
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise BadFile(f"{path} is not a flow saved by Toposcope ({error}).") from error


@dataclass(frozen=True)
class PlanePath:
    """Tokens moving in a plane: points (moments, tokens, 2) in the two main directions, to four digits.

    `share` of the square norm lies in these directions; `relative` points are divided by the largest norm of the
    moment, since the tokens go far.
    """

    times: tuple[float, ...]
    xy: tuple[tuple[tuple[float, float], ...], ...]
    share: float
    relative: bool


def in_plane(found: Trajectory) -> PlanePath:
    """A trajectory as a moving picture: at most so many tokens, at evenly spaced moments."""
    plane_TN2, relative, share = _plane(found)
    at = found.times
    if len(at) > 1:
        at = np.linspace(found.times[0], found.times[-1], FRAMES)
        plane_TN2 = _between(found.times, plane_TN2, at)
    count = plane_TN2.shape[1]
    kept = np.unique(np.linspace(0, count - 1, min(MOST_DRAWN, count)).round().astype(int))
    size = max(float(np.abs(plane_TN2).max()), 1e-300)
    points = size * np.round(plane_TN2[:, kept] / size, 4)
    return PlanePath(
        times=tuple(_short(time) for time in at),
        xy=tuple(tuple((_short(x), _short(y)) for x, y in cloud) for cloud in points),
        share=share,
        relative=relative,
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _plane(found: Trajectory) -> tuple[Array, bool, float]:
    """The tokens in their two main directions, whether relative to the largest norm, and the share these hold."""
    tokens = found.tokens
    if tokens.shape[1] > 2 * MOST_DRAWN:
        tokens = tokens[:, np.linspace(0, tokens.shape[1] - 1, 2 * MOST_DRAWN).round().astype(int)]
    largest = np.array([max(float(norms(cloud).max()), 1e-300) for cloud in tokens])
    relative = bool(largest.max() > 20 * largest[0])
    tokens = tokens / largest[:, None, None] if relative else tokens
    width = tokens.shape[2]
    if width <= 2:
        return np.concatenate([tokens, np.zeros((*tokens.shape[:2], 2 - width))], axis=2), relative, 1.0
    plane = tokens @ _main_directions(tokens).T
    return plane, relative, float((plane**2).sum() / max((tokens**2).sum(), 1e-300))


def _main_directions(tokens: Array) -> Array:
    """The two directions through the origin, where tokens collapse to and fly from, with the most square norm."""
    rows = tokens.reshape(-1, tokens.shape[2])
    thin = rows[:: max(1, len(rows) // 4000)] / max(1e-300, np.abs(rows).max())
    return np.asarray(np.linalg.svd(thin, full_matrices=False)[2][:2])


def _between(times: Array, path_TN2: Array, at: Array) -> Array:
    """Positions at evenly spaced moments, by straight lines between the kept ones."""
    right = np.clip(np.searchsorted(times, at), 1, len(times) - 1)
    left = right - 1
    share = ((at - times[left]) / (times[right] - times[left]))[:, None, None]
    return np.asarray(path_TN2[left] * (1 - share) + path_TN2[right] * share)
