"""The one door for files from elsewhere: a directory that somebody handed over holds what it likes under any name.

Only regular files are opened (a pipe would wait for ever, a device never end), none that a symbolic link takes out
of the directory it was looked for in, and none larger than its kind may be. What is parsed has limits of its own.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from toposcope.errors import BadFile, NotFound
from toposcope.printable import printable

MEGABYTE = 1 << 20
SETTINGS = 16 * MEGABYTE  # a configuration, a shard index, a vocabulary
RECORD = 64 * MEGABYTE  # what one run did: its job, its result
RESULT = 1024 * MEGABYTE  # what a command wrote with --json: one row a head, and more
TEXT = 1024 * MEGABYTE
MOST_NODES = 20_000_000  # of parsed JSON: some gigabytes of objects


def open_file(path: str | Path, *, most: int | None = None, inside: str | Path | None = None) -> BinaryIO:
    """A regular file, opened for reading.

    `most` is the largest size in bytes that it may have. `inside` is the directory it must lie in, symbolic links
    followed; files of a snapshot in the hub's cache may lie anywhere in that model's own cache.
    """
    path = Path(path)
    shown = printable(path)
    try:
        if inside is not None and not path.resolve().is_relative_to(boundary(Path(inside))):
            raise BadFile(f"{shown} is a link that leaves {printable(inside)}. Put the file itself there.")
        # O_NONBLOCK: opening a pipe must not wait for somebody to write into it
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        raise NotFound(f"{shown} does not exist. Check the path.") from error
    except PermissionError as error:
        raise BadFile(f"{shown} may not be read: permission denied. Check the owner and mode of the file.") from error
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links; a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise BadFile(f"{shown} could not be read: {reason}. Check the disk and the path.") from error
    try:
        _require_regular(os.fstat(descriptor), shown, most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, *, most: int, inside: str | Path | None = None) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_file(path, most=most, inside=inside) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise BadFile(f"{printable(path)} could not be read: {error.strerror}. Check the disk.") from error
    if len(content) > most:  # it grew since it was opened
        raise _too_large(printable(path), len(content), most)
    return content


def read_json(path: str | Path, *, most: int, inside: str | Path | None = None) -> Any:
    """The value in a JSON file; damaged ones, and those nested or filled beyond reason, are refused."""
    return parse_json(read_bytes(path, most=most, inside=inside), printable(path))


def parse_json(content: bytes | str, what: str) -> Any:
    """A JSON value from elsewhere; `what` names its place in errors."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if text.count(",") + text.count("[") + text.count("{") > MOST_NODES:
            raise BadFile(f"{what} holds more than {MOST_NODES:,} values of JSON. It is no file of ours.")
        return json.loads(text)
    except RecursionError as error:
        raise BadFile(f"{what} is nested too deeply for JSON that a program would write.") from error
    except ValueError as error:  # also a number of more digits than Python reads, and what is no UTF-8
        raise BadFile(f"{what} is not JSON: {printable(error)}.") from error


def boundary(directory: Path) -> Path:
    """What files of this directory may not leave: itself, or the model's own cache where it is a snapshot there."""
    here = directory.resolve()
    if here.parent.name == "snapshots" and here.parent.parent.name.startswith("models--"):
        return here.parent.parent
    return here


def _require_regular(status: os.stat_result, shown: str, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise BadFile(f"{shown} is a directory, and a file was expected. Point at a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise BadFile(
            f"{shown} is not a regular file but a device, pipe or socket. Save its content as a file first."
        )
    if most is not None and status.st_size > most:
        raise _too_large(shown, status.st_size, most)


def _too_large(shown: str, size: int, most: int) -> BadFile:
    return BadFile(f"{shown} has {size:,} bytes; a file of its kind has at most {most:,}.")
