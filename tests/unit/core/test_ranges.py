from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.core.ranges import (
    parse_heads,
    parse_length,
    parse_range,
    show_range,
    written_heads,
    written_layers,
)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_showing_then_parsing_gives_the_same_selection(chosen: set[int]) -> None:
    assert parse_range(show_range(list(chosen)), 201) == sorted(chosen)


def test_everything_by_default() -> None:
    assert parse_range(None, 3) == parse_range("all", 3) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "x", "3-1", "5", "0-9", "-1", "1-", "0,,1", "½"])
def test_a_wrong_selection_is_named(text: str) -> None:
    with pytest.raises(BadValue, match="layer"):
        parse_range(text, 5)


@pytest.mark.parametrize("given", [[0, 1, 2, 7], (7, 2, 1, 0), np.array([0, 1, 2, 7]), {0, 1, 2, 7}, "0-2,7"])
def test_layers_in_python_are_those_of_the_command_line(given: Any) -> None:
    assert written_layers(given) == "0-2,7"


def test_one_layer_is_a_number_even_the_first() -> None:
    assert [written_layers(each) for each in (0, 3, np.int64(2), range(2), None, "all")] == [
        "0", "3", "2", "0-1", None, "all"
    ]  # fmt: skip


@pytest.mark.parametrize("given", [1.5, [0.0], ["0"], True, [None], object()])
def test_what_is_no_selection_of_layers_is_named(given: Any) -> None:
    with pytest.raises(BadValue, match="layers"):
        written_layers(given)


@pytest.mark.parametrize("given", [[(3, 2), (5, 0)], ((3, 2), (5, 0)), [[3, 2], "5.0"], ["3.2", "5.0"], "3.2,5.0"])
def test_heads_in_python_are_those_of_the_command_line(given: Any) -> None:
    assert written_heads(given) == "3.2,5.0"


def test_one_head_is_a_pair() -> None:
    assert written_heads((3, 2)) == "3.2"
    assert written_heads(None) is None


@pytest.mark.parametrize("given", [3, [3], [(1, 2, 3)], [(1, "2")], [], {}, 1.5])
def test_what_is_no_selection_of_heads_is_named(given: Any) -> None:
    with pytest.raises(BadValue, match="heads"):
        written_heads(given)


@given(st.sets(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1))
def test_written_heads_are_read_back(chosen: set[tuple[int, int]]) -> None:
    assert parse_heads(written_heads(sorted(chosen)) or "") == sorted(chosen)


def test_lengths_in_thousands_and_millions() -> None:
    assert [parse_length(text) for text in ("4096", 17, "128k", "1M", " 2K ")] == [4096, 17, 131072, 2**20, 2048]
    for text in ("", "k", "-1", "1.5k", "1G", "0", "9" * 400, "2000000M", "1 k"):
        with pytest.raises(BadValue):
            parse_length(text)
