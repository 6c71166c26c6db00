"""The order of a learned table's rows: are they shuffled, and is the first row that of the first token?

Rows of a trained table resemble their neighbours, so the two rows most like each row link all of them into a few long
chains, in whatever order they stand. Rows that are unrelated, or fill a few directions at random, link into scraps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from toposcope.checkpoints.view import Layer
from toposcope.checks.findings import Finding
from toposcope.checks.pairing import unit_rows
from toposcope.encodings.record import Array

CHAINED = 0.2  # share of the rows in a row's chain, on average: 0.39 to 0.64 in trained tables, below 0.05 in others
FIRST = 8  # rows among which the first is looked for
ORDERED = 0.3  # the cosine of neighbours from which their order can show where a table begins
WRAPS = 0.1  # by how much the last row may be nearer to the first than the second is
LAGS = 8  # distances at which rows are compared by what a layer makes of them
READ = 6.0  # deviations from which a layer reads rows in order: below 3.3 for rows in no order, up to 71 for others
FEWEST_ROWS = 64  # of a table whose chains mean something


def chained(rows_ND: Array) -> float:
    """The share of all rows that the chain of a row holds, averaged over rows."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = len(rows_ND)
    unit_ND = _unit(rows_ND)
    like_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(like_NN, -2.0)
    nearest_N2 = np.argpartition(-like_NN, 2, axis=1)[:, :2]
    linked_NN = np.zeros((count, count), dtype=bool)
    linked_NN[np.arange(count)[:, None], nearest_N2] = True
    _, chain_N = connected_components(csr_array(linked_NN & linked_NN.T), directed=False)
    return float((np.bincount(chain_N) ** 2).sum()) / count**2


def read_in_order(layer: Layer, rows_ND: Array) -> float | None:
    """How far a layer's logits between rows depend on how far apart they stand, in standard deviations.

    With p_i the centred rows, the mean of (Q p_i) . (K p_j) over all i - j = t is near 0 for rows that the layer was
    not trained with, or that stand elsewhere; the largest over heads and t = 1 .. 8, both ways, is returned.
    None: the table is not what the layer reads.
    """
    w, count = layer.weights, len(rows_ND)
    if rows_ND.shape[1] != layer.head(0).q.shape[1] or count < 2 * LAGS:
        return None
    gain = 1.0 if w.input_norm is None or w.input_norm.gain is None else w.input_norm.gain
    centred_ND = (rows_ND - rows_ND.mean(axis=0)) * gain
    most = 0.0
    for head in layer.heads:
        logit_NN = (centred_ND @ head.q.T) @ (centred_ND @ head.k.T).T
        logit_NN = logit_NN - logit_NN.mean(axis=0) - logit_NN.mean(axis=1, keepdims=True) + logit_NN.mean()
        spread = float(logit_NN.std()) or 1.0
        for lag in (*range(-LAGS, 0), *range(1, LAGS + 1)):
            along = np.diagonal(logit_NN, lag)
            most = max(most, abs(float(along.mean())) / spread * len(along) ** 0.5)
    return most


def shuffled(rows_ND: Array, layers: tuple[int, ...], figures: str) -> Finding:
    """The finding about a table whose rows are no chance but whose neighbours are unrelated."""
    share = chained(rows_ND) if len(rows_ND) >= FEWEST_ROWS else 0.0
    numbers = {"state": "unordered", "chained": share}
    if share >= CHAINED:
        return Finding(
            "position-table",
            "fault",
            "the rows of the position table are shuffled",
            f"{figures} Linked each to the two rows most like it, they form long chains (a row's chain holds "
            f"{share:.0%} of all rows on average): there is an order, and it is not that of positions.",
            "Rows were permuted, or the table belongs to another order of tokens: restore the table.",
            layers=layers,
            evidence={**numbers, "state": "shuffled"},
        )
    return Finding(
        "position-table",
        "cannot_tell",
        "the position table is trained, but its rows show no order",
        f"{figures} Nor do they link into chains: these rows cannot tell whether each stands at its own position.",
        layers=layers,
        evidence=numbers,
    )


def first_row(rows_ND: Array, layers: tuple[int, ...]) -> Iterator[Finding]:
    """Whether the first row of an ordered table is that of the first token, or the table is shifted."""
    unit = _unit(rows_ND)
    steps = (unit[1 : FIRST + 1] * unit[:FIRST]).sum(axis=1)
    around = float(unit[0] @ unit[-1])
    usual = float(np.median(steps))
    numbers = {"second": float(steps[0]), "last": around, "steps": steps}
    if usual >= ORDERED and around > max(steps[0] + WRAPS, usual / 4):
        yield Finding(
            "first-row",
            "warning",
            "the position table looks shifted: its first row continues the last",
            f"The first row has a cosine of {around:.2f} with the last, and of {steps[0]:.2f} with the second.",
            "Rows were moved on by one or more, and those that fell off stand at the front: move them back.",
            layers=layers,
            evidence=numbers,
        )
    elif usual >= ORDERED and int(np.argmin(steps)) == 0 and steps[0] < 0.75 * usual:
        yield Finding(
            "first-row",
            "ok",
            "the first row stands apart, as that of the first token does",
            f"It has a cosine of {steps[0]:.2f} with the second; those that follow have {usual:.2f}.",
            layers=layers,
            evidence=numbers,
        )
    else:
        yield Finding(
            "first-row",
            "cannot_tell",
            "the position table cannot tell whether it is shifted",
            "No row stands apart as that of the first token: with all rows moved by one it would look the same.",
            layers=layers,
            evidence=numbers,
        )


def _unit(rows_ND: Array) -> Array:
    return unit_rows(rows_ND - rows_ND.mean(axis=0))
