"""What a theorem said beside what a run did: agreement, not yet visible, or a contradiction worth reporting.

A finite run can rarely refute a theorem about t -> infinity: a token may stand still for longer than anyone waits
(T6's time scale) or grow before it decays (non-normal V). `contradicts` is kept for what that cannot explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

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
        factor = np.exp(-result.log_growth)
        return RunAgreement(
            "agrees", f"the largest token has shrunk {factor:.3g}-fold, and the run ended before it came to 0"
        )
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
    if result.status is Status.GREW:
        factor = np.exp(min(result.log_growth, 700))
        words = f"{factor:,.0f}" if 1000 <= factor < 1e6 else f"{factor:.3g}"
        return RunAgreement("agrees", f"the largest token grew {words}-fold")
    if result.growth_rate > 0:
        return RunAgreement("agrees", f"the largest token is growing, at the rate {result.growth_rate:.3g}")
    return RunAgreement("not_yet", f"no growth by t = {result.end:.3g}: the theorem speaks of t to infinity")
