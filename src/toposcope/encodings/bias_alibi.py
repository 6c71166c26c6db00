"""ALiBi: a penalty on the logit that grows with distance, a slope for each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from toposcope.core.errors import BadEncoding
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Array, Encoding, LogitBias, short, stated
from toposcope.encodings.registry import Kind, Paper

Precision = Literal["float64", "float32", "bfloat16"]
PRECISIONS = get_args(Precision)


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


def _rounded(values: Array, precision: Precision) -> Array:
    if precision == "float64":
        return values
    single = values.astype(np.float32)
    if precision == "float32":
        return single.astype(np.float64)
    if precision == "bfloat16":
        import ml_dtypes

        return single.astype(ml_dtypes.bfloat16).astype(np.float64)
    raise BadEncoding(f"unknown precision '{precision}'; give float64, float32 or bfloat16.")


PAPERS = {
    "press2022alibi": Paper(
        "Press, Smith, Lewis",
        "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        "ICLR",
        2022,
        "2108.12409",
    ),
}
KINDS = (
    Kind(
        "alibi",
        "a penalty that grows with distance, a slope per head",
        "bias",
        lambda sizes, given: alibi(sizes.heads, **given),
        (
            Parameter("symmetric", "bool", True, "minus slope times distance; false: times i - j, signed"),
            Parameter("slopes", "floats", None, "one per head; default: the published ones"),
            Parameter.number("max_bias", 8.0, "the flattest published slope is 2^-max_bias", above=0),
            Parameter.number("scale", 1.0, "multiplies the bias", above=0),
            Parameter.choice("slope_dtype", "float64", "precision the slopes are rounded to", *PRECISIONS),
            Parameter.choice("table_dtype", "float64", "precision slope times position is rounded to", *PRECISIONS),
        ),
        {"linear-bias": {}},
        ("press2022alibi",),
    ),
)
