"""Arrays from .npy and .npz files: no pickles, and no more memory than the bytes that are really there."""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from toposcope.core.errors import BadFile, NotFound
from toposcope.core.memory import require_memory
from toposcope.core.untrusted import open_file

MEMBERS = 10_000

# What damaged headers and archives make numpy, zipfile and zlib raise.
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    AttributeError,
    OverflowError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npy(path: str | Path, what: str) -> NDArray[Any]:
    """The array in a .npy file; `what` names it in errors."""
    with _sound(path, f"a .npy file with {what}"), open_file(path) as file:
        require_memory(2 * os.fstat(file.fileno()).st_size, f"{path}", "Give a smaller file.")
        return _array(file.read())


def read_npz(path: str | Path, what: str) -> dict[str, NDArray[Any]]:
    """The arrays in a .npz file by name."""
    with _sound(path, what), open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MEMBERS:
            raise ValueError(f"it holds {len(members):,} arrays")
        require_memory(sum(member.file_size for member in members), f"{path} unpacked", "It is no file of ours.")
        return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}


@contextmanager
def _sound(path: str | Path, what: str) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise NotFound(f"no file {path}; expected {what}.") from error
    except _DAMAGE as error:
        raise BadFile(f"{path} is not {what} ({type(error).__name__}: {str(error)[:160]}).") from error


def _array(content: bytes) -> NDArray[Any]:
    """The header's claims are compared with the bytes that follow it before anything is made of them."""
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its version is {version}; expected 1.0 or 2.0")
    shape, by_columns, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which could run code")
    data = memoryview(content)[file.tell() :]
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"it announces {shape} of {dtype} and holds {len(data)} bytes")
    if not dtype.itemsize:
        raise ValueError(f"its entries, {dtype}, have no size")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C").copy()
