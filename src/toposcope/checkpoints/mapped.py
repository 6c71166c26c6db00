"""Every way in which the system fails to read a file, turned into a sentence."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toposcope.errors import BadFile, NotFound


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say in a sentence why the system would not read `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist. Check the path.") from error
    except PermissionError as error:
        raise BadFile(f"{path} may not be read: permission denied. Check the owner and mode of the file.") from error
    except IsADirectoryError as error:
        raise BadFile(f"{path} is a directory, and a file was expected. Point at a file in it.") from error
    except OSError as error:
        raise BadFile(f"{path} could not be read: {error.strerror or error}. Check the disk and the path.") from error


def regular_size(path: Path) -> int:
    """The size in bytes of a regular, non-empty file."""
    with readable(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise BadFile(f"{path} is a directory, and a file was expected. Point at a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise BadFile(
            f"{path} is not a regular file but a device, pipe or socket. Save the checkpoint as a file first."
        )
    if status.st_size == 0:
        raise BadFile(f"{path} is empty (0 bytes), and a checkpoint was expected. Download or save it again.")
    return status.st_size
