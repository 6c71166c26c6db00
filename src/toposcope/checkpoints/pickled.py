"""A look at a pickle before it is loaded: its instructions are counted through, and nothing of it is made.

Torch's restricted unpickler runs no foreign code, but a key of a dictionary is hashed. A tuple that holds one tuple
many times, and that one another, takes a few bytes to write and for ever to hash.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any

from toposcope.core.errors import BadFile
from toposcope.core.untrusted import open_file

OLD_PICKLES = 5  # at the start of torch's files of before 2020: magic, version, system, the object, its storages
LARGEST_TUPLE = 100_000  # values, one in another; a shape has some, the state of a generator a few hundred
MOST_STEPS = 20_000_000
_MARK = -1
_PUT, _GET = {"BINPUT", "LONG_BINPUT", "PUT"}, {"BINGET", "LONG_BINGET", "GET"}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS"}
_TAKES_ONE = {"APPEND", "BUILD", "POP"}


def require_small_keys(path: Path) -> None:
    """Complain of a torch file in which tuples hold more values than it has bytes, counted as often as they are held.

    What is damaged, or no torch file at all, the reader says better.
    """
    with open_file(path) as file:
        try:
            if file.read(4) != b"PK\x03\x04":
                file.seek(0)
                for _ in range(OLD_PICKLES):
                    _walk(file, path)
                return
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    if entry.filename.endswith("data.pkl") and entry.compress_type == zipfile.ZIP_STORED:
                        with archive.open(entry) as content:
                            _walk(content, path)
        except BadFile:
            raise
        except Exception:  # noqa: BLE001 - zipfile and pickletools raise anything
            return


def _walk(file: IO[bytes], path: Path) -> None:
    """Follow the stack of the pickle's machine, where each value is the number of values in it, as a tree."""
    stack: list[int] = []
    memo: dict[int, int] = {}
    for step, (code, argument, _) in enumerate(pickletools.genops(file)):
        _take(code.name, argument, stack, memo)
        if (stack and stack[-1] > LARGEST_TUPLE) or step > MOST_STEPS:
            raise BadFile(
                f"{path} holds a tuple of more than {LARGEST_TUPLE:,} values inside each other, or {MOST_STEPS:,} "
                "steps, which no model needs, so it is not read. Save the model's state_dict() alone."
            )


def _take(name: str, argument: Any, stack: list[int], memo: dict[int, int]) -> None:
    if name == "MARK":
        stack.append(_MARK)
    elif name in _PUT:
        memo[int(argument)] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _GET:
        stack.append(memo[int(argument)])
    elif name == "DUP":
        stack.append(stack[-1])
    elif name in _SHORT_TUPLES:
        count = _SHORT_TUPLES[name]
        inside = [stack.pop() for _ in range(count)]
        stack.append(1 + sum(inside))
    elif name in ("TUPLE", "LIST", "DICT", "FROZENSET"):
        inside = _from_mark(stack)
        stack.append(1 + sum(inside) if name in ("TUPLE", "FROZENSET") else 1)
    elif name in _TO_MARK or name == "POP_MARK":
        _from_mark(stack)
    elif name in _TAKES_ONE:
        stack.pop()
    elif name == "SETITEM":
        del stack[-2:]
    elif name in ("REDUCE", "NEWOBJ"):
        del stack[-2:]
        stack.append(1)
    elif name == "BINPERSID":
        stack[-1] = 1
    elif name not in ("PROTO", "FRAME", "STOP"):
        stack.append(1)  # a number, a text, an empty container, a name


def _from_mark(stack: list[int]) -> list[int]:
    """What was put on the stack since the last mark; both are taken off it."""
    at = len(stack) - 1 - stack[::-1].index(_MARK)
    inside = stack[at + 1 :]
    del stack[at:]
    return inside
