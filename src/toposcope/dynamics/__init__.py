"""Token dynamics: where attention drives the tokens, decided by theorems and watched by integration.

`regime(W, V)` gives a verdict with its rule, scope and margin; `simulate(W, V, x0)` lets the tokens flow.
"""

from __future__ import annotations

from toposcope.dynamics.matrices import simulate
from toposcope.dynamics.regime import Regime, Verdict, regime
from toposcope.dynamics.trajectory import Trajectory

__all__ = ["Regime", "Trajectory", "Verdict", "regime", "simulate"]
