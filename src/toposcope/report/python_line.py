"""The line of Python that makes a result: the verb, what it was asked of, and the options that were given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

# Verbs whose provenance holds their own keyword arguments.
VERBS = ("check", "inspect", "scan", "spectrum", "compare", "trace", "ablate", "loss", "reproduce")


def python_line(result: Mapping[str, Any]) -> str | None:
    """result = toposcope.loss("smollm2", encoding=["none"], tokens=256), of a result's plain data and its origin.

    None for results that no call makes again by itself: flows of matrices, trained models.
    """
    verb = str(result.get("schema", "")).removeprefix("toposcope/").partition("/")[0]
    if verb not in VERBS:
        return None
    given = {name: value for name, value in result["options"].items() if value not in (None, False, [], {})}
    subjects = [_written(_called(each)) for each in result["subjects"]]
    options = [f"{name}={_written(value)}" for name, value in given.items()]
    return f"result = toposcope.{verb}({', '.join([*subjects, *options])})"


def _called(subject: Mapping[str, Any]) -> str:
    """What opens it again: a path whose last part is its name, or the name by which it is installed or on the hub."""
    name, path = str(subject["name"]), str(subject["path"])
    return path if PurePath(path).name == name else name


def _written(value: Any) -> str:
    """A value as Python writes it; texts in double quotes, in which nothing can end them."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)
