"""Two checkpoints, or two stored results, head by head: what changed, by how much, and which verdicts with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.opened import ModelLike, called, name_of, opened, said
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadValue
from toposcope.core.files import present
from toposcope.core.progress import Progress
from toposcope.core.ranges import parse_range, written_layers
from toposcope.core.result import Provenance, Result
from toposcope.core.untrusted import read_saved
from toposcope.scanning.differences import (
    EncodingDifference,
    encoding_differences,
    refuse_other_shape,
    table_change,
    weight_changes,
)
from toposcope.scanning.options import DEFAULT_CONTEXT
from toposcope.scanning.result import ScanResult
from toposcope.scanning.scan import scan

Place = tuple[int, int]
PAIRS = {"verdict": "verdict", "rule": "rule", "growth": "growth_index", "margin": "margin", "peak": "peak_offset"}


@dataclass(frozen=True)
class NumberChange:
    """A number of a head in A and in B, and the second less the first."""

    a: float
    b: float
    change: float


@dataclass(frozen=True, kw_only=True)
class HeadChange:
    """One head in A and in B. Changes are relative to A; None where there is nothing to compare (or A is zero).

    `change_W` and `change_V` are those of scale Q^T K and of O V; `cosine_W`, `cosine_V` their angles.
    `change_kernel` is the relative distance of the mean positional kernels; `peak_a`, `peak_b` are where those peak.
    `numbers` are all others that both have, by name.
    """

    layer: int
    head: int
    change_W: float | None = None
    change_V: float | None = None
    cosine_W: float | None = None
    cosine_V: float | None = None
    verdict_a: str | None = None
    verdict_b: str | None = None
    rule_a: str | None = None
    rule_b: str | None = None
    growth_a: float | None = None
    growth_b: float | None = None
    margin_a: float | None = None
    margin_b: float | None = None
    peak_a: int | None = None
    peak_b: int | None = None
    change_kernel: float | None = None
    numbers: Mapping[str, NumberChange]

    @property
    def size(self) -> float:
        """The larger of both changes, for ranking."""
        return max(self.change_W or 0.0, self.change_V or 0.0)

    @property
    def moved(self) -> bool:
        """Whether the verdict is another one."""
        return self.verdict_a != self.verdict_b


@dataclass(frozen=True)
class LayerChange:
    """Mean changes of a layer's heads, and how many of their verdicts moved."""

    layer: int
    heads: int
    change_W: float | None
    change_V: float | None
    change_kernel: float | None
    moved: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CompareResult(Result):
    """All heads of two models, or of two stored results of one kind (`of`), and what differs in their encodings.

    `context_a` and `context_b` are the lengths that the models claim (None: not known). `table_change` is that of
    their position tables, where both have one; `mean_absolute_change` is over heads.
    """

    kind = "compare"
    table = "heads"

    a: str
    b: str
    of: str
    heads: tuple[HeadChange, ...]
    layers: tuple[LayerChange, ...]
    encodings: tuple[EncodingDifference, ...]
    table_change: float | None
    moved: int  # heads whose verdict differs
    looks_elsewhere: int  # heads whose kernel peaks elsewhere
    mean_absolute_change: Mapping[str, float]
    context_a: int | None = None
    context_b: int | None = None

    def ranked(self) -> list[HeadChange]:
        """The heads by how much they changed, most first: weights, then verdicts, then kernels."""
        return sorted(self.heads, key=lambda head: (-head.size, not head.moved, -(head.change_kernel or 0.0)))


def compare(
    a: ModelLike | Result,
    b: ModelLike | Result,
    *,
    layers: str | int | Sequence[int] | None = None,
    jobs: int | None = None,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    progress: Progress | None = None,
) -> CompareResult:
    """Before and after fine-tuning: how far did each head's Q'K and O V move, and does its verdict still stand?

    `a` and `b` are two models, each a name, a path, a `Model` or a loaded model; or two results of one kind that have
    heads, each as `toposcope.read` gives it, or the file of a scan. `adapter` is one of PEFT that is merged into `b`:
    compare(base, base, adapter=DIR) says what it changed.
    """
    started = time.perf_counter()
    layers = written_layers(layers)
    one, two = _stored(a), _stored(b)
    if (one is None) != (two is None):
        raise BadValue(
            f"'{_name(a, one)}' and '{_name(b, two)}' are a stored result and a model; give two models, or two .json "
            "files."
        )
    if one is not None and two is not None:
        if layers or adapter is not None:
            given = "--layers chooses layers" if layers else "--adapter changes weights"
            raise BadValue(f"{given} of models; stored results are compared as they are.")
        found = compare_results(one, two, names=_names(a, b, one, two))
    else:
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(opened(each, family=family, num_heads=num_heads, adapter=merged))
                for each, merged in ((a, None), (b, adapter))
            )
            names = _names(a, b, first, second)
            found = compare_models(first, second, layers, names=names, jobs=jobs, progress=progress)
    options = {"layers": layers, "family": family, "num_heads": num_heads, "adapter": said(adapter)}
    done = replace(found.provenance, options=options, seconds=time.perf_counter() - started)
    return replace(found, provenance=done)


def _stored(given: Any) -> Result | None:
    """A result that was given, as such or as the file of a scan; None for a model."""
    if isinstance(given, Result):
        return given
    if isinstance(given, str | Path) and Path(given).suffix == ".json" and present(given) and Path(given).is_file():
        return ScanResult.from_dict(read_saved(given), str(given))
    return None


def _names(a: Any, b: Any, first: Any, second: Any) -> tuple[str, str]:
    """What to call the two; files of one name in two directories with those."""
    names = _name(a, first), _name(b, second)
    if names[0] == names[1] and isinstance(a, str | Path) and isinstance(b, str | Path):
        return "/".join(Path(a).parts[-2:]), "/".join(Path(b).parts[-2:])
    return names


def _name(given: Any, found: Any) -> str:
    if isinstance(found, Model) and found.adapter is not None:
        return name_of(found, given)
    if isinstance(given, str | Path):
        return Path(given).name if present(given) else str(given)
    if isinstance(found, Result):
        return found.provenance.subjects[0].name if found.provenance.subjects else found.kind
    return called(given, found.path) if isinstance(found, Model) else str(given)[:80]


def compare_models(
    a: Model,
    b: Model,
    layers: str | None = None,
    *,
    names: tuple[str, str] = ("A", "B"),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> CompareResult:
    """Scan two models of the same shape, and compare their weights and scans head by head."""
    refuse_other_shape(a, b)
    chosen = parse_range(layers, len(a.layers))
    for model in (a, b):
        model.expect(chosen, progress)
    weights = {}
    for number in chosen:
        first, second = a.layers[number], b.layers[number]
        if first.spec.kind != "cross":
            for mine, theirs in zip(first.heads, second.heads, strict=True):
                weights[number, mine.head] = weight_changes(first, mine, second, theirs)
    context = min(a.spec.context or DEFAULT_CONTEXT, b.spec.context or DEFAULT_CONTEXT)
    scans = [
        scan(model, layers=layers, context=context, layer_sums=False, jobs=jobs, progress=_of(progress, name))
        for model, name in ((a, "A"), (b, "B"))
    ]
    found = compare_results(*scans, names=names)
    heads = tuple(replace(head, **weights[head.layer, head.head]) for head in found.heads)
    return replace(
        found,
        of="models",
        heads=heads,
        layers=tuple(_by_layer(heads)),
        encodings=encoding_differences(a, b, chosen),
        table_change=table_change(a, b),
        context_a=a.spec.context,
        context_b=b.spec.context,
        provenance=Provenance(tuple(each.provenance.subjects[0] for each in scans)),
    )


def _of(progress: Progress | None, name: str) -> Progress | None:
    """The progress of one of the two scans, under its own name."""
    return None if progress is None else lambda what, done, total: progress(f"{what} of {name}", done, total)


def _by_layer(heads: Sequence[HeadChange]) -> list[LayerChange]:
    rows = []
    for layer in dict.fromkeys(head.layer for head in heads):
        mine = [head for head in heads if head.layer == layer]

        def mean(name: str, mine: Sequence[HeadChange] = mine) -> float | None:
            known = [value for head in mine if (value := getattr(head, name)) is not None]
            return float(np.mean(known)) if known else None

        changes = {name: mean(name) for name in ("change_W", "change_V", "change_kernel")}
        rows.append(LayerChange(layer=layer, heads=len(mine), moved=sum(head.moved for head in mine), **changes))
    return rows


# ------------------------------------------------------------------ results
def compare_results(a: Result, b: Result, *, names: tuple[str, str] = ("A", "B")) -> CompareResult:
    """Two results of one kind, head by head: every number both have, and every verdict that differs."""
    if a.kind != b.kind:
        raise BadValue(f"the first result is a {a.kind} and the second a {b.kind}; expected two of one kind.")
    rows_a, rows_b = _heads(a), _heads(b)
    if rows_a.keys() != rows_b.keys():
        lone = sorted(rows_a.keys() ^ rows_b.keys())[:3]
        words = ", ".join(f"{layer}.{head}" for layer, head in lone)
        raise BadValue(
            f"the two results do not hold the same heads (for example {words}); scan the same layers of both."
        )
    heads = tuple(_change(place, first, rows_b[place]) for place, first in rows_a.items())
    every = dict.fromkeys(name for head in heads for name in head.numbers)
    means = {
        name: float(np.mean([abs(head.numbers[name].change) for head in heads if name in head.numbers]))
        for name in sorted(every)
    }
    subjects = [each.provenance.subjects[:1] for each in (a, b)]
    titles = [", ".join(title for each in some for title in each.encodings) or None for some in subjects]
    return CompareResult(
        a=names[0],
        b=names[1],
        of=a.kind,
        heads=heads,
        layers=(),
        encodings=(EncodingDifference("encoding", titles[0], titles[1], ()),) if titles[0] != titles[1] else (),
        table_change=None,
        moved=sum(head.moved for head in heads),
        looks_elsewhere=sum(head.peak_a != head.peak_b for head in heads),
        mean_absolute_change=means,
        provenance=Provenance(tuple(each for some in subjects for each in some)),
    )


def _change(place: Place, a: Mapping[str, Any], b: Mapping[str, Any]) -> HeadChange:
    numbers = {
        key: NumberChange(float(old), float(b[key]), float(b[key] - old))
        for key, old in a.items()
        if key not in ("layer", "head") and _is_number(old) and _is_number(b.get(key))
    }
    both = {f"{name}_{side}": row.get(key) for name, key in PAIRS.items() for side, row in (("a", a), ("b", b))}
    kernel = kernel_change(a.get("kernel") or (), b.get("kernel") or ())
    return HeadChange(layer=place[0], head=place[1], **both, change_kernel=kernel, numbers=numbers)


def kernel_change(a: Sequence[float], b: Sequence[float]) -> float | None:
    """|g_A - g_B| / |g_A| over the offsets both have; None where there is no kernel."""
    if not a or len(a) != len(b):
        return None
    size = float(np.linalg.norm(a))
    return float(np.linalg.norm(np.subtract(a, b))) / size if size > 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _heads(result: Result) -> dict[Place, dict[str, Any]]:
    """The rows of a result by layer and head, flat."""
    rows = result.rows("heads") if "heads" in result.tables() else []
    if not rows or not all(isinstance(row.get(name), int) for row in rows for name in ("layer", "head")):
        raise BadValue(f"a result of {result.kind} holds no heads that could be compared.")
    return {(row["layer"], row["head"]): row for row in rows}
