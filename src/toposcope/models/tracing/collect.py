"""Numbers collected head by head while a model runs on one sequence after the other."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core import memory
from toposcope.core.cluster import cores
from toposcope.core.interpreters import HERE, Pool
from toposcope.encodings.record import Encoding
from toposcope.encodings.tabulated import tabulated
from toposcope.models.content import Content, precision
from toposcope.models.corpus import Ids
from toposcope.models.instrument import Call, Instrument
from toposcope.models.tracing.contraction import Contracted, contracted, contracted_absolute
from toposcope.models.tracing.head import (
    design,
    gram_shares,
    in_input_only,
    kernel_contraction,
    mean_kernel,
    toeplitz_shares,
)
from toposcope.models.tracing.logits import HeadContent, head_content, head_logits, last_block
from toposcope.models.tracing.patterns import THRESHOLDS, Score, induction_score, names, patterns
from toposcope.models.tracing.result import METRICS, SPLIT, Gap, HeadTrace, Spread

Array = NDArray[np.float64]
Only = Literal["patterns", "position"]  # what alone is measured, several times faster than all
AHEAD = 2 * cores()  # heads that are measured while the model goes on, at least
HELD = 256 << 20  # bytes of heads that wait, at most; and at most an eighth of the memory that is free
NO_MEAN = "position was added to the input, and its mean needs several sequences"
NOT_ASKED = "it was not asked for"
KEPT = 32  # offsets of the mean kernel in the result
REBUILT = 1e-3  # relative: attention rebuilt from content differs by 1e-6 where the record is right, by 1 where not
ROUNDINGS = 16  # in units of the model's eps, where that is half precision's and attention itself is so rounded


@dataclass(frozen=True, eq=False)
class PositionPart:
    """p_i, the mean over sequences at position i less the mean over all, and what is left of a sequence without it.

    A mean of few sequences holds some of their content; what is left is therefore stretched about the grand mean by
    sqrt(count / (count - 1)), so that where position does nothing its spread is that of the whole (Bessel).
    """

    part_NR: Array
    grand_R: Array
    stretch_N1: Array

    def without(self, x_NR: Array) -> Array:
        """The sequence's vectors with position taken out."""
        own_NR = x_NR[: len(self.part_NR)] - self.part_NR - self.grand_R
        return np.asarray(self.grand_R + self.stretch_N1 * own_NR)


Parts = tuple[PositionPart, PositionPart] | None  # of queries and keys; None where one sequence has no mean


class PositionMeans:
    """Sums of queries and keys over sequences, position by position, for layers whose positions are in the input."""

    def __init__(self) -> None:
        self._sums: dict[int, list[Array]] = {}
        self._counts: dict[int, Array] = {}

    def add(self, content: Content) -> None:
        number, length = content.site.number, content.q_HNR.shape[1]
        parts = [content.q_HNR, content.k_HMR]
        if number not in self._sums:
            self._sums[number] = [part.copy() for part in parts]
            self._counts[number] = np.ones(length)
            return
        longer = length - len(self._counts[number])
        if longer > 0:
            self._sums[number] = [np.pad(part, ((0, 0), (0, longer), (0, 0))) for part in self._sums[number]]
            self._counts[number] = np.pad(self._counts[number], (0, longer))
        for total, part in zip(self._sums[number], parts, strict=True):
            total[:, :length] += part
        self._counts[number][:length] += 1

    def of(self, content: Content, head: int) -> Parts:
        """The position parts of one head's queries and keys, where several sequences reach; None without."""
        number, length = content.site.number, content.q_HNR.shape[1]
        if number not in self._sums:
            return None
        counts = self._counts[number]
        several = int((counts > 1).sum())
        if min(several, length) < 2:
            return None
        found = []
        for total in self._sums[number]:
            sums_NR, counts_N1 = total[head][:several], counts[:several, None]
            grand_R = sums_NR.sum(axis=0) / counts_N1.sum()
            mean_NR = (sums_NR / counts_N1)[:length]
            found.append(PositionPart(mean_NR - grand_R, grand_R, np.sqrt(counts_N1 / (counts_N1 - 1))[:length]))
        return found[0], found[1]


@dataclass(eq=False)
class HeadNotes:
    """What has been noted of one head, sequence by sequence."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    uniform: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    routes: set[str] = field(default_factory=set)
    tokens: int = 0
    kernels: list[tuple[Array, Array]] = field(default_factory=list)
    peaks: list[int | None] = field(default_factory=list)
    gaps: dict[tuple[str, str], None] = field(default_factory=dict)  # metric and reason, in their order

    def note(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self.values[name].append(float(value))

    def scores(self, scores: Mapping[str, Score]) -> None:
        for name, score in scores.items():
            self.values[f"on {name}"].append(score.value)
            self.uniform[name].append(score.uniform)

    def lacks(self, metric: str, why: str) -> None:
        self.gaps[metric, why] = None

    def add(self, more: HeadNotes) -> None:
        """Go on with what was noted of further sequences."""
        for mine, theirs in ((self.values, more.values), (self.uniform, more.uniform)):
            for name, values in theirs.items():
                mine[name] += values
        self.routes |= more.routes
        self.tokens = max(self.tokens, more.tokens)
        self.kernels += more.kernels
        self.peaks += more.peaks
        self.gaps |= more.gaps

    def kernel(self) -> tuple[Array, Array]:
        """The mean kernel over the offsets that the longest sequences have, and these."""
        longest = max((offsets for offsets, _ in self.kernels), key=len)
        whole = [total for offsets, total in self.kernels if len(offsets) == len(longest)]
        return longest, np.mean(whole, axis=0)


# -------------------------------------------------------------------- one head on one sequence, in any process
@dataclass(frozen=True)
class HeadOptions:
    """What is to be measured; `absolute`: position came with the input and acts nowhere else."""

    dense_limit: int
    seed: int
    only: Only | None
    absolute: bool


def measured_head(of: HeadContent, theirs_BV: Array, asked: HeadOptions, parts: Parts) -> tuple[HeadNotes, float]:
    """Everything about one head on one sequence, and how far its outputs, rebuilt, are from the model's own.

    `theirs_BV` are the model's outputs in the last block of rows, `parts` what sequences share at a position.
    """
    notes = HeadNotes(tokens=of.length)
    logits = head_logits(of)
    seen = patterns(logits, values_NV=of.v_NV)
    notes.note({"distance": seen.distance, "entropy": seen.entropy})
    notes.scores(seen.scores)
    assert seen.output_BV is not None
    error = float(np.abs(seen.output_BV - theirs_BV).max() / max(np.abs(theirs_BV).max(), 1e-30))
    if asked.only != "patterns":
        _split(notes, of, logits.reach, asked, parts)
    if asked.only is not None:
        return notes, error
    raw, centred = toeplitz_shares(logits, seen.square)
    notes.note({"toeplitz": raw, "toeplitz_centred": centred})
    if asked.absolute:
        _absolute(notes, of, logits.reach, asked.dense_limit, parts)
    else:
        _inside(notes, of, logits.reach, asked)
    return notes, error


def induction(of: HeadContent, ids: Ids) -> HeadNotes:
    """Only the induction score of one head, on repeated random tokens."""
    notes = HeadNotes()
    score = induction_score(head_logits(of), ids)
    notes.scores({} if score is None else {"induction": score})
    return notes


def each_of(measure: Callable[..., Any], heads: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The same of several heads, each given with what it is measured with."""
    return [measure(*given) for given in heads]


def _split(notes: HeadNotes, of: HeadContent, reach: int | None, asked: HeadOptions, parts: Parts) -> None:
    """How much of the logits content makes, and position, and both together."""
    if not asked.absolute:
        split = design(of, asked.seed)
        notes.note({"content": split.content, "position": split.position, "coupling": split.coupling})
        for metric in ("gram_content", "gram_mixed", "gram_position", "gram_cross"):
            notes.lacks(metric, "position acts inside the heads: see content, position and interaction")
        return
    for metric in ("content", "position", "coupling"):
        notes.lacks(metric, "position was added to the input: see the Gram shares")
    if parts is None:
        for metric in ("gram_content", "gram_mixed", "gram_position"):
            notes.lacks(metric, NO_MEAN)
        return
    of_q_NR, of_k_NR = (part.part_NR for part in parts)
    q_NR, k_NR, near = _reached(of, len(of_q_NR), reach)
    shares = gram_shares(q_NR, k_NR, of_q_NR * of.scale, of_k_NR, causal=of.causal, reach=near)
    if shares is not None:
        notes.note({f"gram_{name}": value for name, value in asdict(shares).items()})


def _reached(of: HeadContent, length: int, reach: int | None) -> tuple[Array, Array, int | None]:
    """The first queries and keys, to which several sequences reach, and how far they see there."""
    return of.q_NR[:length] * of.scale, of.k_NR[:length], reach if reach is not None and reach < length - 1 else None


def _inside(notes: HeadNotes, of: HeadContent, reach: int | None, asked: HeadOptions) -> None:
    """Position acts inside the head: it can be switched off there, and tokens put at any position."""
    found = contracted(
        of.q_NR, of.k_NR, of.encoding, causal=of.causal, reach=reach, scale=of.scale, head=of.head,
        dense_limit=asked.dense_limit,
    )  # fmt: skip
    _contraction(notes, found)
    shape = mean_kernel(of)
    if shape is None:
        notes.lacks("kernel_rho", "the bias depends on both positions")
        return
    notes.kernels.append((shape.offsets_T, shape.total_T))
    notes.peaks.append(shape.peak_offset)
    rho = kernel_contraction(shape, of.encoding, of.length)
    notes.note({"kernel_rho": rho})
    if rho is None:
        notes.lacks("kernel_rho", "no rotation without decay in this head")


def _absolute(notes: HeadNotes, of: HeadContent, reach: int | None, dense_limit: int, parts: Parts) -> None:
    """Position came with the input: what sequences share at a position stands for it."""
    notes.lacks("kernel_rho", "position was added to the input: no kernel over offsets")
    if parts is None:
        for metric in ("rho", "erank_ratio", "maj_gap", "cap"):
            notes.lacks(metric, NO_MEAN)
        return
    of_q, of_k = parts
    q_NR, k_NR, near = _reached(of, len(of_q.part_NR), reach)
    found = contracted_absolute(
        q_NR, k_NR, of_q.without(of.q_NR) * of.scale, of_k.without(of.k_NR), causal=of.causal, reach=near,
        dense_limit=dense_limit,
    )  # fmt: skip
    _contraction(notes, found)


# -------------------------------------------------------------------- all heads
class Collected:
    """Numbers collected head by head, sequence by sequence, as the processes of a pool give them back."""

    def __init__(
        self,
        instrument: Instrument,
        chosen: Mapping[int, tuple[int, ...]],
        dense_limit: int,
        seed: int,
        only: Only | None = None,
        pool: Pool = HERE,
    ) -> None:
        self.instrument, self.chosen, self.dense_limit, self.seed = instrument, chosen, dense_limit, seed
        self.only = only
        self.means = PositionMeans()
        self.lost: dict[int, str] = {}
        self.rebuilt = 0.0
        self.pool = pool
        free = memory.available()
        self._held = HELD if free is None else min(HELD, free // 8)
        self._notes = {(number, head): HeadNotes() for number, heads in chosen.items() for head in heads}
        self._errors: dict[int, list[float]] = defaultdict(list)
        self._waiting: deque[Callable[[], None]] = deque()
        self._tables: dict[tuple[int, int], tuple[Encoding, Encoding | None]] = {}
        self._precision: Any = None

    # ------------------------------------------------------------- one sequence
    def measure(self, content: Content, call: Call, output_BNHV: Any) -> None:
        """Have the chosen heads of one layer measured."""
        length = content.q_HNR.shape[1]
        absolute = in_input_only(content.encoding)
        asked = HeadOptions(self.dense_limit, self.seed, self.only, absolute)
        self._precision = output_BNHV.dtype
        theirs_BHV = output_BNHV[0, last_block(length) :].detach().cpu().double().numpy()

        def given(head: int) -> tuple[Any, ...]:
            parts = self.means.of(content, head) if absolute and self.only != "patterns" else None
            return theirs_BHV[:, head], asked, parts

        self._begin(measured_head, content, call, given)

    def induction(self, ids: Ids, content: Content, call: Call, output_BNHV: Any) -> None:
        """Only the induction scores, from repeated random tokens."""
        self._begin(induction, content, call, lambda head: (ids,))

    def settle(self) -> None:
        """Wait for all that was begun; then it is known which layers were rebuilt, and how well."""
        while self._waiting:
            self._waiting.popleft()()
        changed = self.instrument.edits or self.instrument.rewrites
        for number, errors in self._errors.items():
            error = float(np.max(errors))  # not a number where one is: not rebuilt either
            if error < _allowed(self._precision) or changed:
                self.rebuilt = max(self.rebuilt, error)
            else:
                self.lost[number] = (
                    f"its attention could not be rebuilt from queries and keys (off by {error:.1e} "
                    f"in {precision(self._precision)})"
                )

    def _begin(
        self, measure: Callable[..., Any], content: Content, call: Call, given: Callable[[int], tuple[Any, ...]]
    ) -> None:
        """Have the chosen heads of a layer measured by the pool; here where its encoding is not made of tables.

        Heads that share keys go together, so that these, and the tables, are handed over once. `given` is what each
        is measured with.
        """
        site = content.site
        tables = self._tabulated(content.encoding, content.q_HNR.shape[1])
        pool = self.pool if tables is not None else HERE
        for _, some in groupby(self.chosen[site.number], key=lambda head: head * site.kv_heads // site.heads):
            heads = tuple(some)
            ones = [head_content(content, head, sink_of(call, head)) for head in heads]
            k_NR, v_NV = ones[0].k_NR, ones[0].v_NV
            ones = [replace(one, k_NR=k_NR, v_NV=v_NV, encoding=tables or one.encoding) for one in ones]
            size = sum(one.q_NR.nbytes for one in ones) + k_NR.nbytes + v_NV.nbytes
            while len(self._waiting) >= max(AHEAD, self._held // size):
                self._waiting.popleft()()
            calls = [(one, *given(head)) for one, head in zip(ones, heads, strict=True)]
            self._waiting.append(partial(self._note, site.number, heads, pool.submit(each_of, measure, calls)))

    def _note(self, number: int, heads: Sequence[int], future: Future[list[Any]]) -> None:
        for head, found in zip(heads, future.result(), strict=True):
            notes, error = found if isinstance(found, tuple) else (found, None)
            self._notes[number, head].add(notes)
            if error is not None:
                self._errors[number].append(error)

    def _tabulated(self, encoding: Encoding, length: int) -> Encoding | None:
        """`tabulated`, made once for all heads of a layer and a length."""
        kept = self._tables.get((id(encoding), length))
        if kept is None:  # the encoding is kept too: its number belongs to no other as long as it lives
            kept = self._tables[id(encoding), length] = (encoding, tabulated(encoding, length))
        return kept[1]

    def lacks(self, metric: str, why: str) -> None:
        """Of no head is this known."""
        for notes in self._notes.values():
            notes.lacks(metric, why)

    # ------------------------------------------------------------- all sequences
    @property
    def kernels(self) -> dict[str, list[float]]:
        """The mean kernel of each head over the offsets that all its sequences have, by the head's name."""
        known = ((key, notes) for key, notes in self._notes.items() if notes.kernels)
        return {f"{number}.{head}": list(notes.kernel()[1]) for (number, head), notes in known}

    def row(self, number: int, head: int) -> HeadTrace:
        notes = self._notes[number, head]
        scores = {name: _spread(notes.values.get(f"on {name}", [])) for name in THRESHOLDS}
        uniform = {name: float(np.median(given)) for name, given in notes.uniform.items()}
        found = {name: Score(spread.median, uniform[name]) for name, spread in scores.items() if spread is not None}
        peak, agree = None, None
        kept: tuple[float, ...] = ()
        if notes.kernels:
            offsets, total = notes.kernel()
            if any(each is not None for each in notes.peaks):
                best = offsets[total >= total.max() - 1e-12 * np.abs(total).max()]
                peak = int(best[np.abs(best).argmin()])
                agree = float(np.mean([each == peak for each in notes.peaks]))
            kept = tuple(float(value) for value in total[offsets >= 0][:KEPT])
        return HeadTrace(
            layer=number,
            head=head,
            tokens=notes.tokens,
            names=names(found),
            route="+".join(sorted(notes.routes)),
            peak_offset=peak,
            peak_agreement=agree,
            kernel=kept,
            uniform=uniform,
            **{name: _spread(notes.values.get(name, [])) for name in METRICS},
            **{f"on_{name}": spread for name, spread in scores.items()},
        )

    def gaps(self) -> tuple[Gap, ...]:
        if self.only is not None:
            measured = ("distance", "entropy", *(SPLIT if self.only == "position" else ()))
            for metric in METRICS:
                if metric not in measured:
                    self.lacks(metric, NOT_ASKED)
        counted = Counter(gap for notes in self._notes.values() for gap in notes.gaps)
        return tuple(Gap(metric, why, heads) for (metric, why), heads in counted.items())


# -------------------------------------------------------------------- inside
def _contraction(notes: HeadNotes, found: Contracted) -> None:
    notes.routes.add(found.route)
    values = {name: getattr(found, name) for name in ("rho", "erank_ratio", "maj_gap", "cap")}
    notes.note(values)
    for name, value in values.items():
        if value is None:
            notes.lacks(name, found.reason or "not defined for these logits")


def _allowed(dtype: Any) -> float:
    import torch

    return max(REBUILT, ROUNDINGS * torch.finfo(dtype).eps)


def sink_of(call: Call, head: int) -> float | None:
    """The logit of a head that takes attention and gives nothing (GPT-OSS)."""
    return None if call.sinks is None else float(call.sinks[head])


def _spread(values: Sequence[float]) -> Spread | None:
    if not len(values):
        return None
    ordered = sorted(values)
    found = []
    for share in (0.25, 0.5, 0.75):  # as np.percentile has it, which takes a hundred times as long for a few numbers
        below, rest = divmod(share * (len(ordered) - 1), 1.0)
        first, second = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
        found.append(first + (second - first) * rest)
    low, middle, high = found
    return Spread(middle, low, high, len(ordered))
