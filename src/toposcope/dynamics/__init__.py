"""Token dynamics: where attention drives the tokens, decided by theorems and watched by integration.

`regime(W, V)` gives a verdict with its rule, scope and margin; `simulate(W, V, x0)` lets the tokens flow;
`scan(model)` decides every head of a checkpoint.
"""

from __future__ import annotations

from toposcope.dynamics.matrices import simulate
from toposcope.dynamics.regime import Regime, Verdict, regime
from toposcope.dynamics.scan import ScanResult, scan
from toposcope.dynamics.trajectory import Trajectory

__all__ = ["Regime", "ScanResult", "Trajectory", "Verdict", "regime", "scan", "simulate"]
