"""Write points: every call by which a process changes the disk, counted, and one of them made to fail.

`install()` replaces, in this process and those forked from it, the calls of Python (`open` for writing, `write`,
`truncate`, `fsync`, `rename`, `mkdir`, `unlink`, ...) and, through SQLite's own hook for tests (`xSetSystemCall`),
those of the database. Nothing is counted or fails before a `Plan` is armed. Counts live in memory shared between
forked processes, by role, so that a worker that is started again goes on counting where the killed one was.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import io
import mmap
import os
import signal
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS = ("kill", "term", "int", "full", "full-once", "readonly", "denied")
ROLES = ("command", "worker")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
ERRORS = {"full": errno.ENOSPC, "full-once": errno.ENOSPC, "readonly": errno.EROFS, "denied": errno.EACCES}
GIVES = ("write", "create", "rename", "mkdir", "sync")  # what needs space on the disk
NAMED = ("create", "rename", "mkdir", "remove")  # what asks for a permission


@dataclass(frozen=True)
class Plan:
    """Make the k-th write point (from 1) of a role fail in a way; k = 0 only counts."""

    k: int = 0
    fault: str = "kill"
    role: str = "command"


class _State:
    plan: Plan | None = None
    role = "command"
    under: tuple[str, ...] = ()
    log = -1
    due: signal.Signals | None = None  # a signal that came inside the database: Python hears of it afterwards


_counts = mmap.mmap(-1, 8 * (len(ROLES) + 1))
_real_write, _real_kill, _real_open = os.write, os.kill, os.open


def arm(plan: Plan, under: tuple[Path, ...], log: Path) -> None:
    """Begin to count the write points below these directories; their names go to the log."""
    _counts[:] = bytes(len(_counts))
    _State.plan, _State.role, _State.due = plan, "command", None
    _State.under = tuple(f"{path.resolve()}{os.sep}" for path in under)
    _State.log = _real_open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def become(role: str) -> None:
    """Count as another role from now on (in a process forked from the one that was armed)."""
    _State.role, _State.due = role, None


def log_descriptor() -> int:
    return _State.log


def fired() -> bool:
    """Whether the fault has happened in any of the processes."""
    return bool(_get(len(ROLES)))


def _get(at: int) -> int:
    return struct.unpack_from("<q", _counts, 8 * at)[0]


def _set(at: int, value: int) -> None:
    struct.pack_into("<q", _counts, 8 * at, value)


def _failure(kind: str, path: str, half: Callable[[], Any] | None = None) -> int | None:
    """Count one write point. The number of the error it fails with, if it does; it may not return at all."""
    plan = _State.plan
    if plan is None or not path.startswith(_State.under):
        return None
    role = ROLES.index(_State.role)
    number = _get(role) + 1
    _set(role, number)
    _real_write(_State.log, f"{_State.role}\t{number}\t{kind}\t{path}\n".encode())
    if plan.role != _State.role or plan.k == 0 or number < plan.k:
        return None
    first = not fired() and number == plan.k
    _set(len(ROLES), 1)
    if plan.fault in SIGNALS:
        if first:
            _signalled(plan.fault, half)
        return None
    if plan.fault in ("full-once", "denied") and not first:
        return None
    if plan.fault in ("full", "full-once") and kind not in GIVES:
        return None
    if plan.fault == "denied" and kind not in NAMED:
        return None
    if half is not None and kind == "write":
        half()
    return ERRORS[plan.fault]


def _signalled(fault: str, half: Callable[[], Any] | None) -> None:
    if fault == "kill":
        if half is not None:
            half()
        _real_kill(os.getpid(), signal.SIGKILL)
    if _State.due is None and _in_database:
        _State.due = SIGNALS[fault]
    else:
        _real_kill(os.getpid(), SIGNALS[fault])


def _check(kind: str, path: Any, half: Callable[[], Any] | None = None) -> None:
    number = _failure(kind, _absolute(path), half)
    if number is not None:
        raise OSError(number, os.strerror(number), str(path))


def _absolute(path: Any) -> str:
    if isinstance(path, int):
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{path}").readlink())
        return ""
    return str(Path(os.fsdecode(path)).absolute())


# ------------------------------------------------------------- the calls of Python


def _hooked(name: str, kind: str, *, wanted: Callable[..., bool] = lambda *_, **__: True) -> None:
    real = getattr(os, name)

    def call(path: Any, *given: Any, **named: Any) -> Any:
        if _State.plan is not None and wanted(path, *given, **named):
            where = path
            if named.get("dir_fd") is not None:
                where = os.path.join(_absolute(named["dir_fd"]), os.fsdecode(path))  # noqa: PTH118
            half = None
            if name in ("write", "pwrite"):
                content = bytes(given[0])

                def half() -> None:
                    real(path, content[: len(content) // 2], *given[1:])

            _check(kind, where, half)
        return real(path, *given, **named)

    setattr(os, name, call)


def _for_writing(_: Any, flags: int, *__: Any, **___: Any) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


class _Raw(io.FileIO):
    """A file whose writes are write points; a fault leaves half of what was written."""

    def write(self, content: Any) -> int:
        whole = bytes(content)
        write = super().write
        _check("write", self.fileno(), lambda: write(whole[: len(whole) // 2]))
        return write(whole) or 0

    def truncate(self, size: int | None = None) -> int:
        _check("write", self.fileno())
        return super().truncate(size)


_real_io_open = io.open


def _open(file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any) -> Any:
    if _State.plan is None or not set(mode) & set("wax+") or not _absolute(file).startswith(_State.under):
        return _real_io_open(file, mode, buffering, *given, **named)
    binary = "".join(letter for letter in mode if letter not in "bt")
    opener = named.pop("opener", None)
    if not isinstance(file, int):
        _check("create", file)
    raw = _Raw(file, binary, named.pop("closefd", True), opener)
    if buffering == 0:
        return raw
    buffered: Any = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, *given, **named)
    text.mode = mode  # type: ignore[misc]
    return text


# ------------------------------------------------------------- the calls of SQLite

_in_database = 0
_kept: list[Any] = []  # C keeps pointers to these


class _Vfs(ctypes.Structure):
    """sqlite3_vfs of version 3, down to the hook for tests."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("size", ctypes.c_int),
        ("longest", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in (
            "open", "delete", "access", "full", "dlopen", "dlerror", "dlsym", "dlclose", "random", "sleep", "now",
            "error", "now64", "set", "get", "next_call",
        )),
    ]  # fmt: skip


def _hook_database() -> None:
    import _sqlite3

    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    assert vfs.contents.version >= 3, "this SQLite has no hook for tests"
    change = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(vfs.contents.set)
    find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(vfs.contents.get)
    size, offset, number, text = ctypes.c_size_t, ctypes.c_int64, ctypes.c_int, ctypes.c_char_p

    def replace(name: str, result: Any, *types: Any) -> Callable[[Any], None]:
        kind = ctypes.CFUNCTYPE(result, *types, use_errno=True)

        def with_ours(ours: Any) -> None:
            there = find(vfs, name.encode())
            if not there:  # this build writes by another call
                return
            real = kind(there)

            def call(*given: Any) -> Any:
                global _in_database
                _in_database += 1
                try:
                    error = ours(real, *given) if _State.plan is not None else None
                finally:
                    _in_database -= 1
                if error is not None:
                    ctypes.set_errno(error)
                    return -1
                return real(*given)

            made = kind(call)
            _kept.extend((made, real))
            assert change(vfs, name.encode(), ctypes.cast(made, ctypes.c_void_p)) == 0

        return with_ours

    def on_write(real: Any, file: int, content: int, length: int, *at: int) -> int | None:
        return _failure("write", _absolute(file), lambda: real(file, content, length // 2, *at))

    def on_open(_: Any, path: bytes, flags: int, __: int) -> int | None:
        creates = flags & os.O_CREAT and not Path(os.fsdecode(path)).exists()
        return _failure("create", os.fsdecode(path)) if creates else None

    replace("open", number, text, number, number)(on_open)
    replace("write", offset, number, ctypes.c_void_p, size)(on_write)
    replace("pwrite", offset, number, ctypes.c_void_p, size, offset)(on_write)
    replace("pwrite64", offset, number, ctypes.c_void_p, size, offset)(on_write)
    replace("ftruncate", number, number, offset)(lambda _, file, __: _failure("write", _absolute(file)))
    replace("unlink", number, text)(lambda _, path: _failure("remove", os.fsdecode(path)))


class _Connection(sqlite3.Connection):
    """A signal that arrives inside a statement reaches Python when the statement has ended."""

    def _after(self, value: Any) -> Any:
        due, _State.due = _State.due, None
        if due is not None:
            _real_kill(os.getpid(), due)
        return value

    def execute(self, *given: Any) -> Any:
        return self._after(super().execute(*given))

    def executemany(self, *given: Any) -> Any:
        return self._after(super().executemany(*given))


def install(*, weights: bool = True) -> None:
    """Put the hooks in place, once for the process; those of weights that are written from Rust need torch."""
    if _kept:
        return
    builtins.open = io.open = _open  # type: ignore[assignment]
    _hooked("open", "create", wanted=_for_writing)
    for name, kind in (
        ("write", "write"), ("pwrite", "write"), ("ftruncate", "write"), ("fsync", "sync"), ("replace", "rename"),
        ("rename", "rename"), ("mkdir", "mkdir"), ("unlink", "remove"), ("remove", "remove"), ("rmdir", "remove"),
    ):  # fmt: skip
        _hooked(name, kind)
    connect = sqlite3.connect

    def with_factory(*given: Any, **named: Any) -> Any:
        return connect(*given, **{"factory": _Connection, **named})

    sqlite3.connect = with_factory  # type: ignore[assignment]
    _hook_database()
    if weights:
        _hook_safetensors()


def _hook_safetensors() -> None:
    """The one file that is written by neither: weights, from Rust."""
    import safetensors.torch as library
    from safetensors import SafetensorError

    real = library.serialize_file

    def serialize_file(tensors: Any, name: Any, *given: Any, **named: Any) -> None:
        def half() -> None:
            real(tensors, name, *given, **named)
            os.truncate(name, Path(name).stat().st_size // 2)

        number = _failure("write", _absolute(name), half)
        if number is not None:
            raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")
        real(tensors, name, *given, **named)

    library.serialize_file = serialize_file
