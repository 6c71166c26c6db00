"""What a flow leaves behind: times, tokens, observables, events and a status, on disk as .npz and as JSON."""

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
from toposcope.core.files import write_bytes
from toposcope.core.results import plain
from toposcope.dynamics.observables import OBSERVABLES

Array = NDArray[np.float64]
SCHEMA = "toposcope/flow-record/1"


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
    Status.HORIZON: "the horizon was reached while tokens were still moving",
    Status.CONVERGED: "every token came within a millionth of its limit",
    Status.GREW: "tokens grew to the growth cap, and the run stopped there",
    Status.AT_REST: "the horizon was reached with all tokens at rest, not at 0",
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
class FlowResult:
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

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: all but the tokens' trajectories."""
        return {
            "title": self.title,
            "status": str(self.status),
            "meaning": self.status.meaning,
            "end": self.end,
            "tokens": self.count,
            "evaluations": self.evaluations,
            "accepted_steps": self.accepted,
            "rejected_steps": self.rejected,
            "log_growth": self.log_growth,
            "growth_rate": self.growth_rate,
            "token_log_growth": plain(self.token_log_growth),
            "speed": self.speed,
            "events": [plain(event) for event in self.events],
            "observables": {
                "time": plain(self.times),
                **{name: plain(values) for name, values in self.observables.items()},
            },
            "settings": plain(dict(self.settings)),
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> Path:
        """Write everything as one .npz file: arrays, and the rest as JSON text inside it."""
        described = {**self.as_dict(), "schema": SCHEMA}
        described.pop("observables")
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
    def load(cls, path: str | Path) -> FlowResult:
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
