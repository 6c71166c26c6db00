"""Planted truth: one positional head is found, two that stand in for each other are found as a pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

import toposcope
import toposcope.core.memory
import toposcope.models.ablation.runner
from tests.unit.models.planting import LENGTH, write_planted
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.journal import Journal, key_of
from toposcope.core.statistics import least_share
from toposcope.models.ablation.ablate import warn_of_few
from toposcope.models.ablation.expected import drawn_labels, expected_damages
from toposcope.models.ablation.result import deposits, pairs_to_try, summarise
from toposcope.models.ablation.runner import (
    AblationRunner,
    TextTrials,
    ablation_runner,
    name_of,
    side_by_side,
    texts_of,
)
from toposcope.models.ablation.screen import RECALL, Screen, choose, estimates, judged, missed
from toposcope.models.corpus import Corpus, cut
from toposcope.models.deposit import bootstrap, deposit
from toposcope.models.intervene import ablated, gated
from toposcope.models.load import Reference, load_reference
from toposcope.models.score import UNITS, Trial, scored_logits, trial_loss
from toposcope.models.tracing.measure import trace_corpus

torch = pytest.importorskip("torch", reason="ablation needs torch: pip install torch")
pytest.importorskip("transformers", reason="ablation needs transformers: pip install transformers")


def planted(directory: Path, heads: tuple[int, ...], **options: float) -> tuple[Reference, tuple[TextTrials, ...]]:
    reference = load_reference(write_planted(directory, heads, **options), head=True, attention="sdpa")
    text = (directory / "text.txt").read_text()
    corpus = cut(reference, text, tokens=LENGTH, count=6, lines=True)
    return reference, texts_of(reference, corpus)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AblationRunner]:
    reference, texts = planted(tmp_path_factory.mktemp("one"), (2,))
    with ablation_runner(reference.model, texts) as runner:
        runner.measure(runner.all_heads())
        runner.measure_floor()
        yield runner


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AblationRunner]:
    reference, texts = planted(tmp_path_factory.mktemp("two"), (1, 3))
    with ablation_runner(reference.model, texts[:1]) as runner:
        runner.measure(runner.all_heads())
        runner.measure_floor()
        yield runner


def test_positional_heads_are_those_that_trace_names(tmp_path: Path) -> None:
    """On the sequences of `trace`, whichever the ablation itself takes."""
    given = {"tokens": LENGTH // 2, "sequences": 3, "begin": LENGTH, "lines": True, "only": "text"}
    model, text = write_planted(tmp_path, (2,)), tmp_path / "text.txt"
    every = toposcope.ablate(model, text, **given)
    traced = toposcope.trace(model, text, begin=LENGTH, lines=True, jobs=1)
    shares = {each.name: each.positional for each in traced.heads}
    assert {each.name: each.positional for each in every.heads} == shares
    assert every.positional_on == traced.text != every.text
    found = toposcope.ablate(model, text, heads="positional", **given)
    assert [each.name for each in found.heads] == [name for name, share in shares.items() if (share or 0) > 0.5]
    assert "0.2" in {each.name for each in found.heads}
    assert len(found.heads) < len(every.heads)
    unplaced = load_reference(model, head=True, attention="sdpa")
    with torch.no_grad():
        unplaced.model.transformer.wpe.weight.zero_()
    assert len(toposcope.ablate(unplaced, text, heads="positional", **given).heads) == 5  # none is: those with most


def test_shares_that_were_kept_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = write_planted(tmp_path, (2,)), tmp_path / "text.txt"
    given = {"lines": True, "only": "text", "tokens": LENGTH, "sequences": 3, "out": tmp_path / "kept"}
    runs: list[object] = []

    def watched(*words: Any, **named: Any) -> Any:
        runs.append(named["heads"])
        return trace_corpus(*words, **named)

    monkeypatch.setattr("toposcope.models.ablation.positional.trace_corpus", watched)
    few = toposcope.ablate(model, text, heads="0.2,1.0", **given)
    first = toposcope.ablate(model, text, heads="positional", **given)
    second = toposcope.ablate(model, text, heads="positional", **given)
    assert [sum(map(len, each.values())) for each in runs] == [2, 6]  # those that were missing, once
    assert second == replace(first, provenance=second.provenance)
    shares = {each.name: each.positional for each in few.heads}
    assert {each.name: each.positional for each in second.heads}["0.2"] == shares["0.2"]
    toposcope.ablate(model, text, heads="positional", **{**given, "begin": 3 * LENGTH, "out": tmp_path / "other"})
    assert len(runs) == 3

    journal = tmp_path / "kept" / "journal.jsonl"
    sound = journal.read_text()
    at = next(n for n, line in enumerate(sound.splitlines()) if '"0.2":' in line)
    for wrong in ({"0.2": "0.9"}, ["0.2"], 0.9):
        lines = sound.splitlines()
        entry = {**json.loads(lines[at]), "value": wrong}
        del entry["sha256"]
        lines[at] = json.dumps(entry)
        journal.write_text("\n".join(lines) + "\n")
        with pytest.raises(BadFile, match=f"line {at + 1}"):  # changed: its sum is another
            toposcope.ablate(model, text, heads="positional", **given)
        lines[at] = json.dumps({**entry, "sha256": key_of(entry)[:16]})
        journal.write_text("\n".join(lines) + "\n")
        with pytest.raises(BadFile, match="shares of position"):
            toposcope.ablate(model, text, heads="positional", **given)
    moved = [line.replace(json.loads(sound.splitlines()[at])["on"], "0" * 64) for line in sound.splitlines()]
    entry = {key: value for key, value in json.loads(moved[at]).items() if key != "sha256"}
    moved[at] = json.dumps({**entry, "sha256": key_of(entry)[:16]})
    journal.write_text("\n".join(line for n, line in enumerate(moved) if n in (0, at)) + "\n")
    again = toposcope.ablate(model, text, heads="positional", **given)
    assert len(runs) == 4  # those of another text are not taken
    assert again.heads == second.heads


def test_the_one_positional_head_is_found(one: AblationRunner) -> None:
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


def test_notes_say_what_could_not_be_done(one: AblationRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert summarise(one).notes == ()
    reason = "no floor here"
    monkeypatch.setattr(one, "floor_reason", reason)
    (note,) = summarise(one).notes
    assert reason in note


def test_its_damage_is_that_of_position(one: AblationRunner) -> None:
    """Where the order is lost, looking one token back misleads: removing the head helps there."""
    first = summarise(one).ranked()[0]
    assert first.damage["shuffled"] < 0 < first.damage["text"]


def test_two_that_stand_in_for_each_other_are_found_as_a_pair(two: AblationRunner) -> None:
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


def test_pairs_of_the_worst_heads_cross_layers(one: AblationRunner) -> None:
    _, find_pairs = pairs_to_try(one, "all-top")
    tried = find_pairs()
    assert len(tried) == 8 * 7 // 2
    assert ((0, 2), (1, 0)) in tried
    one.measure([((0, 2), (1, 0))], ["text"])
    assert one.damage(((0, 2), (1, 0))) == pytest.approx(one.damage(((0, 2),)), abs=0.01)
    with pytest.raises(BadValue, match="layer0"):
        pairs_to_try(one, "top")
    with pytest.raises(BadValue, match="layer 7"):
        pairs_to_try(one, "7")


def test_pairs_are_made_of_the_worst_heads_first(one: AblationRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.models.ablation.result.TOP_PAIRS", 3)
    tried = pairs_to_try(one, "all-top")[1]()
    worst = sorted(one.all_heads(), key=one.damage)[-3:]
    assert {head for pair in tried for head in pair} == {head for heads in worst for head in heads}
    assert len(tried) == 3
    assert sum((0, 2) in pair for pair in tried) == 2


def test_errors_are_standard_errors_over_sequences(one: AblationRunner) -> None:
    tried = [((0, 1), (0, 2))]
    one.measure(tried, ["text"])
    found = summarise(one, pairs=tried)
    for row in found.heads:
        change = one.losses(((row.layer, row.head),)) - one.losses(())
        assert row.error["text"] == pytest.approx(scipy.stats.sem(change))
    both, left, right = (one.losses(heads) for heads in (tried[0], ((0, 1),), ((0, 2),)))
    excess = both - left - right + one.losses(())
    assert found.pairs[0].redundancy == pytest.approx(excess.mean())
    assert found.pairs[0].error == pytest.approx(scipy.stats.sem(excess))


def _pushed(runner: AblationRunner, each: Trial, block: int, change: Any, step: float) -> Any:
    """The model's output where a block's is changed by so much."""
    blocks = runner.resumable.block_list
    hook = blocks[block].register_forward_hook(lambda _, __, out: _shifted(out, step * change))
    try:
        with torch.no_grad():
            return runner.model(**each.inputs)
    finally:
        hook.remove()


def _shifted(out: Any, by: Any) -> Any:
    return (out[0] + by, *out[1:]) if isinstance(out, tuple) else out + by


def _change(runner: AblationRunner, each: Trial, layer: int, head: int) -> Any:
    """What a head's removal does to what leaves its block."""
    seen: list[Any] = []
    hook = runner.resumable.block_list[layer].register_forward_hook(
        lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        runner.model(**each.inputs)
        with ablated(runner.model, layer, head):
            runner.model(**each.inputs)
    hook.remove()
    return seen[1] - seen[0]


@pytest.mark.parametrize("head", [(0, 2), (0, 1), (1, 3)])
def test_expected_damage_is_the_loss_to_second_order(tmp_path: Path, head: tuple[int, int]) -> None:
    """Against finite differences: the slope of the loss, and the spread of the logits' change (Fisher's metric)."""
    layer, number = head
    reference, texts = planted(tmp_path, (2,), strength=0.1)
    with ablation_runner(reference.model, texts[:1]) as runner:
        each = runner.texts["text"].trials[0]
        change, step = _change(runner, each, layer, number), 1e-2
        ahead, behind = (_pushed(runner, each, layer, change, sign * step) for sign in (1, -1))
        slope = float(trial_loss(each, ahead) - trial_loss(each, behind)) / 2 / step
        found = expected_damages(runner, each, lambda layer, heads: 0.0, draws=0, seed=(0,))
        assert found[layer][number] == pytest.approx(slope, abs=2e-5, rel=2e-3)
        moved_PW = (scored_logits(each, ahead) - scored_logits(each, behind)).double() / 2 / step
        with torch.no_grad():
            chance_PW = scored_logits(each, runner.model(**each.inputs)).double().softmax(-1)
        spread_P = (chance_PW * moved_PW**2).sum(-1) - (chance_PW * moved_PW).sum(-1) ** 2
        exact = slope + float(spread_P.mean()) / 2
        found = expected_damages(runner, each, lambda layer, heads: 0.0, draws=400, seed=(0,))
        noise = 5 * float(spread_P.mean()) / 2 * (2 / 400) ** 0.5
        assert found[layer][number] == pytest.approx(exact, abs=noise + 2e-5)
        runner.resumable.stop("no blocks")  # then by gates, where a head's own block counts to first order
        gates = expected_damages(runner, each, lambda layer, heads: 0.0, draws=0, seed=(0,))
        values = []
        for sign in (1, -1):
            each_gate = [torch.ones(4), torch.ones(4)]
            each_gate[layer][number] += sign * step
            with gated(runner.model, each_gate), torch.no_grad():
                values.append(float(trial_loss(each, runner.model(**each.inputs))))
        assert gates[layer][number] == pytest.approx(-(values[0] - values[1]) / 2 / step, abs=2e-5, rel=2e-3)


def test_drawn_labels_follow_the_predictions() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0], [5.0, -5.0, 0.0]])
    labels = drawn_labels(logits, 4000, (3, 1))
    assert labels.shape == (4000, 2)
    shares = torch.stack([(labels == word).double().mean(0) for word in range(3)], dim=1)
    assert torch.allclose(shares, logits.double().softmax(-1), atol=0.03)
    assert torch.equal(labels, drawn_labels(logits, 4000, (3, 1)))


def test_the_promised_recall_says_how_it_was_measured() -> None:
    assert not set(RECALL.texts) & set(RECALL.settled_on)
    assert RECALL.found <= RECALL.looked_for
    assert RECALL.least == pytest.approx(least_share(RECALL.found, RECALL.looked_for), abs=5e-4)


def test_the_screen_chooses_the_planted_head(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,), strength=0.1)
    with ablation_runner(reference.model, texts[:1]) as runner:
        heads = runner.all_heads()
        guess = estimates(runner, heads)
        chosen, sampled = choose(heads, guess, sample=4, seed=0)
        assert chosen[0] == ((0, 2),)
        assert len(chosen) == 2  # a fifth of 8
        assert len(set(sampled) - set(chosen)) == 4
        runner.measure([*chosen, *sampled])
        found = judged(runner, heads, guess, chosen, sampled)
    assert found.miss is not None
    assert (found.miss.rate, found.miss.found, found.miss.weight) == (0, 0, 6 / 4)
    assert found.rho is not None
    with ablation_runner(reference.model, texts[:1], method="mean") as runner:  # towards the mean, not towards 0
        assert not np.allclose(estimates(runner, heads), guess)


def test_a_head_that_the_screen_cannot_see_shows_in_the_sample(one: AblationRunner) -> None:
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
        found = missed(chosen, rest[list(sample)], 6, 3)
        assert found is not None
        assert found.low <= found.rate <= found.high
        rates.append(found.rate)
        covered.append(found.low <= 1 / 3 <= found.high)
    # 7.0 is in a third of the samples; it stands for 3 heads, and one place is free below 9 and 8
    assert np.mean(rates) == pytest.approx(1 / 3 * 1 / 3)
    assert np.mean(covered) >= 0.95
    assert missed(chosen, np.array([]), 6, 3) is None
    everything = missed(chosen, rest, 6, 3)
    assert everything is not None
    assert everything.rate == everything.low == everything.high == 1 / 3


def test_a_journal_is_continued_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    about = {"model": "planted"}
    with (
        Journal(tmp_path / "j", about) as journal,
        ablation_runner(reference.model, texts, journal=journal) as runner,
    ):
        runner.measure(runner.all_heads([0]), ["text"])
        assert runner.made == (1 + 4) * 6
        values = [runner.losses(heads).tolist() for heads in runner.all_heads([0])]
    with (
        Journal(tmp_path / "j", about) as journal,
        ablation_runner(reference.model, texts, journal=journal) as runner,
    ):
        plan = runner.plan(runner.all_heads(), ["text"])
        assert (plan.already, plan.measurements) == (24, 24)
        assert runner.made == 0
        runner.measure(runner.all_heads(), ["text"])
        assert runner.made == 4 * 6
        assert runner.work == pytest.approx(plan.work)
        assert runner.plan(runner.all_heads(), ["text"]).work == 0
        assert [runner.losses(heads).tolist() for heads in runner.all_heads([0])] == values
        names = [(entry["what"], entry["on"], entry["sequence"]) for entry in journal.entries]
        assert len(set(names)) == len(names) == (1 + 8) * 6
        runner.measure(runner.all_heads())
        assert runner.made == 4 * 6 + 2 * (1 + 8) * 6


def test_two_sequences_have_an_error(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    with ablation_runner(reference.model, [TextTrials("text", texts[0].cut, texts[0].trials[:2])]) as runner:
        runner.measure(runner.all_heads([0]))
        row = summarise(runner).heads[2]
        change = runner.losses(((0, 2),)) - runner.losses(())
    assert row.error["text"] == pytest.approx(abs(change[0] - change[1]) / 2)


def test_one_sequence_has_a_deposit_but_no_interval(tmp_path: Path) -> None:
    reference, texts = planted(tmp_path, (2,))
    alone = [TextTrials("text", texts[0].cut, texts[0].trials[:1])]
    with ablation_runner(reference.model, alone) as runner:
        runner.measure(runner.all_heads())
        runner.measure_floor()
        found = summarise(runner)
    assert found.layers[0].spread is None
    assert found.layers[0].deposit.di is not None
    assert found.heads[0].error["text"] is None


def test_memory_is_foreseen(one: AblationRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = list(one.texts.values())
    kept = 4 * 2 * LENGTH * 64  # bytes: numbers of 4, layers, tokens, channels
    assert one.resumable.bytes_kept(LENGTH) == kept
    monkeypatch.setattr(toposcope.models.ablation.runner, "available", lambda: 2 * kept - 1)
    with ablation_runner(one.model, texts) as runner:
        assert "would take" in str(runner.resumable.reason)
    monkeypatch.setattr(toposcope.core.memory, "UNNOTICED", 0)
    monkeypatch.setattr(toposcope.core.memory, "available", lambda: 100_000)
    with ablation_runner(one.model, texts) as runner, pytest.raises(BadValue, match="--mode exact"):
        estimates(runner, runner.all_heads())
    monkeypatch.setattr(toposcope.core.memory, "available", lambda: 1000)
    with pytest.raises(BadValue, match="fewer --tokens"), ablation_runner(one.model, texts):
        pass


def test_what_does_not_exist_is_refused(one: AblationRunner) -> None:
    with pytest.raises(BadValue, match=r"0\.9"):
        one.measure([((0, 9),)])
    with pytest.raises(BadValue, match="layer 2"):
        one.measure([((2, 0),)])
    with pytest.raises(BadValue, match="'c4'"):
        one.losses((), "c4")
    assert name_of(()) == "whole"


def test_a_result_is_kept_whole(one: AblationRunner, tmp_path: Path) -> None:
    heads = one.all_heads()
    guess = estimates(one, heads)
    found = summarise(one, screen=judged(one, heads, guess, heads[:1], heads[1:3]))
    assert toposcope.read(found.save(tmp_path / "ablate.json")) == found
    saved = json.loads((tmp_path / "ablate.json").read_text())
    del saved["positional_on"]
    for row in saved["heads"]:
        del row["positional"]
    (tmp_path / "earlier.json").write_text(json.dumps(saved))  # as before these fields existed
    assert toposcope.read(tmp_path / "earlier.json") == found
    assert found.screen is not None
    assert found.screen.chosen == ("0.0",)
    assert len(found.screen.estimates) == len(found.rows()) == 8
    assert {"layer", "head", "damage.text", "error.repeated", "estimate"} <= set(found.rows()[0])
    for each in found.heads:
        assert each.position == pytest.approx(each.damage["text"] - each.damage["shuffled"])
        assert each.half_width == pytest.approx(scipy.stats.t.ppf(0.975, 5) * (each.error["text"] or 0.0))


def test_without_the_text_there_is_no_deposit() -> None:
    class Nothing:
        texts = ("text",)

        def has(self, heads: object, on: str) -> bool:
            return False

    assert deposits(Nothing(), []) == ()  # type: ignore[arg-type]
    assert deposits(Nothing(), [], on="shuffled") == ()  # type: ignore[arg-type]


class Told:
    """A runner whose losses are given: two layers of three heads and one of two, on two texts."""

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

    def losses(self, heads: Any, on: str = "text") -> np.ndarray:
        return self.known[name_of(heads), on]

    def damage(self, heads: Any, on: str = "text") -> float:
        return float(self.losses(heads, on).mean() - self.losses((), on).mean())

    def floor(self, on: str = "text") -> np.ndarray | None:
        return self._floor.get(on)


@pytest.mark.parametrize("sequences", [1, 2, 5])
@pytest.mark.parametrize("floor", [True, False])
def test_everything_told_is_arithmetic_on_the_losses(sequences: int, floor: bool) -> None:
    runner: Any = Told(sequences, floor=floor)
    found = summarise(runner)
    assert (found.mode, found.method, found.pairs, found.screen) == ("exact", "zero", (), None)
    assert (found.predicts, found.unit, found.notes) == ("drift", UNITS["drift"], ())
    for text in found.texts:
        assert text.cut == f"cut of {text.name}"
        assert text.base == tuple(runner.losses((), text.name))
        assert text.floor == (tuple(runner.floor(text.name)) if floor else None)
    assert [(each.layer, each.head) for each in found.heads] == [heads[0] for heads in runner.all_heads()]
    for each in found.heads:
        for on in ("text", "repeated"):
            losses = runner.losses(((each.layer, each.head),), on)
            change = losses - runner.losses((), on)
            assert each.losses[on] == tuple(losses)
            assert each.damage[on] == pytest.approx(change.mean(), rel=1e-12)
            assert each.error[on] == (pytest.approx(scipy.stats.sem(change)) if sequences > 1 else None)
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    for layer in found.layers:
        heads = runner.all_heads([layer.layer])
        base, ablated = runner.losses(()), np.stack([runner.losses(each) for each in heads], axis=1)
        if sequences > 1:
            assert layer.spread == bootstrap(base, ablated, runner.floor(), score="loss", seed=7)
            assert layer.deposit == layer.spread.deposit
        else:
            assert layer.spread is None
            level = float(runner.floor()[0]) if floor else None
            assert layer.deposit == deposit(base[0], ablated[0], level, score="loss")


def test_layers_that_are_not_whole_have_no_deposit() -> None:
    runner: Any = Told()
    some = [((0, 2),), ((0, 1),), ((2, 1),), ((0, 0),), ((1, 1),)]
    found = summarise(runner, some, mode="screen")
    assert [(each.layer, each.head) for each in found.heads] == [(0, 0), (0, 1), (0, 2), (1, 1), (2, 1)]
    assert [layer.layer for layer in found.layers] == [0]
    assert found.mode == "screen"
    del runner.known["1.2", "text"]  # measured on one of the texts only
    whole = summarise(runner)
    assert len(whole.heads) == 8
    assert [layer.layer for layer in whole.layers] == [0, 2]
    assert "text" not in whole.heads[5].damage
    assert "repeated" in whole.heads[5].damage
    assert [each.name for each in whole.ranked()] == sorted(
        (each.name for each in whole.heads if each.name != "1.2"),
        key=lambda name: -runner.damage((tuple(map(int, name.split("."))),)),
    )
    assert len(whole.ranked("repeated")) == 8
    del runner.known["1.2", "repeated"]
    assert len(summarise(runner).heads) == 7
    assert [layer.layer for layer in deposits(runner, runner.all_heads(), "repeated")] == [0, 2]
    assert deposits(runner, runner.all_heads(), "shuffled") == ()
    del runner.known["whole", "text"]
    assert deposits(runner, runner.all_heads()) == ()


def test_pairs_are_told_by_what_exceeds_their_parts() -> None:
    runner: Any = Told(4)
    excess = {}
    for number, pair in enumerate(combinations(runner.all_heads([0]), 2)):
        both = pair[0] + pair[1]
        alone = [runner.losses(each) - runner.losses(()) for each in pair]
        excess[both] = np.array([0.1, 0.2, 0.4, 0.1]) * (number - 1)
        runner.known[name_of(both), "text"] = runner.losses(()) + alone[0] + alone[1] + excess[both]
    found = summarise(runner, pairs=list(excess)).pairs
    assert [(each.first, each.second) for each in found] == [("0.1", "0.2"), ("0.0", "0.2"), ("0.0", "0.1")]
    for each, (both, more) in zip(found, reversed(excess.items()), strict=True):
        assert each.redundancy == pytest.approx(more.mean(), abs=1e-12)
        assert each.error == pytest.approx(scipy.stats.sem(more), abs=1e-12)
        assert each.alone == pytest.approx([runner.damage((head,)) for head in both])
        assert each.damage == pytest.approx(sum(each.alone) + more.mean())


def test_which_pairs_are_tried() -> None:
    runner: Any = Told()
    for asked, layers in (("layer1", [1]), ("1", [1]), (" Layer 0 ,2", [0, 2])):
        singles, pairs = pairs_to_try(runner, asked)
        assert singles == [heads for layer in layers for heads in runner.all_heads([layer])]
        assert pairs() == [a + b for layer in layers for a, b in combinations(runner.all_heads([layer]), 2)]
    for wrong in ("layer", "top", "-1", "1.5", "", "9"):
        with pytest.raises(BadValue):
            pairs_to_try(runner, wrong)
    singles, pairs = pairs_to_try(runner, "all-top")
    assert singles == []
    assert len(pairs()) == 8 * 7 / 2
    runner.sizes = (12,)
    for head in range(12):
        runner.known[f"0.{head}", "text"] = runner.losses(()) + head
    ten = {heads for pair in pairs() for heads in pair}
    assert ten == {(0, head) for head in range(2, 12)}
    assert len(pairs()) == 45
    del runner.known["0.11", "text"]
    assert (0, 11) not in {heads for pair in pairs() for heads in pair}


def test_rows_and_plain_data_hold_the_estimates() -> None:
    runner: Any = Told()
    guesses = {name_of(heads): float(number) for number, heads in enumerate(runner.all_heads()[:4])}
    screen = Screen(guesses, ("0.1",), ("0.3", "1.0"), None, None)
    found = summarise(runner, screen=screen)
    rows = found.rows()
    assert [row.get("estimate") for row in rows] == [0.0, 1.0, 2.0, 3.0, None, None, None, None]
    for row, each in zip(rows, found.heads, strict=True):
        assert (row["layer"], row["head"]) == (each.layer, each.head)
        assert (row["damage.text"], row["error.repeated"]) == (each.damage["text"], each.error["repeated"])
    plain = found.as_dict()
    assert plain["screen"]["estimates"] == {"0.0": 0.0, "0.1": 1.0, "0.2": 2.0, "1.0": 3.0}
    assert (plain["screen"]["chosen"], plain["screen"]["sampled"]) == (["0.1"], ["0.3", "1.0"])
    assert all(row["estimate"] is None for row in summarise(runner).rows())
    assert summarise(runner).as_dict()["screen"] is None


def test_every_reason_becomes_a_note() -> None:
    runner: Any = Told()
    runner.resumable, runner.floor_reason = SimpleNamespace(reason="one reason"), "another"
    first, second = summarise(runner).notes
    assert "one reason" in first
    assert "another" in second


@pytest.mark.parametrize(("lengths", "count"), [((128, 64), 4), ((512,), 1), ((4096,), 1), ((100,), 5)])
def test_as_many_removals_run_together_as_have_512_tokens(lengths: tuple[int, ...], count: int) -> None:
    corpus = Corpus("text", tuple(np.zeros(length, dtype=np.int64) for length in lengths), "zeros")
    assert side_by_side(corpus) == count


@pytest.mark.parametrize(
    ("found", "asked", "words"),
    [(1, 1, "--sequences"), (2, 2, "12.7"), (2, 4, "--tokens"), (3, 3, None), (4, 4, None)],
)
def test_too_few_sequences_are_told_before_the_work(
    found: int, asked: int, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_few(found, asked)
    assert [words in record.message for record in caplog.records if words] == ([True] if words else [])
    assert len(caplog.records) == (words is not None)
