"""The small copy of a model that is run, and its layers: fitted one by one, read back by our own code, compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from toposcope.checkpoints.generic import shrink
from toposcope.checkpoints.generic.bounds import Deadline, Refused, understood
from toposcope.checkpoints.generic.compare import ATTENTION, OUTPUT, Taps, boosted, difference, readable
from toposcope.checkpoints.generic.describe import draft
from toposcope.checkpoints.generic.encode import Recipe, made, with_query_scale
from toposcope.checkpoints.generic.fit import fit
from toposcope.checkpoints.generic.names import FileNames, renumbered, tensors_of
from toposcope.checkpoints.generic.position import position
from toposcope.checkpoints.generic.record import Recorded, run
from toposcope.checkpoints.generic.texts import LENGTH, TEXTS, inputs, senses
from toposcope.checkpoints.live import MemorySource
from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Layer
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.record import QueryScale

# Lengths, seeds and boosts of the fresh texts of the comparison; the last one drives logits into caps.
_FRESH = ((9, 11, 1.0), (21, 12, 1.0), (21, 13, 30.0))


@dataclass(frozen=True, eq=False)
class AgreedLayer:
    """A layer that agrees, in the model's own names: its position, the modules around it, and how far it is off."""

    spec: LayerSpec
    position: tuple[Recipe, ...]
    query_scale: QueryScale | None
    taps: Taps
    layer: str | None
    fitted_at: int  # the call that was fitted; others were tried with its description
    differences: tuple[float, float] = (0.0, 0.0)


class SmallCopy:
    """A small copy of a model, ready to run. `found` and `reasons` are filled by `describe_layers`."""

    def __init__(
        self,
        kind: Any,
        config_class: Any,
        settings: dict[str, Any],
        deadline: Deadline,
        foretold: SmallCopy | None = None,
    ) -> None:
        """With `foretold` the weights are those of another copy, which has the same shapes."""
        self.deadline = deadline
        with understood("a small copy of it does not run"):
            config = shrink.from_settings(config_class, settings)
            if foretold is None:
                shrink.foretell(kind, config, deadline)
            self.model = shrink.build(kind, config, deadline)
            if foretold is not None:
                self._take(foretold)
            self._stored = dict(self.model.state_dict())  # in single precision, as in a file
            self.survey = self._first_run()
        self.found: dict[int, AgreedLayer] = {}
        self.reasons: dict[int, str] = {}
        self._tapped: set[str] = set()
        self._runs: list[Recorded] = []

    def _take(self, other: SmallCopy) -> None:
        mine = {name: each.shape for name, each in self.model.state_dict().items()}
        if mine != {name: each.shape for name, each in other._stored.items()}:
            raise Refused("it has other shapes")
        self.model.load_state_dict(other._stored)

    @cached_property
    def names(self) -> FileNames:
        """The names of the copy's tensors in a file."""
        with understood("a small copy of it cannot be saved"):
            return FileNames(self.model, self._stored)

    @cached_property
    def source(self) -> MemorySource:
        """The copy's tensors, as in a file."""
        return MemorySource(type(self.model).__name__, self.names.saved)

    def _first_run(self) -> Recorded:
        """Find inputs that the copy takes, in double precision or in single where it insists on that."""
        first: Exception | None = None
        for sense in senses(self.model):
            self.sense = sense
            for precision in ("double", "float"):
                getattr(self.model, precision)()
                try:
                    return self.run(21, 12, keep=lambda name: False)
                except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, Refused) as error:
                    self.deadline.check()
                    first = first or error
        raise first or Refused("it takes no input")

    def run(
        self,
        length: int,
        seed: int,
        texts: int = 2,
        keep: Any = lambda name: True,
        boost: float = 1.0,
        until: str | None = None,
        **more: Any,
    ) -> Recorded:
        """Run the copy on random texts."""
        given = {**inputs(self.model, self.sense, texts, length, seed), **more}
        return run(self.model, given, texts, self.deadline, keep, boost, until)

    def describe_layers(self, config: dict[str, Any]) -> None:
        """Fit a layer, try its description on the others, and go on with the first it does not fit."""
        if not self.survey.calls:
            seen = self.survey.softmaxes
            raise Refused(
                "its softmax is not that of queries and keys" if seen else "no softmax over keys was seen in it"
            )
        calls = range(len(self.survey.calls))
        while left := [n for n in calls if n not in self.found and n not in self.reasons]:
            try:
                self.fit_layer(left[0], config)
            except (Refused, ToposcopeError) as reason:
                self.reasons[left[0]] = str(reason)
                continue
            except (ValueError, IndexError, KeyError, np.linalg.LinAlgError) as error:  # shapes nobody thought of
                self.deadline.check()
                self.reasons[left[0]] = f"its attention has an unknown layout ({type(error).__name__})"
                continue
            self._spread(self.found[left[0]], left[1:])

    def fit_layer(self, number: int, config: dict[str, Any]) -> None:
        """Explain one call by itself."""
        call = self.survey.calls[number]
        near = call.layer or call.module.rpartition(".")[0]
        once = call.layer if self.survey.layers.count(call.layer or "") == 1 else None  # else it may end too early
        try:
            fitted = fit(self.run(LENGTH, 3, TEXTS, keep=lambda name: name.startswith(near), until=once), number)
        except Refused as reason:
            if not str(reason).startswith(("keys:", "values:")):
                raise
            fitted = fit(self.run(LENGTH, 3, TEXTS, until=once), number, earlier=True)
        drafted = draft(fitted, self.model)
        spec, recipes, scale = position(drafted, config, self.names.held)
        taps = Taps(drafted.reads, drafted.o_module, drafted.keys_read)
        spec = self._placed(spec, number)
        self._keep_if_equal(number, AgreedLayer(spec, recipes, scale, taps, call.layer, number))

    def _placed(self, spec: LayerSpec, number: int) -> LayerSpec:
        """The layer with its number in the stack: the part of its name that varies, or its turn where none does."""
        paths = [each.module for each in self.survey.calls]
        alike = [n for n, path in enumerate(paths) if relative(path) == relative(paths[number])]
        parts = np.array([[int(part) for part in paths[n].split(".") if part.isdigit()] for n in alike])
        at = alike.index(number)
        first = next(n for n, other in enumerate(alike) if paths[other] == paths[number])
        varying = [column for column in parts.T if np.ptp(column)] if parts.size else []
        if len({paths[n] for n in alike}) < len(alike) or len(varying) > 1:
            return replace(spec, index=at, shared_with=None if first == at else first)
        return replace(spec, index=int(varying[0][at]) if varying else int(parts[at][-1]) if parts.size else at)

    def _spread(self, template: AgreedLayer, left: list[int]) -> None:
        """Try a layer's description on others, under their names."""
        for number in left:
            layer = self.survey.calls[number].layer
            if layer is None or template.layer is None:
                continue
            spec = renumbered(template.spec, template.layer, layer)
            if not tensors_of(spec) <= set(self.names.held):
                continue
            taps = template.taps.moved(template.layer, layer)
            try:
                self._keep_if_equal(
                    number, replace(template, spec=self._placed(spec, number), taps=taps, layer=layer)
                )
            except (Refused, ToposcopeError):
                continue

    def _keep_if_equal(self, number: int, layer: AgreedLayer) -> None:
        """Keep a layer if it agrees on fresh texts; else say how far it is off."""
        read = self.read(layer)
        worst = [0.0, 0.0]
        for noted, (_, _, boost) in zip(self._fresh(layer.taps), _FRESH, strict=True):
            if len(noted.calls) != len(self.survey.calls):
                raise Refused("how often attention is computed depends on the length of the text")
            if boost != 1 and not noted.calls[number].eager:
                continue
            tried = read if boost == 1 else boosted(read, boost)
            for n, each in enumerate(difference(tried, layer.taps, noted, number)):
                worst[n] = max(worst[n], each)
        if worst[0] > ATTENTION or worst[1] > OUTPUT:
            raise Refused(f"attention differs by {worst[0]:.2g}, its output by {worst[1]:.2g}")
        self.found[number] = replace(layer, differences=(worst[0], worst[1]))

    def read(self, layer: AgreedLayer) -> Layer:
        """A layer of the copy as our own reader gives it, under the names of a file."""
        encoding = with_query_scale(made(layer.position, self.source, self.names.plain), layer.query_scale)
        return readable(replace(self.names.layer(layer.spec), encoding=encoding), self.source)

    def _fresh(self, taps: Taps) -> list[Recorded]:
        """Runs on fresh texts in which these modules, and those alike in other layers, were noted."""
        wanted = {relative(name) for name in taps.names()}
        if not self._runs or not wanted <= self._tapped:
            self._tapped |= wanted
            self._runs = [
                self.run(length, seed, keep=lambda name: relative(name) in self._tapped, boost=boost)
                for length, seed, boost in _FRESH
            ]
        return self._runs


def relative(name: str) -> str:
    """A module's name without the numbers of its layers."""
    return ".".join("N" if part.isdigit() else part for part in name.split("."))
