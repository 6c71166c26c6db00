"""Numbers collected head by head while a model runs on one sequence after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from toposcope.models.tracing.logits import HeadLogits, head_logits
from toposcope.models.tracing.patterns import THRESHOLDS, Patterns, Score, names, patterns
from toposcope.models.tracing.result import METRICS, Gap, HeadTrace, Spread

Array = NDArray[np.float64]
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

    def of(self, content: Content, head: int) -> tuple[PositionPart, PositionPart] | None:
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


class Collected:
    """Numbers collected head by head, sequence by sequence."""

    def __init__(
        self,
        instrument: Instrument,
        chosen: Mapping[int, tuple[int, ...]],
        dense_limit: int,
        seed: int,
        only_patterns: bool = False,
    ) -> None:
        self.instrument, self.chosen, self.dense_limit, self.seed = instrument, chosen, dense_limit, seed
        self.only_patterns = only_patterns
        self.means = PositionMeans()
        self.lost: dict[int, str] = {}
        self.rebuilt = 0.0
        self._values: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._uniform: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._routes: dict[tuple[int, int], set[str]] = defaultdict(set)
        self._tokens: dict[tuple[int, int], int] = defaultdict(int)
        self._kernels: dict[tuple[int, int], list[tuple[Array, Array]]] = defaultdict(list)
        self._peaks: dict[tuple[int, int], list[int | None]] = defaultdict(list)
        self._gaps: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)

    # ------------------------------------------------------------- one sequence
    def measure(self, content: Content, call: Call, output_BNHV: Any) -> None:
        number = content.site.number
        if number in self.lost:
            return
        for head in self.chosen[number]:
            key = (number, head)
            logits = head_logits(content, head, _sink(call, head))
            seen = patterns(logits, values_NV=content.v_HMV[head])
            error = _difference(seen, output_BNHV[0, seen.seen_from :, head])
            if not error < _allowed(output_BNHV.dtype) and not (self.instrument.edits or self.instrument.rewrites):
                self.lost[number] = (
                    f"its attention could not be rebuilt from queries and keys (off by {error:.1e} "
                    f"in {precision(output_BNHV.dtype)})"
                )
                return
            self.rebuilt = max(self.rebuilt, error)
            self._tokens[key] = max(self._tokens[key], logits.length)
            self._note(key, {"distance": seen.distance, "entropy": seen.entropy})
            self._scores(key, seen.scores)
            if self.only_patterns:
                continue
            raw, centred = toeplitz_shares(logits, seen.square)
            self._note(key, {"toeplitz": raw, "toeplitz_centred": centred})
            if in_input_only(content.encoding):
                self._absolute(key, content, logits)
            else:
                self._inside(key, content, logits)

    def induction(self, ids: Ids, content: Content, call: Call, output_BNHV: Any) -> None:
        """Only the induction score, from repeated random tokens."""
        number = content.site.number
        for head in self.chosen[number] if number not in self.lost else ():
            seen = patterns(head_logits(content, head, _sink(call, head)), ids)
            if "induction" in seen.scores:
                self._scores((number, head), {"induction": seen.scores["induction"]})

    def _inside(self, key: tuple[int, int], content: Content, logits: HeadLogits) -> None:
        """Position acts inside the head: it can be switched off there, and tokens put at any position."""
        head, encoding = key[1], content.encoding
        self._contraction(
            key,
            contracted(
                content.q_HNR[head],
                content.k_HMR[head],
                encoding,
                causal=logits.causal,
                reach=logits.reach,
                scale=content.scale,
                head=head,
                dense_limit=self.dense_limit,
            ),
        )
        split = design(content, head, self.seed)
        self._note(key, {"content": split.content, "position": split.position, "coupling": split.coupling})
        for metric in ("gram_content", "gram_mixed", "gram_position", "gram_cross"):
            self.lacks(metric, "position acts inside the heads: see content, position and their coupling", key)
        shape = mean_kernel(content, head)
        if shape is None:
            self.lacks("kernel_rho", "the bias depends on both positions", key)
            return
        self._kernels[key].append((shape.offsets_T, shape.total_T))
        self._peaks[key].append(shape.peak_offset)
        found = kernel_contraction(shape, encoding, logits.length)
        self._note(key, {"kernel_rho": found})
        if found is None:
            self.lacks("kernel_rho", "no rotation without decay in this head", key)

    def _absolute(self, key: tuple[int, int], content: Content, logits: HeadLogits) -> None:
        """Position came with the input: what sequences share at a position stands for it."""
        for metric in ("content", "position", "coupling"):
            self.lacks(metric, "position was added to the input: see the Gram shares", key)
        self.lacks("kernel_rho", "position was added to the input: no kernel over offsets", key)
        parts = self.means.of(content, key[1])
        if parts is None:
            for metric in ("rho", "erank_ratio", "maj_gap", "cap", "gram_content", "gram_mixed", "gram_position"):
                self.lacks(metric, "position was added to the input, and its mean needs several sequences", key)
            return
        of_q, of_k = parts
        length = len(of_q.part_NR)
        q_NR, k_NR = content.q_HNR[key[1], :length] * content.scale, content.k_HMR[key[1], :length]
        reach = logits.reach if logits.reach is not None and logits.reach < length - 1 else None
        self._contraction(
            key,
            contracted_absolute(
                q_NR,
                k_NR,
                of_q.without(content.q_HNR[key[1]]) * content.scale,
                of_k.without(content.k_HMR[key[1]]),
                causal=logits.causal,
                reach=reach,
                dense_limit=self.dense_limit,
            ),
        )
        parts_q, parts_k = of_q.part_NR * content.scale, of_k.part_NR
        shares = gram_shares(q_NR, k_NR, parts_q, parts_k, causal=logits.causal, reach=reach)
        if shares is not None:
            self._note(key, {f"gram_{name}": value for name, value in asdict(shares).items()})

    def _contraction(self, key: tuple[int, int], found: Contracted) -> None:
        self._routes[key].add(found.route)
        values = {name: getattr(found, name) for name in ("rho", "erank_ratio", "maj_gap", "cap")}
        self._note(key, values)
        for name, value in values.items():
            if value is None:
                self.lacks(name, found.reason or "not defined for these logits", key)

    def _scores(self, key: tuple[int, int], scores: Mapping[str, Score]) -> None:
        for name, score in scores.items():
            self._values[key][f"on {name}"].append(score.value)
            self._uniform[key][name].append(score.uniform)

    def _note(self, key: tuple[int, int], values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._values[key][name].append(float(value))

    def lacks(self, metric: str, why: str, key: tuple[int, int] | None = None) -> None:
        everywhere = {(number, head) for number, heads in self.chosen.items() for head in heads}
        self._gaps[metric, why] |= everywhere if key is None else {key}

    # ------------------------------------------------------------- all sequences
    @property
    def kernels(self) -> dict[str, list[float]]:
        """The mean kernel of each head over the offsets that all its sequences have, by the head's name."""
        return {f"{number}.{head}": list(self._kernel((number, head))[1]) for number, head in self._kernels}

    def _kernel(self, key: tuple[int, int]) -> tuple[Array, Array]:
        longest = max((offsets for offsets, _ in self._kernels[key]), key=len)
        whole = [total for offsets, total in self._kernels[key] if len(offsets) == len(longest)]
        return longest, np.mean(whole, axis=0)

    def row(self, number: int, head: int) -> HeadTrace:
        key = (number, head)
        values = self._values[key]
        scores = {name: _spread(values.get(f"on {name}", [])) for name in THRESHOLDS}
        uniform = {name: float(np.median(given)) for name, given in self._uniform[key].items()}
        found = {name: Score(spread.median, uniform[name]) for name, spread in scores.items() if spread is not None}
        peak, agree = None, None
        kept: tuple[float, ...] = ()
        if self._kernels.get(key):
            offsets, total = self._kernel(key)
            if any(each is not None for each in self._peaks[key]):
                best = offsets[total >= total.max() - 1e-12 * np.abs(total).max()]
                peak = int(best[np.abs(best).argmin()])
                agree = float(np.mean([each == peak for each in self._peaks[key]]))
            kept = tuple(float(value) for value in total[offsets >= 0][:KEPT])
        return HeadTrace(
            layer=number,
            head=head,
            tokens=self._tokens[key],
            names=names(found),
            route="+".join(sorted(self._routes[key])),
            peak_offset=peak,
            peak_agreement=agree,
            kernel=kept,
            uniform=uniform,
            **{name: _spread(values.get(name, [])) for name in METRICS},
            **{f"on_{name}": spread for name, spread in scores.items()},
        )

    def gaps(self) -> tuple[Gap, ...]:
        if self.only_patterns:
            for metric in METRICS:
                if metric not in ("distance", "entropy"):
                    self.lacks(metric, "only patterns were asked for")
        return tuple(Gap(metric, why, len(keys)) for (metric, why), keys in self._gaps.items())


# -------------------------------------------------------------------- inside
def _allowed(dtype: Any) -> float:
    import torch

    return max(REBUILT, ROUNDINGS * torch.finfo(dtype).eps)


def _sink(call: Call, head: int) -> float | None:
    return None if call.sinks is None else float(call.sinks[head])


def _difference(seen: Patterns, theirs_BV: Any) -> float:
    """How far the rebuilt outputs of the last rows are from the model's own, relative to these."""
    assert seen.output_BV is not None
    theirs = theirs_BV.detach().double().cpu().numpy()
    return float(np.abs(seen.output_BV - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def _spread(values: Sequence[float]) -> Spread | None:
    if not len(values):
        return None
    low, middle, high = np.percentile(values, (25, 50, 75))
    return Spread(float(middle), float(low), float(high), len(values))
