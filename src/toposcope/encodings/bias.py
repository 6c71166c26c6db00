"""Encodings that add a number b to each logit: T5's buckets, ALiBi, Kerple, FIRE.

All but FIRE depend on t = i - j only (query minus key): their tables are Toeplitz.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding
from toposcope.core.memory import foresee
from toposcope.core.ranges import computable
from toposcope.encodings.record import Array, Encoding, LogitBias
from toposcope.encodings.words import short, stated

Precision = Literal["float64", "float32", "bfloat16"]


def t5_bucket(
    relative_position: ArrayLike, *, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128
) -> NDArray[np.int64]:
    """T5's bucket of a relative position j - i (key minus query): exact when near, logarithmic when far.

    With n buckets per direction and e = n // 2, a distance t < e has bucket t, a longer one
    e + floor((n - e) ln(t/e) / ln(max_distance/e)), at most n - 1. Bidirectional tables use half of the buckets
    for each direction; the others see only the past, and the future falls into bucket 0.

    Every step is rounded to float32, as in the models that were trained with it: near a border between two buckets
    that rounding decides, and float64 would decide otherwise. The logarithm is rounded correctly; libraries miss
    that by one bit now and then, so a distance within one such bit of a border may be theirs or ours to decide.
    """
    per_side = buckets // 2 if bidirectional else buckets
    exact = per_side // 2
    if exact < 1:
        raise BadEncoding(f"{buckets} buckets are too few: T5 needs 4 or more, or 2 when it looks one way only.")
    if max_distance <= exact:
        raise BadEncoding(f"max_distance must exceed the {exact} exact buckets, got {max_distance}.")
    relative = np.trunc(np.asarray(relative_position, dtype=np.float64)).astype(np.int64)
    side = np.where(relative > 0, per_side, 0) if bidirectional else np.zeros_like(relative)
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    log_ratio = np.log(ratio.astype(np.float64)).astype(np.float32)
    far = log_ratio / np.float32(math.log(max_distance / exact)) * np.float32(per_side - exact)
    logarithmic = np.minimum(exact + far.astype(np.int64), per_side - 1)
    return np.asarray(side + np.where(distance < exact, distance, logarithmic), dtype=np.int64)


def t5(table_BH: NDArray[Any], *, bidirectional: bool = True, max_distance: int = 128) -> Encoding:
    """T5's relative bias from a checkpoint: b(i, j) = table[bucket(j - i), head].

    `table_BH` has a row per bucket and a column per head, as `relative_attention_bias.weight` does.
    """
    values_BH = np.asarray(table_BH).astype(np.float64)
    if values_BH.ndim != 2:
        raise BadEncoding(f"a T5 table has the shape (buckets, heads), got {values_BH.shape}.")
    if values_BH.size and not computable(float(np.abs(values_BH).max())):
        raise BadEncoding(f"a T5 table holds {np.abs(values_BH).max():.3g}; that cannot be computed with.")
    buckets, heads = values_BH.shape
    t5_bucket(0, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)  # complain now, not later

    def bias_at(query_N: Array, key_M: Array) -> Array:
        bucket_NM = t5_bucket(
            key_M - query_N[:, None], bidirectional=bidirectional, buckets=buckets, max_distance=max_distance
        )
        return np.ascontiguousarray(values_BH[bucket_NM].transpose(2, 0, 1))

    way = "both ways" if bidirectional else "backwards"
    return Encoding(
        name="t5",
        title=f"T5 bias, {buckets} buckets {way}, to distance {max_distance}",
        parameters=stated(buckets=buckets, heads=heads, bidirectional=bidirectional, max_distance=max_distance),
        bias=LogitBias(heads, bias_at, toeplitz=True),
        citations=("raffel2020t5",),
    )


def t5_init(
    heads: int,
    *,
    buckets: int = 32,
    bidirectional: bool = True,
    max_distance: int = 128,
    std: float = 0.05,
    seed: int = 0,
) -> Encoding:
    """T5's relative bias before training: the table is drawn from N(0, std^2), the same for the same seed."""
    if heads < 1:
        raise BadEncoding(f"a bias needs at least one head, got {heads}.")
    if not (math.isfinite(std) and std >= 0):
        raise BadEncoding(f"std must not be negative, got {std}.")
    t5_bucket(0, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)  # too few are refused
    foresee(24 * buckets * heads, f"a table of {buckets:,} buckets", "Use fewer of them.")
    drawn_BH = std * np.random.default_rng(seed).standard_normal((buckets, heads))
    made = t5(drawn_BH, bidirectional=bidirectional, max_distance=max_distance)
    return Encoding(
        name=made.name,
        title=f"{made.title}, before training",
        parameters=stated(**dict(made.parameters), std=std, seed=seed),
        bias=made.bias,
        notes=("the table is a fresh initialisation, not that of a trained model.",),
        citations=made.citations,
    )


def alibi_slopes(heads: int, max_bias: float = 8.0) -> Array:
    """ALiBi's slope of each head: 2^(-max_bias h / H), h = 1 .. H.

    Where H is no power of two: the slopes of the power of two below, then every other slope of the one above.
    """
    if heads < 1:
        raise BadEncoding(f"ALiBi needs at least one head, got {heads}.")
    whole = 2 ** int(math.log2(heads))
    own = -max_bias * np.arange(1, whole + 1) / whole
    between = -max_bias * np.arange(1, 2 * (heads - whole), 2) / (2 * whole)
    return np.asarray(2.0 ** np.concatenate([own, between]), dtype=np.float64)


def alibi(
    heads: int,
    *,
    symmetric: bool = True,
    slopes: Sequence[float] | Array | None = None,
    max_bias: float = 8.0,
    scale: float = 1.0,
    slope_dtype: Precision = "float64",
    table_dtype: Precision = "float64",
) -> Encoding:
    """Attention with linear biases: b(i, j) = -m_h |i - j| scale.

    `symmetric=False` gives -m_h (i - j), which is the same for the past and rewards the future; models that add
    m_h j and mask the future compute that one, up to a constant per row. Falcon rounds its slopes to bfloat16
    (`slope_dtype`), j and m_h j as well (`table_dtype`, after which the bias is no longer Toeplitz), and divides
    the bias by the root of the head width (`scale`).
    """
    slopes_H = alibi_slopes(heads, max_bias) if slopes is None else np.asarray(slopes, dtype=np.float64).copy()
    if slopes_H.shape != (heads,):
        raise BadEncoding(f"{slopes_H.size} slopes given for {heads} heads; give one per head.")
    slopes_H = _rounded(slopes_H, slope_dtype)

    def exact_at(query_N: Array, key_M: Array) -> Array:
        offset_NM = query_N[:, None] - key_M
        return -scale * slopes_H[:, None, None] * (np.abs(offset_NM) if symmetric else offset_NM)

    def rounded_at(query_N: Array, key_M: Array) -> Array:
        query_HN = _rounded(slopes_H[:, None] * _rounded(query_N, table_dtype), table_dtype)
        key_HM = _rounded(slopes_H[:, None] * _rounded(key_M, table_dtype), table_dtype)
        bias_HNM = key_HM[:, None, :] - query_HN[:, :, None]
        return scale * (-np.abs(bias_HNM) if symmetric else bias_HNM)

    exact = table_dtype == "float64"
    published = slopes is None
    return Encoding(
        name="alibi",
        title=f"ALiBi, {heads} heads, slopes {short(slopes_H.max() * scale)} to {short(slopes_H.min() * scale)}",
        parameters=stated(
            heads=heads,
            symmetric=symmetric,
            slopes=slopes_H.tolist(),
            max_bias=max_bias if published else None,
            scale=scale,
            slope_dtype=slope_dtype,
            table_dtype=table_dtype,
        ),
        bias=LogitBias(heads, exact_at if exact else rounded_at, toeplitz=exact),
        notes=() if exact else (f"the bias is rounded to {table_dtype}, so equal distances differ slightly.",),
        citations=("press2022alibi",),
    )


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
        raise BadEncoding(f"'{kernel}' is no Kerple kernel; give 'log' or 'power'.")
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
    foresee(16 * hidden * (heads + 2), f"a network of {hidden:,} hidden units", "Use fewer of them.")
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


def _per_head(given: float | Sequence[float] | Array, heads: int, name: str) -> Array:
    if heads < 1:
        raise BadEncoding(f"a bias needs at least one head, got {heads}.")
    values = np.asarray(given, dtype=np.float64)
    if values.ndim and values.shape not in ((1,), (heads,)):
        raise BadEncoding(f"{values.size} values of {name} given for {heads} heads; give one, or one per head.")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise BadEncoding(f"{name} must be positive, got {values.min()}.")
    return np.broadcast_to(values, (heads,)).copy()


def _rounded(values: Array, precision: Precision) -> Array:
    if precision == "float64":
        return values
    single = values.astype(np.float32)
    if precision == "float32":
        return single.astype(np.float64)
    if precision == "bfloat16":
        import ml_dtypes

        return single.astype(ml_dtypes.bfloat16).astype(np.float64)
    raise BadEncoding(f"'{precision}' is no precision known here; give float64, float32 or bfloat16.")
