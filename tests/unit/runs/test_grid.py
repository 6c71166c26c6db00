"""Lists as users write them, and the grid they span."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.runs.grid import grid, jobs, read_changes, read_seeds, split_encodings, split_names

TINY = {"width": 16, "layers": 1, "heads": 2, "ff": 16}


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        (["rope,none"], ["rope", "none"]),
        (["rope:base=500,scaling=yarn,factor=8,none"], ["rope:base=500,scaling=yarn,factor=8", "none"]),
        (["rope@heads:0-1,none,alibi"], ["rope@heads:0-1,none", "alibi"]),
        (["none,rope,rope@heads:0,mla,xpos"], ["none", "rope", "rope@heads:0", "mla", "xpos"]),
        (["alibi,rope@heads:0,alibi@heads:2-3,none,t5"], ["alibi", "rope@heads:0", "alibi@heads:2-3,none", "t5"]),
        (["rope@heads:0-1,3,none,t5"], ["rope@heads:0-1,3,none", "t5"]),
        (["rope:base=5,scaling=linear,factor=2@heads:0,none"], ["rope:base=5,scaling=linear,factor=2@heads:0,none"]),
        (["rope@layers:1-;none"], ["rope@layers:1-", "none"]),
        (["rope@heads:0-1;alibi,none"], ["rope@heads:0-1", "alibi,none"]),
        (["rope@heads:0-1", "alibi"], ["rope@heads:0-1", "alibi"]),
        (["rope, none ,rope,,"], ["rope", "none"]),
        ([""], []),
    ],
)
def test_encodings_are_split_by_the_rule(given_: list[str], wanted: list[str]) -> None:
    assert split_encodings(given_) == wanted


@given(
    st.lists(
        st.sampled_from(["rope", "none", "t5", "rope:base=500,scaling=yarn,factor=8", "rope@heads:0-1,3,none"]),
        min_size=1,
        unique=True,
    )
)
def test_any_list_is_split_into_what_was_joined(items: list[str]) -> None:
    assert split_encodings([",".join(items)]) == items
    assert split_encodings([";".join([*items, ""])]) == items
    assert split_encodings(items) == items


def test_names() -> None:
    assert split_names(["distance, count", "dyck;count"]) == ["distance", "count", "dyck"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("5", [0, 1, 2, 3, 4]), ("0-2,7", [0, 1, 2, 7]), ("7-7", [7]), ("3,1,3", [3, 1])]
)
def test_seeds(text: str, wanted: list[int]) -> None:
    assert read_seeds(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "x", "3-1", "-1", "1,,2", "1-", "0-999999999"])
def test_no_seeds(text: str) -> None:
    with pytest.raises(BadValue, match="seeds"):
        read_seeds(text)


def test_settings() -> None:
    given_ = ["steps=20", "lr=1e-3", "causal=true", "task.between=10", "task.collide=yes"]
    options = (("between", 10), ("collide", True))
    assert read_changes(given_) == {"steps": 20, "lr": 1e-3, "causal": True, "task_options": options}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepps=3", "'steps'"),
        ("steps", "name=value"),
        ("steps=", "name=value"),
        ("steps=2.5", "whole number"),
        ("lr=quick", "a number"),
        ("causal=3", "expected true"),
        ("task.between=many", "number, true"),
    ],
)
def test_settings_that_are_none(text: str, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        read_changes([text])


def test_the_whole_table_comes_before_the_second_seed() -> None:
    configs = grid(["distance", "count"], ["rope", "none"], [0, 5], changes=TINY)
    assert [(each.seed, each.task, each.encoding) for each in configs] == [
        (seed, task, encoding) for seed in (0, 5) for task in ("distance", "count") for encoding in ("rope", "none")
    ]
    assert len({each.key() for each in configs}) == 8
    made = jobs(configs)
    assert [job.key for job in made] == [each.key() for each in configs]
    assert made[0].config["width"] == 16


def test_one_run_under_two_names_is_one_run() -> None:
    assert len(grid(["distance"], ["none", "nope"], [0], changes=TINY)) == 1


@pytest.mark.parametrize(
    ("tasks", "encodings", "more", "words"),
    [
        (["distanse"], ["rope"], {}, "'distance'"),
        (["distance"], ["roppe"], {}, "'rope'"),
        (["distance"], ["rope"], {"profile": "laptop"}, "'laptop-"),
        (["distance"], ["rope"], {"variant": "describbed"}, "'described'"),
        (["distance"], ["rope"], {"changes": {"steps": 0}}, "steps"),
        (["distance"], ["rope"], {"changes": {"width": 30, "heads": 8}}, "30"),
        ([], ["rope"], {}, "no task"),
        (["distance"], [], {}, "no encoding"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(
    tasks: list[str], encodings: list[str], more: dict[str, object], words: str
) -> None:
    with pytest.raises((BadValue, BadEncoding), match=words):
        grid(tasks, encodings, [0], **more)  # type: ignore[arg-type]
