"""How far apart two colours look, also to eyes that lack one of the three kinds of cones.

A colour is simulated by the matrices of Machado, Oliveira and Fernandes (2009) for full severity, in linear RGB, and
distances are Euclidean in OKLab, where about 0.02 is the least that can be told side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

NEAR = 0.06  # three times the least difference: nearer ones are not told apart as thin lines or small dots
_EYES = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def apart(first: str, second: str) -> float:
    """The distance of two colours #rrggbb in OKLab to the eye that tells them apart least."""
    return min(math.dist(_oklab(first, eye), _oklab(second, eye)) for eye in _EYES)


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG counts it, from 1 to 21."""
    low, high = sorted(_times((0.2126, 0.7152, 0.0722), _linear(each)) for each in (first, second))
    return (high + 0.05) / (low + 0.05)


def _oklab(colour: str, eye: str) -> list[float]:
    seen = [min(1.0, max(0.0, _times(row, _linear(colour)))) for row in _EYES[eye]]
    cones = [_times(row, seen) ** (1 / 3) for row in _TO_CONES]
    return [_times(row, cones) for row in _TO_OKLAB]


def _linear(colour: str) -> list[float]:
    shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def _times(row: Sequence[float], column: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, column, strict=True))
