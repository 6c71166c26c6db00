"""Small systems that show one thing each, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.dynamics.matrices import matrices
from toposcope.dynamics.run import Problem
from toposcope.dynamics.tokens import isotropic
from toposcope.encodings import Encoding, rope

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Preset:
    """A system to look at: what to see, how many tokens it has by default, and the arguments of `matrices`.

    `why` is how we read what is seen, where no theorem says it.
    """

    name: str
    sentence: str
    count: int
    make: Callable[[int, int], dict[str, Any]]  # (tokens, seed)
    fixed_count: bool = False
    growth_cap: float | None = None
    changes: Mapping[str, str] = field(default_factory=dict)  # a change worth trying, and what it does
    why: str = ""

    def arguments(self, count: int | None = None, seed: int = 0) -> dict[str, Any]:
        """W, V, x0 and the options, ready for `matrices` or `simulate`."""
        if count is not None and count < 1:
            raise BadValue(f"a flow needs at least one token, got {count}.")
        if self.fixed_count and count not in (None, self.count):
            raise BadValue(f"the preset '{self.name}' has {self.count} tokens; leave their number out.")
        return self.make(self.count if count is None else count, seed)

    def problem(self, count: int | None = None, seed: int = 0, **changes: Any) -> Problem:
        """The problem to run, with some arguments of `matrices` changed."""
        given = {**self.arguments(count, seed), "title": self.name, **changes}
        return matrices(given.pop("W"), given.pop("V"), given.pop("x0"), **given)


def rotation(degrees: float) -> Array:
    """The rotation of the plane by so many degrees."""
    angle = np.deg2rad(degrees)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def helix(count: int, radius: float = 1.33) -> Array:
    """Tokens x_j = R_{-j} y on a circle: an equilibrium under RoPE where n theta is in 2 pi Z (section 3).

    Every rotated query and key is the same vector y, so attention is uniform, and the mean of the tokens is 0.
    """
    angle = -2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def closing_rope(count: int) -> Encoding:
    """RoPE on one pair of channels that turns once in `count` tokens."""
    return rope(2, pairing="interleaved", divisors=[count / (2 * np.pi)])


def _cloud(count: int, width: int, seed: int, size: float = 1.0) -> Array:
    return size * isotropic(count, width, seed)


def _helix(count: int, seed: int) -> dict[str, Any]:
    if count < 2:
        raise BadValue("a helix needs at least two tokens.")
    start = helix(count) + 1e-3 * _cloud(count, 2, seed)
    return {
        "W": np.eye(2),
        "V": -np.eye(2),
        "x0": start,
        "causal": False,
        "encoding": closing_rope(count),
        "horizon": 200.0,
    }


def _plain(
    W: Array, V: Array, *, causal: bool, horizon: float, size: float = 1.0
) -> Callable[[int, int], dict[str, Any]]:
    def make(count: int, seed: int) -> dict[str, Any]:
        start = _cloud(count, len(W), seed, size)
        return {"W": W, "V": V, "x0": start, "causal": causal, "horizon": horizon}

    return make


def _metastable(count: int, seed: int) -> dict[str, Any]:
    start = np.array([[0.4, 0.0], [0.0, 1.755]])
    return {"W": -8 * np.eye(2), "V": -np.eye(2), "x0": start, "causal": True, "horizon": 200.0}


_ALL = (
    Preset(
        "collapse",
        "V = -I, W = I, no mask: all tokens go to 0 (Thm 3), slowly, like one over the root of time.",
        24,
        _plain(np.eye(3), -np.eye(3), causal=False, horizon=100.0),
        changes={"--causal": "the same end by Thm 6, and exponentially fast"},
    ),
    Preset(
        "explode",
        "V = I, W = I, no mask: all tokens go to infinity (Thm 4), and every pair moves apart (Thm 1).",
        24,
        _plain(np.eye(3), np.eye(3), causal=False, horizon=20.0),
    ),
    Preset(
        "helix",
        "V = -I would let all tokens collapse, but RoPE holds a closed helix where it is.",
        12,
        _helix,
        why="RoPE turns all queries and keys of the helix to one vector, so each token attends to all alike; their "
        "mean is 0, and nothing pulls",
        changes={"--add-diagonal 1": "with a diagonal term the helix collapses"},
    ),
    Preset(
        "clusters",
        "V = I, W = 4 I, no mask: tokens fly to infinity, and gather at a few corners of their cloud.",
        60,
        _plain(4 * np.eye(2), np.eye(2), causal=False, horizon=20.0),
        why="as tokens grow, attention sharpens until each attends to one token alone, the farthest out in its own "
        "direction: a corner of the cloud. Corners fly straight out, the others follow: no two come nearer (Thm 1), "
        "but those behind one corner do in proportion to their norms",
    ),
    Preset(
        "c1",
        "Thm 3 without its symmetry: sym(W) > 0 and sym(W V^-1) < 0 (W turned by 60 degrees, V by -60), and yet the "
        "only token goes to infinity.",
        1,
        _plain(rotation(60), rotation(-60), causal=False, horizon=30.0),
        fixed_count=True,
        why="alone, a token attends to itself, whatever W is, and V's eigenvalues have real part 1/2",
    ),
    Preset(
        "c1-mirror",
        "Thm 4 without its symmetry: sym(W) > 0 and sym(W V^-1) > 0 (W turned by 60 degrees, V by 120), and yet one "
        "token goes to 0 (--n 1); five go to infinity.",
        5,
        _plain(rotation(60), rotation(120), causal=False, horizon=60.0, size=2.0),
    ),
    Preset(
        "metastable",
        "V = -I with W = -8 I, causal: the second token must go to 0 (Thm 6), but stands still for very long.",
        2,
        _metastable,
        fixed_count=True,
        why="the second token hardly attends to itself, its logit with itself being -25, but to the first, which is "
        "soon at 0 and pulls nothing",
    ),
)
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}


def find_preset(name: str) -> Preset:
    """The preset of that name, or an error with the nearest names."""
    if name not in PRESETS:
        raise BadValue(f"'{name}' is no preset. {did_you_mean(name, PRESETS)}")
    return PRESETS[name]
