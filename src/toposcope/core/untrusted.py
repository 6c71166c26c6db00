"""The one door for files from elsewhere: a directory that somebody handed over holds what it likes under any name.

Only regular files are opened (a pipe would wait for ever, a device never end), none that a symbolic link takes out
of the directory it was looked for in, and none larger than its kind may be. What is parsed has limits of its own.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from toposcope.core.errors import BadFile, NotFound, ToposcopeError
from toposcope.core.printable import printable

MEGABYTE = 1 << 20
SETTINGS = 16 * MEGABYTE  # a configuration, a vocabulary
INDEX = 128 * MEGABYTE  # which tensor lies in which file; which runs a store holds
RECORD = 64 * MEGABYTE  # what one run did: its job, its result
RESULT = 1024 * MEGABYTE  # what a command wrote with --json: one row a head, and more
TEXT = 1024 * MEGABYTE
SAVED = 16 * 1024 * MEGABYTE  # of a training that was interrupted: weights and optimiser
NODES = 2_000_000  # values in parsed JSON: some hundred megabytes of objects
MOST_NODES = 20_000_000  # of a result
_HUGE = re.compile(r"[eE]\+?\d{3,}(?![0-9a-fA-F\"])")  # an exponent that may be beyond double precision
DEEPEST, MOST_ENTRIES = 16, 100_000  # of a directory that we write into


def open_file(
    path: str | Path, *, most: int | None = None, inside: str | Path | None = None, links: bool = True
) -> io.BufferedReader:
    """A regular file, opened for reading.

    `most` is the largest size in bytes that it may have. `inside` is the directory it must lie in, symbolic links
    followed; files of a snapshot in the hub's cache may lie anywhere in that model's own cache. Without `links` none
    is followed below that directory.
    """
    path = Path(path)
    shown = printable(path)
    flags = os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for somebody to write
    with readable(path):
        if inside is not None:
            require_inside(path, inside, links=links)
        descriptor = os.open(path, os.O_RDONLY | flags | (0 if links else getattr(os, "O_NOFOLLOW", 0)))
    try:
        _require_regular(os.fstat(descriptor), shown, most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Say in a sentence why the system would not read `path`."""
    shown = printable(path)
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{shown} does not exist. Check the path.") from error
    except PermissionError as error:
        raise BadFile(f"{shown} may not be read: permission denied. Check the owner and mode of the file.") from error
    except IsADirectoryError as error:
        raise _directory(shown) from error
    except (OSError, ValueError) as error:  # a loop of links; a zero byte in the name
        if getattr(error, "errno", None) == errno.ENXIO:  # a socket cannot even be opened
            raise _not_regular(shown) from error
        reason = getattr(error, "strerror", None) or error
        raise BadFile(f"{shown} could not be read: {reason}. Check the disk and the path.") from error


def read_bytes(path: str | Path, *, most: int, inside: str | Path | None = None, links: bool = True) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_file(path, most=most, inside=inside, links=links) as file, readable(path):
        return file.read(os.fstat(file.fileno()).st_size)  # not what is added to it meanwhile


def read_json(
    path: str | Path,
    *,
    most: int,
    nodes: int = NODES,
    inside: str | Path | None = None,
    links: bool = True,
    finite: bool = False,
) -> Any:
    """The value in a JSON file; damaged ones, and those nested or filled beyond reason, are refused.

    `finite`: also NaN, Infinity and numbers beyond those of double precision, which files of ours never hold.
    """
    return parse_json(
        read_bytes(path, most=most, inside=inside, links=links), printable(path), nodes=nodes, finite=finite
    )


def read_object(
    path: Path, error_type: type[ToposcopeError], *, limit: int = SETTINGS, inside: Path | None = None
) -> dict[str, Any]:
    """The JSON object in a file (a config.json, say), or an `error_type` that says where it goes wrong.

    `inside` is the directory it was looked for in, unless the user named the file.
    """
    try:
        found = read_json(path, most=limit, inside=inside)
    except BadFile as error:
        raise error_type(str(error)) from error
    if not isinstance(found, dict):
        raise error_type(
            f"{path} holds a JSON {type(found).__name__}, and an object ({{...}}) was expected. Download it again."
        )
    return found


def read_saved(path: str | Path, *, inside: str | Path | None = None) -> Any:
    """What a command wrote with --json: a result, or several."""
    try:
        return read_json(path, most=RESULT, nodes=MOST_NODES, inside=inside, finite=True)
    except (BadFile, NotFound) as error:
        raise type(error)(f"{error} A result is written with --json FILE.") from error


def parse_json(content: bytes | str, what: str, *, nodes: int = NODES, finite: bool = False) -> Any:
    """A JSON value from elsewhere; `what` names its place in errors."""
    hooks: dict[str, Any] = {"parse_constant": _no_constant, "parse_int": _finite_int} if finite else {}
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if text.count(",") + text.count("[") + text.count("{") > nodes:
            raise BadFile(f"{what} holds more than {nodes:,} values, and a file of its kind does not.")
        if finite and _HUGE.search(text):  # only then: a call for each number would take as long as all the rest
            hooks["parse_float"] = _finite_float
        return json.loads(text, **hooks)
    except UnicodeDecodeError as error:
        raise BadFile(f"{what} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise BadFile(
            f"{what} is not JSON: {printable(error.msg)} at line {error.lineno}, column {error.colno}. "
            "Correct it, or get it again."
        ) from error
    except RecursionError as error:
        raise BadFile(f"{what} is nested too deeply for JSON that a program would write.") from error
    except ValueError as error:  # a number that is none, or of more digits than Python reads
        raise BadFile(f"{what} is not sound JSON: {printable(error)}. Get it again.") from error


def require_inside(path: str | Path, directory: str | Path, *, links: bool = True) -> None:
    """Complain where a symbolic link takes a path out of its directory, or, without `links`, where there is any."""
    path, directory = Path(path), Path(directory)
    try:
        found = path.resolve()
        if links:
            fine = found.is_relative_to(boundary(directory))
        else:
            fine = found == directory.resolve() / path.relative_to(directory)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a zero byte in the name
        raise BadFile(f"{printable(path)} could not be found: {printable(error)}. Check the path.") from error
    if not fine:
        raise BadFile(
            f"{printable(path)} is a link{' that leaves its directory' if links else ''}, which is not followed. "
            "Put the file itself there (a copy, or a hard link), or name what it points to."
        )


def require_plain(directory: str | Path, names: Collection[str] | None = None) -> None:
    """Complain where a directory that we write into holds a link, a pipe or a device: writing would go elsewhere.

    `names` are the entries that we write there, where others are none of our business.
    """
    root, entries = Path(directory), 0
    places = [(root, 0)]
    while places:
        place, depth = places.pop()
        try:
            found = [entry for entry in os.scandir(place) if names is None or depth or entry.name in names]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadFile(f"{printable(place)} cannot be looked at: {error.strerror}. Check the path.") from error
        entries += len(found)
        for entry in found:
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                what = "a link" if entry.is_symlink() else "neither a file nor a directory"
                raise BadFile(f"{printable(entry.path)} is {what}, and we write files there. Remove it.")
            if entry.is_dir():
                places.append((Path(entry.path), depth + 1))
        if depth > DEEPEST or entries > MOST_ENTRIES:
            raise BadFile(f"{printable(root)} holds more files than we write there. Choose another directory.")


def boundary(directory: Path) -> Path:
    """What files of this directory may not leave: itself, or the model's own cache where it is a snapshot there."""
    here = directory.resolve()
    for each in (here, *here.parents):
        if each.parent.name == "snapshots" and each.parent.parent.name.startswith("models--"):
            return each.parent.parent
    return here


def _directory(shown: str) -> BadFile:
    return BadFile(f"{shown} is a directory, and a file was expected. Point at a file in it.")


def _not_regular(shown: str) -> BadFile:
    return BadFile(f"{shown} is not a regular file but a device, pipe or socket. Save its content as a file first.")


def _require_regular(status: os.stat_result, shown: str, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _directory(shown)
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(shown)
    if most is not None and status.st_size > most:
        raise BadFile(f"{shown} has {status.st_size:,} bytes; a file of its kind has at most {most:,}.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is no number")


def _finite_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"it holds {text:.20}, which is larger than any number")
    return value


def _finite_int(text: str) -> int:
    value = int(text)
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"it holds a number of {len(text)} digits") from None
    return value
