"""What position changes, in words: each difference with both its numbers, and no difference where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

import toposcope
from toposcope.dynamics.flow import Flow
from toposcope.dynamics.position_effect import Both, PositionEffect
from toposcope.report.views.flow_position import position_line

ALIKE = PositionEffect(
    time=0.1,
    clusters=Both(3.0, 2.0),
    halved_at=Both(0.05, 0.051),
    cosine=Both(0.98, 0.96),
    cosine_at_start=Both(0.3, 0.3),
    widest=Both(0.52, 0.48),
    widest_at=0.043,
    distance=Both(5.0, 4.4),
    growth=Both(20.0, 21.0),
)
FAR = {  # a field of which the two differ, and the numbers that must be told
    "clusters": (Both(17.0, 1.0), ("17", "1)")),
    "halved_at": (Both(0.09, 0.03), ("0.09", "0.03")),
    "cosine": (Both(0.41, 0.97), ("0.41", "0.97")),
    "distance": (Both(9.4, 33.0), ("9.4", "33-fold")),
    "growth": (Both(71.0, 23.0), ("71-fold", "23-fold")),
    "widest": (Both(0.72, 0.13), ("0.72", "0.13", "0.043")),
}


@pytest.fixture(scope="module")
def rotated() -> Flow:
    """Twenty tokens under RoPE, for a moment."""
    return toposcope.flow(preset="helix", tokens=20, horizon=0.1).flows[0]


def told(flow: Flow, **changes: object) -> str:
    words = position_line(replace(flow, position_effect=replace(ALIKE, **changes)))
    assert words is not None
    return words


def test_nothing_is_said_where_nothing_was_compared(rotated: Flow) -> None:
    assert position_line(replace(rotated, position_effect=None)) is None


def test_two_runs_that_are_much_the_same_are_said_to_be(rotated: Flow) -> None:
    words = told(rotated)
    assert "RoPE" in words
    assert all(number in words for number in ("2 clusters", "3)", "0.96", "0.98", "4.4-fold", "5-fold", "21-fold"))
    assert told(rotated, growth=Both(21.0, 21.0)).count("21-fold") == 1
    assert not any(each in words for each in ("less", "more", "later", "sooner", "farther", "nearer"))


@pytest.mark.parametrize("name", list(FAR))
def test_what_differs_is_told_with_both_numbers_and_nothing_else(rotated: Flow, name: str) -> None:
    both, numbers = FAR[name]
    words = told(rotated, **{name: both})
    assert words != told(rotated)
    assert all(number in words for number in numbers)
    for other, (_, theirs) in FAR.items():
        if other != name:
            assert theirs[0] not in words
    swapped = told(rotated, **{name: Both(both.without, both.with_position)})
    assert swapped.split(":")[0] != words.split(":")[0]  # the other way round is another sentence


def test_all_that_differs_is_told_at_once_the_way_only_if_nothing_else(rotated: Flow) -> None:
    words = told(rotated, **{name: both for name, (both, _) in FAR.items()})
    assert all(number in words for name, (_, numbers) in FAR.items() if name != "widest" for number in numbers)
    assert "0.043" not in words


def test_what_did_not_come_is_said_to_be_missing(rotated: Flow) -> None:
    assert "not yet" in told(rotated, halved_at=Both(None, 0.03))
    assert "later" in told(rotated, halved_at=Both(None, 0.03))
    assert "sooner" in told(rotated, halved_at=Both(0.03, None))
    late = told(rotated, halved_at=Both(None, 0.0999))  # at the very end: both nearly alike
    assert late == told(rotated)
    one = told(rotated, **dict.fromkeys(("clusters", "halved_at", "cosine", "widest", "distance"), Both(None, None)))
    assert "cluster" not in one
    assert "cosine" not in one


def test_a_shorter_run_and_a_start_that_was_moved_are_named(rotated: Flow) -> None:
    assert "0.1" not in told(rotated)
    assert "t = 0.04" in told(rotated, time=0.04)
    moved = replace(rotated, settings=replace(rotated.settings, absolute="input"))
    assert "0.30" not in told(rotated, cosine_at_start=Both(0.3, 0.55))
    assert all(number in told(moved, cosine_at_start=Both(0.3, 0.55)) for number in ("0.30", "0.55"))
    again = replace(rotated, settings=replace(rotated.settings, absolute="reinject"))
    assert "0.55" not in told(again, cosine_at_start=Both(0.3, 0.55))
