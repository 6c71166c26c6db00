"""Results that know whose they are: the key of their run, a sum over their content, and numbers that can be true.

A result that was changed, or put into another run's directory, is noticed. Who forges one anew, sum and all, is not:
there is no secret in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, ToposcopeError
from toposcope.core.files import write_json
from toposcope.core.journal import key_of
from toposcope.core.printable import printable
from toposcope.core.untrusted import RECORD, read_json

SUM = "sha256"
LARGEST = 1e300


@dataclass(frozen=True)
class Number:
    """A number that a result must hold; `missing`: or null."""

    least: float = -LARGEST
    most: float = LARGEST
    whole: bool = False
    missing: bool = False


@dataclass(frozen=True)
class OrNull:
    """Null, or what is expected."""

    expected: Any


COUNT, SHARE, SIZE = Number(0, 1e18, whole=True), Number(0, 1), Number(0)
# a number; a value that must be just that; the fields of an object; one entry for all of a list; None: anything
Expected = Number | OrNull | bool | str | Mapping[str, Any] | list[Any] | None


def write_sealed(path: Path, key: str, result: Mapping[str, Any]) -> Path:
    """Write the result of the run of this key."""
    content = {**result, "key": key}
    content.pop(SUM, None)
    return write_json(path, {**content, SUM: key_of(content)})


def read_sealed(path: Path, key: str | None, expected: Expected = None) -> dict[str, Any]:
    """The result in a file, if it is that of this run (None: of any) and its numbers are in their ranges."""
    found = read_json(path, most=RECORD, inside=path.parent, links=False, finite=True)
    if not isinstance(found, dict):
        raise _refused(path, "it is no object")
    if SUM not in found:
        raise _refused(path, "it carries no sum, as those of version 0.1.0 and those written by hand")
    unsealed(found, path)
    if key is not None and found.get("key") != key:
        raise _refused(path, f"it is of run {printable(found.get('key'), 40)}, and this is {key}")
    if wrong := _other_format(found, expected) or fault(found, expected):
        raise _refused(path, wrong)
    return found


def unsealed(found: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """What was sealed, without its sum; complains where it was changed."""
    told = {name: value for name, value in found.items() if name != SUM}
    if found.get(SUM) != key_of(told):
        raise _refused(path, "it was changed after it was written")
    return told


@contextmanager
def stored_values(where: object, advice: str) -> Iterator[None]:
    """Only around work on stored values: an error there says that they are not what was once written."""
    try:
        yield
    except (ToposcopeError, OSError, MemoryError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {str(error)[:200]}"
        raise BadFile(f"{where} holds what this version does not write ({words}). {advice}") from error


def _other_format(found: Mapping[str, Any], expected: Expected) -> str | None:
    """Whether it is a result of this kind as another version of Toposcope writes it."""
    wanted = expected.get("schema") if isinstance(expected, Mapping) else None
    kind, _, version = str(found.get("schema")).rpartition("/")
    if not isinstance(wanted, str) or found.get("schema") == wanted or kind != wanted.rpartition("/")[0]:
        return None
    return f"it is in format {printable(version, 20)}, and this version reads and writes {wanted.rpartition('/')[2]}"


def fault(value: Any, expected: Expected, at: str = "") -> str | None:
    """What is wrong with a value, in words; None where nothing is."""
    if expected is None:
        return None
    if isinstance(expected, OrNull):
        return None if value is None else fault(value, expected.expected, at)
    if isinstance(expected, Number):
        return _number_fault(value, expected, at)
    if isinstance(expected, Mapping):
        if not isinstance(value, Mapping):
            return f"{at or 'it'} is no object"
        faults = (
            fault(value[name], each, f"{at}.{name}" if at else name) if name in value else f"{name} is missing"
            for name, each in expected.items()
        )
        return next(filter(None, faults), None)
    if isinstance(expected, list):
        if not isinstance(value, list):
            return f"{at} is no list"
        return next(filter(None, (fault(each, expected[0], f"{at}[{n}]") for n, each in enumerate(value))), None)
    return None if value == expected and type(value) is type(expected) else f"{at} is {printable(value, 40)!r}"


def _number_fault(value: Any, expected: Number, at: str) -> str | None:
    if value is None and expected.missing:
        return None
    if isinstance(value, bool) or not isinstance(value, int if expected.whole else int | float):
        return f"{at} is {type(value).__name__}, not a number"
    if not expected.least <= value <= expected.most:  # also where it is not a number
        return f"{at} is {printable(value, 40)}, outside {expected.least:g} to {expected.most:g}"
    return None


def _refused(path: str | Path, why: str) -> BadFile:
    return BadFile(f"{printable(path)} does not count as a result: {why}. Remove it to do the work again.")
