"""How long the check of a running model takes, told before it starts: by its size and the pace of this machine."""

from __future__ import annotations

import time
from collections.abc import Collection

from toposcope.checkpoints.view import Model
from toposcope.models.tracing.foreseen import PRODUCTS, pace

PATIENCE = 5.0  # seconds that one likes to wait without knowing

# Tokens and runs of the model that a probe takes, as counted on Llama; recovery counts as `fit`.
WORK = {"fit": (478, 3), "precision": (57, 1), "parity": (354, 44), "lengths": (52, 6), "axes": (6, 1)}
WHOLE_TEXTS = 9  # texts as long as the context, where frequencies depend on the length
# Seconds, on the machine of `pace`: a layer that is watched, a weight read in a run, one read from its file.
LAYER, READ, STORED = 2e-3, 4e-10, 8e-9


def seconds(model: Model, parameters: int, probes: Collection[str], *, weights: bool, slower: float) -> float:
    """About how long these probes take on a model of so many parameters; `weights`: those in files are read too."""
    tokens, runs = (sum(WORK[name][i] for name in {*probes, "fit"}) for i in (0, 1))  # recovery is always done
    rotary = (layer.encoding.rotary for layer in model.layers)
    if "lengths" in probes and any(each is not None and each.by_length for each in rotary):
        tokens += WHOLE_TEXTS * (model.spec.context or 0)
    run = LAYER * len(model.layers) + READ * parameters
    return slower * (2.0 * parameters * tokens / PRODUCTS + runs * run + STORED * parameters * weights)


def slower(lasting: float = 0.2) -> float:
    """How much slower than the machine of `pace` this one is for us, others that keep it busy included."""
    began, used, paces = time.perf_counter(), time.process_time(), [pace()]
    while time.perf_counter() - began < lasting:
        paces.append(pace())
    share = (time.process_time() - used) / (time.perf_counter() - began)
    return min(paces) / min(max(share, 0.05), 1.0)
