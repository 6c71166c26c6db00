"""Describe a model by measuring a small copy of it, and say what the measurement did not reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toposcope.checkpoints.generic import shrink
from toposcope.checkpoints.generic.bounds import Deadline, Refused, quiet, require_reasonable, understood
from toposcope.checkpoints.generic.compare import difference
from toposcope.checkpoints.generic.copied import AgreedLayer, SmallCopy, relative
from toposcope.checkpoints.generic.encode import Recipe
from toposcope.checkpoints.generic.logits import mask_pattern
from toposcope.checkpoints.generic.names import FileNames, tensors_of
from toposcope.checkpoints.generic.position import input_positions
from toposcope.checkpoints.generic.probes import Path, generalised, thresholds, with_values
from toposcope.checkpoints.generic.record import arrays
from toposcope.checkpoints.generic.texts import token_table
from toposcope.checkpoints.spec import Compared, LayerSpec, Skipped, linears
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.record import QueryScale

FAR = 20_000


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer in the names of its files, at its true sizes; its encoding is made of `position` and `query_scale`."""

    spec: LayerSpec
    position: tuple[Recipe, ...]
    query_scale: QueryScale | None = None


@dataclass(frozen=True)
class MeasuredModel:
    """All that was found of a model: a description that is still to be put onto a file."""

    layers: tuple[MeasuredLayer, ...]
    skipped: tuple[Skipped, ...]
    shapes: Mapping[str, tuple[int, ...]]  # of every tensor that the layers name, at true size
    compared: Compared
    embedding: str | None = None
    context: int | None = None


def measure(values: Mapping[str, Any], deadline: Deadline | None = None) -> MeasuredModel:
    """Measure the model that a configuration describes."""
    deadline = deadline or Deadline()
    require_reasonable(values)
    with quiet():
        with understood("its configuration does not make a model"):
            config = shrink.true_config(values)
            kind = shrink.model_class(config)
            true = FileNames(shrink.weightless(kind, config, deadline))
        reasons: list[str] = []
        for small in shrink.attempts(config):
            try:
                return _Measuring(config, kind, small, true, deadline).done()
            except Refused as reason:
                reasons.append(str(reason))
                deadline.check()
        raise Refused(reasons[-1] if reasons else "no small copy of it could be made")


class _Measuring:
    def __init__(self, config: Any, kind: Any, small: dict[str, Any], true: FileNames, deadline: Deadline) -> None:
        self.config, self.kind, self.small, self.true, self.deadline = config, kind, small, true, deadline
        self.values: dict[str, Any] = config.to_dict()
        self.copy = self._copy(small)

    def _copy(self, settings: dict[str, Any], like: SmallCopy | None = None) -> SmallCopy:
        return SmallCopy(self.kind, type(self.config), settings, self.deadline, like)

    def done(self) -> MeasuredModel:
        import transformers

        copy = self.copy
        copy.describe_layers(self.values)
        if not copy.found:
            raise Refused(next(iter(copy.reasons.values())))
        self._require_all_layers()
        true = {number: self._at_true_size(copy.names.layer(each.spec)) for number, each in copy.found.items()}
        widths = {each.spec.width: true[number].width for number, each in copy.found.items()}
        unreached = [*self._thresholds(), *self._far()]
        layers = {}
        for number in sorted(copy.found):
            each = copy.found[number]
            spec = replace(true[number], reach=each.spec.reach, chunk=each.spec.chunk)
            layers[number] = MeasuredLayer(spec, each.position, each.query_scale)
        entering = self._entering(widths)
        for number, layer in layers.items():
            stack = (copy.found[number].layer or "").rpartition(".")[0]
            recipes = (*layer.position, *([entering[stack]] if stack in entering else []))
            layers[number] = replace(layer, position=tuple(self._in_file(each) for each in recipes))
        compared = Compared(
            f"transformers {transformers.__version__}",
            max(each.differences[0] for each in copy.found.values()),
            max(each.differences[1] for each in copy.found.values()),
            tuple(unreached),
        )
        named = {name for each in layers.values() for name in tensors_of(each.spec)}
        named |= {str(r.options["tensor"]) for e in layers.values() for r in e.position if "tensor" in r.options}
        return MeasuredModel(
            layers=tuple(layers.values()),
            skipped=self._skipped(),
            shapes={name: tuple(int(n) for n in self.true.saved[name].shape) for name in sorted(named)},
            compared=compared,
            embedding=self._embedding(),
            context=self._context(),
        )

    # ------------------------------------------------------------------ what a short text does not reach
    def _thresholds(self) -> list[str]:
        """Settings that matter only for longer texts: those that follow a known pattern are used, others are told."""
        base = self._probabilities(self.copy)

        def changes(paths: list[Path], value: int) -> bool | None:
            try:
                there = self._probabilities(self._copy(with_values(self.small, paths, value), self.copy))
            except (Refused, ToposcopeError):
                self.deadline.check()
                return None
            if len(there) != len(base):
                return True
            if any(a.shape[1] != b.shape[1] for a, b in zip(base, there, strict=True)):
                return None  # the number of heads is no threshold
            if any(a.shape != b.shape for a, b in zip(base, there, strict=True)):
                return True
            return any(float(np.abs(a - b).max()) > 1e-4 for a, b in zip(base, there, strict=True))

        told = []
        for path, value in thresholds(self.small, changes):
            if not self._follows(path, value):
                told.append(f"{'.'.join(path)} = {value}")
        return told

    def _probabilities(self, copy: SmallCopy) -> list[Any]:
        return [arrays(call, copy.survey.texts)[3] for call in copy.survey.calls]

    def _follows(self, path: Path, value: int) -> bool:
        """Whether windows, chunks and query scales with this setting at 5 and 7 say what they are at its value.

        Layers that were described alike and mask alike at both settings are looked at once.
        """
        copies: dict[int, SmallCopy] = {}
        for tried in (5, 7):
            try:
                copies[tried] = self._copy(with_values(self.small, [path], tried), self.copy)
            except (Refused, ToposcopeError, KeyError):
                self.deadline.check()
                return False
        base, there = self._probabilities(self.copy), self._probabilities(copies[5])
        if len(base) == len(there) and all(np.array_equal(a, b) for a, b in zip(base, there, strict=True)):
            return False  # it acts when it is smaller still
        groups: dict[Any, list[int]] = {}
        for number, each in self.copy.found.items():
            masks = [self._mask(copy, number) for copy in copies.values()]
            if None in masks:
                return False
            groups.setdefault(
                (each.fitted_at, each.spec.reach, each.spec.chunk, each.query_scale, *masks), []
            ).append(number)
        follows: dict[int, AgreedLayer] = {}
        for numbers in groups.values():
            try:
                for tried, copy in copies.items():
                    copy.fit_layer(numbers[0], with_values(self.values, [path], tried))
            except (Refused, ToposcopeError, KeyError):
                self.deadline.check()
                return False
            small = [copy.found[numbers[0]] for copy in copies.values()]
            found = _followed(self.copy.found[numbers[0]], small[0], small[1], value)
            if found is None:
                return False
            for number in numbers:
                mine = self.copy.found[number]
                spec = replace(mine.spec, reach=found.spec.reach, chunk=found.spec.chunk)
                follows[number] = replace(mine, spec=spec, query_scale=found.query_scale)
        self.copy.found.update(follows)
        return True

    def _mask(self, copy: SmallCopy, number: int) -> Any:
        """The pattern of a call's mask; None where it has none."""
        try:
            seen = arrays(copy.survey.calls[number], copy.survey.texts)[3] > 0
            return mask_pattern(seen[0, 0]) if (seen == seen[:1, :1]).all() else None
        except (Refused, IndexError):
            return None

    def _far(self) -> list[str]:
        """Whether attention changes for a text that begins at a far position, and ours does not follow."""
        import torch

        near = self._probabilities(self.copy)

        at = torch.arange(21)[None].expand(2, -1) + FAR
        try:
            with understood("it takes no positions"):
                noted = self.copy.run(21, 12, position_ids=at)
        except Refused:
            self.deadline.check()
            return []
        for number, each in self.copy.found.items():
            theirs = arrays(noted.calls[number], noted.texts)[3]
            if theirs.shape == near[number].shape and np.abs(theirs - near[number]).max() < 0.02:
                continue
            try:
                worst, _ = difference(self.copy.read(each), each.taps, noted, number, start=FAR)
            except (Refused, ToposcopeError, IndexError):
                continue  # a table that ends before
            if worst > 0.02:  # angles are computed in single precision, where such positions cost three digits
                return [f"positions from {FAR:,}"]
        return []

    # ------------------------------------------------------------------ names and true sizes
    def _at_true_size(self, spec: LayerSpec) -> LayerSpec:
        """The layer at its true width; what its maps give, and what O takes, must be as large in the copy."""
        width = self._shapes(spec.o.weight)[1][1 if spec.o.transposed else 0]
        grown = {spec.width: width}
        if spec.source_width is not None and spec.k is not None:
            grown[spec.source_width] = self._shapes(spec.k.weight)[1][0 if spec.k.transposed else 1]
        kept = {each.weight: 1 if each.transposed else 0 for each in linears(spec)}
        kept[spec.o.weight] = 0 if spec.o.transposed else 1
        for name in tensors_of(spec):
            small, large = self._shapes(name)
            fits = len(small) == len(large) and all(
                less == more or (grown.get(less) == more and kept.get(name) != axis)
                for axis, (less, more) in enumerate(zip(small, large, strict=True))
            )
            if not fits:
                raise Refused(
                    f"'{name}' has shape {small} in a copy small enough to be run, and {large} in the model"
                )
        source = None if spec.source_width is None else grown[spec.source_width]
        return replace(spec, width=width, source_width=None if source == width else source)

    def _shapes(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A tensor's shape in the copy and in the model."""
        if name not in self.true.saved:
            raise Refused(f"the copy has a tensor '{name}' that the model has not")
        small, large = (tuple(int(n) for n in each.saved[name].shape) for each in (self.copy.names, self.true))
        return small, large

    def _require_all_layers(self) -> None:
        """Complain where the model has further layers like those that were measured: the copy is too shallow."""
        kinds = {relative(name) for each in self.copy.found.values() for name in tensors_of(each.spec)}
        missing = {name for name in self.true.held if relative(name) in kinds} - set(self.copy.names.held)
        if missing:
            raise Refused(f"a copy small enough to be run lacks '{min(missing)}'")

    def _in_file(self, recipe: Recipe) -> Recipe:
        if "tensor" not in recipe.options:
            return recipe
        return replace(recipe, options={**recipe.options, "tensor": self.copy.names.plain(recipe.options["tensor"])})

    def _entering(self, widths: dict[int, int]) -> dict[str, Recipe]:
        try:
            with understood("the same token everywhere"):
                return input_positions(self.copy, widths)
        except Refused:
            self.deadline.check()
            stacks = {(each.layer or "").rpartition(".")[0] for each in self.copy.found.values()}
            return dict.fromkeys(stacks, Recipe("unnamed"))

    def _skipped(self) -> tuple[Skipped, ...]:
        survey = self.copy.survey
        gone = [
            Skipped(survey.calls[number].layer or survey.calls[number].module, reason)
            for number, reason in sorted(self.copy.reasons.items())
        ]
        attending = {each.layer for each in survey.calls}
        stacks = {each.rpartition(".")[0] for each in attending if each}
        without = dict.fromkeys(name for name in survey.layers if name.rpartition(".")[0] in stacks)
        gone += [Skipped(name, "not attention") for name in without if name not in attending]
        return tuple(gone)

    def _embedding(self) -> str | None:
        table = token_table(self.copy.model)
        named = self.copy.model.named_modules()
        name = None if table is None else next((n for n, module in named if module is table), None)
        try:
            return None if name is None else self.copy.names.plain(f"{name}.weight")
        except Refused:
            return None

    def _context(self) -> int | None:
        for each in (self.config, getattr(self.config, "text_config", None)):
            found = getattr(each, "max_position_embeddings", None)
            if isinstance(found, int) and found > 0:
                return found
        return None


def _followed(mine: AgreedLayer, at_5: AgreedLayer, at_7: AgreedLayer, value: int) -> AgreedLayer | None:
    """The layer with lengths that follow a setting; None where more than lengths depends on it."""
    lengths = {}
    for name in ("reach", "chunk"):
        now, five, seven = (getattr(each.spec, name) for each in (mine, at_5, at_7))
        lengths[name] = generalised(now, five, seven, value)
        if lengths[name] is None and five is not None:
            return None
    scale = mine.query_scale
    if at_5.query_scale != at_7.query_scale:
        a, b = at_5.query_scale, at_7.query_scale
        if a is None or b is None or (a.period, b.period, a.shift) != (5, 7, b.shift) or abs(a.rate - b.rate) > 1e-4:
            return None
        scale = replace(a, period=value)
    elif at_5.query_scale != mine.query_scale:
        return None
    spec = replace(mine.spec, reach=lengths["reach"], chunk=lengths["chunk"])
    for other in (at_5, at_7):
        aligned = replace(other.spec, reach=spec.reach, chunk=spec.chunk, scale=spec.scale)
        if aligned != spec or [each.kind for each in other.position] != [each.kind for each in mine.position]:
            return None
    return replace(mine, spec=spec, query_scale=scale)
