"""Who is working on a run: a lock the operating system holds, so that a dead process never looks alive.

A worker keeps `<run>/.lock` open and locked for as long as it works. The system frees the lock when the last process
that holds it ends, however it ends, so a claim whose lock can be taken is a dead one. No clock is asked.
The lock belongs to the open file, not to the process: a driver hands it to a worker by sending the descriptor, and it
is free only when both have closed it (or died).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from toposcope.core.errors import BadFile, BadValue, ToposcopeError
from toposcope.core.printable import printable
from toposcope.core.untrusted import parse_json, read_bytes

NAME = ".lock"
LONGEST = 4096  # bytes of a signature
BEGINS = b'{"owner": "'


@dataclass(frozen=True)
class Lock:
    """A lock that is held; closing it gives this holder's share back."""

    path: Path
    descriptor: int

    def close(self) -> None:
        """Give it back. Another process that was given the descriptor goes on holding it."""
        os.close(self.descriptor)


def here() -> str:
    """How this process signs: name of the machine and process number."""
    return f"{socket.gethostname()}:{os.getpid()}"


def take(directory: Path, owner: str) -> Lock | None:
    """Lock a run's directory, or None where a living process holds it. The directory must exist."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - only where there is no POSIX
        raise BadValue("runs need the file locks of Linux or macOS; on Windows, use WSL.") from None
    path = directory / NAME
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                _sign(descriptor, owner)
                return Lock(path, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise BadValue(
                    f"the disk of {directory} offers no file locks, which keep two processes off one run. "
                    "Put the store on another disk."
                ) from error
            raise
        os.close(descriptor)  # the file was removed while we waited for it: what we locked is nobody's any more


def holder(directory: Path) -> str:
    """The signature of whoever locked the directory last."""
    with contextlib.suppress(ToposcopeError):
        owner = _owner(read_bytes(directory / NAME, most=LONGEST, inside=directory, links=False))
        return printable(owner) if owner else "another process"
    return "another process"


def _open(path: Path) -> int:
    """The lock's file, made where there is none. A stranger's directory may have put anything under its name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):  # a link, a socket, a directory
            raise _no_lock(path) from error
        raise
    try:
        _require_ours(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_ours(path: Path, descriptor: int) -> None:
    """Also a hard link may lead to something else, which signing would destroy."""
    status = os.fstat(descriptor)
    ours = stat.S_ISREG(status.st_mode) and status.st_size <= LONGEST
    if not ours or _owner(os.pread(descriptor, LONGEST, 0)) is None:
        raise _no_lock(path)


def _owner(content: bytes) -> str | None:
    """Who signed; None where that is no signature."""
    if not content.strip(b"\0"):  # not yet signed, or lost with the power
        return ""
    try:
        said = parse_json(content, NAME)
    except BadFile:  # half a signature is left by who was killed while signing
        return "" if content[: len(BEGINS)] == BEGINS[: len(content)] else None
    return str(said["owner"]) if isinstance(said, dict) and "owner" in said else None


def _no_lock(path: Path) -> BadFile:
    return BadFile(f"{printable(path)} is no lock of ours but a link or another file. Remove it, or the whole run.")


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        named, opened = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _sign(descriptor: int, owner: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock holds without its signature
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"owner": owner}).encode(), 0)
