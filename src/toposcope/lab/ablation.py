"""What a trained model loses with each of its heads, and whether a layer hangs on one of them (section 8).

A head is removed by what stands in for its output before the output projection: nothing (`zero`), or its own mean
over the sentences (`mean`: zero also shifts the mean of what follows). One head at a time, and no weight is touched.
The residual stream and the heads' outputs are computed once per layer; only what comes after a removed head is
computed again. Shape suffixes as in `model.py`, and S sentences.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toposcope.checkpoints import load
from toposcope.checkpoints.opened import subject
from toposcope.core.result import Provenance
from toposcope.lab.model import Transformer
from toposcope.lab.probes import evaluating
from toposcope.lab.result import AblationMap, JointAblation, LabAblateResult, LayerAblation, PairAblation, RemovedHead
from toposcope.lab.tasks import NOTHING_ASKED, Batch
from toposcope.models.about import weights_digest
from toposcope.models.deposit import bootstrap
from toposcope.models.device import chosen_device, computation, double

Array = NDArray[np.float64]
CHUNK_TOKENS = 4096  # sentences are taken together up to so many tokens

PAIR_SENTENCES = 512  # for every two heads
SENTENCES = 2048  # of its own task, on which a small model is measured


def ablation_map(
    model: Transformer, batch: Batch, floor: float, *, draws: int = 2000, seed: int = 0, pairs: bool = False
) -> AblationMap:
    """Remove every head in turn, by zero and by mean, and every two of a layer. `batch` must be new to the model."""
    heads, layers = model.config.heads, model.config.layers
    base_S, means = _whole(model, batch)
    gates_VH = 1 - torch.eye(heads, device=model.device)
    kept: dict[str, list[LayerAblation]] = {}
    for how, fill in (("zero", [None] * layers), ("mean", means)):
        kept[how] = []
        for layer in range(layers):
            scores_SH = scores(model, batch, layer, gates_VH, fill[layer])
            found = bootstrap(base_S, scores_SH, floor, draws=draws, seed=seed)
            accuracy = tuple(scores_SH.mean(axis=0).tolist())
            kept[how].append(
                LayerAblation(layer, accuracy, **vars(found.deposit), same_head=found.same_head, interval=found.di)
            )
    return AblationMap(
        sentences=len(base_S),
        base=float(base_S.mean()),
        floor=floor,
        zero=tuple(kept["zero"]),
        mean=tuple(kept["mean"]),
        joint=_joint(model, batch, kept["zero"]),
        draws=found.draws,
        level=found.level,
        pairs=tuple(_pairs(model, batch, layer) for layer in range(layers)) if pairs else (),
    )


def _pairs(model: Transformer, batch: Batch, layer: int) -> PairAblation:
    some = Batch(*(each[:PAIR_SENTENCES] for each in (batch.ids_BN, batch.lengths_B, batch.labels)))
    heads = model.config.heads
    both = tuple(combinations(range(heads), 2))
    removed = [(), *((head,) for head in range(heads)), *both]
    gates_VH = torch.tensor([[float(head not in some) for head in range(heads)] for some in removed])
    found = scores(model, some, layer, gates_VH.to(model.device)).mean(axis=0).tolist()
    alone, together = found[1 : heads + 1], found[heads + 1 :]
    return PairAblation(layer, len(some.labels), found[0], both, tuple(together), tuple(alone))


def ablate_lab(
    model: str | Path, *, sentences: int | None = None, seed: int = 0, device: str | None = "cpu"
) -> LabAblateResult:
    """Accuracy of a trained small model on new sentences of its own task, without each of its heads."""
    from toposcope.lab.running import load_running, own_task
    from toposcope.lab.running import sentences as drawn

    started = time.perf_counter()
    directory = Path(model)
    running = load_running(directory).to(chosen_device(device))
    task = own_task(directory, running.inner)
    batch = drawn(task, sentences or SENTENCES, seed).to(running.inner.device)
    found = ablation_map(running.inner, batch, task.floor, seed=seed)
    with load(directory) as opened:
        name = f"{task.name}: {directory.resolve().parent.name}"
        about = replace(subject(opened, sha256=weights_digest(running.inner)), name=name)
    heads = tuple(
        RemovedHead(row.layer, head, how, accuracy)
        for how, rows in (("zero", found.zero), ("mean", found.mean))
        for row in rows
        for head, accuracy in enumerate(row.accuracy)
    )
    asked = {"sentences": sentences, "seed": seed, "device": device}
    provenance = Provenance((about,), asked, time.perf_counter() - started, ran=computation(running))
    return LabAblateResult(task=task.name, ablation=found, heads=heads, provenance=provenance)


@torch.no_grad()
def scores(
    model: Transformer,
    batch: Batch,
    layer: int,
    gates_VH: Tensor,
    instead_HV: Tensor | None = None,
    *,
    below: Mapping[int, Tensor] | None = None,
) -> Array:
    """(S, variants): how right each sentence is with the layer's heads multiplied by each row of gates.

    What a gate takes away is replaced by that share of `instead`, each time that the layer runs. `below` holds gates
    of earlier layers, the same for all variants. A sentence's score is its share of right answers times S over all
    asked, so that their mean is the accuracy; gates of 1 give the model itself, bit for bit.
    """
    columns: list[list[Tensor]] = [[] for _ in gates_VH]
    order: list[Tensor] = []
    with evaluating(model):
        for part, chosen_S in _chunks(batch, model):
            order.append(chosen_S)
            x_BND = model.embedded(part.ids_BN)
            mask, raw_BND = model.mask(part.ids_BN, part.lengths_B), x_BND if model.raw else None
            for number, each in enumerate(model.layers[:layer]):
                gate_H = (below or {}).get(number)
                x_BND = each(x_BND, mask, raw_BND) if gate_H is None else _gated(each, x_BND, mask, raw_BND, gate_H)
            here = model.layers[layer]
            out_BNHV = here.attention.by_head(here.attention.flat(here.attention_norm(x_BND), raw_BND), mask)
            for column, gate_H in zip(columns, gates_VH, strict=True):
                changed = out_BNHV * gate_H[:, None]
                if instead_HV is not None:
                    changed = changed + (1 - gate_H)[:, None] * instead_HV
                y_BND = here.after(x_BND, here.attention.o_proj(changed.flatten(2)))
                again = {**(below or {}), layer: gate_H}  # a layer that runs once more runs without the same heads
                for number, above in enumerate(model.running[layer + 1 :], layer + 1):
                    removed = again.get(number % len(model.layers))
                    if removed is None:
                        y_BND = above(y_BND, mask, raw_BND)
                    else:
                        fill_HV = instead_HV if above is here else None
                        y_BND = _gated(above, y_BND, mask, raw_BND, removed, fill_HV)
                column.append(_right(model.read(y_BND, part.lengths_B), part.labels))
    right_SV = torch.stack([torch.cat(column) for column in columns], dim=1)
    found_SV = torch.empty_like(right_SV)
    found_SV[torch.cat(order)] = right_SV
    asked = max(int((batch.labels != NOTHING_ASKED).sum()), 1)
    return found_SV.cpu().double().numpy() * (len(batch.labels) / asked)


def _gated(
    layer: Any,
    x_BND: Tensor,
    mask: Tensor | None,
    raw_BND: Tensor | None,
    gate_H: Tensor,
    instead_HV: Tensor | None = None,
) -> Tensor:
    out_BNHV = layer.attention.by_head(layer.attention.flat(layer.attention_norm(x_BND), raw_BND), mask)
    changed = out_BNHV * gate_H[:, None]
    if instead_HV is not None:
        changed = changed + (1 - gate_H)[:, None] * instead_HV
    return layer.after(x_BND, layer.attention.o_proj(changed.flatten(2)))


@torch.no_grad()
def _whole(model: Transformer, batch: Batch) -> tuple[Array, list[Tensor]]:
    """How right the whole model is on each sentence, and each layer's mean output by head over all real tokens."""
    config = model.config
    sums: list[Any] = [0.0] * len(model.layers)
    tokens = 0
    with evaluating(model):
        for part, _ in _chunks(batch, model):
            length = part.ids_BN.shape[1]
            real_BN = torch.arange(length, device=model.device) < part.lengths_B[:, None]
            seen_BN = torch.ones_like(real_BN) if model.sees_padding else real_BN
            tokens += int(seen_BN.sum())
            x_BND = model.embedded(part.ids_BN)
            mask, raw_BND = model.mask(part.ids_BN, part.lengths_B), x_BND if model.raw else None
            for place, layer in enumerate(model.running):
                number = place % len(model.layers)
                out_BNHV = layer.attention.by_head(layer.attention.flat(layer.attention_norm(x_BND), raw_BND), mask)
                sums[number] = sums[number] + double(out_BNHV[seen_BN]).sum(dim=0)
                x_BND = layer.after(x_BND, layer.attention.o_proj(out_BNHV.flatten(2)))
    base_S = scores(model, batch, config.layers - 1, torch.ones(1, config.heads, device=model.device))[:, 0]
    return base_S, [(total_HV / (tokens * config.loops)).float().to(model.device) for total_HV in sums]


def _joint(model: Transformer, batch: Batch, layers: Sequence[LayerAblation]) -> JointAblation | None:
    """All layers' top heads removed together; None where some layer has no head whose removal hurts."""
    tops = [each.head for each in layers]
    if any(head is None for head in tops):
        return None
    heads = [int(head) for head in tops if head is not None]
    kept_HH = 1 - torch.eye(model.config.heads, device=model.device)
    gates = {number: kept_HH[head] for number, head in enumerate(heads)}
    last = len(heads) - 1
    found_S1 = scores(model, batch, last, gates[last][None], below=gates)
    alone = tuple(each.accuracy[head] for each, head in zip(layers, heads, strict=True))
    return JointAblation(tuple(enumerate(heads)), float(found_S1.mean()), alone)


def _chunks(batch: Batch, model: Transformer) -> Iterator[tuple[Batch, Tensor]]:
    """The sentences in order of length, some at a time and trimmed, with their places in the batch."""
    if model.sees_padding:
        order_S, longest = torch.arange(len(batch.ids_BN), device=batch.ids_BN.device), batch.ids_BN.shape[1]
    else:
        order_S, longest = batch.lengths_B.argsort(stable=True), 0
    for chosen in order_S.split(max(1, CHUNK_TOKENS // batch.ids_BN.shape[1])):
        length = longest or int(batch.lengths_B[chosen[-1]])
        labels = batch.labels[chosen]
        trimmed = labels if labels.ndim == 1 else labels[:, :length]
        yield Batch(batch.ids_BN[chosen, :length], batch.lengths_B[chosen], trimmed), chosen


def _right(scores: Tensor, labels: Tensor) -> Tensor:
    """How many of each sentence's asked labels are right."""
    right = (scores.argmax(-1) == labels).float()  # a count: exact
    return right if right.ndim == 1 else right.sum(dim=1)
