"""Does the verdict predict the simulation? Every certified head, run from the hidden states that really enter it.

A head's flow is followed in its own r coordinates with the frozen part of the tokens in the logits (T9), without the
per-token factor of the norms, of which the verdicts do not speak; tokens are normalised once at the start, so that
logits begin at their true size. A run lasts

    T = min(10 / |alpha|, 300 / |V~|)

and stops early at growth 1e4 or after 6000 calls of the field. What theory allows is never called a contradiction:

* `converges` (T6): tokens may grow for a while, stand still or run out of time, but not grow without end. A run that
  reaches the growth cap is repeated with a cap of 1e8.
* `diverges`, `not_convergent` (T5) speak of the first causal token, or of a consensus where there is no mask. Its
  path is known, x(t) = e^{V~ t} x(0), and the run must follow it. With eigenvalues of positive real part on the left
  invariant space Y, |Y^T x| then grows without end unless Y^T x(0) = 0: `unstable_share` is |Y^T x(0)| / |x(0)|.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.checkpoints import load
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Model
from toposcope.core.interpreters import Interpreters
from toposcope.core.progress import Progress, steps
from toposcope.dynamics import agreement
from toposcope.dynamics.heads import HeadDynamics, describe_head
from toposcope.dynamics.regime import Regime, Verdict
from toposcope.dynamics.run import GROWTH_CAP, Problem, run
from toposcope.dynamics.sources import SINGULAR, head_problem, own_rank
from toposcope.dynamics.trajectory import Status, Trajectory
from toposcope.models.rank import RankCorrelation, rank_correlation
from toposcope.models.tracing.hidden import HiddenStates, self_layers

Array = NDArray[np.float64]

RTOL = 1e-5
TIGHT = 1e-10
SAMPLES = 33
MAX_EVALUATIONS = 6000
SECOND_CAP = 1e8
PATH_TOLERANCE = 1e-3  # how far, relative to its size, the integrator may have taken a token from e^{Vt} x(0)
OBSERVED = ("converged", "shrank", "at_rest", "grows", "grew", "stiff")
WORDS = ("agrees", "not_yet", "contradicts")
INDICES = ("growth_index", "alpha", "omega", "spread_index", "pair_index")


@dataclass(frozen=True)
class Followed:
    """The token whose path a theorem gives: the first causal one, or the mean token as a consensus.

    `log_growth` is log(|x(T)| / |x(0)|) of the run and must lie between `least` = -log |e^{-VT}| and `most` =
    log |e^{VT}|. `error` is the largest distance from e^{Vt} x(0) relative to the size reached so far.
    `unstable_growth` is log(|Y^T x(T)| / |Y^T x(0)|) where V has eigenvalues of positive real part. `alone`: the
    path was lost in the run of all tokens, where directions that grow e^10-fold carry the integrator's error with
    them, and found in a run of this token alone with a relative tolerance of 1e-10.
    """

    log_growth: float
    least: float
    most: float
    error: float
    unstable_share: float | None
    unstable_growth: float | None
    alone: bool = False

    @property
    def on_path(self) -> bool:
        slack = 2 * PATH_TOLERANCE
        return self.error <= PATH_TOLERANCE and self.least - slack <= self.log_growth <= self.most + slack


@dataclass(frozen=True)
class HeadRun:
    """One head on one text: what the theorem says, what the run did, and whether they agree.

    `observed` speaks of the largest token: `converged`, `shrank`, `at_rest`, `grows` (larger at the end of the run),
    `grew` (to the growth cap), `stiff` (the calls of the field were used up). `rate` is log(growth of the largest
    token) / time, `mean_rate` the mean of the tokens' own logarithms over time.
    """

    layer: int
    head: int
    verdict: str
    rule: str
    scope: str
    exact: bool
    growth_index: float | None
    alpha: float | None
    omega: float | None
    spread_index: float | None
    pair_index: float | None
    observed: str
    word: str  # one of WORDS
    sentence: str
    horizon: float
    end: float
    evaluations: int
    log_growth: float
    rate: float
    mean_rate: float
    followed: Followed | None

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True)
class VerdictSummary:
    """All certified heads that were run: how many, by verdict and by what was observed, and what stands out.

    `table` counts by verdict and observation, `words` by verdict and agreement. `undecided` heads have no certified
    verdict and were not run. `worst_path` is the largest relative distance of a followed token from e^{Vt} x(0), and
    `alone` are the heads whose token had to be followed again, alone and with a tight tolerance. `correlations` set
    each index beside each simulated rate, over the heads.
    """

    tokens: int
    undecided: int
    table: Mapping[str, Mapping[str, int]]
    words: Mapping[str, Mapping[str, int]]
    contradictions: tuple[str, ...]
    stiff: tuple[str, ...]
    alone: tuple[str, ...]
    worst_path: float | None
    correlations: tuple[RankCorrelation, ...]


def summarised(runs: Sequence[HeadRun], *, tokens: int, undecided: int) -> VerdictSummary:
    """The runs of a model's certified heads, counted."""
    seen = Counter((each.verdict, each.observed) for each in runs)
    said = Counter((each.verdict, each.word) for each in runs)
    verdicts = [word.value for word in Verdict if any(each.verdict == word.value for each in runs)]
    followed = [each for each in runs if each.followed is not None]
    return VerdictSummary(
        tokens=tokens,
        undecided=undecided,
        table={verdict: {each: seen[verdict, each] for each in OBSERVED} for verdict in verdicts},
        words={verdict: {each: said[verdict, each] for each in WORDS} for verdict in verdicts},
        contradictions=tuple(each.name for each in runs if each.word == "contradicts"),
        stiff=tuple(each.name for each in runs if each.observed == "stiff"),
        alone=tuple(each.name for each in followed if each.followed is not None and each.followed.alone),
        worst_path=max((each.followed.error for each in followed if each.followed is not None), default=None),
        correlations=tuple(
            rank_correlation(index, rate, [getattr(r, index) for r in runs], [getattr(r, rate) for r in runs])
            for rate in ("rate", "mean_rate")
            for index in INDICES
        ),
    )


def verify(
    model: Model,
    hidden: HiddenStates,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[tuple[HeadRun, ...], VerdictSummary]:
    """Run every certified head of a model from the hidden states that enter its layer.

    With more than one job, layers are spread over processes, each of which opens the checkpoint itself.
    """
    own = self_layers(model, hidden)
    chosen = range(len(own)) if layers is None else layers
    tick = steps(progress, "verdicts", len(chosen))
    runs: list[HeadRun] = []
    undecided = 0
    tasks = [(str(model.path), number, hidden.entering[number], heads) for number in chosen]
    if jobs == 1:
        for _, number, x_ND, some in tasks:
            found, left = verify_layer(model, number, x_ND, some)
            runs += found
            undecided += left
            tick()
    else:
        with Interpreters(min(jobs, len(tasks))) as pool:
            for future in [pool.submit(_verify_stored, *task) for task in tasks]:
                found, left, read = future.result()
                model.source.ledger.learn(read)
                runs += found
                undecided += left
                tick()
    return tuple(runs), summarised(runs, tokens=hidden.count, undecided=undecided)


def _verify_stored(
    path: str, number: int, x_ND: Array, heads: Sequence[int] | None
) -> tuple[list[HeadRun], int, Mapping[str, str]]:
    """The same for a layer of a checkpoint, with the lines of the tensors that were read."""
    with load(Path(path)) as model:
        return *verify_layer(model, number, x_ND, heads), dict(model.source.ledger.lines)


def verify_layer(
    model: Model, number: int, x_ND: Array, heads: Sequence[int] | None = None
) -> tuple[list[HeadRun], int]:
    """The runs of a layer's certified heads, and how many heads have no certified verdict."""
    layer = model.layers[number]
    found: list[HeadRun] = []
    undecided = 0
    for index in range(layer.spec.heads) if heads is None else heads:
        head = fold(layer, layer.head(index))
        said = describe_head(layer, head, storage_error=0.0, rotary=False)
        if said.regime.rule is None:
            undecided += 1
        else:
            found.append(verify_head(model, said, head, x_ND))
    return found, undecided


def verify_head(model: Model, said: HeadDynamics, head: Head, x_ND: Array) -> HeadRun:
    """Let one head act alone on the tokens (n, d) that enter its layer and set its verdict beside what happens.

    `head` has its norms folded in and `said` is the verdict on it.
    """
    verdict = said.regime
    horizon = finite_horizon(head.v @ head.o)
    problem = _problem(model, said, x_ND, horizon)
    result = _run(problem)
    followed = _followed(model, said, head, x_ND, problem, result)
    word, sentence = _judged(verdict, problem, result, followed)
    growths = result.token_log_growth[np.isfinite(result.token_log_growth)]
    return HeadRun(
        layer=said.layer,
        head=said.head,
        verdict=verdict.verdict.value,
        rule=verdict.rule or "",
        scope=verdict.scope or "",
        exact=verdict.exact,
        growth_index=verdict.growth_index,
        alpha=verdict.alpha,
        omega=verdict.omega,
        spread_index=verdict.spread_index,
        pair_index=said.pair_index,
        observed=_observed(result),
        word=word,
        sentence=sentence,
        horizon=horizon,
        end=result.end,
        evaluations=result.evaluations,
        log_growth=result.log_growth,
        rate=result.log_growth / result.end if result.end > 0 else 0.0,
        mean_rate=float(growths.mean()) / result.end if result.end > 0 and len(growths) else 0.0,
        followed=followed,
    )


def finite_horizon(v_small: Array) -> float:
    """T = min(10 / |alpha|, 300 / |V~|): time for the fastest direction to grow e^10-fold, and an end in any case."""
    norm = float(np.linalg.norm(v_small, 2))
    if norm == 0:
        return 1.0
    alpha = abs(float(np.linalg.eigvals(v_small).real.max()))
    return float(min(10 / max(alpha, 1e-12), 300 / norm))


# -------------------------------------------------------------------- inside
def _problem(model: Model, said: HeadDynamics, x_ND: Array, horizon: float) -> Problem:
    # Hidden states hold the positions that were added at the input: they are not to be added again.
    inside = replace(model.layers[said.layer].encoding, input=None)
    return head_problem(model, said.layer, said.head, x_ND, encoding=inside, norms="start", horizon=horizon)


def _run(problem: Problem, growth_cap: float = GROWTH_CAP, rtol: float = RTOL) -> Trajectory:
    return run(problem, rtol=rtol, samples=SAMPLES, growth_cap=growth_cap, max_evaluations=MAX_EVALUATIONS)


def _observed(result: Trajectory) -> str:
    if result.status in (Status.STIFF, Status.EXHAUSTED):
        return "stiff"
    if result.status is not Status.HORIZON:
        return str(result.status)
    return "grows" if result.log_growth > 0 else "shrank"


def _followed(
    model: Model, said: HeadDynamics, head: Head, x_ND: Array, problem: Problem, result: Trajectory
) -> Followed | None:
    """The first causal token of the run itself; without a mask, of a run of two tokens that start at the mean."""
    if said.regime.rule not in ("T5", "T6"):
        return None
    start_ND = x_ND[:1]
    if said.regime.scope == "consensus":
        start_ND = np.tile(x_ND.mean(axis=0), (2, 1))
        problem = _problem(model, said, start_ND, problem.horizon)
        result = _run(problem)
    own = own_rank(head)
    frame, _ = np.linalg.qr(own.o)  # the coordinates of `head_problem`
    if SINGULAR in problem.notes:  # the run followed other coordinates
        return None
    V = frame.T @ own.o @ (own.v @ frame)
    found = follow(V, result.times, result.tokens[:, 0])
    if found.on_path:
        return found
    again = _run(_problem(model, said, start_ND, result.end), rtol=TIGHT)
    return replace(follow(V, again.times, again.tokens[:, 0]), alone=True)


def follow(V: Array, times_T: Array, path_TR: Array) -> Followed:
    """Set the path of a token beside x(t) = e^{Vt} x(0), t counted from `times[0]` = 0."""
    start, end = path_TR[0], path_TR[-1]
    exact_TR = np.stack([scipy.linalg.expm(V * time) @ start for time in times_T])
    reached_T = np.maximum.accumulate(np.linalg.norm(exact_TR, axis=1))
    error = float((np.linalg.norm(path_TR - exact_TR, axis=1) / reached_T).max()) if reached_T[0] > 0 else 0.0
    # Real Schur form of V^T with the unstable part first: V^T Y = Y T, so y = Y^T x follows dy/dt = T^T y.
    _, basis, unstable = scipy.linalg.schur(V.T, sort="rhp")
    first, last = (float(np.linalg.norm(basis[:, :unstable].T @ x)) for x in (start, end))
    size = float(np.linalg.norm(start))
    span = float(times_T[-1])
    return Followed(
        log_growth=_log(float(np.linalg.norm(end))) - _log(size),
        least=-_log(float(np.linalg.norm(scipy.linalg.expm(-V * span), 2))),
        most=_log(float(np.linalg.norm(scipy.linalg.expm(V * span), 2))),
        error=error,
        unstable_share=(first / size if size > 0 else 0.0) if unstable else None,
        unstable_growth=_log(last) - _log(first) if unstable and first > 0 else None,
    )


def _log(value: float) -> float:
    return float(np.log(max(value, np.finfo(np.float64).tiny)))


def _judged(verdict: Regime, problem: Problem, result: Trajectory, followed: Followed | None) -> tuple[str, str]:
    if followed is not None and not followed.on_path:
        return "contradicts", f"the token that V alone drives left its path by {followed.error:.1e}"
    if verdict.rule == "T6" and followed is not None and (followed.unstable_growth or 0.0) > 0:
        return "contradicts", "the first token has a part that grows without end"
    if verdict.verdict is Verdict.CONVERGES and result.status is Status.GREW:
        result = _run(problem, SECOND_CAP)  # a long transient of a non-normal V, or more?
    if verdict.rule in ("T5", "T6") and verdict.verdict is not Verdict.CONVERGES:
        return _grows(verdict, followed)
    found = agreement.compare(verdict, result)
    if found.word == "no_verdict":
        return "not_yet", found.sentence
    return found.word, found.sentence


def _grows(verdict: Regime, followed: Followed | None) -> tuple[str, str]:
    who = "the first token" if verdict.scope == "first_token" else "the consensus"
    if followed is None:
        return "not_yet", f"{who} could not be followed"
    share, grown = followed.unstable_share, followed.unstable_growth
    if share is None:
        return "contradicts", f"no direction grows, so {who} cannot"
    if verdict.verdict is Verdict.DIVERGES and share < 1 - PATH_TOLERANCE:
        return "contradicts", f"{who} has a part in directions that do not grow"
    if grown is None:
        return "not_yet", f"{who} has no part in the directions that grow: the theorem excepts such starts"
    if followed.log_growth > 0:
        return "agrees", f"{who} has grown {np.exp(min(followed.log_growth, 700)):.3g}-fold along e^(Vt)"
    if grown > 0:
        return "agrees", f"{who} shrinks at first, and its growing part has grown {np.exp(min(grown, 700)):.3g}-fold"
    return "not_yet", f"{who} follows e^(Vt) and has not grown by the end of the run"
