"""FIRE: a small network of the distance relative to the position, added to the logit; it is not Toeplitz."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding
from toposcope.core.memory import require_memory
from toposcope.encodings.parameter import SEED, Parameter
from toposcope.encodings.record import Array, Encoding, LogitBias, short, stated
from toposcope.encodings.registry import Given, Kind, Paper, Sizes


def fire(
    hidden_weight: Sequence[float] | Array,
    hidden_bias: Sequence[float] | Array,
    output_weight_HW: ArrayLike,
    output_bias_H: Sequence[float] | Array,
    *,
    c: float = 0.1,
    threshold: float = 512.0,
    causal: bool = True,
) -> Encoding:
    """Functional interpolation: b(i, j) = f(psi(|i-j|) / psi(max(L, i))), psi(x) = ln(c x + 1).

    f is a network with one hidden layer of ReLUs, R -> R^H, and L the threshold below which distances are not
    normalised by the position. Since i enters alone, the bias is not Toeplitz. The paper is causal; without a
    mask we normalise by max(L, i, j), which agrees with it for j <= i and keeps the ratio in [0, 1].
    """
    w_W, b_W = np.asarray(hidden_weight, dtype=np.float64).ravel(), np.asarray(hidden_bias, dtype=np.float64)
    out_HW, out_H = np.asarray(output_weight_HW, dtype=np.float64), np.asarray(output_bias_H, dtype=np.float64)
    heads = len(out_H)
    if b_W.shape != w_W.shape or out_HW.shape != (heads, len(w_W)):
        raise BadEncoding(
            f"FIRE's network does not fit together: hidden {w_W.shape} + {b_W.shape}, "
            f"output {out_HW.shape} + {out_H.shape}; expected (W,) + (W,), (H, W) + (H,)."
        )
    if not (c > 0 and threshold > 0):
        raise BadEncoding(f"FIRE needs c > 0 and threshold > 0, got {c} and {threshold}.")

    def bias_at(query_N: Array, key_M: Array) -> Array:
        reach_NM = np.broadcast_to(query_N[:, None], (len(query_N), len(key_M)))
        if not causal:
            reach_NM = np.maximum(reach_NM, key_M)
        ratio_NM = np.log1p(c * np.abs(query_N[:, None] - key_M)) / np.log1p(c * np.maximum(reach_NM, threshold))
        bias_HNM = np.zeros((heads, *ratio_NM.shape))
        for weight, bias, out in zip(w_W, b_W, out_HW.T, strict=True):  # one unit at a time: no N x M x W array
            bias_HNM += out[:, None, None] * np.maximum(weight * ratio_NM + bias, 0.0)
        return bias_HNM + out_H[:, None, None]

    return Encoding(
        name="fire",
        title=f"FIRE, {len(w_W)} hidden units, {heads} heads, threshold {short(threshold)}",
        parameters=stated(heads=heads, hidden=len(w_W), c=c, threshold=threshold, causal=causal),
        bias=LogitBias(heads, bias_at, toeplitz=False),
        citations=("li2024fire",),
    )


def fire_network(heads: int, hidden: int = 32, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """FIRE's network before training: hidden weight and bias (W,), output weight (H, W) and bias (H,)."""
    if heads < 1 or hidden < 1:
        raise BadEncoding(f"FIRE needs at least one head and one hidden unit, got {heads} and {hidden}.")
    require_memory(16 * hidden * (heads + 2), f"a network of {hidden:,} hidden units", "Use fewer of them.")
    draw = np.random.default_rng(seed).uniform
    inner = 1 / math.sqrt(hidden)
    return (
        draw(-1, 1, hidden),
        draw(-1, 1, hidden),
        draw(-inner, inner, (heads, hidden)),
        draw(-inner, inner, heads),
    )


def fire_init(
    heads: int, *, hidden: int = 32, c: float = 0.1, threshold: float = 512.0, causal: bool = True, seed: int = 0
) -> Encoding:
    """FIRE before training: weights and biases uniform in +-1/sqrt(fan in), the same for the same seed."""
    made = fire(*fire_network(heads, hidden, seed), c=c, threshold=threshold, causal=causal)
    return Encoding(
        name=made.name,
        title=f"{made.title}, before training",
        parameters=stated(**dict(made.parameters), seed=seed),
        bias=made.bias,
        notes=("the network is a fresh initialisation, not that of a trained model.",),
        citations=made.citations,
    )


def _trained(sizes: Sizes, said: Given, tensors: Mapping[str, NDArray[Any]]) -> Encoding:
    exact = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return fire(
        exact["hidden_weight"],
        exact["hidden_bias"],
        exact["output_weight"],
        exact["output_bias"],
        c=float(np.exp(exact["log_c"])),
        threshold=float(np.exp(exact["log_threshold"])),
        causal=said["causal"],
    )


PAPERS = {
    "li2024fire": Paper(
        "Li et al.",
        "Functional Interpolation for Relative Positions Improves Long Context Transformers",
        "ICLR",
        2024,
        "2310.04418",
    ),
}
KINDS = (
    Kind(
        "fire",
        "a small network of the distance relative to the position, added to the logit",
        "bias",
        lambda sizes, given: fire_init(sizes.heads, **{"causal": sizes.causal, **given}),
        (
            Parameter.whole("hidden", 32, "units of the network"),
            Parameter.number("c", 0.1, "psi(x) = ln(c x + 1)", above=0),
            Parameter.number("threshold", 512.0, "L: queries before this position do not rescale distances", above=0),
            Parameter("causal", "bool", None, "normalise by the query's position only; default: as the model"),
            SEED,
        ),
        citations=("li2024fire",),
        learns=("hidden_weight", "hidden_bias", "output_weight", "output_bias", "log_c", "log_threshold"),
        trained=_trained,
    ),
)
