"""Attention patterns of one head against dense attention written out, and the rule by which heads get their names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import toposcope.models.tracing.logits
from toposcope.encodings import alibi
from toposcope.models.tracing.logits import HeadLogits, rows
from toposcope.models.tracing.patterns import (
    NEAR,
    THRESHOLDS,
    Score,
    induction_score,
    names,
    patterns,
    stands_out,
    together,
)

LENGTH = 50


def head(seed: int = 0, **changes: object) -> HeadLogits:
    random = np.random.default_rng(seed)
    plain = HeadLogits(
        q_NR=2 * random.standard_normal((LENGTH, 6)),
        k_NR=random.standard_normal((LENGTH, 6)),
        bias=None,
        head=1,
        causal=True,
        reach=None,
    )
    return replace(plain, **changes)


def written_out(given: HeadLogits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, attention and mask as whole matrices."""
    at = np.arange(given.length)
    logits = np.array([[float(q @ k) for k in given.k_NR] for q in given.q_NR])
    if given.bias is not None:
        logits += given.bias.table(at, at)[given.head]
    seen = np.ones_like(logits, dtype=bool)
    for i in at:
        for j in at:
            too_far = given.reach is not None and abs(i - j) > given.reach
            seen[i, j] = not (too_far or (given.causal and j > i))
    capped = logits if given.softcap is None else given.softcap * np.tanh(logits / given.softcap)
    weights = np.where(seen, np.exp(capped), 0.0)
    total = weights.sum(axis=1, keepdims=True) + (0.0 if given.sink is None else np.exp(given.sink))
    return logits, weights / total, seen


CASES = {
    "causal": {},
    "both ways": {"causal": False},
    "window": {"reach": 7},
    "window both ways": {"causal": False, "reach": 12},
    "capped": {"softcap": 2.0},
    "sink": {"sink": 1.5},
    "bias": {"bias": alibi(heads=3).bias},
}


@pytest.mark.parametrize("case", CASES)
def test_scores_equal_dense_attention(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toposcope.models.tracing.logits, "ENTRIES", 1)  # blocks of 16 rows: four of them
    given = head(**CASES[case])
    assert len(list(rows(given))) == 4
    random = np.random.default_rng(1)
    values = random.standard_normal((LENGTH, 5))
    ids = random.integers(0, 12, LENGTH)
    found = patterns(given, ids, values)
    logits, attention, seen = written_out(given)
    uniform = seen / seen.sum(axis=1, keepdims=True)
    at = np.arange(LENGTH)
    for weights, part in ((attention, "value"), (uniform, "uniform")):
        ours = {name: getattr(score, part) for name, score in found.scores.items()}
        assert ours["previous"] == pytest.approx(np.diagonal(weights, -1).mean(), rel=1e-12)
        assert ours["self"] == pytest.approx(np.diagonal(weights)[1:].mean(), rel=1e-12)
        far = [i for i in at[1:] if seen[i, 0]]
        assert ours["first"] == pytest.approx(np.mean([weights[i, 0] for i in far]), rel=1e-12)
        near = np.abs(at[:, None] - at) <= 8
        assert ours["local"] == pytest.approx((weights * near).sum(axis=1)[1:].mean(), rel=1e-12)
        follows = [(i, [j for j in range(1, i) if ids[j - 1] == ids[i] and seen[i, j]]) for i in at[1:]]
        shares = [weights[i, js].sum() for i, js in follows if js]
        assert ours["induction"] == pytest.approx(np.mean(shares), rel=1e-12)
        assert ("next" in ours) == (not given.causal)
        if not given.causal:
            assert ours["next"] == pytest.approx(np.diagonal(weights, 1)[1:].mean(), rel=1e-12)
    distance = (attention * np.abs(at[:, None] - at)).sum(axis=1)[1:].mean()
    entropy = -np.where(attention > 0, attention * np.log(np.where(attention > 0, attention, 1)), 0).sum(axis=1)
    assert found.distance == pytest.approx(distance, rel=1e-12)
    assert found.entropy == pytest.approx(entropy[1:].mean(), rel=1e-10)
    assert found.square == pytest.approx((np.where(seen, logits, 0) ** 2).sum(), rel=1e-12)
    assert induction_score(given, ids) == found.scores["induction"]
    assert induction_score(given, np.arange(LENGTH)) is None  # no token comes twice
    np.testing.assert_allclose(found.output_BV, (attention @ values)[found.seen_from :], rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [2, 3, 10, 200])
def test_uniform_attention_has_no_name(length: int, causal: bool) -> None:
    given = HeadLogits(np.zeros((length, 4)), np.ones((length, 4)), None, 0, causal, None)
    found = patterns(given, np.arange(length) % 3)
    for score in found.scores.values():
        assert score.value == pytest.approx(score.uniform, rel=1e-12)
    assert names(found.scores) == ()


def one_hot(targets: list[int], size: float = 20.0) -> HeadLogits:
    """A causal head in which query i attends to key targets[i]."""
    length = len(targets)
    return HeadLogits(size * np.eye(length)[targets], np.eye(length), None, 0, True, None)


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("previous", [max(i - 1, 0) for i in range(40)]),
        ("self", list(range(40))),
        ("first", [0] * 40),
        ("local", [max(i - 3 - i % 4, 0) for i in range(40)]),
        ("induction", [0 if i < 20 else i - 19 for i in range(40)]),
    ],
)
def test_a_planted_pattern_is_named(name: str, targets: list[int]) -> None:
    found = patterns(one_hot(targets), np.tile(np.arange(20), 2))
    assert found.scores[name].value > 0.99
    assert name in names(found.scores)
    if name != "induction":  # which attends to token 0 while nothing is repeated yet
        assert names(found.scores) == (name,)


def test_next_token_of_a_head_that_sees_the_future() -> None:
    given = replace(one_hot([min(i + 1, 39) for i in range(40)]), causal=False)
    assert names(patterns(given).scores) == ("next",)


def test_a_score_must_pass_its_threshold_and_stand_out() -> None:
    assert names({"previous": Score(0.36, 0.02)}) == ("previous",)
    assert names({"previous": Score(0.34, 0.02)}) == ()
    assert names({"previous": Score(0.36, 0.30)}) == ()  # a text of three tokens
    assert names({"local": Score(0.9, 0.2), "self": Score(0.4, 0.02)}) == ("self",)
    assert names({"self": Score(1.0, 1.0)}) == ()
    assert set(THRESHOLDS) == {"previous", "next", "self", "first", "induction", "local"}


def test_what_tells_most_of_a_head_is_read_first() -> None:
    assert together(["first", "local", "previous", "induction"]) == ("induction", "previous", "local", "first")
    assert together(["another", "first"]) == ("first", "another")
    assert together([]) == ()


@pytest.mark.parametrize(
    ("name", "threshold"),
    [("previous", 0.35), ("next", 0.35), ("self", 0.35), ("first", 0.5), ("induction", 0.35), ("local", 0.8)],
)
def test_the_rule_by_which_a_pattern_is_named(name: str, threshold: float) -> None:
    """s >= T and (s - u) / (1 - u) >= T / 2, just below, at and just above either bound."""
    for given, named in ((threshold - 1e-9, False), (threshold, True), (threshold + 1e-9, True)):
        assert names({name: Score(given, 0.0)}) == ((name,) if named else ())
    u = 0.9  # so that the second bound decides
    edge = u + (1 - u) * threshold / 2
    for given, named in ((edge - 1e-9, False), (edge + 1e-9, True)):
        assert stands_out(name, Score(given, u)) is named
    assert stands_out(name, Score(threshold, 0.0))
    assert not stands_out(name, Score(1.0, 1.0))


def test_names_come_in_one_order_and_unknown_ones_are_left_out() -> None:
    every = {name: Score(1.0, 0.0) for name in ("local", "induction", "first", "self", "next", "previous", "odd")}
    assert names(every) == ("previous", "next", "self", "first", "induction")
    for near in ("previous", "next", "self"):
        assert names({"local": Score(1.0, 0.0), near: Score(1.0, 0.0)}) == (near,)
    assert names({"local": Score(1.0, 0.0), "first": Score(1.0, 0.0)}) == ("first", "local")
    assert together(reversed(names(every))) == ("induction", "previous", "next", "self", "first")
    assert together(["odd", "local", "next", "self"]) == ("next", "self", "local", "odd")


def test_local_is_eight_tokens_to_either_side() -> None:
    """A head that looks eight back is local, one that looks nine back is not; the future counts where it is seen."""
    for back, share in ((NEAR, 1.0), (NEAR + 1, 0.0)):
        found = patterns(one_hot([max(i - back, 0) for i in range(60)], size=40.0))
        far = [i for i in range(1, 60) if i > NEAR + 1]
        alone = (found.scores["local"].value * 59 - (59 - len(far))) / len(far)  # the first ones see token 0 near by
        assert alone == pytest.approx(share, abs=0.05)
    ahead = replace(one_hot([min(i + NEAR, 59) for i in range(60)], size=40.0), causal=False)
    assert patterns(ahead).scores["local"].value == pytest.approx(1.0)
    assert NEAR == 8


def test_a_text_of_one_token_has_no_scores() -> None:
    found = patterns(HeadLogits(np.full((1, 2), 2.0), np.full((1, 2), 3.0), None, 0, True, None), np.array([5]))
    assert dict(found.scores) == {}
    assert (found.distance, found.entropy, found.seen_from) == (0.0, 0.0, 0)
    assert found.square == pytest.approx(144.0)
    assert found.output_BV is None


def test_two_tokens_are_scored_from_the_second() -> None:
    q, k = np.array([[1.0], [1.0]]), np.array([[0.0], [np.log(3.0)]])
    found = patterns(HeadLogits(q, k, None, 0, True, None), np.array([4, 4]), np.array([[1.0], [5.0]]))
    assert found.scores["self"] == Score(pytest.approx(0.75), 0.5)
    assert found.scores["previous"] == found.scores["first"] == Score(pytest.approx(0.25), 0.5)
    assert "induction" not in found.scores  # token 1 follows another 4, but is the query itself
    assert found.scores["local"] == Score(pytest.approx(1.0), 1.0)
    assert found.distance == pytest.approx(0.25)
    assert found.entropy == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    np.testing.assert_allclose(found.output_BV, [[1.0], [4.0]])


def test_a_token_that_never_repeats_shows_no_induction() -> None:
    found = patterns(head(), np.arange(LENGTH))
    assert "induction" not in found.scores
    assert "induction" not in patterns(head()).scores
