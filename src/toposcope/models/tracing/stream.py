"""Do tokens move together or apart on their way through a model, where, and what does position change?

The tokens of a sequence are a cloud at every place of the residual stream: at the input, after the attention and the
MLP of each layer (and after the norms that stand on the stream), and after the final norm. Of each cloud

* cosine               the mean over pairs of the cosine between two tokens
* effective rank       exp of the entropy of the singular values' shares (of 256 tokens at most, evenly spaced)
* dispersion           the root mean square distance from the mean token; relative: over the norm
* norm                 the root mean square norm
* largest              the share of all squared norms that the largest token has: where it is near 1, rank, dispersion
                       and norm speak of that token; the cosine counts every token alike

are taken in float64 from the states as the model has them, sequence by sequence. Changes are against the place
before: differences of cosines, logarithms of ratios of the others. Under another encoding the same sequences run
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.interpreters import HERE, Pool
from toposcope.core.progress import Progress, steps
from toposcope.core.result import Skipped
from toposcope.core.statistics import interval
from toposcope.dynamics.observables import dispersion, mean_cosine, norms, quick_rank, rms, thinned
from toposcope.encodings import NONE, EncodingSpec, parse
from toposcope.models.content import ContentReader
from toposcope.models.corpus import Corpus, Ids, batches
from toposcope.models.instrument import Enough, Instrument, attached
from toposcope.models.swap_encoding import swap_encoding
from toposcope.models.tracing.residual import Residual, Seen, after_norm, forward, residual_of, watching

Array = NDArray[np.float64]
Part = Literal["input", "between", "attention", "norm", "mlp", "layer", "final norm"]

OWN, OFF = "own", "none"
MOST = 1024  # tokens of a sequence that are followed
AHEAD = 8  # clouds that may wait to be measured, at least
HELD = 128 << 20  # bytes of clouds that may wait: so many more
LEAST_TURN = 0.05  # of the mean cosine: less is no move
TURN_SHARE = 0.25  # of the range of all cosines: a turn that is smaller does not begin a new phase
MEASURES = ("cosine", "effective_rank", "dispersion", "relative_dispersion", "norm", "largest")
WHAT = "tokens through depth"


@dataclass(frozen=True)
class Mean:
    """A mean over sequences with half of its 95% interval, None for fewer than two."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class StreamState:
    """The tokens at one place: what they are, and what the part that comes before this place did to them.

    `part` is what has just acted, in `layer` (None: before the first, or after the last): "layer" is one that could
    not be split, "between" what stands between two attention layers. Changes are None at the input. `difference` is
    that of the cosine from the model as it is, sequence by sequence.
    """

    layer: int | None
    part: Part
    cosine: Mean | None  # None where no sequence has two tokens
    effective_rank: Mean
    dispersion: Mean
    relative_dispersion: Mean
    norm: Mean
    largest: Mean
    cosine_change: Mean | None
    rank_change: Mean | None
    dispersion_change: Mean | None
    norm_change: Mean | None
    difference: Mean | None


@dataclass(frozen=True)
class Phase:
    """Layers in which the mean cosine moves one way: from `start` before the first to `end` after the last."""

    move: Literal["together", "apart"]
    first: int
    last: int
    start: float
    end: float


@dataclass(frozen=True)
class Stream:
    """The tokens of some sequences on their way through the model, under one encoding ("own": the model as it is).

    `order` says how layers add up, as it was found: sequential, parallel, post-norm, or whole where it is not known.
    """

    encoding: str
    title: str
    order: str
    sequences: int
    tokens: int
    phases: tuple[Phase, ...]
    states: tuple[StreamState, ...]

    @property
    def after_layers(self) -> tuple[StreamState, ...]:
        """The input, and the state after each layer."""
        last = {state.layer: state for state in self.states if state.layer is not None and state.part != "between"}
        return (self.states[0], *last.values())

    @property
    def final(self) -> StreamState | None:
        """The state after the final norm, where there is one."""
        return self.states[-1] if self.states[-1].part == "final norm" else None

    def total(self, part: Part) -> float | None:
        """What one part did to the mean cosine in all layers together; None if there is no such part."""
        found = [each.cosine_change.mean for each in self.states if each.part == part and each.cosine_change]
        return float(sum(found)) if found else None


def follow(
    model: Any,
    corpus: Corpus,
    encodings: Sequence[str | EncodingSpec] = (),
    *,
    seen: Clouds | None = None,
    batch: int = 1,
    pool: Pool = HERE,
    progress: Progress | None = None,
) -> tuple[tuple[Stream, ...], tuple[Skipped, ...]]:
    """The tokens through the model as it is, with positions off, and under these encodings; and what was left out.

    Clouds are measured by `pool`; `seen` has those of the model as it is, if it has run already (`own_clouds`).
    """
    others = [each for each in map(_spec, encodings) if str(each) != OFF]
    sequences = [ids[:MOST] for ids in corpus.sequences]
    tick = steps(progress, WHAT, 2 + len(others))
    with attached(model) as instrument:
        try:
            residual = residual_of(instrument, sequences[0]) if seen is None else seen.residual
            own = _run(instrument, residual, sequences, batch, pool) if seen is None else seen.measured()
        except ToposcopeError as error:
            return (), (Skipped(WHAT, str(error)),)
        tick()
        found = [_stream(OWN, "as it is", residual, sequences, own, None)]
        left_out: list[Skipped] = []
        if residual.without_attention:
            why = "only what they do between two attention layers is seen"
            left_out.append(Skipped(f"{WHAT}: {residual.without_attention} layers without attention", why))
        if any(layer.encoding.mechanisms != NONE.mechanisms for layer in ContentReader.of(instrument).layers):
            try:
                with swap_encoding(model, OFF):
                    off = _run(instrument, residual, sequences, batch, pool)
                found.append(_stream(OFF, "positions off", residual, sequences, off, own))
            except ToposcopeError as error:
                left_out.append(Skipped(f"{WHAT}, positions off", str(error)))
        tick()
        for spec in others:
            with swap_encoding(model, spec) as put_in:
                measured = _run(instrument, residual, sequences, batch, pool)
            found.append(_stream(str(spec), put_in.title, residual, sequences, measured, own))
            tick()
    return tuple(found), tuple(left_out)


def measure_cloud(tokens: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Every measure of one cloud; the cosine is NaN for a single token."""
    tokens_ND: Array = np.asarray(tokens, dtype=np.float64)
    if not np.isfinite(tokens_ND).all():
        raise BadValue("the residual stream holds NaN or infinity: its tokens cannot be measured.")
    size, spread, lengths = rms(tokens_ND), dispersion(tokens_ND), norms(tokens_ND)
    return {
        "cosine": mean_cosine(tokens_ND) if size > 0 else float("nan"),
        "effective_rank": quick_rank(tokens_ND[thinned(len(tokens_ND))]),
        "dispersion": spread,
        "relative_dispersion": spread / size if size > 0 else 0.0,
        "norm": size,
        "largest": float((lengths.max() / size) ** 2 / len(lengths)) if size > 0 else 1 / len(lengths),
    }


def phases(cosines: Sequence[float]) -> tuple[Phase, ...]:
    """The layers in which tokens move together or apart, from the mean cosine at the input and after each layer.

    A phase ends where the cosine then goes the other way by a quarter of its whole range, and by 0.05 at least.
    """
    turn = max(LEAST_TURN, TURN_SHARE * (max(cosines) - min(cosines)))
    turns, low, high = [0], 0, 0
    rising: bool | None = None
    for at, value in enumerate(cosines):
        if rising is not False and value > cosines[high]:
            high = at
        if rising is not True and value < cosines[low]:
            low = at
        if rising is not False and cosines[high] - value >= turn:
            turns += [high] if high > turns[-1] else []
            rising, low = False, at
        elif rising is not True and value - cosines[low] >= turn:
            turns += [low] if low > turns[-1] else []
            rising, high = True, at
    if rising is None:
        return ()
    turns.append(high if rising else low)
    if abs(cosines[turns[1]] - cosines[turns[0]]) < turn:  # a little way before the first move
        del turns[0]
    return tuple(
        Phase(
            "together" if cosines[stop] > cosines[start] else "apart", start, stop - 1, cosines[start], cosines[stop]
        )
        for start, stop in pairwise(turns)
    )


# -------------------------------------------------------------------- inside
Measured = list[dict[str, float]]  # one cloud after the other


def _spec(encoding: str | EncodingSpec) -> EncodingSpec:
    return parse(encoding) if isinstance(encoding, str) else encoding


class Clouds:
    """The clouds of tokens in passes of a model, each in the order of `_places`, as a pool measures them."""

    def __init__(self, residual: Residual, pool: Pool) -> None:
        self.residual, self._pool = residual, pool
        self._found: list[list[Future[dict[str, float]]]] = []
        self._rows: list[list[Future[dict[str, float]]]] = []
        self._ahead: deque[Future[dict[str, float]]] = deque()
        self._error: ToposcopeError | None = None

    @contextmanager
    def watching(self) -> Iterator[Callable[[int], None]]:
        """Watch passes; what is given back is to be told before each of them how many sequences it has.

        A pass ends with the final norm, where there is one. An error ends no pass: it is raised by `measured`.
        """
        modules = [module for split in self.residual.splits if split is not None for module in split.modules]
        seeing = watching(self.residual.blocks, modules, self._ends)
        with seeing as begin, after_norm(self.residual.final_norm, self._see_the_last):

            def next_pass(sequences: int) -> None:
                begin()
                self._rows = [[] for _ in range(sequences)]
                self._found += self._rows

            yield next_pass

    def measured(self) -> list[Measured]:
        """Every cloud of every sequence."""
        if self._error is not None:
            raise self._error
        return [[each.result() for each in row] for row in self._found]

    def _ends(self, number: int, x: Any, y: Any, seen: Seen) -> None:
        if self._error is not None:
            return
        try:
            split = self.residual.splits[number]
            if number == 0 or not self.residual.joined[number]:
                self._see(x)
            for state in (y,) if split is None else split.states(x, y, seen):
                self._see(state)
        except ToposcopeError as error:
            self._error = error

    def _see(self, state_BND: Any) -> None:
        for row, tokens in zip(self._rows, state_BND, strict=True):
            if tokens.dtype.itemsize < 4:
                tokens = tokens.float()
            tokens_ND = tokens.detach().cpu().numpy()  # in the model's precision: there are many, and they wait
            while len(self._ahead) >= max(AHEAD, HELD // tokens_ND.nbytes):
                wait([self._ahead.popleft()])
            row.append(self._pool.submit(measure_cloud, tokens_ND))
            self._ahead.append(row[-1])

    def _see_the_last(self, state_BND: Any) -> None:
        if self._error is None:
            self._see(state_BND)
        raise Enough


def own_clouds(instrument: Instrument, corpus: Corpus, pool: Pool) -> Clouds | None:
    """For passes of the model as it is that are run anyway; None where its tokens cannot be followed in them."""
    if max(map(len, corpus.sequences)) > MOST:
        return None
    try:
        return Clouds(residual_of(instrument, corpus.sequences[0]), pool)
    except ToposcopeError:  # `follow` says why
        return None


def _run(
    instrument: Instrument, residual: Residual, sequences: Sequence[Ids], batch: int, pool: Pool
) -> list[Measured]:
    clouds = Clouds(residual, pool)
    with clouds.watching() as begin:
        for some in batches(sequences, batch):
            begin(len(some))
            forward(instrument.model, some)
    return clouds.measured()


def _places(residual: Residual) -> list[tuple[int | None, Part]]:
    """Layer and part of each cloud."""
    found: list[tuple[int | None, Part]] = [(None, "input")]
    for number, (split, joined) in enumerate(zip(residual.splits, residual.joined, strict=True)):
        if number and not joined:
            found.append((number, "between"))
        parts: tuple[Part, ...] = ("layer",) if split is None else split.parts
        found += [(number, part) for part in parts]
    return [*found, (None, "final norm")] if residual.final_norm is not None else found


def _stream(
    encoding: str,
    title: str,
    residual: Residual,
    sequences: Sequence[Ids],
    measured: Sequence[Measured],
    own: Sequence[Measured] | None,
) -> Stream:
    """Means over sequences of what was measured, and of what changed from place to place."""
    states = []
    for at, (layer, part) in enumerate(_places(residual)):
        now = [each[at] for each in measured]
        before = [each[at - 1] for each in measured] if at else None
        plain = [each[at] for each in own] if own is not None else None
        means = {name: _mean([each[name] for each in now]) for name in MEASURES}
        changes = {
            f"{short}_change": None if before is None else _mean(_changes(name, before, now))
            for name, short in _CHANGING.items()
        }
        difference = None if plain is None else _mean(_changes("cosine", plain, now))
        states.append(StreamState(layer=layer, part=part, difference=difference, **means, **changes))  # type: ignore[arg-type]
    found = Stream(
        encoding, title, residual.order, len(sequences), max(map(len, sequences)), phases=(), states=tuple(states)
    )
    cosines = [None if each.cosine is None else each.cosine.mean for each in found.after_layers]
    return found if None in cosines else replace(found, phases=phases([each for each in cosines if each is not None]))


_CHANGING = {"cosine": "cosine", "effective_rank": "rank", "dispersion": "dispersion", "norm": "norm"}


def _changes(name: str, before: Sequence[Mapping[str, float]], now: Sequence[Mapping[str, float]]) -> list[float]:
    """Differences of cosines, logarithms of ratios of the rest; NaN where there is none."""
    pairs = [(first[name], last[name]) for first, last in zip(before, now, strict=True)]
    if name == "cosine":
        return [last - first for first, last in pairs]
    return [float(np.log(last / first)) if first > 0 and last > 0 else float("nan") for first, last in pairs]


def _mean(values: Sequence[float]) -> Mean | None:
    """The mean of the numbers among the values."""
    known = [value for value in values if np.isfinite(value)]
    return Mean(*interval(known)) if known else None
