"""The deposit index: its defining properties, its edges, and its bootstrap against a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.models.deposit import Deposit, _resampled_means, bootstrap, deposit, gini

accuracies = st.floats(0, 1)
heads = st.lists(accuracies, min_size=1, max_size=9)


def by_the_definition(base: float, ablated: list[float], floor: float) -> dict[str, float | None]:
    """Section 8 word for word, one head at a time."""
    damages = sorted((max(0.0, base - max(each, floor)) for each in ablated), reverse=True)
    second = damages[1] if len(damages) > 1 else 0.0
    total, count = sum(damages), len(damages)
    pairs = sum(abs(a - b) for a in damages for b in damages)
    return {
        "d_max": max(base - each for each in ablated),
        "d_rel": damages[0] / (base - floor),
        "share": damages[0] / total if total else None,
        "gini": pairs / (2 * count * total) if total else None,
        "di": (damages[0] - second) / (base - floor),
    }


@given(heads, accuracies, accuracies)
def test_follows_the_definition(ablated: list[float], base: float, floor: float) -> None:
    found = deposit(base, ablated, floor)
    if base - floor < 0.1 - 1e-9:
        assert (found.d_rel, found.share, found.gini, found.di) == (None, None, None, None)
        assert found.d_max == max(base - each for each in ablated)
    elif base - floor > 0.1 + 1e-9:
        for name, value in by_the_definition(base, ablated, floor).items():
            assert getattr(found, name) == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12))
        assert found.di is not None
        assert found.d_rel is not None
        assert 0 <= found.di <= found.d_rel <= 1


@given(heads, accuracies, accuracies)
def test_a_loss_is_an_accuracy_upside_down(ablated: list[float], base: float, floor: float) -> None:
    as_loss = deposit(-base, [-each for each in ablated], -floor, score="loss", noise=0.1 / 3)
    assert as_loss == deposit(base, ablated, floor)  # three times that is the 0.1 of an accuracy


@given(st.lists(st.integers(0, 100), min_size=2, max_size=9, unique=True), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_the_map(percents: list[int], random: Any) -> None:
    ablated = [percent / 100 for percent in percents]
    order = list(range(len(ablated)))
    random.shuffle(order)
    first, second = deposit(0.9, ablated, 0.2), deposit(0.9, [ablated[i] for i in order], 0.2)
    for name in ("d_max", "d_rel", "share", "gini", "di"):
        before, after = getattr(first, name), getattr(second, name)
        assert before is after is None or before == pytest.approx(after, rel=1e-12)
    for name in ("head", "second"):
        before, after = getattr(first, name), getattr(second, name)
        assert before is after is None or order[after] == before


@pytest.mark.parametrize("drop", [0.1, 0.3, 0.75])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_one_head_alone(drop: float, count: int) -> None:
    ablated = np.full(count, 1.0)
    ablated[count // 2] -= drop
    found = deposit(1.0, ablated, 0.25)
    assert found.di == found.d_rel == pytest.approx(drop / 0.75)
    assert found.share == 1
    assert found.gini == pytest.approx(1 - 1 / count)
    assert (found.head, found.second) == (count // 2, None)


def test_equal_heads_have_index_0() -> None:
    found = deposit(0.9, [0.5] * 4, 0.1)
    assert (found.di, found.gini, found.share) == (0, 0, 0.25)
    assert found.d_rel == pytest.approx(0.5)
    assert (found.head, found.second) == (0, 1)


def test_damage_stops_at_the_floor_but_d_max_does_not() -> None:
    found = deposit(1.0, [0.0, 0.1, 1.0], 0.25)
    assert (found.d_max, found.d_rel, found.di, found.share) == (1.0, 1.0, 0.0, 0.5)
    assert (found.head, found.second) == (0, 1)
    loss = deposit(2.0, [9.0, 2.5], 3.0, score="loss")
    assert (loss.d_max, loss.d_rel, loss.di) == (7.0, 1.0, 0.5)


def test_no_head_matters() -> None:
    assert deposit(0.9, [0.9, 0.95], 0.1) == Deposit(0.0, 0.0, None, None, 0.0, None, None)


def test_no_skill_to_lose() -> None:
    for base in (0.24, 0.2, 0.1):
        found = deposit(base, [0.05, 0.2], 0.2)
        assert (found.d_rel, found.share, found.gini, found.di) == (None, None, None, None)
        assert found.d_max == pytest.approx(base - 0.05)
    assert deposit(0.9, [0.85], 0.8).di == pytest.approx(0.5)  # 0.9 - 0.8 counts as 0.1, whatever its last bit


def test_a_loss_needs_ten_standard_errors() -> None:
    assert deposit(2.0, [2.3], 3.0, score="loss", noise=0.33).di == pytest.approx(0.3)
    assert deposit(2.0, [2.3], 3.0, score="loss", noise=0.34).di is None
    none = deposit(2.0, [2.3], 2.0, score="loss")
    assert (none.di, none.d_rel, none.share, none.gini) == (None, None, None, None)


def test_without_a_floor_only_the_spread_is_known() -> None:
    found = deposit(2.0, [5.0, 3.0, 1.0], None, score="loss")
    assert found == Deposit(3.0, None, 0.75, pytest.approx(gini([3.0, 1.0, 0.0])), None, 0, 1)


def test_gini_of_known_spreads() -> None:
    assert gini([1, 0, 0, 0]) == 0.75
    assert gini([2, 2]) == 0
    assert gini([1, 2, 3]) == pytest.approx(8 / 36)
    assert np.isnan(gini([0, 0]))
    assert gini([[1, 0], [1, 1]]) == pytest.approx([0.5, 0])


def planted(count: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong per sequence: a good model, head 1 carries most of it, head 3 some, the others nothing."""
    draw = np.random.default_rng(seed)
    base = draw.random(count) < 0.95
    keep = np.array([1.0, 0.35, 1.0, 0.8])
    return base.astype(float), (base[:, None] & (draw.random((count, 4)) < keep)).astype(float)


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_bootstrap_is_a_loop_over_resampled_sequences(level: float) -> None:
    """Not the same draws, so equal up to their noise: a quantile of 2000 has about a tenth of their spread."""
    base, ablated = planted()
    found = bootstrap(base, ablated, 0.1, level=level)
    assert found.deposit == deposit(float(base.mean()), ablated.mean(axis=0), 0.1)
    draw = np.random.default_rng(99)
    rows = []
    for _ in range(4000):
        chosen = draw.integers(len(base), size=len(base))
        rows.append(by_the_definition(base[chosen].mean(), list(ablated[chosen].mean(axis=0)), 0.1))
    for name in ("d_rel", "share", "gini", "di"):
        theirs = np.array([row[name] for row in rows], dtype=float)
        ours = getattr(found, name)
        low, high = np.quantile(theirs, [(1 - level) / 2, (1 + level) / 2])
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.25 * theirs.std())
        assert ours.low < getattr(found.deposit, name) < ours.high
        assert ours.defined == 1
    assert found.same_head == 1
    assert found.deposit.head == 1


def test_the_bootstrap_pairs_sequences() -> None:
    """Every head carries a fixed part of what the model answers: with pairs kept, nothing is left to chance."""
    base = np.array([1.0, 0.0] * 50)
    ablated = np.stack([0.5 * base, 0.75 * base], axis=1)
    found = bootstrap(base, ablated, 0.0, draws=200)
    assert found.d_rel is not None
    assert (found.d_rel.low, found.d_rel.high) == pytest.approx((0.5, 0.5))
    assert found.di is not None
    assert (found.di.low, found.di.high) == pytest.approx((0.25, 0.25))


def test_sequences_that_agree_leave_no_interval() -> None:
    found = bootstrap(np.full(30, 0.75), np.full((30, 2), [0.25, 0.5]), 0.25, draws=50)
    for name, value in {"d_rel": 1.0, "di": 0.5, "share": 2 / 3, "gini": 1 / 6}.items():
        assert (getattr(found, name).low, getattr(found, name).high) == pytest.approx((value, value), rel=1e-12)


def test_a_floor_per_sequence_is_resampled_with_the_rest() -> None:
    draw = np.random.default_rng(1)
    base = draw.normal(3.0, 0.5, 300)
    ablated = np.stack([base + 0.6, base + 0.2], axis=1)
    paired = bootstrap(base, ablated, base + 1.0, score="loss", draws=300)
    assert paired.di is not None
    assert (paired.di.low, paired.di.high) == pytest.approx((0.4, 0.4))
    fixed = bootstrap(base, ablated, 4.0, score="loss", draws=300)
    assert fixed.di is not None
    assert fixed.di.high - fixed.di.low > 0.01


@pytest.mark.parametrize("paired", [True, False])
def test_a_loss_counts_only_beyond_three_standard_errors_of_its_difference(paired: bool) -> None:
    """Differences of 1 +- d on four sequences have the standard error d sqrt(4/3) / 2: three are 1 at d = 0.577."""
    sign = np.array([1.0, -1.0, 1.0, -1.0])
    for spread, clear in ((0.56, True), (0.60, False)):
        base = np.array([3.0, 3.0, 5.0, 5.0]) if paired else 3.0 + spread * sign
        floor: Any = base + 1 + spread * sign if paired else 4.0
        found = bootstrap(base, base[:, None] + [[0.5, 0.2]], floor, score="loss", draws=4)
        assert (found.deposit.di is not None) == clear
        assert (found.di is not None) == clear


def test_draws_too_noisy_to_count_are_left_out_and_told() -> None:
    draw = np.random.default_rng(8)
    gain = draw.normal(0.0, 1.0, 40)
    gain = (gain - gain.mean()) / gain.std(ddof=1) + 0.55  # three standard errors are 0.47
    base = draw.normal(3.0, 2.0, 40)
    found = bootstrap(base, base[:, None] + [[0.3, 0.1]], base + gain, score="loss", draws=4000)
    least = 3 / np.sqrt(40)
    resampled = gain[draw.integers(40, size=(20_000, 40))].mean(axis=1)
    assert found.di is not None
    assert found.di.defined == pytest.approx(np.mean(resampled >= least), abs=0.03)
    assert found.di.defined < 0.9


def test_the_seed_decides_and_blocks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    base, ablated = planted(50)
    whole = bootstrap(base, ablated, 0.1, draws=101, seed=3)
    assert whole == bootstrap(base, ablated, 0.1, draws=101, seed=3)
    assert whole != bootstrap(base, ablated, 0.1, draws=101, seed=4)
    for block in (170, 10):  # three draws of 50 at a time; less than one
        monkeypatch.setattr("toposcope.models.deposit._BLOCK", block)
        assert whole == bootstrap(base, ablated, 0.1, draws=101, seed=3)


def test_heads_that_only_differ_by_chance_are_told_by_same_head() -> None:
    draw = np.random.default_rng(5)
    base = np.ones(500)
    ablated = (draw.random((500, 8)) < 0.7).astype(float)
    found = bootstrap(base, ablated, 0.1)
    assert found.di is not None
    assert found.di.low >= 0
    assert found.same_head is not None
    assert found.same_head < 0.9


def test_two_sequences_are_enough() -> None:
    found = bootstrap([1.0, 0.5], [[0.5, 1.0], [0.25, 0.5]], 0.0, draws=50)
    assert found.deposit == deposit(0.75, [0.375, 0.75], 0.0)
    assert found.draws == 50


def test_a_layer_of_one_head_has_an_interval() -> None:
    base, ablated = planted(60)
    found = bootstrap(base, ablated[:, 1:2], 0.1, draws=100)
    assert found.deposit == deposit(float(base.mean()), ablated[:, 1:2].mean(axis=0), 0.1)
    assert found.di is not None
    assert found.d_rel is not None
    assert (found.di.low, found.di.high) == (found.d_rel.low, found.d_rel.high)  # no second head to take off


def test_what_is_undefined_has_no_interval() -> None:
    nope = bootstrap(np.full(40, 0.2), np.full((40, 3), 0.1), 0.2)
    assert (nope.d_rel, nope.share, nope.gini, nope.di) == (None, None, None, None)
    untouched = bootstrap(np.ones(40), np.ones((40, 3)), 0.2)
    assert (untouched.share, untouched.same_head) == (None, None)
    assert untouched.di is not None
    assert (untouched.di.low, untouched.di.high) == (0, 0)
    rare = np.ones((20, 2))
    rare[0, 0] = 0  # the only sequence that suffers is missing from (1 - 1/20)^20 = 36% of the draws
    found = bootstrap(np.ones(20), rare, 0.2, draws=4000)
    assert found.share is not None
    assert found.share.defined == pytest.approx(1 - 0.95**20, abs=4 * np.sqrt(0.23 / 4000))


@pytest.mark.parametrize(
    "call",
    [
        lambda: deposit(0.9, [], 0.1),
        lambda: deposit(0.9, [[0.1]], 0.1),
        lambda: deposit(float("nan"), [0.1], 0.1),
        lambda: deposit(0.9, [0.1], float("inf")),
        lambda: deposit(0.9, [0.1], 0.1, score="los"),  # type: ignore[arg-type]
        lambda: deposit(0.9, [0.1], 0.1, score="loss", noise=-1.0),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, score="los"),  # type: ignore[arg-type]
        lambda: bootstrap([0.9], [[0.1]], 0.1),
        lambda: bootstrap([0.9, 0.8], [[0.1]], 0.1),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], [0.1, 0.2, 0.3]),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, draws=0),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, level=1.0),
    ],
)
def test_wrong_input_is_refused(call: Any) -> None:
    with pytest.raises(BadValue):
        call()


@pytest.mark.parametrize("score", ["accuracy", "loss"])
def test_the_least_skill_is_met_up_to_rounding(score: Any) -> None:
    """0.1 of accuracy, or three standard errors of 1/30: less by 1e-12 is rounding, by twice that is less."""
    sign = 1 if score == "accuracy" else -1
    for short, defined in ((0.0, True), (0.5e-12, True), (1.5e-12, False), (1e-9, False)):
        found = deposit(sign * (0.1 - short), [0.0, sign * 0.05], 0.0, score=score, noise=1 / 30)
        assert (found.di is not None) == defined
        assert (found.d_rel is not None) == defined
        assert (found.share is not None) == defined
        assert (found.gini is not None) == defined


def test_an_accuracy_asks_nothing_of_the_noise() -> None:
    assert deposit(0.3, [0.2], 0.1, noise=9.0) == deposit(0.3, [0.2], 0.1)
    for wrong in (-1e-9, float("nan"), float("inf")):
        with pytest.raises(BadValue):
            deposit(0.3, [0.2], 0.1, score="loss", noise=wrong)
    assert deposit(2.0, [2.5], 2.001, score="loss").d_rel == 1  # without noise any skill counts


def test_the_two_heads_that_hurt_most_are_told_in_order() -> None:
    assert [(each.head, each.second) for each in (
        deposit(0.9, [0.8, 0.2, 0.5], 0.1),
        deposit(0.9, [0.95, 0.9, 0.5], 0.1),
        deposit(0.9, [0.5, 0.5, 0.5], 0.1),
        deposit(0.9, [0.9], 0.1),
    )] == [(1, 2), (2, None), (0, 1), (None, None)]  # fmt: skip
    assert deposit(0.5, [0.7, 0.6], 0.1).d_max == pytest.approx(-0.1)  # the least help, where every removal helps


@pytest.mark.parametrize("count", [1, 2, 7])
def test_one_draw_is_an_interval_of_one_number(count: int) -> None:
    """As many draws as asked for, no more: shares of them are whole multiples of 1/draws."""
    base, ablated = planted(60, seed=4)
    found = bootstrap(base, ablated, 0.1, draws=count)
    assert found.draws == count
    assert found.di is not None
    assert found.same_head is not None
    if count == 1:
        assert found.di.low == found.di.high
    rare = np.ones((6, 2))
    rare[0, 0] = 0
    seen = bootstrap(np.ones(6), rare, 0.2, draws=count, seed=1)
    for share in (seen.same_head, seen.share.defined if seen.share else 0.0):
        assert share is not None
        assert share * count == pytest.approx(round(share * count), abs=1e-12)


def test_draws_are_means_over_as_many_sequences() -> None:
    """Two sequences, 0 and 1: the means are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    means = _resampled_means(np.array([[0.0], [1.0]]), 4000, np.random.default_rng(0))
    assert means.shape == (4000, 1)
    values, counts = np.unique(means, return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    assert counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_no_more_numbers_are_drawn_at_once_than_a_block_holds() -> None:
    sizes: list[int] = []

    class Drawing:
        def integers(self, count: int, size: tuple[int, int]) -> np.ndarray:
            sizes.append(size[0] * size[1])
            return np.zeros(size, dtype=np.int64)

    means = _resampled_means(np.ones((2**20, 1)), 9, Drawing())  # type: ignore[arg-type]
    assert means.shape == (9, 1)
    assert sizes == [2**22, 2**22, 2**20]


def test_what_bootstrap_does_unless_told() -> None:
    base, ablated = planted(80, seed=2)
    found = bootstrap(base, ablated, 0.1)
    assert (found.draws, found.level) == (2000, 0.95)
    assert found == bootstrap(base, ablated, 0.1, score="accuracy", draws=2000, seed=0, level=0.95)
    assert deposit(0.9, [0.5], 0.1) == deposit(0.9, [0.5], 0.1, score="accuracy", noise=0.0)


def test_without_a_floor_the_bootstrap_tells_the_spread() -> None:
    base, ablated = planted(80, seed=3)
    found = bootstrap(base, ablated, None, draws=200)
    assert (found.di, found.d_rel) == (None, None)
    assert found.deposit == deposit(float(base.mean()), ablated.mean(axis=0), None)
    assert found.share is not None
    assert found.gini is not None
    assert found.share.low <= found.deposit.share <= found.share.high  # type: ignore[operator]


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2], [0.3]], 0.1),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, level=0.0),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, level=-0.5),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], 0.1, level=1.5),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], float("nan")),
        lambda: bootstrap([0.9, 0.8], [[0.1], [0.2]], [0.1, float("inf")]),
        lambda: bootstrap([0.9, 0.8], [0.1, 0.2], 0.1),
        lambda: bootstrap([[0.9, 0.8]], [[0.1], [0.2]], 0.1),
        lambda: bootstrap([0.9, float("nan")], [[0.1], [0.2]], 0.1),
        lambda: bootstrap([0.9, 0.8], [[0.1], [float("nan")]], 0.1),
        lambda: bootstrap([0.9, 0.8], [[], []], 0.1),
        lambda: deposit(0.9, [float("nan")], 0.1),
        lambda: deposit([0.9], [0.1], 0.1),  # type: ignore[arg-type]
        lambda: deposit(0.9, [0.1], [0.1]),  # type: ignore[arg-type]
    ],
)
def test_shapes_and_numbers_that_are_none_are_refused(call: Any) -> None:
    with pytest.raises(BadValue):
        call()


def test_small_levels_and_two_draws_are_allowed() -> None:
    narrow = bootstrap([1.0, 0.5], [[0.5], [0.2]], 0.0, draws=1, level=0.01)
    assert narrow.level == 0.01
    wide = bootstrap(*planted(60), 0.1, draws=500, level=0.99)
    slim = bootstrap(*planted(60), 0.1, draws=500, level=0.2)
    assert wide.di is not None
    assert slim.di is not None
    assert wide.di.low < slim.di.low < slim.di.high < wide.di.high
