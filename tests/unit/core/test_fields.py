"""Dataclasses to plain data and back, and the schema of both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from toposcope.core.errors import BadFile
from toposcope.core.fields import plain, rebuilt, schema


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    """Something inside."""

    number: float
    word: str | None = None


@dataclass(frozen=True, eq=False)
class Outer:
    """One of everything."""

    whole: int
    share: float
    maybe: float | None
    either: int | str
    colour: Colour
    mode: Literal["a", "b"]
    inner: Inner
    many: tuple[Inner, ...]
    pair: tuple[int, str]
    listed: list[int]
    named: Mapping[str, Inner]
    numbered: Mapping[int, float]
    array: NDArray[np.float64]
    waves: NDArray[np.complex128]
    where: Path
    anything: Any
    flag: bool


def outer(**changed: Any) -> Outer:
    values: dict[str, Any] = {
        "whole": 3, "share": 0.1, "maybe": None, "either": "x", "colour": Colour.BLUE, "mode": "b",
        "inner": Inner(1.5), "many": (Inner(2.0, "two"), Inner(math.inf)), "pair": (1, "one"), "listed": [1, 2],
        "named": {"a": Inner(0.25)}, "numbered": {7: 0.5}, "array": np.array([[1.0, 2.0], [3.0, np.nan]]),
        "waves": np.array([1 + 2j, -3j]), "where": Path("some/place"), "anything": {"k": [1, None]}, "flag": True,
    }  # fmt: skip
    return Outer(**{**values, **changed})


def test_what_is_written_is_read_back() -> None:
    written = json.loads(json.dumps(plain(outer()), allow_nan=False))
    found = rebuilt(Outer, written)
    assert plain(found) == plain(outer())
    assert found.colour is Colour.BLUE
    assert found.numbered == {7: 0.5}
    assert isinstance(found.many, tuple)
    assert isinstance(found.listed, list)
    assert np.array_equal(found.waves, outer().waves)
    assert np.array_equal(found.array, outer().array, equal_nan=True)
    assert math.isnan(found.many[1].number)
    assert found.where == Path("some/place")


def test_the_schema_describes_what_is_written() -> None:
    document = schema(Outer, name="toposcope/outer/2", title="Outer")
    written = {"schema": "toposcope/outer/2", **plain(outer())}
    jsonschema.Draft202012Validator.check_schema(document)
    jsonschema.validate(written, document)
    jsonschema.validate({**written, "inner": {"number": 1.0}}, document)  # written before there was a `word`
    for wrong in (
        {**written, "more": 1},
        {**written, "inner": {"word": "no number"}},
        {k: v for k, v in written.items() if k != "whole"},
        {**written, "mode": "c"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("whole", 1.5), ("whole", True), ("whole", None), ("share", "0.1"), ("share", True), ("colour", "green"),
        ("mode", 1), ("inner", []), ("inner", {"word": "one"}), ("inner", {"number": 1.0, "word": None, "x": 0}),
        ("many", {}), ("pair", [1]), ("pair", [1, 2]), ("named", []), ("numbered", {"a": 0.5}),
        ("array", [[1], [2, 3]]), ("waves", [[1.0, 2.0, 3.0]]), ("array", "abc"),
        ("where", 3), ("flag", 1), ("either", None), ("either", 0.5),
    ],
)  # fmt: skip
def test_what_is_not_a_field_is_refused_and_named(key: str, value: Any) -> None:
    with pytest.raises(BadFile, match=key):
        rebuilt(Outer, {**plain(outer()), key: value})


@dataclass(frozen=True)
class Grown:
    """A row that has got fields since files of it were written."""

    first: int
    later: float | None = None
    listed: tuple[Inner, ...] = field(default_factory=lambda: (Inner(1.0),))


def test_a_field_with_a_default_may_be_missing_and_no_other() -> None:
    assert rebuilt(Grown, {"first": 1}) == Grown(1)
    assert rebuilt(tuple[Grown, ...], [{"first": 1, "listed": [{"number": 2.0}]}, {"first": 2, "later": 0.5}]) == (
        Grown(1, listed=(Inner(2.0),)),
        Grown(2, 0.5),
    )
    for wrong, named in (
        ({"later": 0.5}, "first"),
        ({"first": 1, "latr": 0.5}, "latr"),
        ({"first": 1, "later": "0.5"}, "later"),  # there, it must be one
        ({"first": 1, "listed": None}, "listed"),
        ({"first": 1, "listed": [{}]}, "number"),
    ):
        with pytest.raises(BadFile, match=named):
            rebuilt(Grown, wrong)


@given(
    st.floats(), st.integers(-(2**70), 2**70), st.text(max_size=20), st.lists(st.floats(width=64), max_size=4),
    st.dictionaries(st.text(max_size=5), st.floats(), max_size=3),
)  # fmt: skip
def test_any_values_survive_json(
    share: float, whole: int, word: str, numbers: list[float], named: dict[str, float]
) -> None:
    made = outer(
        share=share, whole=whole, inner=Inner(share, word), array=np.array(numbers),
        named={key: Inner(value) for key, value in named.items()},
    )  # fmt: skip
    written = json.loads(json.dumps(plain(made), allow_nan=False))
    found = rebuilt(Outer, written)
    assert plain(found) == written
    assert found.share == share or not math.isfinite(share)


def test_numpy_scalars_and_sets_become_plain() -> None:
    given: Sequence[Any] = [np.float32(0.5), np.int64(3), np.bool_(True), {4}, np.float64("nan")]
    assert plain(given) == [0.5, 3, True, [4], None]
