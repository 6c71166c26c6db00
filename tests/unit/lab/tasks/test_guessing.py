"""The commonest letter's share, against writing down every word."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from toposcope.lab.tasks.guessing import share_of_mode


@pytest.mark.parametrize("letters", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_equals_enumeration(count: int, letters: int) -> None:
    largest = [max(Counter(word).values()) for word in itertools.product(range(letters), repeat=count)]
    assert share_of_mode(count, letters) == pytest.approx(np.mean(largest) / count, rel=1e-12)


@pytest.mark.parametrize(("count", "letters"), [(31, 62), (127, 572), (400, 3)])
def test_equals_simulation(count: int, letters: int) -> None:
    generator = np.random.default_rng(0)
    shares = generator.multinomial(count, np.full(letters, 1 / letters), size=20_000).max(axis=1) / count
    assert share_of_mode(count, letters) == pytest.approx(shares.mean(), abs=4 * shares.std() / np.sqrt(len(shares)))
