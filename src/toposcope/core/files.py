"""Writing results so that a crash, a full disk or a second process never leaves half a file under its name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadValue, NotFound


def write_bytes(path: str | Path, content: bytes, *, durable: bool = True) -> Path:
    """Write a file as a whole or not at all: to a temporary name beside it, to the disk, then renamed.

    One that need not be `durable` may be found empty after a loss of power, and is not waited for.
    """
    target = Path(path)
    try:
        _write(target, content, durable)
    except FileNotFoundError as error:
        raise NotFound(
            f"cannot write {target}: the directory {target.parent} does not exist. Create it first."
        ) from error
    except IsADirectoryError as error:
        raise BadValue(f"cannot write {target}: it is a directory. Give the name of a file.") from error
    except NotADirectoryError as error:
        raise BadValue(f"cannot write {target}: {target.parent} is not a directory. Give another name.") from error
    except PermissionError as error:
        raise BadValue(
            f"cannot write {target}: permission denied. Choose another name, in a directory of your own."
        ) from error
    except OSError as error:
        raise BadValue(f"cannot write {target}: {_reason(error)}") from error
    except ValueError as error:  # a zero byte in the name
        raise BadValue(f"cannot write {str(target)!r}: {error}. Give another name.") from error
    return target


def write_text(path: str | Path, text: str) -> Path:
    """Write a text as UTF-8, as a whole or not at all."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON that any reader takes (no NaN), as a whole or not at all."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def present(path: str | Path) -> bool:
    """Whether a file or directory is there: never at a name that no file can have, with a zero byte or too long."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def make_directory(path: str | Path) -> Path:
    """Make a directory, and those it lies in, where they are not there yet."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue(f"cannot make the directory {target}: {_reason(error)}") from error
    return target


def _write(target: Path, content: bytes, durable: bool) -> None:
    target = target.resolve()  # a link stays a link, and the file it points at is replaced
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe: there is nothing to rename
        target.write_bytes(content)
        return
    mode = target.stat().st_mode if target.exists() else None
    if mode is not None and not os.access(target, os.W_OK):  # renaming over it would not ask
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    temporary = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(target)
        if durable:
            _sync_directory(target.parent)
    except BaseException:  # also when interrupted: no litter
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    """Have the new name outlast a loss of power, where the system can: the content is on the disk already."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space, or choose another disk."
    if error.errno == errno.EROFS:
        return "the disk is read-only. Choose another directory."
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long. Give a shorter one."
    return f"{error.strerror or error}. Choose another place."
