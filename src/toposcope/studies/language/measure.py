"""What is measured on a trained byte model: bits per byte, and what its tokens do from layer to layer.

Shape suffixes as in `lab/model.py`.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toposcope.core.fields import plain
from toposcope.dynamics.observables import effective_rank, mean_cosine
from toposcope.lab.batches import accuracy
from toposcope.lab.model import Transformer
from toposcope.lab.tasks import NOTHING_ASKED, Batch
from toposcope.scanning.scan import scan
from toposcope.studies.language.config import ProbeConfig
from toposcope.studies.language.texts import asked_masked, asked_next, disturbed, find, windows

NOISE = 0.1
LOOKED_AT = 16  # windows whose tokens are followed through the layers
_JUDGED = ("verdict", "rule", "scope", "exact", "margin", "alpha", "omega", "n_pos", "n_neg", "n_zero")


def draw(config: ProbeConfig, text: np.ndarray, count: int, generator: torch.Generator, factor: int = 1) -> Batch:
    """A batch of the run's task from a text, `factor` times as long as trained."""
    length = config.length * factor
    if config.causal:
        return asked_next(windows(text, count, length + 1, generator))
    return asked_masked(windows(text, count, length, generator), generator)


def bits(model: nn.Module, batch: Batch) -> float:
    """Bits per asked byte."""
    return accuracy(model, batch, size=64)[1] / math.log(2)


def measured(config: ProbeConfig, model: Transformer, generator: torch.Generator) -> dict[str, Any]:
    """Everything that needs the model as it was trained. Other seeds are measured on other windows."""
    held = draw(config, find(config.text).held, config.windows, generator)
    other_text = find(config.other)
    whole = np.concatenate([other_text.trained, other_text.held])  # nothing of it was trained on
    other = draw(config, whole, config.windows, generator)
    right, nats = accuracy(model, held, size=64)
    noisy = bits(model, disturbed(held, NOISE, generator))
    held_bits = nats / math.log(2)
    return {
        "bits_held": held_bits,
        "bits_other": bits(model, other),
        "accuracy": right,
        "noise_cost": noisy - held_bits,
        "longer_cost": longer_cost(config, model, generator),
        "shuffled_cost": shuffled_cost(config, model, held, generator),
        **along_depth(model, held.ids_BN[:LOOKED_AT]),
    }


def longer_cost(config: ProbeConfig, model: Transformer, generator: torch.Generator) -> float | None:
    """Bits per byte of the second half of windows twice as long as trained, less those of the same bytes alone.

    Above 0 a context longer than trained hurts; below 0 it still helps. None where positions end
    at the trained length.
    """
    if "learned" in model.config.mix.names:
        return None
    long = draw(config, find(config.text).held, config.windows // 2 or 1, generator, factor=2)
    first = config.length
    late = Batch(long.ids_BN, long.lengths_B, long.labels.clone())
    late.labels[:, :first] = NOTHING_ASKED
    alone = Batch(long.ids_BN[:, first:], long.lengths_B - first, long.labels[:, first:])
    return bits(model, late) - bits(model, alone)


def shuffled_cost(config: ProbeConfig, model: Transformer, held: Batch, generator: torch.Generator) -> float:
    """Bits per byte of the second half of the windows after a first half in random order, less those after it as is.

    Near 0 where the order of what came before does not matter to the model.
    """
    first = config.length // 2
    labels = held.labels.clone()
    labels[:, :first] = NOTHING_ASKED
    order_N = torch.cat([torch.randperm(first, generator=generator), torch.arange(first, held.ids_BN.shape[1])])
    shuffled = Batch(held.ids_BN[:, order_N], held.lengths_B, labels)
    return bits(model, shuffled) - bits(model, Batch(held.ids_BN, held.lengths_B, labels))


@torch.no_grad()
def along_depth(model: Transformer, ids_BN: Tensor) -> dict[str, list[float]]:
    """Means over windows, at the input and after each layer: cosine between tokens, effective rank. And by layer:

    * radial: mean of <x_i, a_i> / |x_i|^2, a_i what attention adds to x_i: above 0 it drives tokens away from 0;
    * dispersion: sum <x_i - x, a_i - a> / sum |x_i - x|^2 over a window, x and a its means: above 0 apart.
    """
    model.eval()
    x_BND = model.embedded(ids_BN)
    found: dict[str, list[float]] = {"cosine": [], "rank": [], "radial": [], "dispersion": []}

    def look() -> None:
        clouds = x_BND.double().numpy()
        found["cosine"].append(float(np.mean([mean_cosine(cloud) for cloud in clouds])))
        found["rank"].append(float(np.mean([effective_rank(cloud) for cloud in clouds])))

    look()
    for layer in model.running:
        a_BND = layer.attention(layer.attention_norm(x_BND))
        found["radial"].append(float(((x_BND * a_BND).sum(-1) / (x_BND * x_BND).sum(-1)).mean()))
        x, a = (each - each.mean(1, keepdim=True) for each in (x_BND, a_BND))
        found["dispersion"].append(float(((x * a).sum((1, 2)) / (x * x).sum((1, 2))).mean()))
        x_BND = layer.after(x_BND, a_BND)
        look()
    return found


def judged(directory: Any, promised: str | None, whose: str) -> dict[str, Any]:
    """Verdicts of the exported model's heads and layers, and whether all are as promised (None: nothing was)."""
    seen = scan(str(directory), jobs=1)
    heads, layers = plain(seen.heads), plain(seen.layers)
    decisive = heads if whose == "heads" else layers
    return {
        "heads": [{name: row[name] for name in ("layer", "head", *_JUDGED)} for row in heads],
        "layers": [{name: row[name] for name in ("layer", *_JUDGED)} for row in layers],
        "promised": promised,
        "promise_held": None if promised is None else all(row["verdict"] == promised for row in decisive),
        "tau_uniform": max((row["rope"]["tau_uniform"] for row in heads if row["rope"]), default=None),
    }
