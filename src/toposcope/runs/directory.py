"""A run's directory: what is to be done (run.json), what has been done (result.json), and whatever its work keeps.

The directory is the truth about a run; the row in the store is an index of it. `result.json` appears by a rename
when all work is done, so it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toposcope._version import __version__
from toposcope.errors import BadFile
from toposcope.files import make_directory, write_bytes, write_json
from toposcope.runs import lock

RUN, RESULT = "run.json", "result.json"
STATE = "checkpoint.pt"  # what the laboratory goes on from; of no use beside a result
Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What is to be done: a key that names it for ever, the kind of work, and its configuration."""

    key: str
    kind: str
    config: Mapping[str, Any]


def write_job(directory: Path, job: Job) -> None:
    """Say what the directory is for."""
    make_directory(directory)
    if read_job(directory) != job:
        said = {"key": job.key, "kind": job.kind, "config": dict(job.config), "toposcope": __version__}
        write_json(directory / RUN, said)


def read_job(directory: Path) -> Job | None:
    """What the directory is for, or None where it does not say."""
    said = _read(directory / RUN)
    if said is None or not isinstance(said.get("config"), dict):
        return None
    return Job(str(said.get("key")), str(said.get("kind")), said["config"])


def read_result(directory: Path) -> dict[str, Any] | None:
    """The finished result, or None where there is none that can be read."""
    return _read(directory / RESULT)


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a result, which fit in a row; curves and maps stay in the file."""
    return {name: value for name, value in result.items() if value is None or isinstance(value, str | int | float)}


def tidy(directory: Path) -> None:
    """Remove what a killed process left half written. Only for the holder of the lock."""
    for litter in directory.glob(".*.tmp"):
        litter.unlink(missing_ok=True)


def drop_state(directory: Path) -> None:
    """Remove the state of a finished run where a process was killed between its result and that."""
    if (directory / STATE).exists():
        with contextlib.suppress(OSError):
            (directory / STATE).unlink()


def pack(directory: Path) -> dict[str, bytes]:
    """The files of a run, to be sent to or from another machine."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in files
        if path.name not in (lock.NAME, RUN) and path.suffix != ".tmp"
    }


def unpack(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files that came from another machine; the result last, since it says that all the others are there.

    With a result the run is over, and files it no longer has (its last checkpoint) go.
    """
    for name in sorted(files, key=lambda name: name == RESULT):
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise BadFile(f"a worker sent a file named '{name}', which lies outside its run. Nothing was written.")
        target = directory.joinpath(*parts.parts)
        make_directory(target.parent)
        write_bytes(target, files[name])
    if RESULT in files:
        for name in pack(directory).keys() - files.keys():
            directory.joinpath(name).unlink()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
