"""What a file is, by its first bytes rather than by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from toposcope.core.errors import BadFile
from toposcope.core.untrusted import open_file, readable

HEAD = 512  # bytes looked at

# The start of a file, the format's name here (None: not a checkpoint), and what to say of it.
_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "a gzip archive: unpack it with gunzip"),
    (b"BZh", "a bzip2 archive: unpack it with bunzip2"),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it with unxz"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it with unzstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"Rar!", "a RAR archive: unpack it"),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow): convert the model to safetensors"),
    (b"\x93NUMPY", "a single numpy array: save the model as safetensors"),
    (b"lmgg", "a GGML file of an old llama.cpp: convert the model to GGUF"),
    (b"fmgg", "a GGML file of an old llama.cpp: convert the model to GGUF"),
    (b"tjgg", "a GGJT file of an old llama.cpp: convert the model to GGUF"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a Windows program"),
    (b"SQLite format 3", "an SQLite database"),
)
_LFS = b"version https://git-lfs"
_RESULT = re.compile(rb'[\[{\s]*"schema"\s*:\s*"toposcope/')
_SUFFIXES = {
    ".safetensors": "safetensors",
    ".gguf": "gguf",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
}
SUFFIXES = tuple(_SUFFIXES)
_TITLES = {
    "safetensors": "a safetensors file",
    "gguf": "a GGUF file",
    "torch": "a torch file (a pickle or zip archive)",
}


def not_a_model(path: Path) -> BadFile:
    """What is said of a result where a model was asked for."""
    return BadFile(
        f"{path} is a result that a command of Toposcope wrote, and a model was expected. "
        f"'toposcope report {path}' and 'toposcope serve {path}' show it."
    )


def checkpoint_format(path: Path) -> str:
    """'safetensors', 'gguf' or 'torch'; a BadFile that says what the file seems to be when it is none of them."""
    with open_file(path) as file, readable(path):
        head = file.read(HEAD)
        size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise BadFile(f"{path} is empty (0 bytes), and a checkpoint was expected. Download or save it again.")
    expected = _SUFFIXES.get(path.suffix.lower())
    found = _format_of(head, size)
    if found is not None:
        if expected is not None and expected != found:
            raise BadFile(
                f"{path} is named as {_TITLES[expected]} and holds {_TITLES[found]}. Rename it so that it ends in "
                f"{next(suffix for suffix, form in _SUFFIXES.items() if form == found)}, or check the download."
            )
        return found
    if head.startswith(_LFS):
        raise BadFile(
            f"{path} is a Git LFS pointer of {size} bytes, not the weights themselves. "
            "Fetch them with 'git lfs pull' in the repository it came from."
        )
    if _RESULT.match(head):
        raise not_a_model(path)
    what = _describe(head)
    if what is not None:
        wanted = _TITLES[expected] if expected else "a checkpoint"
        raise BadFile(
            f"{path} was expected to be {wanted} and seems to be {what}. Check where it was downloaded from."
        )
    if expected == "torch":
        raise BadFile(
            f"{path} begins with {head[:8]!r}, neither as a zip archive nor as a pickle, which torch.save writes. "
            "Download or save it again."
        )
    if expected is None:
        raise BadFile(
            f"{path} is no checkpoint that can be read: it begins with {head[:8]!r}. Expected a safetensors, GGUF or "
            f"torch file ({', '.join(SUFFIXES)})."
        )
    return expected  # its own reader says best what is wrong with it


def _format_of(head: bytes, size: int) -> str | None:
    if head.startswith(b"GGUF"):
        return "gguf"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "torch"
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:  # a pickle's PROTO opcode
        # The same two bytes could begin a safetensors header of that length; then '{' stands at byte 8.
        return "safetensors" if _is_safetensors(head, size) else "torch"
    return "safetensors" if _is_safetensors(head, size) else None


def _is_safetensors(head: bytes, size: int) -> bool:
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def _describe(head: bytes) -> str | None:
    for start, what in _STARTS:
        if head.startswith(start):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page, as a failed download or a login page leaves it"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    return None
