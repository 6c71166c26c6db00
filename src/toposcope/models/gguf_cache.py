"""A GGUF file as transformers reads it, kept in Hugging Face layout: the slow conversion is done once.

The copy lies in the user's cache directory under the file's hash and the versions of transformers and gguf, in
float32, which holds every dequantised number exactly. What is converted is a private copy of the file that has this
very hash: the file itself may be written to while it is mapped by others' readers. Set TOPOSCOPE_CACHE to another
directory, or to 'off'.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from toposcope.core.cache import SETTING as SETTING
from toposcope.core.cache import cache_root
from toposcope.core.errors import BadFile
from toposcope.core.untrusted import open_file

LAYOUT = 2  # counts changes in how copies are written: older ones are not read
WRITING = ".writing-"
_DONE = "config.json"
_HEX = 32  # digits of the hash in a copy's name


def directory_for(gguf: Path) -> Path | None:
    """Where the copy of a file belongs; None where the cache is switched off."""
    import transformers

    root = cache_root()
    if root is None:
        return None
    with open_file(gguf) as file:
        digest = _sha256(file)
    versions = f"{transformers.__version__}-{importlib.metadata.version('gguf')}"
    return root / "gguf" / f"{digest[:_HEX]}-{versions}-{LAYOUT}"


@contextlib.contextmanager
def copied(gguf: Path, directory: Path) -> Iterator[Path | None]:
    """A copy of the file that nobody else writes to, for as long as the block lasts; None where there is no room.

    Refused where the file is no longer the one that `directory` is named after.
    """
    digest, begun, copy = "", None, None
    try:
        with contextlib.suppress(OSError), open_file(gguf) as file:
            directory.parent.mkdir(parents=True, exist_ok=True)
            begun = Path(tempfile.mkdtemp(prefix=WRITING, dir=directory.parent))
            with (begun / gguf.name).open("xb") as out:
                digest = _sha256(file, out)
            copy = begun / gguf.name
        if copy is not None and not directory.name.startswith(f"{digest[:_HEX]}-"):
            raise BadFile(
                f"{gguf} was written to while it was being read. Wait until it is complete, and start again."
            )
        with _held(begun) if begun is not None else contextlib.nullcontext():
            yield copy
    finally:
        if begun is not None:
            shutil.rmtree(begun, ignore_errors=True)


def _sha256(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    """The hash of a file's content, which is written to another on the way."""
    total = hashlib.sha256()
    while part := file.read(1 << 20):
        total.update(part)
        if copy is not None:
            copy.write(part)
    return total.hexdigest()


def find(directory: Path | None) -> Path | None:
    """The copy, if it is there as a whole."""
    return directory if directory is not None and (directory / _DONE).is_file() else None


def keep(directory: Path, save: Callable[[Path], Any]) -> None:
    """Write a copy beside its place and rename it; where that fails (a full disk, say), do without."""
    from safetensors import SafetensorError

    with contextlib.suppress(OSError, SafetensorError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        _tidy(directory.parent)
        begun = Path(tempfile.mkdtemp(prefix=WRITING, dir=directory.parent))
        try:
            with _held(begun):
                save(begun)
                for path in begun.rglob("*"):
                    _to_disk(path)
                begun.rename(directory)  # fails where another process was first: theirs is as good
        finally:
            shutil.rmtree(begun, ignore_errors=True)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[bool]:
    """Lock a directory while it is written; False where a living process has it. The dead hold no locks."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - where there is no POSIX nothing is tidied up
        yield False
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(descriptor)


def _tidy(parent: Path) -> None:
    """Remove what killed processes left: half a copy is as large as a model."""
    for begun in parent.glob(f"{WRITING}*"):
        with contextlib.suppress(OSError), _held(begun) as ours:
            if ours:
                shutil.rmtree(begun, ignore_errors=True)
