"""Open a config.json that has no weights beside it: a file, a directory without other files, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.checkpoints.config_only import ConfigSource
from toposcope.checkpoints.description import described
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.locate import CONFIG, INDEX
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.sniff import SUFFIXES, not_a_model
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadConfig, BadFile, MissingTensor
from toposcope.core.files import present
from toposcope.core.untrusted import SETTINGS, parse_json, read_object

STANDARD_INPUT = "-"


class NotToldByConfiguration(Exception):
    """What describes this model is in its tensors."""


def lone_configuration(target: Any) -> tuple[Path, dict[str, Any]] | None:
    """Where a configuration without weights is, and what it says; None where a whole model was given."""
    if not isinstance(target, str | Path):
        return None
    if str(target) == STANDARD_INPUT:
        return Path("standard input"), _from_standard_input()
    path = Path(target)
    if present(path) and path.is_dir():
        names = [entry.name.lower() for entry in path.iterdir()]
        if any(name.endswith((*SUFFIXES, INDEX)) for name in names) or CONFIG not in names:
            return None
        return path / CONFIG, read_object(path / CONFIG, BadConfig, inside=path)
    if path.suffix == ".json" and not path.name.endswith(INDEX) and present(path) and path.is_file():
        found = read_object(path, BadConfig)
        if str(found.get("schema")).startswith("toposcope/"):
            raise not_a_model(path)
        return path, found
    return None


def _from_standard_input() -> dict[str, Any]:
    content = sys.stdin.buffer.read(SETTINGS + 1)
    if len(content) > SETTINGS:
        raise BadConfig(f"standard input holds more than {SETTINGS:,} bytes; expected a config.json.")
    try:
        found = parse_json(content, "standard input")
    except BadFile as error:
        raise BadConfig(str(error)) from error
    if not isinstance(found, dict):
        raise BadConfig(f"standard input holds a JSON {type(found).__name__}; expected a config.json ({{...}}).")
    return found


def open_configuration(path: Path, values: Mapping[str, Any], family: str | None = None) -> Model:
    """The model as far as its configuration describes it: layers and encodings, and no weights."""
    source = ConfigSource(path, values)
    try:
        found = described(Config(dict(values), str(path)), source, family)
    except (MissingTensor, LookupError, ValueError) as error:  # an adapter asked for a tensor
        raise NotToldByConfiguration(str(error)) from error
    if not found.spec.layers:
        raise NotToldByConfiguration("which layers are attention is told by the names of its tensors")
    return Model(found.spec, source, values, read_layer, found.remarks)
