from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.core.ranges import parse_length, parse_range, show_range


@given(st.sets(st.integers(0, 200), min_size=1))
def test_showing_then_parsing_gives_the_same_selection(chosen: set[int]) -> None:
    assert parse_range(show_range(list(chosen)), 201) == sorted(chosen)


def test_everything_by_default() -> None:
    assert parse_range(None, 3) == parse_range("all", 3) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "x", "3-1", "5", "0-9", "-1", "1-", "0,,1", "½"])
def test_a_wrong_selection_is_named(text: str) -> None:
    with pytest.raises(BadValue, match="layer"):
        parse_range(text, 5)


def test_lengths_in_thousands_and_millions() -> None:
    assert [parse_length(text) for text in ("4096", 17, "128k", "1M", " 2K ")] == [4096, 17, 131072, 2**20, 2048]
    for text in ("", "k", "-1", "1.5k", "1G", "0", "9" * 400, "2000000M", "1 k"):
        with pytest.raises(BadValue):
            parse_length(text)
