"""How much of the long tests is run: a sample drawn by the commit (`make test`), or everything (`make test-all`).

The variable TOPOSCOPE_TESTS says which: nothing for a sample of this commit, `all` for everything, a number for the
sample that a run with this number at its end has had.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
VARIABLE = "TOPOSCOPE_TESTS"
ROOT = Path(__file__).parents[1]


def commit_seed() -> int:
    """A number made of the commit, or 0 where there is none (a source archive)."""
    try:
        said = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
        ).stdout
        return int(said[:7], 16)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _given() -> str:
    """What the variable says; the seed of the commit is put there, so that all processes of a run have the same."""
    return os.environ.setdefault(VARIABLE, str(commit_seed())) or "0"


ALL = _given() == "all"
SEED = 0 if ALL else int(_given())


def count(few: int, full: int) -> int:
    """So many of something: few in a sample, all of them in full."""
    return full if ALL else few


def sample(things: Sequence[T], few: float, *, of: str) -> list[T]:
    """Some of the things in their order, or all of them; `of` keeps samples of different things apart.

    `few` is a number of them, or a share below 1 with which each is drawn: one thing alone is drawn sometimes.
    """
    dice = random.Random(f"{SEED} {of}")
    if ALL or few >= len(things):
        return list(things)
    if few < 1:
        return [each for each in things if dice.random() < few]
    drawn = set(dice.sample(range(len(things)), int(few)))
    return [each for k, each in enumerate(things) if k in drawn]


def examples(asked: int) -> int:
    """On how many examples a property is tried that asks for so many."""
    return asked if ALL else min(asked, max(10, asked // 8))
