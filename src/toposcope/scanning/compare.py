"""Two checkpoints, or two stored results, head by head: what changed, by how much, and which verdicts with it.

For heads A and B with W = scale Q^T K and U = O V, norms and gains folded in, the change is |W_A - W_B| / |W_A| in
the Frobenius norm. It is exact and needs no matrix of the model's width: the difference is itself a product of thin
factors, Q_A^T K_A - Q_B^T K_B = (Q_A - Q_B)^T K_A + Q_B^T (K_A - K_B), and the second form loses no digits where the
two hardly differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Layer, Model
from toposcope.core.errors import BadValue
from toposcope.dynamics.scan import ScanResult, scan
from toposcope.encodings import Encoding
from toposcope.spectra.of_model import model_spectra

Array = NDArray[np.float64]
SAID_FIRST = ("encoding", "base", "scaling", "factor", "original_context")  # of what differs in an encoding
BIAS_OFFSETS = 256  # how far biases are compared


@dataclass(frozen=True)
class HeadChange:
    """One head in A and in B. Changes are relative to A; None where there is nothing to compare (or A is zero).

    `change_W` and `change_V` are those of scale Q^T K and of O V; `cosine_W`, `cosine_V` their angles.
    `change_kernel` is the relative distance of the mean positional kernels; `peak_a`, `peak_b` are where those peak.
    """

    layer: int
    head: int
    change_W: float | None
    change_V: float | None
    cosine_W: float | None
    cosine_V: float | None
    verdict_a: str
    verdict_b: str
    rule_a: str | None
    rule_b: str | None
    growth_a: float | None
    growth_b: float | None
    margin_a: float | None
    margin_b: float | None
    peak_a: int | None
    peak_b: int | None
    change_kernel: float | None

    @property
    def size(self) -> float:
        """The larger of both changes, for ranking."""
        return max(self.change_W or 0.0, self.change_V or 0.0)


@dataclass(frozen=True)
class EncodingDifference:
    """One thing in which two positional encodings differ: what, its value in A and in B (None: not there), where.

    `layers` are the numbers of the compared layers in which it differs so.
    """

    what: str
    a: str | None
    b: str | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """All heads of two models, and what differs in their positional encodings.

    `table_change` is that of their position tables, where both have one.
    """

    encodings: tuple[EncodingDifference, ...]
    heads: tuple[HeadChange, ...]
    layers: tuple[dict[str, Any], ...]
    table_change: float | None
    moved: int  # heads whose verdict differs
    looks_elsewhere: int  # heads whose kernel peaks elsewhere

    def ranked(self) -> list[HeadChange]:
        """The heads by how much they changed, most first."""
        return sorted(self.heads, key=lambda head: -head.size)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_models(
    a: Model,
    b: Model,
    layers: Sequence[int] | None = None,
    *,
    workers: int = 2,
    tick: Callable[[], None] = lambda: None,
) -> Comparison:
    """Compare two models of the same shape; `tick` is called after each layer of each."""
    _same_shape(a, b)
    chosen = list(range(len(a.layers))) if layers is None else list(layers)
    weights = {}
    for number in chosen:
        first, second = a.layers[number], b.layers[number]
        if first.spec.kind == "cross":
            continue
        for mine, theirs in zip(first.heads, second.heads, strict=True):
            weights[number, mine.head] = _weights(first, mine, second, theirs)
    context = min(a.spec.context or 4096, b.spec.context or 4096)
    found = [scan(model, chosen, sums=False, workers=workers, tick=tick) for model in (a, b)]
    spectra = [model_spectra(model, chosen, context=context, encodings=[("own", None)])[0] for model in (a, b)]
    kernels = [{(row.layer, row.head): row for row in each.heads} for each in spectra]
    heads = tuple(
        _head(number, mine, theirs, weights, kernels) for number, mine, theirs in _matched(found[0], found[1])
    )
    return Comparison(
        encodings=encoding_differences(a, b, chosen),
        heads=heads,
        layers=tuple(_by_layer(heads)),
        table_change=_tables(a, b),
        moved=sum(head.verdict_a != head.verdict_b for head in heads),
        looks_elsewhere=sum(head.peak_a != head.peak_b for head in heads),
    )


def encoding_differences(a: Model, b: Model, layers: Sequence[int]) -> tuple[EncodingDifference, ...]:
    """Every setting in which the encodings of two models differ: kind, base, scaling, factor, original context, ...

    Settings are those of `Encoding.parameters`; of trained biases, which have none that tell, the values themselves.
    """
    found: dict[tuple[str, str | None, str | None], list[int]] = {}
    for number in layers:
        first, second = (model.layers[number].encoding for model in (a, b))
        ours, theirs = _settings(first), _settings(second)
        every = dict.fromkeys([*SAID_FIRST, *ours, *theirs])
        differing = [name for name in every if ours.get(name) != theirs.get(name)]
        for name in differing:
            found.setdefault((name, ours.get(name), theirs.get(name)), []).append(number)
        change = None if differing else _bias_change(first, second)
        if change:
            found.setdefault(("values of the bias", None, f"moved by {change:.1%}"), []).append(number)
    return tuple(EncodingDifference(*key, tuple(numbers)) for key, numbers in found.items())


def _settings(encoding: Encoding) -> dict[str, str]:
    """The encoding's name and parameters, in words."""
    given = {name: value for name, value in encoding.parameters.items() if value is not None}
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


def _weights(first: Layer, mine: Head, second: Layer, theirs: Head) -> dict[str, Any]:
    a, b = fold(first, mine), fold(second, theirs)
    change_W, cosine_W = relative_change(a.scale * a.q, a.k, b.scale * b.q, b.k)
    change_V, cosine_V = relative_change(a.o.T, a.v, b.o.T, b.v)
    return {"change_W": change_W, "change_V": change_V, "cosine_W": cosine_W, "cosine_V": cosine_V}


def _head(
    place: tuple[int, int], a: Any, b: Any, weights: Mapping[tuple[int, int], dict[str, Any]],
    kernels: Sequence[Mapping[tuple[int, int], Any]],
) -> HeadChange:  # fmt: skip
    row_a, row_b = (each.get(place) for each in kernels)
    return HeadChange(
        layer=place[0],
        head=place[1],
        **weights[place],
        verdict_a=a.regime.verdict.value,
        verdict_b=b.regime.verdict.value,
        rule_a=a.regime.rule,
        rule_b=b.regime.rule,
        growth_a=a.regime.growth_index,
        growth_b=b.regime.growth_index,
        margin_a=a.regime.margin,
        margin_b=b.regime.margin,
        peak_a=None if row_a is None else row_a.peak_offset,
        peak_b=None if row_b is None else row_b.peak_offset,
        change_kernel=None if row_a is None or row_b is None else kernel_change(row_a.kernel, row_b.kernel),
    )


def kernel_change(a: Sequence[float], b: Sequence[float]) -> float | None:
    """|g_A - g_B| / |g_A| over the offsets both have; None where there is no kernel."""
    if not a or len(a) != len(b):
        return None
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(np.subtract(a, b))) / size if size > 0 else None


def _matched(a: ScanResult, b: ScanResult) -> list[tuple[tuple[int, int], Any, Any]]:
    return [((mine.layer, mine.head), mine, theirs) for mine, theirs in zip(a.heads, b.heads, strict=True)]


def _by_layer(heads: Sequence[HeadChange]) -> list[dict[str, Any]]:
    """Mean changes of each layer's heads."""
    rows = []
    for layer in dict.fromkeys(head.layer for head in heads):
        mine = [head for head in heads if head.layer == layer]
        row: dict[str, Any] = {"layer": layer, "heads": len(mine)}
        for key in ("change_W", "change_V", "change_kernel"):
            known = [value for head in mine if (value := getattr(head, key)) is not None]
            row[key] = float(np.mean(known)) if known else None
        row["moved"] = sum(head.verdict_a != head.verdict_b for head in mine)
        rows.append(row)
    return rows


def _tables(a: Model, b: Model) -> float | None:
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


def _same_shape(a: Model, b: Model) -> None:
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


# ------------------------------------------------------------------ stored results
def compare_results(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Two stored results of one schema, head by head: every number both have, and every verdict that differs."""
    if a.get("schema") != b.get("schema"):
        raise BadValue(
            f"the first result is a {a.get('schema')} and the second a {b.get('schema')}; expected two of one kind."
        )
    rows_a, rows_b = _heads(a), _heads(b)
    if set(rows_a) != set(rows_b):
        odd = sorted(set(rows_a) ^ set(rows_b))[:4]
        words = ", ".join(f"{layer}.{head}" for layer, head in odd)
        raise BadValue(
            f"the two results do not hold the same heads (for example {words}); scan the same layers of both."
        )
    heads = []
    for place, first in rows_a.items():
        second = rows_b[place]
        row: dict[str, Any] = {"layer": place[0], "head": place[1]}
        for key, old in first.items():
            new = second.get(key)
            if isinstance(old, bool) or isinstance(new, bool) or key in ("layer", "head"):
                continue
            if isinstance(old, int | float) and isinstance(new, int | float):
                row[f"{key}_a"], row[f"{key}_b"], row[f"{key}_change"] = old, new, new - old
        row["verdict_a"], row["verdict_b"] = first.get("verdict"), second.get("verdict")
        row["growth_a"], row["growth_b"] = first.get("growth_index"), second.get("growth_index")
        row["peak_a"], row["peak_b"] = first.get("peak_offset"), second.get("peak_offset")
        row["change_kernel"] = kernel_change(first.get("kernel") or (), second.get("kernel") or ())
        heads.append(row)
    names = sorted({key.removesuffix("_change") for row in heads for key in row if key.endswith("_change")})
    columns = {
        name: float(np.mean([abs(row[f"{name}_change"]) for row in heads if f"{name}_change" in row]))
        for name in names
    }
    titles = [", ".join(map(str, (each.get("subject") or {}).get("encodings") or ())) or None for each in (a, b)]
    differ = [EncodingDifference("encoding", titles[0], titles[1], ())] if titles[0] != titles[1] else []
    return {
        "encodings": [asdict(each) for each in differ],
        "heads": heads,
        "of": a["schema"],
        "mean_absolute_change": columns,
        "moved": sum(row["verdict_a"] != row["verdict_b"] for row in heads),
        "looks_elsewhere": sum(row["peak_a"] != row["peak_b"] for row in heads),
        "layers": [],
        "table_change": None,
    }


def _heads(result: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    """The rows of a result by layer and head, flat: medians of a trace, damages of an ablation, spectra of a scan."""
    body = result.get("ablation") or result
    rows = body.get("heads")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "head" in row for row in rows):
        raise BadValue(f"a result of {result.get('schema')} holds no heads that could be compared.")
    extra = {(row["layer"], row["head"]): row for row in (result.get("spectra") or {}).get("heads", [])}
    found = {}
    for row in rows:
        place = (int(row["layer"]), int(row["head"]))
        flat = {**extra.get(place, {}), **row}
        flat |= {key: value["median"] for key, value in row.items() if isinstance(value, dict) and "median" in value}
        flat |= {f"damage_{key}": value for key, value in (row.get("damage") or {}).items()}
        found[place] = flat
    return found
