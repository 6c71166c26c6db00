"""What an optimiser should be given: parameters that choose a regime, and D, are not to be pulled towards zero."""

from __future__ import annotations

from typing import Any

from toposcope.refinements.cores import Core
from toposcope.refinements.diagonal import Diagonal


def parameter_groups(
    model: Any, *, weight_decay: float = 0.0, lr: float | None = None, diagonal_lr: float | None = None
) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: the plain parameters with weight decay, cores and D without.

    Decay of a core would pull D of L D L^T towards softplus(0), which means nothing. `lr` None leaves the optimiser's
    own; D has one of its own, in units of its initial value.
    """
    cores = {id(p) for module in model.modules() if isinstance(module, Core) for p in module.parameters()}
    added = {id(p) for module in model.modules() if isinstance(module, Diagonal) for p in module.parameters()}
    wanted = [p for p in model.parameters() if p.requires_grad]
    groups = [
        ({"weight_decay": weight_decay}, [p for p in wanted if id(p) not in cores | added], lr),
        ({"weight_decay": 0.0}, [p for p in wanted if id(p) in cores], lr),
        (
            {"weight_decay": 0.0},
            [p for p in wanted if id(p) in added],
            diagonal_lr if diagonal_lr is not None else lr,
        ),
    ]
    return [
        {"params": params, **settings, **({} if rate is None else {"lr": rate})}
        for settings, params, rate in groups
        if params
    ]
