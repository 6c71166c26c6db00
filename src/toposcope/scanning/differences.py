"""What differs between two models: the weights of a head, the settings of an encoding, the table of positions.

For heads A and B with W = scale Q^T K and U = O V, norms and gains folded in, the change is |W_A - W_B| / |W_A| in
the Frobenius norm. It is exact and needs no matrix of the model's width: the difference is itself a product of thin
factors, Q_A^T K_A - Q_B^T K_B = (Q_A - Q_B)^T K_A + Q_B^T (K_A - K_B), and the second form loses no digits where the
two hardly differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Layer, Model
from toposcope.core.errors import BadValue
from toposcope.encodings import Encoding

Array = NDArray[np.float64]
SAID_FIRST = ("encoding", "base", "scaling", "factor", "original_context")  # of what differs in an encoding
BIAS_OFFSETS = 256  # how far biases are compared


@dataclass(frozen=True)
class EncodingDifference:
    """One thing in which two positional encodings differ: what, its value in A and in B (None: not there), where.

    `layers` are the numbers of the compared layers in which it differs so.
    """

    what: str
    a: str | None
    b: str | None
    layers: tuple[int, ...]


def encoding_differences(a: Model, b: Model, layers: Sequence[int]) -> tuple[EncodingDifference, ...]:
    """Every setting in which the encodings of two models differ: kind, base, scaling, factor, original context, ...

    The claimed context comes first, which belongs to no layer. Settings are those of `Encoding.parameters`, and the
    window of sliding layers; of trained biases, which have none that tell, the values themselves.
    """
    found: dict[tuple[str, str | None, str | None], list[int]] = {}
    claims = [None if model.spec.context is None else str(model.spec.context) for model in (a, b)]
    if claims[0] != claims[1]:
        found["claimed context", claims[0], claims[1]] = []
    for number in layers:
        first, second = (model.layers[number].encoding for model in (a, b))
        ours, theirs = (_settings(model.layers[number]) for model in (a, b))
        every = dict.fromkeys([*SAID_FIRST, *ours, *theirs])
        differing = [name for name in every if ours.get(name) != theirs.get(name)]
        for name in differing:
            found.setdefault((name, ours.get(name), theirs.get(name)), []).append(number)
        change = None if differing else _bias_change(first, second)
        if change:
            found.setdefault(("values of the bias", None, f"moved by {change:.1%}"), []).append(number)
    return tuple(EncodingDifference(*key, tuple(numbers)) for key, numbers in found.items())


def _settings(layer: Layer) -> dict[str, str]:
    """The encoding's name and parameters, and the layer's window, in words."""
    encoding = layer.encoding
    given = {name: value for name, value in encoding.parameters.items() if value is not None and name != "context"}
    if layer.spec.reach is not None:
        given["window"] = layer.spec.reach + 1
    return {"encoding": encoding.name, **{name: _worded(value) for name, value in given.items()}}


def _worded(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _bias_change(a: Encoding, b: Encoding) -> float | None:
    """The relative change of biases over near offsets; None where one has none, or where they depend on more."""
    if a.bias is None or b.bias is None or not (a.bias.toeplitz and b.bias.toeplitz):
        return None
    at = np.arange(-BIAS_OFFSETS, BIAS_OFFSETS + 1)
    old, new = a.bias.by_offset(at), b.bias.by_offset(at)
    size = float(np.linalg.norm(old))
    return float(np.linalg.norm(new - old)) / size if old.shape == new.shape and size > 0 else None


def relative_change(
    left_a: Array, right_a: Array, left_b: Array, right_b: Array
) -> tuple[float | None, float | None]:
    """|A - B| / |A| and cos(A, B) in the Frobenius inner product, for A = left_a^T right_a and B = left_b^T right_b.

    Factors are (r, d); nothing of size d x d is formed. (None, None) where A is zero; no cosine where B is.
    """
    size_a, size_b = _norm(left_a, right_a), _norm(left_b, right_b)
    if size_a == 0:
        return None, None
    left = np.concatenate([left_a - left_b, left_b])
    right = np.concatenate([right_a, right_a - right_b])
    inner = float(np.sum((left_a @ left_b.T) * (right_a @ right_b.T)))
    cosine = None if size_b == 0 else float(np.clip(inner / (size_a * size_b), -1.0, 1.0))
    return _norm(left, right) / size_a, cosine


def _norm(left: Array, right: Array) -> float:
    """|left^T right|, from the triangular factors of both sides: no squares are subtracted."""
    triangles = [scipy.linalg.qr(part.T, mode="r", check_finite=False)[0][: len(part)] for part in (left, right)]
    return float(np.linalg.norm(triangles[0] @ triangles[1].T))


def weight_changes(first: Layer, mine: Head, second: Layer, theirs: Head) -> dict[str, Any]:
    """How far Q'K and O V of one head have moved, and their cosines."""
    a, b = fold(first, mine), fold(second, theirs)
    change_W, cosine_W = relative_change(a.scale * a.q, a.k, b.scale * b.q, b.k)
    change_V, cosine_V = relative_change(a.o.T, a.v, b.o.T, b.v)
    return {"change_W": change_W, "change_V": change_V, "cosine_W": cosine_W, "cosine_V": cosine_V}


def table_change(a: Model, b: Model) -> float | None:
    """The relative change of the position vectors of the first layer that has some."""
    for first, second in zip(a.layers, b.layers, strict=True):
        tables = [layer.encoding.input for layer in (first, second)]
        if tables[0] is not None and tables[1] is not None:
            lengths = [table.length for table in tables if table is not None and table.length is not None]
            at = np.arange(min([*lengths, 2048]))
            old, new = tables[0].vectors(at), tables[1].vectors(at)
            size = float(np.linalg.norm(old))
            return float(np.linalg.norm(new - old)) / size if size > 0 and old.shape == new.shape else None
    return None


def refuse_other_shape(a: Model, b: Model) -> None:
    """Raise unless the models have the same layers and heads."""
    if len(a.layers) != len(b.layers):
        raise BadValue(
            f"{a.path.name} has {len(a.layers)} attention layers and {b.path.name} {len(b.layers)}; heads can be "
            "compared one by one only where both have the same layers and heads."
        )
    for first, second in zip(a.layers, b.layers, strict=True):
        shapes = [
            (each.spec.kind, each.spec.heads, each.spec.head_dim, each.spec.width, each.spec.value_width)
            for each in (first, second)
        ]
        if shapes[0] != shapes[1]:
            names = ("kind", "heads", "head width", "model width", "value width")
            words = "; ".join(f"{name} {x} and {y}" for name, x, y in zip(names, *shapes, strict=True) if x != y)
            raise BadValue(
                f"layer {first.number} of {a.path.name} and of {b.path.name} differ in shape ({words}); only "
                "checkpoints of one architecture can be compared head by head."
            )
