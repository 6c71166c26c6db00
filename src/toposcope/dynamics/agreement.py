"""What a theorem said beside what a run did: agreement, not yet visible, or a contradiction worth reporting.

A finite run can rarely refute a theorem about t -> infinity: a token may stand still for longer than anyone waits
(T6's time scale) or grow before it decays (non-normal V). `contradicts` is kept for what that cannot explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toposcope.dynamics.observables import norms
from toposcope.dynamics.regime import Regime, Verdict
from toposcope.dynamics.trajectory import Status, Trajectory

Word = Literal["agrees", "not_yet", "contradicts", "no_verdict"]
UNDECIDED = (Verdict.INDETERMINATE, Verdict.INACTIVE)


@dataclass(frozen=True)
class RunAgreement:
    """One word for machines, one sentence for people."""

    word: Word
    sentence: str


def compare(verdict: Regime | None, result: Trajectory) -> RunAgreement:
    """Set a verdict of `regime` beside a run of the same system."""
    if verdict is None or verdict.verdict in UNDECIDED:
        return RunAgreement("no_verdict", "no theorem decides, so the run is all there is")
    if verdict.verdict is Verdict.CONVERGES:
        return _converges(result)
    if verdict.verdict is Verdict.BOUNDED:
        return _bounded(verdict, result)
    return _grows(verdict, result)


def _converges(result: Trajectory) -> RunAgreement:
    if result.status is Status.CONVERGED:
        return RunAgreement("agrees", "the run converged")
    if result.status is Status.AT_REST:
        return RunAgreement("not_yet", "metastable: tokens stand still on the way, for longer than this run")
    if result.log_growth < 0:
        shrunk = int((np.nan_to_num(result.token_log_growth, nan=-1.0) < 0).sum())
        who = f"all {shrunk:,}" if shrunk == result.count else f"{shrunk:,} of {result.count:,}"
        words = "the token has shrunk " if result.count == 1 else f"{who} tokens have shrunk, the largest norm "
        words += f"{_fold(-result.log_growth)}-fold; the run ended before that was 0"
        return RunAgreement("agrees", words)
    if result.status is Status.GREW and result.growth_rate > 0 and result.log_growth > np.log(1e3):
        if result.log_growth < np.log(1e8):
            return RunAgreement("not_yet", "tokens still grow: a long transient, or more; raise --growth-cap to see")
        return RunAgreement("contradicts", "tokens grow without end: please report this")
    return RunAgreement("not_yet", f"not visible by t = {result.end:.3g}: the theorem speaks of t to infinity")


def _bounded(verdict: Regime, result: Trajectory) -> RunAgreement:
    assert verdict.certificate is not None
    largest = float(result.observables["norm_max"][-1])
    radius = float(np.sqrt(verdict.certificate.bound * max(float(result.settings["beta"]), 0.0)))
    if largest <= radius:
        return RunAgreement("agrees", f"all tokens lie within the ball of radius {radius:.3g}")
    if result.growth_rate < 0 or result.status is Status.CONVERGED:
        return RunAgreement("agrees", f"tokens move towards the ball of radius {radius:.3g}")
    return RunAgreement("not_yet", f"tokens lie outside the ball of radius {radius:.3g} at t = {result.end:.3g}")


def _grows(verdict: Regime, result: Trajectory) -> RunAgreement:
    first = float(result.token_log_growth[0])
    if result.status is Status.CONVERGED and result.count > 0 and np.isfinite(first):
        if verdict.verdict is Verdict.DIVERGES and verdict.scope != "consensus":
            return RunAgreement("contradicts", "the run converged though it should not: please report this")
        return RunAgreement("not_yet", "this start converged; the theorem excepts a thin set of starts")
    if verdict.scope == "first_token":
        return _first_token_grows(verdict, result)
    if result.status is not Status.GREW and result.growth_rate <= 0:
        return RunAgreement("not_yet", f"no growth by t = {result.end:.3g}: the theorem speaks of t to infinity")
    who = "the largest token" if result.count > 1 else "the token"
    if result.status is Status.GREW:
        words = f"{who} grew {_fold(result.log_growth)}-fold"
    else:
        words = f"{who} grows at {result.growth_rate:.3g} per unit of time"
    if verdict.scope == "consensus" and result.count > 1:
        words += "; the theorem speaks of tokens that have come together"
    elif verdict.rule == "T4a" and result.count > 1:
        grown = int((result.token_log_growth > 0).sum())
        some = f"all {grown:,}" if grown == result.count else f"{grown:,} of {result.count:,}"
        words = f"{some} tokens grew, the largest {_fold(result.log_growth)}-fold"
    return RunAgreement("agrees", words)


def _first_token_grows(verdict: Regime, result: Trajectory) -> RunAgreement:
    """The first token follows dx/dt = V x: of it the theorem speaks, so it is what the run is asked about."""
    rate = first_token_rate(result)
    if rate > 0:
        words = f"the first token grows at {rate:.3g} per unit of time"
        if result.settings.get("norms") == "on":
            return RunAgreement("agrees", f"{words}; the theorem gives no rate where norms act all the time")
        return RunAgreement("agrees", f"{words}; the theorem's rate, in the long run, is {verdict.alpha:.3g}")
    other = "; the largest token grows" if result.growth_rate > 0 else ""
    return RunAgreement(
        "not_yet",
        f"the first token does not grow by t = {result.end:.3g}{other}: the theorem speaks of t to infinity",
    )


def first_token_rate(result: Trajectory) -> float:
    """The slope of the log of the first token's norm over the last third of the run; 0 where it is not known."""
    times, sizes = result.times, norms(result.tokens[:, 0])
    late = (times >= times[-1] - (times[-1] - times[0]) / 3) & (sizes > 0)
    if late.sum() < 2:
        return 0.0
    t = times[late] - times[late].mean()
    return float(t @ np.log(sizes[late]) / (t @ t))


def _fold(log_growth: float) -> str:
    return fold(float(np.exp(min(log_growth, 700))))


def fold(factor: float) -> str:
    """How many fold, to two digits, or three from 100 to 1,000: 6.4, 185, about 16,000, about 2.3e8."""
    if factor < 1000:
        return f"{factor:.3g}" if factor >= 99.5 else f"{factor:.2g}"
    short = float(f"{factor:.2g}")
    words = f"{short:,.0f}" if short < 1e6 else f"{short:.2g}".replace("e+0", "e").replace("e+", "e")
    return words if abs(factor / short - 1) < 1e-3 else f"about {words}"
