"""Kerple: a logarithmic or power-law penalty on distance, added to the logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadEncoding
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Array, Encoding, LogitBias, stated
from toposcope.encodings.registry import Given, Kind, Paper, Sizes


def kerple(
    heads: int,
    *,
    kernel: Literal["log", "power"] = "log",
    r1: float | Sequence[float] | Array = 1.0,
    r2: float | Sequence[float] | Array = 1.0,
) -> Encoding:
    """Kernelised relative bias: -r1 ln(1 + r2 |i-j|) for `log`, -r1 |i-j|^r2 for `power`; r1, r2 per head.

    Both are conditionally positive definite for r1, r2 > 0 (r2 <= 2 for `power`). They are learned in the paper;
    the default of 1 everywhere is ours.
    """
    if kernel not in ("log", "power"):
        raise BadEncoding(f"unknown Kerple kernel '{kernel}'; give 'log' or 'power'.")
    r1_H, r2_H = _per_head(r1, heads, "r1"), _per_head(r2, heads, "r2")
    if kernel == "power" and (r2_H > 2).any():
        raise BadEncoding(f"the power kernel needs r2 of at most 2, got {r2_H.max()}.")
    a, b = r1_H[:, None, None], r2_H[:, None, None]

    def bias_at(query_N: Array, key_M: Array) -> Array:
        distance_NM = np.abs(query_N[:, None] - key_M)
        return -a * (np.log1p(b * distance_NM) if kernel == "log" else distance_NM**b)

    formula = "-r1 ln(1 + r2 t)" if kernel == "log" else "-r1 t^r2"
    return Encoding(
        name="kerple",
        title=f"Kerple, {formula}, {heads} heads",
        parameters=stated(heads=heads, kernel=kernel, r1=r1_H.tolist(), r2=r2_H.tolist()),
        bias=LogitBias(heads, bias_at, toeplitz=True),
        citations=("chi2022kerple",),
    )


def _trained(sizes: Sizes, said: Given, tensors: Mapping[str, NDArray[Any]]) -> Encoding:
    raw_r2 = tensors["raw_r2"].astype(np.float64)
    r2 = np.exp(raw_r2) if said["kernel"] == "log" else 2 / (1 + np.exp(-raw_r2))
    return kerple(sizes.heads, kernel=said["kernel"], r1=np.exp(tensors["raw_r1"].astype(np.float64)), r2=r2)


def _per_head(given: float | Sequence[float] | Array, heads: int, name: str) -> Array:
    if heads < 1:
        raise BadEncoding(f"a bias needs at least one head, got {heads}.")
    values = np.asarray(given, dtype=np.float64)
    if values.ndim and values.shape not in ((1,), (heads,)):
        raise BadEncoding(f"{values.size} values of {name} given for {heads} heads; give one, or one per head.")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise BadEncoding(f"{name} must be positive, got {values.min()}.")
    return np.broadcast_to(values, (heads,)).copy()


PAPERS = {
    "chi2022kerple": Paper(
        "Chi et al.",
        "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
        "NeurIPS",
        2022,
        "2205.09921",
    ),
}
KINDS = (
    Kind(
        "kerple",
        "a logarithmic or power-law penalty on distance",
        "bias",
        lambda sizes, given: kerple(sizes.heads, **given),
        (
            Parameter.choice("kernel", "log", "log: -r1 ln(1 + r2 t); power: -r1 t^r2", "log", "power"),
            Parameter("r1", "floats", (1.0,), "one for all heads, or one per head", above=0),
            Parameter("r2", "floats", (1.0,), "one for all heads, or one per head", above=0),
        ),
        {"kerple-log": {"kernel": "log"}, "kerple-power": {"kernel": "power"}},
        ("chi2022kerple",),
        learns=("raw_r1", "raw_r2"),
        trained=_trained,
    ),
)
