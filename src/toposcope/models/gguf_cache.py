"""A GGUF file as transformers reads it, kept in Hugging Face layout: the slow conversion is done once.

The copy lies in the user's cache directory under the file's hash and the version of transformers, in float32, which
holds every dequantised number exactly. Set TOPOSCOPE_CACHE to another directory, or to 'off'.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SETTING = "TOPOSCOPE_CACHE"
LAYOUT = 2  # counts changes in how copies are written: older ones are not read
_DONE = "config.json"


def directory_for(gguf: Path) -> Path | None:
    """Where the copy of a file belongs; None where the cache is switched off."""
    import platformdirs
    import transformers

    told = os.environ.get(SETTING, "")
    if told.lower() == "off":
        return None
    root = Path(told) if told else Path(platformdirs.user_cache_dir("toposcope"))
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return root / "gguf" / f"{digest[:32]}-{transformers.__version__}-{LAYOUT}"


def find(directory: Path | None) -> Path | None:
    """The copy, if it is there as a whole."""
    return directory if directory is not None and (directory / _DONE).is_file() else None


def keep(directory: Path, save: Callable[[Path], Any]) -> None:
    """Write a copy beside its place and rename it; where that fails (a full disk, say), do without."""
    with contextlib.suppress(OSError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(prefix=".writing-", dir=directory.parent))
        try:
            save(begun)
            begun.rename(directory)  # fails where another process was first: theirs is as good
        finally:
            shutil.rmtree(begun, ignore_errors=True)
