"""`toposcope.against`: do two engines say the same of the same tokens, where do they part, and which known bug is it?

A is a model that runs here and is trusted; B is another one, or the file that another engine wrote. Both give every
token of some texts a log-probability. Where they differ by more than rounding, each known bug is put into A in turn
(`simulate.py`), and what A then says is compared with B: a bug that explains nearly all of the squared difference, on
texts that were not used to choose it, is named. "None of the known ones" is an answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from toposcope.checkpoints.opened import called
from toposcope.core.errors import BadConfig, BadValue, ToposcopeError
from toposcope.core.progress import Progress, steps
from toposcope.core.result import Provenance, Result
from toposcope.live.engines.engine import (
    Engine,
    Floor,
    Pair,
    dtype_of,
    require_room,
    rms,
    run_texts,
    runnable,
    texts_of,
)
from toposcope.live.engines.logprobs import SUFFIX, Array, LogProbabilities, read_log_probabilities
from toposcope.live.engines.simulate import simulations
from toposcope.live.engines.situation import NotSimulated, Simulation, Situation, situation
from toposcope.models.corpus import RANDOM
from toposcope.models.instrument import attached
from toposcope.models.loss import bin_edges
from toposcope.models.running import RunnableLike, running_subject

EXPLAINS = 0.95  # of the squared difference, to name a bug: related ones explain each other to 92%
APART = 0.02  # two bugs whose shares differ by less cannot be told apart
FINALISTS = 4  # bugs that are tried on the texts held out
Outcome = Literal["equal", "explained", "several", "unknown", "not simulated"]


@dataclass(frozen=True)
class PositionBin:
    """log p under B less that under A, in nats, for tokens predicted from positions `first` to `last`.

    `left` is the root mean square that remains where the best bug is put into A.
    """

    first: int
    last: int
    tokens: int
    rms: float
    mean: float
    largest: float
    left: float | None = None


@dataclass(frozen=True)
class LengthRow:
    """The difference on texts of one length, and the first position at which one of them parts."""

    length: int
    texts: int
    rms: float
    largest: float
    first_apart: int | None


@dataclass(frozen=True)
class Hypothesis:
    """A known bug put into A: the share of the squared difference to B that it explains.

    1 is all of it, below 0 it leads away from B. `explained` is on the texts it was chosen by, `held_out` on others
    (None: not tried there).
    """

    bug: str
    variant: str
    explained: float
    held_out: float | None = None

    @property
    def share(self) -> float:
        """What counts: on texts held out, where it was tried on them."""
        return self.explained if self.held_out is None else self.held_out


@dataclass(frozen=True, kw_only=True, eq=False)
class AgainstResult(Result):
    """Two engines on the same tokens: where they part, and which known bug explains it."""

    kind = "check-against"
    table = "hypotheses"

    a: str
    b: str
    text: str
    texts: int
    held_out: int  # texts that the choice of a bug has not seen
    outcome: Outcome
    causes: tuple[str, ...]  # keys of the bugs that explain it, the best first
    first_apart: int | None  # position from which a token is predicted; None: within rounding everywhere
    rms: float
    floor: Floor
    threshold: float  # the share from which on a bug counts as the cause
    margin: float | None  # best share less that of the next bug, or less 0
    left: float | None  # the largest difference that the best bug leaves, in nats
    positions: tuple[PositionBin, ...]
    lengths: tuple[LengthRow, ...]
    hypotheses: tuple[Hypothesis, ...]  # the best variant of each bug, best first
    not_simulated: tuple[NotSimulated, ...]


def against(
    a: RunnableLike,
    b: RunnableLike | LogProbabilities,
    *,
    text: str | Path = "wiki",
    tokens: int = 256,
    sequences: int = 4,
    begin: int = 0,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> AgainstResult:
    """Where two engines part on the same tokens, by position and length, and which known bug explains it.

    `a` is a name, a path or a loaded model, and is trusted; `b` another, or the .jsonl file of log-probabilities that
    another engine wrote, whose texts are then used. Otherwise `text` is a file, a name of `toposcope ls texts`, or
    'random' (drawn by `seed`). `tolerance` in nats replaces the measured floor of rounding.
    """
    started = time.perf_counter()
    if tolerance is not None and not tolerance > 0:
        raise BadValue(f"the tolerance must be above 0 nats, got {tolerance}.")
    stored = b if isinstance(b, LogProbabilities) else None
    if isinstance(b, str | Path) and Path(b).suffix == SUFFIX:
        stored = read_log_probabilities(b)
    first = runnable(a, tokenizer=stored is None and str(text) != RANDOM)
    if stored is not None:
        texts, words, engine = list(stored.texts), f"the {len(stored.texts)} texts of {stored.engine}", stored.engine
        pairs = [
            Pair(ids, values, number) for number, (ids, values) in enumerate(zip(texts, stored.values, strict=True))
        ]
        dtype, subjects = stored.dtype, [running_subject(first, a)]
    else:
        second = runnable(b, tokenizer=False)
        texts, words = texts_of(first, text, tokens=tokens, count=sequences, begin=begin, seed=seed)
        pairs = run_texts(second, texts, steps(progress, "B", len(texts)))
        dtype, engine = dtype_of(second.model), called(b, second.path)
        subjects = [running_subject(first, a), running_subject(second, b)]
    found = compare_engines(Engine(first), pairs, dtype=dtype, tolerance=tolerance, progress=progress)
    options = {
        "text": str(text), "tokens": tokens, "sequences": sequences, "begin": begin, "tolerance": tolerance,
        "seed": seed,
    }  # fmt: skip
    return replace(
        found, a=called(a, first.path), b=engine, text=words,
        provenance=Provenance(tuple(subjects), options, time.perf_counter() - started),
    )  # fmt: skip


def compare_engines(
    engine: Engine,
    pairs: Sequence[Pair],
    *,
    dtype: str | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> AgainstResult:
    """A against what B said of these texts, B having run in `dtype` (None: not known, then A's)."""
    reference, longest = engine.reference, max(len(pair.ids_N) for pair in pairs)
    require_room(reference, longest)
    floor = engine.floor(pairs[0].ids_N, dtype, tolerance)
    own = engine.under(None, pairs)
    differences = [pair.b_Q - each for pair, each in zip(pairs, own, strict=True)]
    first_apart = min((at for each in differences if (at := _first(each, floor.tolerance)) is not None), default=None)
    hypotheses: list[Hypothesis] = []
    left: list[NotSimulated] = []
    remaining: list[Array] | None = None
    if first_apart is not None:
        try:
            given = situation(reference.model, longest=longest, parts_at=first_apart)
        except BadConfig as error:
            left = [NotSimulated("all", str(error))]
        else:
            hypotheses, left, remaining = _tried(engine, given, pairs, floor.tolerance, progress)
    outcome, causes, margin = _judged(first_apart, hypotheses)
    return AgainstResult(
        a="A",
        b="B",
        text="",
        texts=len(pairs),
        held_out=len(_split(pairs)[1]),
        outcome=outcome,
        causes=causes,
        first_apart=first_apart,
        rms=rms(np.concatenate(differences)),
        floor=floor,
        threshold=EXPLAINS,
        margin=margin,
        left=None if remaining is None else float(max(np.abs(each).max() for each in remaining)),
        positions=tuple(_bins(differences, remaining)),
        lengths=tuple(_lengths(pairs, differences, floor.tolerance)),
        hypotheses=tuple(hypotheses),
        not_simulated=tuple(left),
    )


# ------------------------------------------------------------------ judging
def _split(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The texts that choose a bug, and those that judge the choice: half of them each; of one text there are none."""
    numbers = sorted({pair.number for pair in pairs})
    chosen = set(numbers[: (len(numbers) + 1) // 2])
    return [pair for pair in pairs if pair.number in chosen], [pair for pair in pairs if pair.number not in chosen]


def _tried(
    engine: Engine, given: Situation, pairs: Sequence[Pair], least: float, progress: Progress | None
) -> tuple[list[Hypothesis], list[NotSimulated], list[Array] | None]:
    """Every known bug by the share it explains, the best variant of each; and what the best one leaves."""
    chosen_by, held_out = _split(pairs)
    every, left = simulations(given)
    rows: list[tuple[Hypothesis, Simulation]] = []
    step = steps(progress, "known bugs", len(every))
    with attached(engine.reference):
        for simulation in every:
            try:
                share = _explained(engine, simulation, chosen_by)
                rows.append((Hypothesis(simulation.bug, simulation.variant, share or 0.0), simulation))
            except ToposcopeError as error:
                left.append(NotSimulated(simulation.bug, str(error)))
            step()
        best = _best_of_each(rows)
        if held_out:
            step = steps(progress, "on other texts", min(FINALISTS, len(best)))
            for at, (row, simulation) in enumerate(best[:FINALISTS]):
                best[at] = (replace(row, held_out=_explained(engine, simulation, held_out, least)), simulation)
                step()
            best[:FINALISTS] = sorted(best[:FINALISTS], key=lambda pair: -pair[0].share)
        if not best:
            return [], left, None
        said = [each for some in (chosen_by, held_out) if some for each in engine.under(best[0][1], some)]
    b = [pair.b_Q for some in (chosen_by, held_out) for pair in some]
    return [row for row, _ in best], left, [x - y for x, y in zip(b, said, strict=True)]


def _best_of_each(rows: Sequence[tuple[Hypothesis, Simulation]]) -> list[tuple[Hypothesis, Simulation]]:
    found: dict[str, tuple[Hypothesis, Simulation]] = {}
    for row in sorted(rows, key=lambda pair: -pair[0].explained):
        found.setdefault(row[0].bug, row)
    return list(found.values())


def _explained(engine: Engine, simulation: Simulation, pairs: Sequence[Pair], least: float = 0.0) -> float | None:
    """1 - |B - A with the bug|^2 / |B - A|^2, over all tokens; None where B - A is nowhere beyond `least`."""
    if (
        max(float(np.abs(pair.b_Q - each).max()) for pair, each in zip(pairs, engine.under(None, pairs), strict=True))
        <= least
    ):
        return None
    whole, left = (
        sum(float(((pair.b_Q - each) ** 2).sum()) for pair, each in zip(pairs, engine.under(bug, pairs), strict=True))
        for bug in (None, simulation)
    )
    return 1 - left / whole


def _judged(first_apart: int | None, rows: Sequence[Hypothesis]) -> tuple[Outcome, tuple[str, ...], float | None]:
    margin = rows[0].share - max(rows[1].share, 0.0) if len(rows) > 1 else None
    if first_apart is None:
        return "equal", (), None
    if not rows:
        return "not simulated", (), None
    causes = tuple(row.bug for row in rows if row.share >= max(EXPLAINS, rows[0].share - APART))
    return ("unknown" if not causes else "explained" if len(causes) == 1 else "several"), causes, margin


def _first(difference_Q: Array, tolerance: float) -> int | None:
    beyond = np.flatnonzero(np.abs(difference_Q) > tolerance)
    return int(beyond[0]) if len(beyond) else None


def _bins(differences: Sequence[Array], remaining: Sequence[Array] | None) -> list[PositionBin]:
    found = []
    for first, stop in pairwise(bin_edges(max(map(len, differences)))):
        flat = np.concatenate([each[first:stop] for each in differences])
        rest = None if remaining is None else rms(np.concatenate([each[first:stop] for each in remaining]))
        if len(flat):
            row = PositionBin(
                first, stop - 1, len(flat), rms(flat), float(flat.mean()), float(np.abs(flat).max()), rest
            )
            found.append(row)
    return found


def _lengths(pairs: Sequence[Pair], differences: Sequence[Array], tolerance: float) -> list[LengthRow]:
    rows = []
    for length in sorted({len(pair.ids_N) for pair in pairs}):
        mine = [each for pair, each in zip(pairs, differences, strict=True) if len(pair.ids_N) == length]
        flat = np.concatenate(mine)
        apart = min((at for each in mine if (at := _first(each, tolerance)) is not None), default=None)
        rows.append(LengthRow(length, len(mine), rms(flat), float(np.abs(flat).max()), apart))
    return rows
