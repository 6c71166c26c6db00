"""Bracket words are uniform among the balanced and among the unbalanced."""

from __future__ import annotations

from collections import Counter

import scipy.stats
import torch

from tests.unit.lab.tasks.reading import sentences
from toposcope.lab.tasks.dyck import Dyck


def test_every_word_has_its_chance() -> None:
    batch = Dyck(length=6).generate(30_000, torch.Generator().manual_seed(0))
    words = [tuple(ids) for ids in sentences(batch)]
    for label, number in ((1, 5), (0, 15)):  # Catalan(3) = 5 of the 20 arrangements
        seen = Counter(word for word, each in zip(words, batch.labels.tolist(), strict=True) if each == label)
        assert len(seen) == number
        assert scipy.stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_every_word_has_the_same_multiset() -> None:
    batch = Dyck(length=32).generate(500, torch.Generator().manual_seed(0))
    assert ((batch.ids_BN == 1).sum(1) == 16).all()
    assert ((batch.ids_BN == 2).sum(1) == 16).all()
