"""Parameters of a request are read strictly, and what is wrong is told in a sentence."""

from __future__ import annotations

import pytest

from toposcope.core.errors import BadValue
from toposcope.web.query import Query


def asked(**given: str) -> Query:
    return Query(list(given.items()))


def test_values_and_defaults() -> None:
    found = asked(n="7", x="-2.5e-3", on="true", word="rope")
    assert found.whole("n", 1, 0, 10) == 7
    assert found.number("x", None, -1, 1) == -0.0025
    assert found.flag("on", False) is True
    assert found.text("word") == "rope"
    assert found.whole("other", 3, 0, 10) == 3
    found.close()


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "1e999", "1e3", "x", "0x10", "1_0", "٣", "1" * 50, "²", "--1"]
)
def test_whole_numbers_only(value: str) -> None:
    with pytest.raises(BadValue, match=r"'n' .*100"):
        asked(n=value).whole("n", 1, 0, 100)


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "1e999", "x", "-0.5", "1.5", "1" * 50])
def test_finite_numbers_only(value: str) -> None:
    with pytest.raises(BadValue, match=r"'x' .* 1"):
        asked(x=value).number("x", 0.0, 0, 1)


def test_both_ends_of_a_range_are_allowed() -> None:
    found = asked(a="0", b="1")
    assert found.number("a", 0.5, 0, 1) == 0
    assert found.number("b", 0.5, 0, 1) == 1


def test_what_is_missing_unknown_or_given_twice() -> None:
    with pytest.raises(BadValue, match="'model'"):
        asked().text("model")
    found = asked(contxt="3")
    found.whole("context", 1, 0, 10)
    with pytest.raises(BadValue, match=r"'contxt'.*'context'"):
        found.close()
    with pytest.raises(BadValue, match="given twice"):
        Query([("n", "1"), ("n", "2")])


def test_long_texts_are_refused_and_not_repeated() -> None:
    with pytest.raises(BadValue, match="100000 characters") as told:
        asked(word="a" * 100_000).text("word")
    assert len(str(told.value)) < 200
    with pytest.raises(BadValue, match="on, off") as told:
        asked(word="b" * 300).text("word", choices=("on", "off"))
    assert len(str(told.value)) < 200
