"""T5's relative bias: a trained number for each bucket of distances, added to the logit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding
from toposcope.core.memory import require_memory
from toposcope.core.ranges import computable
from toposcope.encodings.parameter import SEED, Parameter
from toposcope.encodings.record import Array, Encoding, LogitBias, stated
from toposcope.encodings.registry import Kind, Paper


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
    require_memory(24 * buckets * heads, f"a table of {buckets:,} buckets", "Use fewer of them.")
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


PAPERS = {
    "raffel2020t5": Paper(
        "Raffel et al.",
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        "JMLR",
        2020,
        "1910.10683",
    ),
}
KINDS = (
    Kind(
        "t5",
        "a trained number per bucket of distances, added to the logit",
        "bias",
        lambda sizes, given: t5_init(sizes.heads, **{"bidirectional": not sizes.causal, **given}),
        (
            Parameter.whole("buckets", 32, "rows of the table", least=2),
            Parameter.whole("max_distance", 128, "beyond it all distances share a bucket", least=2),
            Parameter("bidirectional", "bool", None, "past and future apart; default: unless causal"),
            Parameter.number("std", 0.05, "standard deviation before training", least=0),
            SEED,
        ),
        {"relative": {}, "t5-bias": {}},
        ("raffel2020t5",),
        learns=("table",),
        trained=lambda sizes, said, tensors: t5(
            tensors["table"], bidirectional=said["bidirectional"], max_distance=said["max_distance"]
        ),
    ),
)
