"""A run's directory: what is to be done (run.json), what has been done (result.json), and whatever its work keeps.

The directory is the truth about a run; the row in the store is an index of it. `result.json` appears by a rename
when all work is done, so it is there as a whole or not at all. It carries the key of its run and a sum: another run's
result, one that was changed, and one whose numbers cannot be true do not count. No link is followed in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from toposcope._version import __version__
from toposcope.core.errors import BadFile, NotFound
from toposcope.core.files import make_directory, write_bytes, write_json
from toposcope.core.printable import printable
from toposcope.core.sealed import SUM, read_sealed, write_sealed
from toposcope.core.untrusted import RECORD, SAVED, read_bytes, read_json, require_plain
from toposcope.runs import lock
from toposcope.runs.jobs import EXPECTED, Job

RUN, RESULT = "run.json", "result.json"
REMOVE = "Remove the run it is about ('toposcope runs rm KEY', or its result.json), and give this again."
REFUSED = "result.refused.json"  # one that was found in the directory and is not its own


def write_job(directory: Path, job: Job) -> None:
    """Say what the directory is for."""
    make_directory(directory)
    if read_job(directory) != job:
        said = {"key": job.key, "kind": job.kind, "config": dict(job.config), "toposcope": __version__}
        write_json(directory / RUN, said)


def read_job(directory: Path) -> Job | None:
    """What the directory is for, or None where it does not say."""
    try:
        said = read_json(directory / RUN, most=RECORD, inside=directory, links=False, finite=True)
    except (BadFile, NotFound):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("config"), dict):
        return None
    return Job(str(said.get("key")), str(said.get("kind")), said["config"])


def write_result(directory: Path, result: Mapping[str, Any]) -> None:
    """The last deed of a run's work: its result, as that of the run which the directory is for."""
    job = read_job(directory)
    if job is None:
        raise BadFile(f"{directory} does not say which run it is for. Write its {RUN} first.")
    write_sealed(directory / RESULT, job.key, result)


def read_result(directory: Path, job: Job) -> dict[str, Any] | None:
    """The finished result, None where there is none yet; one that is not this run's own is complained of."""
    try:
        found = read_sealed(directory / RESULT, job.key, EXPECTED.get(job.kind))
    except NotFound:
        return None
    return {name: value for name, value in found.items() if name != SUM}


def set_aside(directory: Path) -> None:
    """Take a result out of the way that does not count. Only for the holder of the lock."""
    (directory / RESULT).replace(directory / REFUSED)


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """The single values of a result, which fit in a row; curves and maps stay in the file."""
    return {
        name: value
        for name, value in result.items()
        if name not in ("key", "directory", "trained_now") and (value is None or isinstance(value, str | int | float))
    }


def tidy(directory: Path) -> None:
    """Remove what a killed process left half written. Only for the holder of the lock."""
    for litter in directory.glob(".*.tmp"):
        litter.unlink(missing_ok=True)


def pack(directory: Path) -> dict[str, bytes]:
    """The files of a run, to be sent to or from another machine."""
    require_plain(directory)
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        path.relative_to(directory).as_posix(): read_bytes(path, most=SAVED, inside=directory, links=False)
        for path in files
        if path.name not in (lock.NAME, RUN, REFUSED) and path.suffix != ".tmp"
    }


def unpack(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files that came from another machine; the result last, since it says that all the others are there.

    With a result the run is over, and files it no longer has (its last checkpoint) go.
    """
    require_plain(directory)
    for name in sorted(files, key=lambda name: name == RESULT):
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise BadFile(
                f"a worker sent a file named '{printable(name)}', which lies outside its run. Nothing was written."
            )
        target = directory.joinpath(*parts.parts)
        make_directory(target.parent)
        write_bytes(target, files[name])
    if RESULT in files:
        for name in pack(directory).keys() - files.keys():
            directory.joinpath(name).unlink()
