"""From a configuration that no adapter knows to a description of the file it belongs to."""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from dataclasses import replace

from toposcope.checkpoints.config_only import without_weights
from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.generic import cache
from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.encode import made, with_query_scale
from toposcope.checkpoints.generic.measure import MeasuredModel, measure
from toposcope.checkpoints.generic.names import prefix_change, reprefixed
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import Compared, ModelSpec, Skipped, claimed, linears
from toposcope.core.errors import MissingExtra, UnknownFamily
from toposcope.core.printable import printable


def measured_spec(config: Config, source: TensorSource) -> ModelSpec | None:
    """The description of a model whose type transformers knows and no adapter does; None where it does not either."""
    kind = config.get("model_type")
    if source.format == "gguf" or not isinstance(kind, str):
        return None
    values = dict(config)
    measured = cache.find(values)
    if measured is None and not _installed():
        raise MissingExtra(
            f"{config.where} names model_type '{printable(kind, 60)}', which no adapter knows. transformers may: "
            "with it, such models are measured before they are read. Install it with: pip install 'toposcope[hf]'"
        )
    try:
        if measured is None:
            from toposcope.checkpoints.generic.shrink import known

            if not known(kind):
                return None
            measured = measure(values)
            cache.keep(values, measured)
        return put_onto(measured, kind, source)
    except Refused as reason:
        raise UnknownFamily(
            f"{config.where} names model_type '{printable(kind, 60)}', which no adapter knows, and its attention "
            f"could not be measured: {printable(reason)}. If it is built like a known family, name it with --family."
        ) from reason


def checked(family: Family, config: Config, source: TensorSource) -> Compared | str:
    """How a family that the user named for another type agrees with the model that transformers has, refused if not.

    Where there is nothing to compare with: why.
    """
    kind = config.get("model_type")
    if source.format == "gguf" or not isinstance(kind, str):
        return "its file names no type of transformers"
    if not _installed():
        return "transformers is not installed"
    from toposcope.checkpoints.generic.forced import compared
    from toposcope.checkpoints.generic.shrink import known

    if not known(kind):
        return f"transformers does not know the type '{printable(kind, 60)}'"
    try:
        return compared(family, dict(config))
    except Refused as reason:
        return str(reason)


def put_onto(measured: MeasuredModel, kind: str, source: TensorSource) -> ModelSpec:
    """The description with the names and encodings of a file, whose tensors must have the shapes they should have."""
    alone = without_weights(source)
    old, new = ("", "") if alone else prefix_change(set(measured.shapes), set(source.names()))

    def in_file(name: str) -> str:
        return new + name[len(old) :] if name.startswith(old) else name

    for name, shape in () if alone else measured.shapes.items():
        found = source.info(in_file(name)).shape
        if tuple(found) != tuple(shape):
            raise Refused(f"'{in_file(name)}' has shape {tuple(found)} in the file; expected {tuple(shape)}")
    layers = []
    for each in measured.layers:
        spec = each.spec if old == new else reprefixed(each.spec, old, new)
        encoding = with_query_scale(made(each.position, source, in_file), each.query_scale)
        layers.append(replace(spec, encoding=encoding))
    embedding = None if measured.embedding is None else in_file(measured.embedding)
    whole = ModelSpec(
        family=kind,
        layers=tuple(layers),
        embedding=embedding if embedding in source.names() else None,
        context=measured.context,
        skipped=measured.skipped,
        accounted=tuple(
            dict.fromkeys(
                in_file(str(recipe.options["tensor"]))
                for each in measured.layers
                for recipe in each.position
                if "tensor" in recipe.options
            )
        ),
        compared=measured.compared,
    )
    return replace(whole, skipped=(*whole.skipped, *_idle(whole, source)))


def _idle(spec: ModelSpec, source: TensorSource) -> list[Skipped]:
    """Tensors of the modules that were measured that attention did not need, one entry for each kind."""
    modules = {
        f"{linear.weight.rsplit('.', 2)[0]}."
        for layer in spec.layers
        for linear in linears(layer)
        if "." in linear.weight
    }
    used, kinds = claimed(spec), defaultdict(list)
    for name in sorted(set(source.names()) - used):
        if name.startswith(tuple(modules)):
            kinds[re.sub(r"\d+", "N", name)].append(name)
    why = "it had no effect on attention where that was compared"
    return [Skipped(kind, why, tuple(names)) for kind, names in kinds.items()]


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("transformers", "torch"))
