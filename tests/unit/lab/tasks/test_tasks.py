"""What holds for every task: its labels, its floor, what a permutation does, seeds, longer sentences, names."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from tests.unit.lab.tasks.reading import READERS, answers, sentences
from toposcope.core.errors import BadValue
from toposcope.lab.tasks import NOTHING_ASKED, PROFILES, Task, find, tasks

NAMES = tuple(READERS)
# Small enough that every multiset of tokens turns up often.
TINY: dict[str, dict[str, Any]] = {
    "distance": {"side": 2, "between": 3, "vocabulary": 5, "length": 10},
    "count": {"length": 5, "most": 4, "triggers": 2, "vocabulary": 4},
    "previous": {"length": 5, "vocabulary": 5},
    "copy": {"length": 8, "vocabulary": 5},
    "reverse": {"length": 8, "vocabulary": 5},
    "induction": {"length": 5, "vocabulary": 6},
    "index": {"places": 3, "length": 5, "vocabulary": 7},
    "dyck": {"length": 6},
}
VARIANTS = [
    *((name, "laptop-s", {}) for name in NAMES),
    *((name, "paper", {}) for name in NAMES),
    *((name, "laptop-s", TINY[name]) for name in NAMES),
    ("distance", "laptop-m", {"fixed_length": True}),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_task_of_the_design_is_there_in_every_size() -> None:
    for profile in PROFILES:
        assert tuple(tasks(profile)) == NAMES
        assert all(task.name == name for name, task in tasks(profile).items())
    assert [task.name for task in tasks().values() if not task.position_sensitive] == ["count"]


def test_sizes_of_the_profiles() -> None:
    classes = {profile: [tasks(profile)[name].classes for name in ("distance", "count")] for profile in PROFILES}
    assert classes["laptop-s"] == [18, 27]
    assert classes["laptop-m"] == [28, 41]
    assert classes["paper"][0] == 70
    assert {profile: {task.length for task in tasks(profile).values()} for profile in PROFILES} == {
        "laptop-s": {32},
        "laptop-m": {48},
        "paper": {128},
    }


@pytest.mark.parametrize(("name", "profile", "changes"), VARIANTS)
@pytest.mark.parametrize("factor", [1, 1.5])
def test_labels_are_what_a_slow_reader_finds(name: str, profile: str, changes: dict[str, Any], factor: float) -> None:
    task = find(name, profile, **changes)
    if name != "induction" or "length" not in changes:  # tiny induction has no letters to spare
        task = task.longer(factor)
    batch = task.generate(64, seeded())
    assert answers(task, batch) == [READERS[name](ids, task) for ids in sentences(batch)]


@pytest.mark.parametrize(("name", "profile", "changes"), VARIANTS)
def test_shapes_padding_and_ranges(name: str, profile: str, changes: dict[str, Any]) -> None:
    task = find(name, profile, **changes)
    batch = task.generate(200, seeded())
    assert batch.ids_BN.shape == (200, task.length)
    assert {batch.ids_BN.dtype, batch.lengths_B.dtype, batch.labels.dtype} == {torch.int64}
    inside = torch.arange(task.length) < batch.lengths_B[:, None]
    assert torch.equal(batch.ids_BN > 0, inside)
    assert batch.ids_BN.max() < task.vocabulary
    assert batch.labels.shape == ((200,) if task.reads == "pooled" else (200, task.length))
    asked = batch.labels[batch.labels != NOTHING_ASKED]
    assert task.reads == "token" or len(asked) == 200
    assert 0 <= asked.min() <= asked.max() < task.classes


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_uniform_so_the_prior_is_one_in_classes(name: str) -> None:
    task = find(name, **TINY[name])
    labels = task.generate(20_000, seeded()).labels
    seen = np.bincount(labels[labels != NOTHING_ASKED].numpy(), minlength=task.classes)
    assert scipy.stats.chisquare(seen).pvalue > 1e-3
    assert task.prior == 1 / len(seen)


@pytest.mark.parametrize("name", ["previous", "induction", "index"])
def test_the_place_asked_for_is_uniform(name: str) -> None:
    task = find(name)
    rows = sentences(task.generate(20_000, seeded()))
    if name == "previous":
        places, options = [ids.index(1) - 1 for ids in rows], task.length - 1
    elif name == "induction":
        places, options = [ids.index(ids[-1]) for ids in rows], task.length - 2
    else:
        places, options = [ids[-1] - 1 for ids in rows], 31
    seen = np.bincount(places, minlength=options)
    assert len(seen) == options
    assert scipy.stats.chisquare(seen).pvalue > 1e-3


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *TINY.items(),
        ("distance", {**TINY["distance"], "fixed_length": True, "vocabulary": 4}),
        ("distance", {**TINY["distance"], "collide": True, "vocabulary": 4}),
    ],
)
def test_the_best_guess_from_the_multiset_reaches_the_stated_rate(name: str, changes: dict[str, Any]) -> None:
    """Learn the best guess for every (asked token, multiset) on one half of the sentences, score it on the other."""
    task = find(name, **changes)
    batch = task.generate(80_000, seeded())
    seen: list[tuple[Any, int]] = []
    for ids, asked in zip(sentences(batch), answers(task, batch), strict=True):
        assert asked is not None
        multiset = tuple(sorted(ids))
        seen += [((multiset, None if place is None else ids[place]), answer) for place, answer in asked.items()]
    tallies: dict[Any, Counter[int]] = defaultdict(Counter)
    for key, answer in seen[::2]:
        tallies[key][answer] += 1
    best = {key: tally.most_common(1)[0][0] for key, tally in tallies.items()}
    right = np.array([best.get(key) == answer for key, answer in seen[1::2]])
    # four standard errors of 40000 sentences; the answers within one sentence are not independent
    assert right.mean() == pytest.approx(task.without_position, abs=4 * 0.5 / np.sqrt(40_000))


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_in_order(name: str) -> None:
    for profile in PROFILES:
        task = find(name, profile)
        assert 0 < task.prior <= task.without_position <= task.ceiling.value == 1
        assert task.floor == (task.without_position if task.position_sensitive else task.prior)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "count"])
def test_some_permutation_changes_the_answer(name: str) -> None:
    """Two tokens swapped are enough, but for brackets, where an unbalanced word may have to be sorted."""
    task = find(name)
    for ids in sentences(task.generate(8, seeded(3))):
        permuted = [sorted(ids), sorted(ids, reverse=True)]
        for i, j in itertools.combinations(range(len(ids)), 2):
            swapped = list(ids)
            swapped[i], swapped[j] = ids[j], ids[i]
            permuted.append(swapped)
        before = READERS[name](ids, task)
        assert any(READERS[name](each, task) not in (None, before) for each in permuted)


def test_no_permutation_changes_a_count() -> None:
    task = find("count")
    batch = task.generate(50, seeded())
    shuffle = np.random.default_rng(0)
    for ids, asked in zip(sentences(batch), answers(task, batch), strict=True):
        for _ in range(5):
            assert READERS["count"](list(shuffle.permutation(ids)), task) == asked


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    task = find(name)
    state = torch.random.get_rng_state()
    generator = seeded(7)
    first, second = task.generate(32, generator), task.generate(32, generator)
    torch.rand(5)
    again = task.generate(32, seeded(7))
    torch.random.set_rng_state(state)
    other = task.generate(32, seeded(8))
    assert torch.equal(first.ids_BN, again.ids_BN)
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.lengths_B, again.lengths_B)
    assert not torch.equal(first.ids_BN, second.ids_BN)
    assert not torch.equal(first.ids_BN, other.ids_BN)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_longer_task_keeps_ids_and_classes(name: str, profile: str) -> None:
    task = find(name, profile)
    longer = task.longer(2)
    assert longer.length == 2 * task.length
    assert (longer.vocabulary, longer.answers, longer.reads) == (task.vocabulary, task.answers, task.reads)
    assert longer.generate(256, seeded()).lengths_B.max() > task.length
    assert task.longer(1) == task
    for factor in (0.5, float("nan"), float("inf")):
        with pytest.raises(BadValue, match="factor"):
            task.longer(factor)


def test_names_and_parameters_are_checked() -> None:
    with pytest.raises(BadValue, match="'distance'"):
        find("distanse")
    with pytest.raises(BadValue, match="laptop-s"):
        find("count", "laptop")
    with pytest.raises(BadValue, match="'triggers'"):
        find("count", trigers=3)
    with pytest.raises(BadValue, match="'vocabulary'"):
        find("dyck", vocabulary=5)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("distance", {"side": 0}),
        ("distance", {"between": 0}),
        ("distance", {"vocabulary": 3}),
        ("distance", {"length": 29}),
        ("count", {"most": 33}),
        ("count", {"triggers": 63}),
        ("count", {"triggers": 0}),
        ("previous", {"length": 2}),
        ("previous", {"vocabulary": 3}),
        ("copy", {"length": 7}),
        ("reverse", {"vocabulary": 3}),
        ("induction", {"vocabulary": 31}),
        ("induction", {"length": 3}),
        ("index", {"places": 32}),
        ("index", {"vocabulary": 33}),
        ("dyck", {"length": 5}),
    ],
)
def test_sizes_that_make_no_task_are_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=f"{name}|brackets"):
        find(name, **changes)


def test_the_smallest_sizes_make_sentences() -> None:
    smallest: list[Task] = [
        find("distance", side=1, between=1, vocabulary=4, length=5),
        find("count", length=1, most=1, triggers=1, vocabulary=3),
        find("previous", length=3, vocabulary=4),
        find("copy", length=4, vocabulary=4),
        find("induction", length=4, vocabulary=4),
        find("index", places=2, length=3, vocabulary=5),
        find("dyck", length=2),
    ]
    for task in smallest:
        batch = task.generate(16, seeded())
        assert answers(task, batch) == [READERS[task.name](ids, task) for ids in sentences(batch)]


def test_listing_tasks_needs_no_torch() -> None:
    code = (
        "import sys; from toposcope.lab.tasks import tasks; "
        "[task.floor for task in tasks().values()]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
