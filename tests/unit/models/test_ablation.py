"""Planted truth: one positional head is found, two that stand in for each other are found as a pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

import toposcope.core.memory
import toposcope.models.meter
from tests.unit.models.planting import LENGTH, write_planted
from toposcope.core.errors import BadValue
from toposcope.core.journal import Journal
from toposcope.models.ablation import deposits, pairs_to_try, summarise
from toposcope.models.corpus import cut
from toposcope.models.deposit import bootstrap, deposit
from toposcope.models.intervene import gated
from toposcope.models.load import Reference, load_reference
from toposcope.models.meter import Meter, Text, metering, name_of, texts_of
from toposcope.models.score import UNITS, score
from toposcope.models.screen import Screen, choose, estimates, judged, missed, slopes

torch = pytest.importorskip("torch", reason="ablation needs torch: pip install torch")
pytest.importorskip("transformers", reason="ablation needs transformers: pip install transformers")


def planted(directory: Path, heads: tuple[int, ...], **options: float) -> tuple[Reference, tuple[Text, ...]]:
    reference = load_reference(write_planted(directory, heads, **options), head=True, attention="sdpa")
    text = (directory / "text.txt").read_text()
    corpus = cut(reference, text, tokens=LENGTH, count=6, lines=True)
    return reference, texts_of(reference, corpus)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meter]:
    reference, texts = planted(tmp_path_factory.mktemp("one"), (2,))
    with metering(reference.model, texts) as meter:
        meter.measure(meter.all_heads())
        meter.measure_floor()
        yield meter


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meter]:
    reference, texts = planted(tmp_path_factory.mktemp("two"), (1, 3))
    with metering(reference.model, texts[:1]) as meter:
        meter.measure(meter.all_heads())
        meter.measure_floor()
        yield meter


def test_the_one_positional_head_is_found(one: Meter) -> None:
    found = summarise(one)
    first, second, *_ = found.ranked()
    assert first.name == "0.2"
    assert first.damage["text"] > 2
    assert abs(second.damage["text"]) < 0.01
    deposit = found.layers[0].deposit
    assert deposit.head == 2
    assert deposit.di is not None
    assert deposit.di > 0.99
    assert deposit.share is not None
    assert deposit.share > 0.99
    spread = found.layers[0].spread
    assert spread is not None
    assert spread.same_head == 1
    assert spread.di is not None
    assert spread.di.low > 0.99
    other = found.layers[1].deposit
    assert other.di is not None
    assert other.di < 0.01


def test_notes_say_what_could_not_be_done(one: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert summarise(one).notes == ()
    monkeypatch.setattr(one, "floor_reason", "no floor here")
    (note,) = summarise(one).notes
    assert "no floor here" in note


def test_its_damage_is_that_of_position(one: Meter) -> None:
    """Where the order is lost, looking one token back misleads: removing the head helps there."""
    first = summarise(one).ranked()[0]
    assert first.damage["shuffled"] < 0 < first.damage["text"]


def test_two_that_stand_in_for_each_other_are_found_as_a_pair(two: Meter) -> None:
    singles, find_pairs = pairs_to_try(two, "layer0")
    assert singles == two.all_heads([0])
    tried = find_pairs()
    assert len(tried) == 6
    two.measure(tried, ["text"])
    found = summarise(two, pairs=tried)
    deposit = found.layers[0].deposit
    assert deposit.di is not None
    assert deposit.di < 0.01
    assert deposit.d_max < 0.01
    best, runner_up, *_ = found.pairs
    assert (best.first, best.second) == ("0.1", "0.3")
    assert best.redundancy > 2
    assert best.redundancy == pytest.approx(best.damage - sum(best.alone), abs=1e-9)
    assert abs(runner_up.redundancy) < 0.01


def test_pairs_of_the_worst_heads_cross_layers(one: Meter) -> None:
    _, find_pairs = pairs_to_try(one, "all-top")
    tried = find_pairs()
    assert len(tried) == 8 * 7 // 2
    assert ((0, 2), (1, 0)) in tried
    one.measure([((0, 2), (1, 0))], ["text"])
    assert one.damage(((0, 2), (1, 0))) == pytest.approx(one.damage(((0, 2),)), abs=0.01)
    with pytest.raises(BadValue, match="layer0"):
        pairs_to_try(one, "top")
    with pytest.raises(BadValue, match="no layer 7"):
        pairs_to_try(one, "7")


def test_pairs_are_made_of_the_worst_heads_first(one: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.models.ablation.TOP_PAIRS", 3)
    tried = pairs_to_try(one, "all-top")[1]()
    worst = sorted(one.all_heads(), key=one.damage)[-3:]
    assert {head for pair in tried for head in pair} == {head for heads in worst for head in heads}
    assert len(tried) == 3
    assert sum((0, 2) in pair for pair in tried) == 2


def test_errors_are_standard_errors_over_sequences(one: Meter) -> None:
    tried = [((0, 1), (0, 2))]
    one.measure(tried, ["text"])
    found = summarise(one, pairs=tried)
    for row in found.heads:
        change = one.scores(((row.layer, row.head),)) - one.scores(())
        assert row.error["text"] == pytest.approx(scipy.stats.sem(change))
    both, left, right = (one.scores(heads) for heads in (tried[0], ((0, 1),), ((0, 2),)))
    excess = both - left - right + one.scores(())
    assert found.pairs[0].redundancy == pytest.approx(excess.mean())
    assert found.pairs[0].error == pytest.approx(scipy.stats.sem(excess))


@pytest.mark.parametrize("gate", [1.0, 0.75])
def test_slopes_are_derivatives(one: Meter, gate: float) -> None:
    """One backward pass against a finite difference of the loss in each gate."""
    each = one.texts["text"].trials[0]
    found = slopes(one, each, lambda layer, heads: 0.0, gate)
    step = 1e-2
    for layer, head in ((0, 2), (0, 1), (1, 3)):
        values = []
        for sign in (1, -1):
            gates = [torch.full((4,), gate), torch.full((4,), gate)]
            gates[layer][head] += sign * step
            with gated(one.model, gates), torch.no_grad():
                values.append(float(score(each, one.model(**each.inputs))))
        assert float(found[layer][head]) == pytest.approx(-(values[0] - values[1]) / 2 / step, abs=2e-5, rel=2e-3)


def test_the_screen_chooses_the_planted_head(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,), strength=0.1)
    with metering(reference.model, texts[:1]) as meter:
        heads = meter.all_heads()
        guess = estimates(meter, heads)
        chosen, sampled = choose(heads, guess, sample=4, seed=0)
        assert chosen == [((0, 2),)]
        assert len(set(sampled) - set(chosen)) == 4
        meter.measure([*chosen, *sampled])
        found = judged(meter, heads, guess, chosen, sampled)
    assert found.miss is not None
    assert (found.miss.rate, found.miss.found, found.miss.weight) == (0, 0, 7 / 4)
    assert found.rho is not None
    with metering(reference.model, texts[:1], method="mean") as meter:  # towards the mean, not towards 0
        assert not np.allclose(estimates(meter, heads), guess)


def test_a_head_that_the_screen_cannot_see_shows_in_the_sample(one: Meter) -> None:
    """Where the loss is flat in the gate, slopes miss the head; the miss rate must say so."""
    heads = one.all_heads()
    guess = estimates(one, heads)
    chosen, sampled = choose(heads, guess, sample=7, seed=0)
    assert ((0, 2),) in sampled
    found = judged(one, heads, guess, chosen, sampled)
    assert found.miss is not None
    assert found.miss.rate == found.miss.low == found.miss.high == 1


def test_missed_heads_are_counted_by_what_they_stand_for() -> None:
    """Against all possible samples: the mean of the estimates is the true number missed."""
    from itertools import combinations

    chosen, rest = np.array([9.0, 8.0, 1.0]), np.array([7.0, 0.5, 0.4, 0.3, 0.2, 0.1])
    rates, covered = [], []
    for sample in combinations(range(6), 2):
        found = missed(chosen, rest[list(sample)], 6)
        assert found is not None
        assert found.low <= found.rate <= found.high
        rates.append(found.rate)
        covered.append(found.low <= 1 / 3 <= found.high)
    # 7.0 is in a third of the samples; it stands for 3 heads, and one place is free below 9 and 8
    assert np.mean(rates) == pytest.approx(1 / 3 * 1 / 3)
    assert np.mean(covered) >= 0.95
    assert missed(chosen, np.array([]), 6) is None
    everything = missed(chosen, rest, 6)
    assert everything is not None
    assert everything.rate == everything.low == everything.high == 1 / 3


def test_a_journal_is_continued_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    about = {"model": "planted"}
    with Journal(tmp_path / "j", about) as journal, metering(reference.model, texts, journal=journal) as meter:
        meter.measure(meter.all_heads([0]), ["text"])
        assert meter.made == (1 + 4) * 6
        values = [meter.scores(heads).tolist() for heads in meter.all_heads([0])]
    with Journal(tmp_path / "j", about) as journal, metering(reference.model, texts, journal=journal) as meter:
        plan = meter.plan(meter.all_heads(), ["text"])
        assert (plan.already, plan.measurements) == (24, 24)
        meter.measure(meter.all_heads(), ["text"])
        assert meter.made == 4 * 6
        assert [meter.scores(heads).tolist() for heads in meter.all_heads([0])] == values
        names = [(entry["what"], entry["on"], entry["sequence"]) for entry in journal.entries]
        assert len(set(names)) == len(names) == (1 + 8) * 6
        meter.measure(meter.all_heads())
        assert meter.made == 4 * 6 + 2 * (1 + 8) * 6


def test_two_sequences_have_an_error(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    with metering(reference.model, [Text("text", texts[0].cut, texts[0].trials[:2])]) as meter:
        meter.measure(meter.all_heads([0]))
        row = summarise(meter).heads[2]
        change = meter.scores(((0, 2),)) - meter.scores(())
    assert row.error["text"] == pytest.approx(abs(change[0] - change[1]) / 2)


def test_one_sequence_has_a_deposit_but_no_interval(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    alone = [Text("text", texts[0].cut, texts[0].trials[:1])]
    with metering(reference.model, alone) as meter:
        meter.measure(meter.all_heads())
        meter.measure_floor()
        found = summarise(meter)
    assert found.layers[0].spread is None
    assert found.layers[0].deposit.di is not None
    assert found.heads[0].error["text"] is None


def test_memory_is_foreseen(one: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = list(one.texts.values())
    kept = 4 * 2 * LENGTH * 64  # bytes: numbers of 4, layers, tokens, channels
    assert one.resumable.bytes_kept(LENGTH) == kept
    monkeypatch.setattr(toposcope.models.meter, "available", lambda: 2 * kept - 1)
    with metering(one.model, texts) as meter:
        assert "would take" in str(meter.resumable.reason)
    monkeypatch.setattr(toposcope.core.memory, "UNNOTICED", 0)
    monkeypatch.setattr(toposcope.core.memory, "available", lambda: 100_000)
    with metering(one.model, texts) as meter, pytest.raises(BadValue, match="--mode exact"):
        estimates(meter, meter.all_heads())
    monkeypatch.setattr(toposcope.core.memory, "available", lambda: 1000)
    with pytest.raises(BadValue, match="fewer --tokens"), metering(one.model, texts):
        pass


def test_what_does_not_exist_is_refused(one: Meter) -> None:
    with pytest.raises(BadValue, match=r"no head 0\.9"):
        one.measure([((0, 9),)])
    with pytest.raises(BadValue, match="no layer 2"):
        one.measure([((2, 0),)])
    with pytest.raises(BadValue, match="not measured here"):
        one.scores((), "c4")
    assert name_of(()) == "whole"


def test_as_dict_is_plain_data(one: Meter) -> None:
    import json

    from toposcope.core.results import plain

    heads = one.all_heads()
    guess = estimates(one, heads)
    found = summarise(one, screen=judged(one, heads, guess, heads[:1], heads[1:3]))
    data = json.loads(json.dumps(plain(found.as_dict()), allow_nan=False))
    assert data["screen"]["chosen"] == ["0.0"]
    assert len(data["screen"]["estimates"]) == len(found.rows()) == 8
    assert {"layer", "head", "damage_text", "error_repeated", "estimate"} <= set(found.rows()[0])


def test_without_the_text_there_is_no_deposit() -> None:
    class Nothing:
        texts = ("text",)

        def has(self, heads: object, on: str) -> bool:
            return False

    assert deposits(Nothing(), []) == ()  # type: ignore[arg-type]
    assert deposits(Nothing(), [], on="shuffled") == ()  # type: ignore[arg-type]


class Told:
    """A meter whose scores are given: two layers of three heads and one of two, on two texts."""

    def __init__(self, sequences: int = 5, *, floor: bool = True) -> None:
        draw = np.random.default_rng(0)
        self.sizes = (3, 3, 2)
        self.texts = {name: SimpleNamespace(name=name, cut=f"cut of {name}") for name in ("text", "repeated")}
        self.model, self.method, self.seed = SimpleNamespace(), "zero", 7
        self.resumable, self.floor_reason = SimpleNamespace(reason=None), None
        self.known = {("whole", on): draw.uniform(1, 2, sequences) for on in self.texts}
        self._floor = {on: self.known["whole", on] + 3 + draw.uniform(0, 0.1, sequences) for on in self.texts}
        if not floor:
            self._floor = {}
        for heads in self.all_heads():
            for on in self.texts:
                self.known[name_of(heads), on] = self.known["whole", on] + draw.uniform(0, 1, sequences)

    def all_heads(self, layers: Sequence[int] | None = None) -> list[Any]:
        chosen = range(len(self.sizes)) if layers is None else layers
        return [((layer, head),) for layer in chosen for head in range(self.sizes[layer])]

    def checked(self, heads: Any) -> Any:
        for layer, head in heads:
            if layer >= len(self.sizes) or head >= self.sizes[layer]:
                raise BadValue("no such head")
        return tuple(sorted(set(heads)))

    def has(self, heads: Any, on: str = "text") -> bool:
        return (name_of(heads), on) in self.known

    def scores(self, heads: Any, on: str = "text") -> np.ndarray:
        return self.known[name_of(heads), on]

    def damage(self, heads: Any, on: str = "text") -> float:
        return float(self.scores(heads, on).mean() - self.scores((), on).mean())

    def floor(self, on: str = "text") -> np.ndarray | None:
        return self._floor.get(on)


@pytest.mark.parametrize("sequences", [1, 2, 5])
@pytest.mark.parametrize("floor", [True, False])
def test_everything_told_is_arithmetic_on_the_scores(sequences: int, floor: bool) -> None:
    meter: Any = Told(sequences, floor=floor)
    found = summarise(meter)
    assert (found.model, found.mode, found.method, found.pairs, found.screen) == (
        "the model",
        "exact",
        "zero",
        (),
        None,
    )
    assert (found.score, found.unit, found.notes) == ("drift", UNITS["drift"], ())
    for text in found.texts:
        assert text.cut == f"cut of {text.name}"
        assert text.base == tuple(meter.scores((), text.name))
        assert text.floor == (tuple(meter.floor(text.name)) if floor else None)
    assert [(each.layer, each.head) for each in found.heads] == [heads[0] for heads in meter.all_heads()]
    for each in found.heads:
        for on in ("text", "repeated"):
            scores = meter.scores(((each.layer, each.head),), on)
            change = scores - meter.scores((), on)
            assert each.scores[on] == tuple(scores)
            assert each.damage[on] == pytest.approx(change.mean(), rel=1e-12)
            assert each.error[on] == (pytest.approx(scipy.stats.sem(change)) if sequences > 1 else None)
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    for layer in found.layers:
        heads = meter.all_heads([layer.layer])
        base, ablated = meter.scores(()), np.stack([meter.scores(each) for each in heads], axis=1)
        if sequences > 1:
            assert layer.spread == bootstrap(base, ablated, meter.floor(), score="loss", seed=7)
            assert layer.deposit == layer.spread.deposit
        else:
            assert layer.spread is None
            level = float(meter.floor()[0]) if floor else None
            assert layer.deposit == deposit(base[0], ablated[0], level, score="loss")


def test_layers_that_are_not_whole_have_no_deposit() -> None:
    meter: Any = Told()
    some = [((0, 2),), ((0, 1),), ((2, 1),), ((0, 0),), ((1, 1),)]
    found = summarise(meter, some, model="m", mode="screen")
    assert [(each.layer, each.head) for each in found.heads] == [(0, 0), (0, 1), (0, 2), (1, 1), (2, 1)]
    assert [layer.layer for layer in found.layers] == [0]
    assert (found.model, found.mode) == ("m", "screen")
    del meter.known["1.2", "text"]  # measured on one of the texts only
    whole = summarise(meter)
    assert len(whole.heads) == 8
    assert [layer.layer for layer in whole.layers] == [0, 2]
    assert "text" not in whole.heads[5].damage
    assert "repeated" in whole.heads[5].damage
    assert [each.name for each in whole.ranked()] == sorted(
        (each.name for each in whole.heads if each.name != "1.2"),
        key=lambda name: -meter.damage((tuple(map(int, name.split("."))),)),
    )
    assert len(whole.ranked("repeated")) == 8
    del meter.known["1.2", "repeated"]
    assert len(summarise(meter).heads) == 7
    assert [layer.layer for layer in deposits(meter, meter.all_heads(), "repeated")] == [0, 2]
    assert deposits(meter, meter.all_heads(), "shuffled") == ()
    del meter.known["whole", "text"]
    assert deposits(meter, meter.all_heads()) == ()


def test_pairs_are_told_by_what_exceeds_their_parts() -> None:
    meter: Any = Told(4)
    excess = {}
    for number, pair in enumerate(combinations(meter.all_heads([0]), 2)):
        both = pair[0] + pair[1]
        alone = [meter.scores(each) - meter.scores(()) for each in pair]
        excess[both] = np.array([0.1, 0.2, 0.4, 0.1]) * (number - 1)
        meter.known[name_of(both), "text"] = meter.scores(()) + alone[0] + alone[1] + excess[both]
    found = summarise(meter, pairs=list(excess)).pairs
    assert [(each.first, each.second) for each in found] == [("0.1", "0.2"), ("0.0", "0.2"), ("0.0", "0.1")]
    for each, (both, more) in zip(found, reversed(excess.items()), strict=True):
        assert each.redundancy == pytest.approx(more.mean(), abs=1e-12)
        assert each.error == pytest.approx(scipy.stats.sem(more), abs=1e-12)
        assert each.alone == pytest.approx([meter.damage((head,)) for head in both])
        assert each.damage == pytest.approx(sum(each.alone) + more.mean())


def test_which_pairs_are_tried() -> None:
    meter: Any = Told()
    for asked, layers in (("layer1", [1]), ("1", [1]), (" Layer 0 ,2", [0, 2])):
        singles, pairs = pairs_to_try(meter, asked)
        assert singles == [heads for layer in layers for heads in meter.all_heads([layer])]
        assert pairs() == [a + b for layer in layers for a, b in combinations(meter.all_heads([layer]), 2)]
    for wrong in ("layer", "top", "-1", "1.5", "", "9"):
        with pytest.raises(BadValue):
            pairs_to_try(meter, wrong)
    singles, pairs = pairs_to_try(meter, "all-top")
    assert singles == []
    assert len(pairs()) == 8 * 7 / 2
    meter.sizes = (12,)
    for head in range(12):
        meter.known[f"0.{head}", "text"] = meter.scores(()) + head
    ten = {heads for pair in pairs() for heads in pair}
    assert ten == {(0, head) for head in range(2, 12)}
    assert len(pairs()) == 45
    del meter.known["0.11", "text"]
    assert (0, 11) not in {heads for pair in pairs() for heads in pair}


def test_rows_and_plain_data_hold_the_estimates() -> None:
    meter: Any = Told()
    guesses = tuple((heads, float(number)) for number, heads in enumerate(meter.all_heads()[:4]))
    screen = Screen(guesses, (((0, 1),),), (((0, 3),), ((1, 0),)), None, None)
    found = summarise(meter, screen=screen)
    rows = found.rows()
    assert [row.get("estimate") for row in rows] == [0.0, 1.0, 2.0, 3.0, None, None, None, None]
    for row, each in zip(rows, found.heads, strict=True):
        assert (row["layer"], row["head"]) == (each.layer, each.head)
        assert (row["damage_text"], row["error_repeated"]) == (each.damage["text"], each.error["repeated"])
    plain = found.as_dict()
    assert plain["screen"]["estimates"] == {"0.0": 0.0, "0.1": 1.0, "0.2": 2.0, "1.0": 3.0}
    assert (plain["screen"]["chosen"], plain["screen"]["sampled"]) == (["0.1"], ["0.3", "1.0"])
    assert all("estimate" not in row for row in summarise(meter).rows())
    assert summarise(meter).as_dict()["screen"] is None


def test_every_reason_becomes_a_note() -> None:
    meter: Any = Told()
    meter.resumable, meter.floor_reason = SimpleNamespace(reason="one reason"), "another"
    first, second = summarise(meter).notes
    assert "one reason" in first
    assert "another" in second
