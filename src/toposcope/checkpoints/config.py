"""A model's config.json, or any small JSON file that must hold an object, with errors that point at the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toposcope.core import untrusted
from toposcope.core.errors import BadFile, ToposcopeError


def read_json(
    path: Path, error_type: type[ToposcopeError], *, limit: int = untrusted.SETTINGS, inside: Path | None = None
) -> dict[str, Any]:
    """The JSON object in a file, or an `error_type` that says where it goes wrong.

    `inside` is the directory it was looked for in, unless the user named the file.
    """
    try:
        found = untrusted.read_json(path, most=limit, inside=inside)
    except BadFile as error:
        raise error_type(str(error)) from error
    if not isinstance(found, dict):
        raise error_type(
            f"{path} holds a JSON {type(found).__name__}, and an object ({{...}}) was expected. Download it again."
        )
    return found
