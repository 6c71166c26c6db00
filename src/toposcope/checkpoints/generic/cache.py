"""What was measured, kept in the user's cache directory: by model type, configuration, and transformers' version.

A kept description is read like any file from elsewhere: within limits, checked field by field, and what is damaged is
measured again. Set TOPOSCOPE_CACHE to another directory, or to 'off'.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from toposcope._version import __version__
from toposcope.checkpoints.generic.encode import Recipe
from toposcope.checkpoints.generic.measure import MeasuredLayer, MeasuredModel
from toposcope.checkpoints.spec import Compared, LayerSpec, Skipped
from toposcope.core.cache import SETTING as SETTING
from toposcope.core.cache import cache_root
from toposcope.core.errors import BadFile, ToposcopeError
from toposcope.core.fields import fields_of, plain, rebuilt
from toposcope.core.files import make_directory, write_json
from toposcope.core.untrusted import MEGABYTE, read_json
from toposcope.encodings.record import QueryScale

LAYOUT = 2  # counts changes in what is kept or how it is measured: older files are not read
LARGEST = 64 * MEGABYTE
_NOT_DESCRIBING = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "id2label", "label2id")


def directory() -> Path | None:
    """Where descriptions are kept; None where the cache is switched off."""
    root = cache_root()
    return None if root is None else root / "measured"


def find(values: Mapping[str, Any]) -> MeasuredModel | None:
    """The kept description of a configuration: by the installed transformers, or by any where none is installed."""
    home = directory()
    if home is None or not home.is_dir():
        return None
    for path in sorted(home.glob(f"{_key(values)}-{_version() or '*'}.json"), reverse=True):
        try:
            return _read(read_json(path, most=LARGEST, inside=home, finite=True))
        except ToposcopeError:
            continue
    return None


def keep(values: Mapping[str, Any], measured: MeasuredModel) -> None:
    """Keep a description; where that fails (a full disk, say), do without."""
    home = directory()
    if home is not None:
        with contextlib.suppress(ToposcopeError):
            write_json(make_directory(home) / f"{_key(values)}-{_version()}.json", _written(measured))


def _version() -> str | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    return importlib.metadata.version("transformers")


def _key(values: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in values.items() if key not in _NOT_DESCRIBING}
    text = json.dumps([LAYOUT, __version__, kept], sort_keys=True, default=str)
    kind = re.sub(r"[^\w-]", "_", str(values.get("model_type")))[:40]
    return f"{kind}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _written(measured: MeasuredModel) -> dict[str, Any]:
    value: dict[str, Any] = plain(measured)
    for layer in value["layers"]:
        del layer["spec"]["encoding"]  # made of the recipes
    return value


def _read(value: Any) -> MeasuredModel:
    try:
        layers = [
            MeasuredLayer(
                _layer(each["spec"]),
                rebuilt(tuple[Recipe, ...], each["position"]),
                rebuilt(QueryScale | None, each["query_scale"]),
            )
            for each in value["layers"]
        ]
        return MeasuredModel(
            layers=tuple(layers),
            skipped=rebuilt(tuple[Skipped, ...], value["skipped"]),
            shapes=rebuilt(Mapping[str, tuple[int, ...]], value["shapes"]),
            compared=rebuilt(Compared, value["compared"]),
            embedding=rebuilt(str | None, value["embedding"]),
            context=rebuilt(int | None, value["context"]),
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadFile(f"a kept description is damaged: {error}") from error


def _layer(value: Mapping[str, Any]) -> LayerSpec:
    kinds = fields_of(LayerSpec)
    known = {field.name for field in fields(LayerSpec)} - {"encoding"}
    if set(value) != known:
        raise BadFile("a kept layer has other fields than a layer")
    return LayerSpec(**{name: rebuilt(kinds[name], value[name], f"the layer's {name}") for name in known})
