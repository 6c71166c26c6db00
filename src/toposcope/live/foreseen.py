"""How long the check of a running model takes: a range before it starts, and what is left while it runs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from toposcope.checkpoints.view import Model
from toposcope.models.tracing.foreseen import PRODUCTS, in_words, pace

PATIENCE = 5.0  # seconds that one likes to wait without knowing

# Tokens and runs of the model that a probe takes, as counted on Llama; recovery counts as `fit`.
WORK = {"fit": (478, 3), "precision": (57, 1), "parity": (354, 44), "lengths": (52, 6), "axes": (6, 1)}
WHOLE_TEXTS = 9  # texts as long as the context, where frequencies depend on the length
# Seconds, on the machine of `pace`: a layer that is watched, a weight read in a run, one read from its file.
LAYER, READ, STORED = 2e-3, 4e-10, 8e-9
NEWS = 1.5  # times as much as was said, or as little, before another number is told
# How much slower than that machine a probe of a moment may call this one; and the end of the range that is told, over
# what is foreseen: 4 to 12 times as long was seen, importing and loading included.
SLOWEST, SPREAD = 4.0, 8.0


def seconds(model: Model, parameters: int, probes: Collection[str], *, weights: bool, slower: float) -> float:
    """About how long these probes take on a model of so many parameters; `weights`: those in files are read too."""
    parts = (part(model, parameters, name) for name in {*probes, "fit"})  # recovery is always done
    return slower * (sum(parts) + STORED * parameters * weights)


def part(model: Model, parameters: int, probe: str) -> float:
    """About how long one probe takes on the machine of `pace`."""
    tokens, runs = WORK[probe]
    rotary = (layer.encoding.rotary for layer in model.layers)
    if probe == "lengths" and any(each is not None and each.by_length for each in rotary):
        tokens += WHOLE_TEXTS * (model.spec.context or 0)
    return 2.0 * parameters * tokens / PRODUCTS + runs * (LAYER * len(model.layers) + READ * parameters)


def span(foreseen: float) -> str:
    """A range in words, from what is foreseen to the longest that is likely: '20 s to 3 min'."""
    return f"{in_words(foreseen)} to {in_words(SPREAD * foreseen)}"


@dataclass
class Forecast:
    """What is left of the probes, by how long those took that are done: a few seconds of the real work, no guess."""

    parts: dict[str, float]
    expected: float = 0.0
    taken: float = 0.0
    said: float | None = None

    def done(self, probe: str, taken: float) -> None:
        """Count a probe as done."""
        self.expected += self.parts.pop(probe, 0.0)
        self.taken += taken

    def news(self) -> str | None:
        """How long it will take still, in words, where that is long and far from what was said last."""
        left = sum(self.parts.values()) * self.taken / self.expected if self.expected else 0.0
        if left <= PATIENCE or (self.said is not None and self.said / NEWS < left < NEWS * self.said):
            return None
        self.said = left
        return in_words(left)


def slower(lasting: float = 0.2) -> float:
    """How much slower than the machine of `pace` this one is for us, others that keep it busy included; at most
    SLOWEST, since one moment says little of the next minutes."""
    began, used, paces = time.perf_counter(), time.process_time(), [pace()]
    while time.perf_counter() - began < lasting:
        paces.append(pace())
    share = (time.process_time() - used) / (time.perf_counter() - began)
    return min(min(paces) / min(max(share, 0.05), 1.0), SLOWEST)
