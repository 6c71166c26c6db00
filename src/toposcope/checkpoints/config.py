"""A model's config.json, or any small JSON file that must hold an object, with errors that point at the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toposcope.checkpoints.mapped import readable, regular_size
from toposcope.errors import ToposcopeError

CONFIG_LIMIT = 10_000_000  # bytes; the largest known are below one megabyte


def read_json(path: Path, error_type: type[ToposcopeError], *, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """The JSON object in a file, or an `error_type` that says where it goes wrong."""
    size = regular_size(path)
    if size > limit:
        raise error_type(f"{path} has {size:,} bytes, and at most {limit:,} were expected. It is no such file.")
    with readable(path):
        content = path.read_bytes()
    try:
        found = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise error_type(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise error_type(
            f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Correct it or download it again."
        ) from error
    except RecursionError as error:
        raise error_type(f"{path} is nested too deeply to be a configuration. Download it again.") from error
    except ValueError as error:  # a number of thousands of digits
        raise error_type(f"{path} is not sound JSON: {error}. Download it again.") from error
    if not isinstance(found, dict):
        raise error_type(
            f"{path} holds a JSON {type(found).__name__}, and an object ({{...}}) was expected. Download it again."
        )
    return found
