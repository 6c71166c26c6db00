"""One simulated run of a study: tokens under a regime's weights and an encoding, and when they have moved so far.

W is symmetric and positive definite, A symmetric and definite, V = A^-1 W: without a mask and without position tokens
then move together (A negative, T3) or apart (A positive, T4). Runs of one seed have the same W, A and first tokens,
whatever their regime, encoding and mask.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue, NotFound
from toposcope.core.files import make_directory
from toposcope.core.sealed import read_sealed, write_sealed
from toposcope.core.untrusted import require_plain
from toposcope.dynamics.matrices import simulate
from toposcope.encodings import parse
from toposcope.lab.settings import from_settings
from toposcope.runs.directory import RESULT
from toposcope.runs.jobs import COLLAPSE, COLLAPSE_SCHEMA, EXPECTED, Report

Array = NDArray[np.float64]
SCHEMA = 1  # a change of meaning makes every key a new one
MOMENTS = 241  # between which the time is interpolated
FIRST = 1e-3  # the first of them
LEAST, MOST = 0.5, 1.5  # eigenvalues of W and A, before they are scaled


@dataclass(frozen=True)
class CollapseConfig:
    """A regime, an encoding and a seed; sizes, the logits' scale, and how far tokens are to move."""

    regime: Literal["together", "apart"]
    encoding: str = "none"
    causal: bool = False
    seed: int = 0
    width: int = 16
    tokens: int = 24
    scale: float = 0.25
    factor: float = 4.0
    horizon: float = 1000.0

    def __post_init__(self) -> None:
        if self.regime not in ("together", "apart"):
            raise BadValue(f"'{self.regime}' is no regime of simulated runs; expected together or apart.")
        parse(self.encoding)
        if self.width < 2 or self.width % 2 or self.tokens < 2:
            raise BadValue("simulated runs take two tokens or more, of an even width.")
        if not (self.scale > 0 and self.factor > 1 and self.horizon > FIRST and 0 <= self.seed < 2**31):
            raise BadValue(f"scale and seed must be positive, factor above 1, the horizon above {FIRST:g}.")

    @property
    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "steps": 1}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, from which `from_dict` makes the same configuration."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return from_settings(cls, data)

    def key(self) -> str:
        """16 hex digits of all that decides the run."""
        told = {"schema": SCHEMA, "flow": "collapse", **asdict(self)}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def work(config: Mapping[str, Any], directory: Path, report: Report, device: str = "cpu") -> None:
    """A job of the run store: nothing where the result is there."""
    asked = CollapseConfig.from_dict(config)
    try:
        read_sealed(directory / RESULT, asked.key(), EXPECTED[COLLAPSE])
    except NotFound:
        make_directory(directory)
        require_plain(directory)
        report({"step": 1, "steps": 1})
        content = {"schema": COLLAPSE_SCHEMA, "config": asked.as_dict(), "finished": True, **run(asked)}
        write_sealed(directory / RESULT, asked.key(), content)


def run(config: CollapseConfig) -> dict[str, Any]:
    """When the dispersion has fallen, or grown, by the factor (None: not before the horizon), and its way there."""
    random = np.random.default_rng(config.seed)
    w = config.scale * _definite(random, config.width)
    a = _definite(random, config.width)
    x = random.standard_normal((config.tokens, config.width))
    v = np.linalg.solve(a, w)
    v *= (-1.0 if config.regime == "together" else 1.0) / np.linalg.norm(v, 2)
    values, vectors = np.linalg.eigh(w)
    root = np.sqrt(values)[:, None] * vectors.T  # W = root^T root: queries and keys that a rotation can turn
    times = np.geomspace(FIRST, config.horizon, MOMENTS - 1)
    found = simulate(
        w, v, x, causal=config.causal, encoding=config.encoding, factors=(root, root), horizon=config.horizon,
        times=times,
    )  # fmt: skip
    spread = np.asarray(found.observables["dispersion"])
    moved = np.log(spread / spread[0]) * (-1.0 if config.regime == "together" else 1.0)
    return {
        "time": _crossed(np.asarray(found.times), moved, float(np.log(config.factor))),
        "evaluations": found.evaluations,
        "end": float(found.times[-1]),
        "moved": float(moved[-1]),
    }


def _definite(random: np.random.Generator, width: int) -> Array:
    """A symmetric matrix with eigenvalues between `LEAST` and `MOST`."""
    vectors, _ = np.linalg.qr(random.standard_normal((width, width)))
    return np.asarray((vectors * random.uniform(LEAST, MOST, width)) @ vectors.T)


def _crossed(times: Array, moved: Array, wanted: float) -> float | None:
    """The first time at which `moved` reaches what is wanted, linearly between two moments."""
    beyond = np.flatnonzero(moved >= wanted)
    if not len(beyond):
        return None
    at = int(beyond[0])
    if at == 0:
        return float(times[0])
    share = (wanted - moved[at - 1]) / (moved[at] - moved[at - 1])
    return float(times[at - 1] + share * (times[at] - times[at - 1]))
