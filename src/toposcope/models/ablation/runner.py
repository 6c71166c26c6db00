"""Measure a model with heads taken out: each removal on each sequence once, from the layer on where it happens.

Sequences are gone through one after the other, so that only one recorded run is held; what a journal already holds is
not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadConfig, BadEncoding, BadValue
from toposcope.core.journal import Journal
from toposcope.core.memory import available, require_memory
from toposcope.core.ranges import parse_range
from toposcope.models.ablation.replacement import Method, StandIn, stand_ins
from toposcope.models.ablation.resume import Resumable
from toposcope.models.corpus import Corpus, repeated, shuffled
from toposcope.models.device import home
from toposcope.models.instrument import Instrument, attached, dummy_inputs
from toposcope.models.intervene import ablated_rows
from toposcope.models.load import Reference
from toposcope.models.score import Trial, as_number, pool, trial, trial_loss
from toposcope.models.sites import checked_heads, checked_site
from toposcope.models.swap_encoding import swap_encoding

Array = NDArray[np.float64]
Heads = tuple[tuple[int, int], ...]  # (layer, head), in order; () is the whole model
TextName = Literal["text", "shuffled", "repeated"]
TEXTS: tuple[TextName, ...] = ("text", "shuffled", "repeated")
WHOLE, FLOOR, ESTIMATES = "whole", "positions off", "expected to second order"
_HEAD_SHARE = 0.25  # of a forward pass that no resumed run saves: embeddings, final norm, the head
_NOTHING = 1e-5  # relative: what rounding does to a loss
_ACTIVATIONS = 40  # numbers per layer, token and channel that a backward pass keeps, about
_TOGETHER = 512  # tokens in one run: with more of them nothing is gained
_MEMORY_SHARE = 0.5  # of what is free that a recorded run may take


def name_of(heads: Heads) -> str:
    """The removed heads as '3.2' or '3.2+3.5'; 'whole' for none."""
    return "+".join(f"{layer}.{head}" for layer, head in heads) or WHOLE


@dataclass(frozen=True, eq=False)
class TextTrials:
    """Sequences to measure on, as the model is given them."""

    name: TextName
    cut: str
    trials: tuple[Trial, ...]


def texts_of(
    reference: Reference, corpus: Corpus, names: Sequence[str] = TEXTS, *, seed: int = 0
) -> tuple[TextTrials, ...]:
    """The text itself, its tokens in random order, and random tokens repeated, of which the second half counts."""
    special = tuple(reference.tokenizer.all_special_ids)
    made: dict[str, Callable[[], Corpus]] = {
        "text": lambda: corpus,
        "shuffled": lambda: shuffled(corpus, keep=special, seed=seed),
        "repeated": lambda: repeated(corpus, keep=special, seed=seed),
    }
    found = []
    for name in TEXTS:
        if name in names:
            chosen, half = made[name](), name == "repeated"
            trials = (
                trial(reference, ids, number=number, seed=seed, second_half=half)
                for number, ids in enumerate(chosen.sequences)
            )
            found.append(TextTrials(name, chosen.cut, tuple(trials)))
    return tuple(found)


def side_by_side(corpus: Corpus) -> int:
    """How many removals run together where nobody says: products of few rows take longer a row."""
    return max(1, _TOGETHER // max(len(ids) for ids in corpus.sequences))


@dataclass(frozen=True)
class AblationPlan:
    """What is still to be measured; `work` is in tokens run through the whole model, `first` that of one sequence."""

    measurements: int
    already: int
    work: float
    first: float


class AblationRunner:
    """The losses of a model with heads removed (or drifts, where it predicts nothing). Made by `ablation_runner`."""

    def __init__(
        self,
        instrument: Instrument,
        texts: Sequence[TextTrials],
        *,
        method: Method = "zero",
        seed: int = 0,
        journal: Journal | None = None,
        resume: bool = True,
        batch: int = 1,
    ) -> None:
        self.instrument, self.model = instrument, instrument.model
        self.texts = {text.name: text for text in texts}
        self.method, self.seed, self.journal, self.batch = method, seed, journal, batch
        self.resumable = Resumable(instrument)
        self.made = 0  # measurements in this process
        self.work = 0.0  # done in this process, in tokens run through the whole model
        self.floor_reason: str | None = None
        self._known: dict[tuple[str, str, int], Any] = {}
        for entry in journal.entries if journal is not None else ():
            self._known[entry["what"], entry["on"], entry["sequence"]] = entry["value"]
        words, width = self._widths()
        if self.here:
            require_memory(
                4 * batch * self.longest * (2 * words + 16 * width),
                f"a run of {batch} times {self.longest} tokens",
                "Use fewer --tokens, or a smaller --batch.",
            )
        if resume:
            self._prepare_to_resume()
        else:
            self.resumable.stop("full runs were asked for")

    @property
    def here(self) -> bool:
        """Whether the model runs in the memory of this machine."""
        return bool(home(self.model).type == "cpu")

    @property
    def longest(self) -> int:
        """The tokens of the longest sequence."""
        return max(each.tokens for text in self.texts.values() for each in text.trials)

    @property
    def sizes(self) -> list[int]:
        """How many heads each layer has."""
        return [site.heads for site in self.instrument.sites]

    def all_heads(self, layers: Sequence[int] | None = None) -> list[Heads]:
        """Every single head, of some layers or of all."""
        chosen = range(len(self.sizes)) if layers is None else layers
        return [((layer, head),) for layer in chosen for head in range(self.sizes[layer])]

    def checked(self, heads: Heads) -> Heads:
        """Heads that exist, in order and each once."""
        for layer, head in heads:
            checked_heads(checked_site(self.instrument.sites, layer), (head,))
        return tuple(sorted(set(heads)))

    def wanted(self, layers: str | None, heads: Sequence[Heads] | None) -> list[Heads]:
        """The single heads that options ask for: those of `heads`, or all, in the layers "0-3,7"."""
        chosen = parse_range(layers, len(self.sizes))
        if heads is None:
            return self.all_heads(chosen)
        return [each for each in map(self.checked, heads) if each[0][0] in chosen]

    # ----------------------------------------------------------- measuring
    def measure(
        self, removals: Sequence[Heads], on: Sequence[str] | None = None, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Measure each removal on each sequence of the texts, and the whole model, where it has not been done."""
        wanted = sorted({self.checked(heads) for heads in removals})
        for text in self._chosen(on):
            missing = {
                number: self._missing(wanted, text, number) or self._missing([()], text, number)
                for number in range(len(text.trials))
            }
            if any(missing.values()):
                places = stand_ins(self.instrument, text.trials, self.method, seed=self.seed)
            for number, left in missing.items():
                if left:
                    self._measure_sequence(text, number, left, places[number], tick)
                    places[number] = _nothing  # a partner's outputs are not needed any more

    def measure_floor(self, on: str = "text") -> None:
        """Measure the text with positions switched off; `floor_reason` says why where that cannot be done."""
        import torch

        text = self.texts[_known_text(on, self.texts)]
        left = [number for number in range(len(text.trials)) if self.known(FLOOR, text.name, number) is None]
        whole = {}
        with torch.no_grad():
            for number in left:
                each = text.trials[number]
                whole[number] = pool(each, self.model(**each.inputs)) if each.kind == "drift" else None
            try:
                with swap_encoding(self.model, "none"):
                    for number in left:
                        each = text.trials[number]
                        value = trial_loss(each, self.model(**each.inputs), whole[number])
                        self.work += each.tokens
                        self.note(FLOOR, text.name, number, as_number(value))
            except (BadConfig, BadEncoding, BadValue) as error:
                self.floor_reason = f"positions cannot be switched off: {error}"

    def plan(self, removals: Sequence[Heads], on: Sequence[str] | None = None) -> AblationPlan:
        """How much is left to do; nothing is run."""
        wanted = sorted({self.checked(heads) for heads in removals})
        count, already = 0, 0
        works = []
        for text in self._chosen(on):
            for number, each in enumerate(text.trials):
                left = self._missing(wanted, text, number)
                count, already = count + len(left), already + len(wanted) - len(left)
                if left or self._missing([()], text, number):
                    works.append(each.tokens + sum(self._work_of(heads, each) for heads in left))
        return AblationPlan(count, already, float(sum(works)), float(works[0]) if works else 0.0)

    def floor_work(self, on: str = "text") -> float:
        """The work that `measure_floor` has still to do."""
        text = self.texts[_known_text(on, self.texts)]
        left = (each for i, each in enumerate(text.trials) if self.known(FLOOR, text.name, i) is None)
        return float(sum(each.tokens for each in left))

    def _work_of(self, heads: Heads, each: Trial) -> float:
        """A removal, in tokens run through the whole model: blocks before it are not run."""
        part = self.resumable.share(heads[0][0]) if heads else 1.0
        return each.tokens * (_HEAD_SHARE + (1 - _HEAD_SHARE) * part)

    # ------------------------------------------------------------- results
    def losses(self, heads: Heads, on: str = "text") -> Array:
        """The loss of each sequence with these heads removed; () for the whole model."""
        text, what = self.texts[_known_text(on, self.texts)], name_of(heads)
        return np.array([self._known[what, text.name, number] for number in range(len(text.trials))])

    def has(self, heads: Heads, on: str = "text") -> bool:
        """Whether the removal has been measured on all sequences of a text."""
        return any(
            text.name == on and not any(self._missing([heads], text, number) for number in range(len(text.trials)))
            for text in self.texts.values()
        )

    def damage(self, heads: Heads, on: str = "text") -> float:
        """How much the removal raises the loss, in the mean over the sequences."""
        return float(self.losses(heads, on).mean() - self.losses((), on).mean())

    def floor(self, on: str = "text") -> Array | None:
        """The loss of each sequence with positions switched off; None where that is unknown, or changes nothing."""
        text = self.texts[_known_text(on, self.texts)]
        found = [self.known(FLOOR, text.name, number) for number in range(len(text.trials))]
        if None in found:
            return None
        floor_S = np.array(found, dtype=np.float64)
        return None if np.allclose(floor_S, self.losses((), on), rtol=_NOTHING, atol=0) else floor_S

    # -------------------------------------------------------------- inside
    def _chosen(self, on: Sequence[str] | None) -> list[TextTrials]:
        return [self.texts[_known_text(name, self.texts)] for name in (self.texts if on is None else on)]

    def _missing(self, wanted: Sequence[Heads], text: TextTrials, number: int) -> list[Heads]:
        return [heads for heads in wanted if (name_of(heads), text.name, number) not in self._known]

    def _measure_sequence(
        self, text: TextTrials, number: int, left: Sequence[Heads], stand_in: StandIn, tick: Callable[[], None]
    ) -> None:
        each = text.trials[number]
        output = self._run(each, self.resumable.record)
        whole = pool(each, output) if each.kind == "drift" else None
        if self._missing([()], text, number):
            self.note(WHOLE, text.name, number, as_number(trial_loss(each, output, whole)))
        del output
        self.work += each.tokens
        for some in self._side_by_side([heads for heads in left if heads]):
            with ablated_rows(self.model, [_removed(heads, stand_in) for heads in some]):
                output = self._run(each, self.resumable.run, some[0][0][0], len(some))
            self.work += sum(self._work_of(heads, each) for heads in some)
            for row, heads in enumerate(some):
                self.note(name_of(heads), text.name, number, as_number(trial_loss(each, output, whole, row)))
                tick()
        if () in left:
            tick()

    def _side_by_side(self, left: Sequence[Heads]) -> Iterator[list[Heads]]:
        """Removals that are run together: up to a batch, that begin in the same layer."""
        for _, alike in groupby(left, key=lambda heads: heads[0][0]):
            some = list(alike)
            yield from (some[at : at + self.batch] for at in range(0, len(some), self.batch))

    def require_memory_for_backward(self, passes: int) -> None:
        """Complain where activations of all layers, and their gradients in so many passes, do not fit in memory."""
        if not self.here:
            return
        _, width = self._widths()
        needed = 4 * self.longest * len(self.sizes) * (_ACTIVATIONS + passes) * width
        require_memory(
            needed, f"backward passes through {self.longest} tokens", "Use fewer --tokens, or --mode exact."
        )

    def _widths(self) -> tuple[int, int]:
        """The words of the vocabulary and the width of the stream, as far as the configuration says."""
        config = self.model.config.get_text_config()
        return getattr(config, "vocab_size", 0), getattr(config, "hidden_size", 0)

    def _run(self, each: Trial, run: Callable[..., Any], *more: Any) -> Any:
        import torch

        with torch.no_grad():
            return run(each.inputs, *more)

    def known(self, what: str, on: str, number: int) -> Any | None:
        """What has been noted of one sequence, or None."""
        return self._known.get((what, on, number))

    def note(self, what: str, on: str, number: int, value: Any) -> None:
        """Keep a measurement, in the journal first."""
        if self.journal is not None:
            self.journal.add({"what": what, "on": on, "sequence": number, "value": value})
        self._known[what, on, number] = value
        self.made += 1

    def _prepare_to_resume(self) -> None:
        import torch

        needed, free = self.resumable.bytes_kept(self.longest), available() if self.here else None
        if free is not None and needed > _MEMORY_SHARE * free:
            self.resumable.stop(
                f"keeping the layers' inputs would take {needed / 1e9:.1f} of {free / 1e9:.1f} GB free"
            )
        with torch.no_grad():
            self.resumable.trust_or_not(dummy_inputs(self.model), lambda output: output[0])


@contextmanager
def ablation_runner(model: Any, texts: Sequence[TextTrials], **options: Any) -> Iterator[AblationRunner]:
    """A runner for a loaded model, for as long as the block lasts; options as for `AblationRunner`."""
    with attached(model) as instrument:
        yield AblationRunner(instrument, texts, **options)


def _removed(heads: Heads, stand_in: StandIn) -> dict[int, tuple[list[int], Any]]:
    """Heads by layer, with what stands in for them."""
    layers: dict[int, list[int]] = {}
    for layer, head in heads:
        layers.setdefault(layer, []).append(head)
    return {layer: (some, stand_in(layer, some)) for layer, some in layers.items()}


def _nothing(layer: int, heads: Sequence[int]) -> Any:
    raise AssertionError("no stand-in was prepared")


def _known_text(name: str, texts: Mapping[TextName, TextTrials]) -> TextName:
    for known in texts:
        if known == name:
            return known
    raise BadValue(f"'{name}' is not measured here; there is {', '.join(texts)}.")
