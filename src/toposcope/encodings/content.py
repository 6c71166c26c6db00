"""Encodings in which position and content cannot be told apart beforehand: CoPE and PoPE, declared without tables.

They can be trained and traced. The analyses that look at weights only need a logit that is bilinear in q and k with
tables p, w, g, b that are functions of position; these have none, so the record carries `exact_tables = False`.
"""

from __future__ import annotations

import math

import numpy as np

from toposcope.core.errors import BadEncoding
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Array, Encoding, short, stated
from toposcope.encodings.registry import Kind, Paper


def cope(head_dim: int, *, positions: int = 64) -> Encoding:
    """Contextual position: a token's distance is how many gates open between key j and query i.

    p_ij = sum_{k=j..i} sigmoid(q_i . k_k), cut at `positions` - 1, and l_ij = q_i . (k_j + e[p_ij]), where e is a
    learned table of `positions` vectors, interpolated between whole numbers.
    """
    if head_dim < 1 or positions < 2:
        raise BadEncoding(f"CoPE needs a head width and at least 2 positions, got {head_dim} and {positions}.")
    return Encoding(
        name="cope",
        title=f"CoPE, {positions} contextual positions",
        parameters=stated(head_dim=head_dim, positions=positions),
        exact_tables=False,
        notes=("positions are counted by gates that read the content, so there is no table of them.",),
        citations=("golovneva2024cope",),
    )


def pope(head_dim: int, *, base: float = 10000.0) -> Encoding:
    """Polar position: content sets the length of each channel, position its angle.

    l_ij = sum_c softplus(q_c) softplus(k_c) cos(w_c (i - j) + delta_c), a frequency for each channel (not pair), with
    learned delta. Position is a plain rotation, but the logit is not bilinear in q and k.
    """
    pope_frequencies(head_dim, base)
    return Encoding(
        name="pope",
        title=f"PoPE, base {short(base)}, {head_dim} channels",
        parameters=stated(head_dim=head_dim, base=base),
        exact_tables=False,
        notes=("content passes through a softplus, so the logit is not bilinear in query and key.",),
        citations=("gopalakrishnan2025pope",),
    )


def pope_frequencies(head_dim: int, base: float = 10000.0) -> Array:
    """PoPE's frequency of each channel: w_c = base^(-c / head_dim)."""
    if head_dim < 1:
        raise BadEncoding(f"the head width must be positive, got {head_dim}.")
    if not (math.isfinite(base) and base > 1):
        raise BadEncoding(f"the rotary base must be greater than 1, got {base}. Usual values: 10000 to 10000000.")
    return np.asarray(base ** -(np.arange(head_dim) / head_dim), dtype=np.float64)


PAPERS = {
    "golovneva2024cope": Paper(
        "Golovneva et al.",
        "Contextual Position Encoding: Learning to Count What's Important",
        "arXiv",
        2024,
        "2405.18719",
    ),
    "gopalakrishnan2025pope": Paper(
        "Gopalakrishnan et al.",
        'Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
        "arXiv",
        2025,
        "2509.10534",
    ),
}
KINDS = (
    Kind(
        "cope",
        "distance counted by gates that read the content; no tables",
        "content",
        lambda sizes, given: cope(sizes.head_dim, **given),
        (Parameter.whole("positions", 64, "contextual positions in the table", least=2),),
        citations=("golovneva2024cope",),
        learns=("table",),
    ),
    Kind(
        "pope",
        "content sets lengths, position sets angles; no tables",
        "content",
        lambda sizes, given: pope(sizes.head_dim, **given),
        (Parameter.number("base", 10000.0, "w_c = base^(-c/d), one frequency per channel", above=1),),
        {"polar": {}},
        ("gopalakrishnan2025pope",),
        learns=("phase",),
    ),
)
