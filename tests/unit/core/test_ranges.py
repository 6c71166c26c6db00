from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.core.ranges import parse_range, show_range


@given(st.sets(st.integers(0, 200), min_size=1))
def test_showing_then_parsing_gives_the_same_selection(chosen: set[int]) -> None:
    assert parse_range(show_range(list(chosen)), 201) == sorted(chosen)


def test_everything_by_default() -> None:
    assert parse_range(None, 3) == parse_range("all", 3) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "x", "3-1", "5", "0-9", "-1", "1-", "0,,1", "½"])
def test_a_wrong_selection_is_named(text: str) -> None:
    with pytest.raises(BadValue, match="layer"):
        parse_range(text, 5)
