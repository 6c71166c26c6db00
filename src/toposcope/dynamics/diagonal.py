"""How much diagonal D = tau I makes a system's logit matrices positive (theory, section 3)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from toposcope.core.errors import BadValue
from toposcope.core.printable import printable
from toposcope.core.ranges import computable
from toposcope.dynamics.factored import sym_eigs
from toposcope.dynamics.fields import System
from toposcope.dynamics.rotation import tau_uniform, turned


def parse_diagonal(given: float | str) -> float | Literal["auto"]:
    """tau as users write it: a number that can be computed with, or "auto"."""
    if isinstance(given, str) and given.strip().lower() == "auto":
        return "auto"
    try:
        tau = float(given)
    except ValueError as error:
        raise BadValue(f"the diagonal is a number or 'auto', got '{printable(given, 80)}'.") from error
    if not computable(tau):
        raise BadValue(f"a diagonal of {tau:g} is too large or too small a number to compute with.")
    return tau


def chosen_diagonal(diagonal: float | str, system: System) -> float:
    """tau as given, or for "auto" the one that `automatic_diagonal` finds."""
    if diagonal == "auto":
        return automatic_diagonal(system)
    try:
        value = float(diagonal)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BadValue(f"the diagonal must be a number or 'auto', got '{diagonal}'.")
    return value


def automatic_diagonal(system: System) -> float:
    """A tau that makes sym(W_k) + tau I positive for every head and every offset, with a thousandth to spare.

    Under rotation it is the uniform bound of section 3, scale/2 lambda_max(Q^T L Q + K^T L^-1 K); without rotation
    -lambda_min(sym W), or 0 where W is positive already.
    """
    found = 0.0
    repeat = system.heads // len(system.k_GRD)
    for h in range(system.heads):
        q = np.eye(system.width) if system.q_HRD is None else system.q_HRD[h]
        k = system.k_GRD[h // repeat]
        rotary = system.rotary if system.turning is None or h < system.turning else None
        if rotary is not None:
            tau = tau_uniform(turned(rotary, q, 0, "query"), turned(rotary, k, 0, "key"), rotary, system.scale)
        else:
            tau = max(0.0, -float(sym_eigs(system.scale * q.T, k)[0]))
        found = max(found, tau)
    return 1.001 * found
