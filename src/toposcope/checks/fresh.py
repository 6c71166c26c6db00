"""Weights at their initial values: rows as unrelated, and numbers as spread, as a generator leaves them.

The cosines of unrelated rows of width D have a mean square of 1/D, with a relative error of sqrt(2 / pairs); numbers
drawn uniformly have a kurtosis of 1.8, normal ones of 3. Training moves both, the second within some hundred steps:
weights that keep both to five standard errors have not been trained. Rounding to few bits moves the second too, so
weights that were quantised are never called fresh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from toposcope.checkpoints.view import LayerWeights, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.encodings.record import Array

WITHIN = 5.0  # standard errors
FEWEST_ROWS, FEWEST_NUMBERS = 8, 1024
MOST_ROWS = 512  # whose cosines are formed
# kurtosis of what weights are drawn from, and its standard error times the root of their number; a normal law cut at
# two deviations (2.37) is left out, since uniform weights pass there in training
_DRAWN = {"uniform": (1.8, 1.15), "normal": (3.0, 4.9)}


def is_fresh(rows_HRD: ArrayLike) -> bool | None:
    """Whether all rows could come from a generator; None where there are too few to tell."""
    stack = np.asarray(rows_HRD, dtype=np.float64)
    stack = stack[stack.any(axis=(1, 2))]  # dead heads are told elsewhere
    rows_ND = stack.reshape(-1, stack.shape[2])
    if len(rows_ND) < FEWEST_ROWS or stack.size < FEWEST_NUMBERS:
        return None
    numbers = stack.reshape(-1)
    square = float((numbers**2).mean())
    kurtosis = float((numbers**4).mean()) / square**2
    if not any(abs(kurtosis - drawn) < WITHIN * error / len(numbers) ** 0.5 for drawn, error in _DRAWN.values()):
        return False
    some_ND = rows_ND[:: -(-len(rows_ND) // MOST_ROWS)]
    unit_ND = some_ND / np.maximum(np.linalg.norm(some_ND, axis=1, keepdims=True), 1e-300)
    count, width = unit_ND.shape
    pairs = count * (count - 1) / 2
    excess = (float(((unit_ND @ unit_ND.T) ** 2).sum()) - count) / (2 * pairs) * width
    return abs(excess - 1) < WITHIN * (2 / pairs) ** 0.5


@dataclass
class Fresh:
    """The layers whose weights were looked at, and those of which a part is as a generator leaves it."""

    looked_at: list[int] = field(default_factory=list)
    parts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # "query", "key", "all"
    plain_gains: list[int] = field(default_factory=list)  # layers whose input norm multiplies by exactly 1
    gains: int = 0  # layers whose input norm has a gain

    def add(self, number: int, w: LayerWeights) -> None:
        gain = None if w.input_norm is None else w.input_norm.gain
        if gain is not None:
            self.gains += 1
            if _plain(gain):
                self.plain_gains.append(number)
        sides = {"query": is_fresh(w.q_HRD), "key": is_fresh(w.k_GRD)}
        if None in sides.values():
            return
        self.looked_at.append(number)
        fresh = [side for side, yes in sides.items() if yes]
        if len(fresh) == 2 and is_fresh(w.v_GVD) is not False and is_fresh(w.o_HDV.swapaxes(1, 2)) is not False:
            fresh = ["all"]
        for side in fresh:
            self.parts[side].append(number)

    @property
    def untrained(self) -> bool:
        """Nothing of this model was trained."""
        return bool(self.looked_at) and self.parts.get("all") == self.looked_at


def _plain(gain: Array) -> bool:
    return bool((gain == 1).all())


def initial_values(model: Model, found: Fresh) -> Iterator[Finding]:
    """Queries, keys or whole layers that were never trained, or were drawn anew on loading."""
    if not found.looked_at:
        return
    if found.untrained:
        yield Finding(
            "initial-values",
            "cannot_tell",
            "the whole model is at its initial values",
            "Queries, keys, values and outputs are as a random generator leaves them: nothing was trained, so the "
            "weights cannot tell whether the encoding is the right one.",
            "Expected of an untrained model. Otherwise the weights were not loaded, or not saved.",
            evidence={"layers": {part: list(numbers) for part, numbers in found.parts.items()}},
        )
        return
    for part, numbers in found.parts.items():
        what = {"all": "all weights of the attention", "query": "queries", "key": "keys"}[part]
        yield Finding(
            "initial-values",
            "fault",
            f"{what} are at their initial values",
            f"In {say_layers(numbers, len(model.layers))} they are as a random generator leaves them: rows are "
            "unrelated and numbers are spread as if drawn, while the rest of the model is trained.",
            "They were drawn anew on loading, or left out of training: compare the tensors' names with those your "
            "code expects.",
            layers=tuple(numbers),
            evidence={"part": part},
        )
    if not found.parts:
        yield Finding(
            "initial-values",
            "ok",
            "queries and keys are not at their initial values",
            f"In {say_layers(found.looked_at, len(model.layers))} they differ from what a random generator leaves.",
        )


def norm_gains(model: Model, found: Fresh) -> Iterator[Finding]:
    """Norms whose gain is exactly 1 in a model that was trained."""
    plain: Sequence[int] = found.plain_gains
    if not plain or found.untrained or not found.looked_at:
        return
    yield Finding(
        "norm-gains",
        "warning",
        "the norm before attention multiplies by exactly 1",
        f"In {say_layers(plain, len(model.layers))} every gain is 1, to the last bit, though the weights are "
        "trained: queries and keys are not those of training.",
        "The gains were lost, or folded into the projections; if folded, all is in order.",
        layers=tuple(plain),
        evidence={"layers": list(plain), "of": found.gains},
    )
