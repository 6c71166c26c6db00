"""One pass over the weights: layers that are copies of one another, dead heads, and what training left behind."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.checks.fresh import Fresh
from toposcope.checks.overlaps import Overlaps
from toposcope.checks.pairing import PairingEvidence
from toposcope.checks.rotary import same_rotation
from toposcope.core.progress import Progress, steps


@dataclass
class Walk:
    """What the walk over the layers gathered."""

    digests: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    single: dict[int, PairingEvidence | None] = field(default_factory=dict)
    overlaps: dict[Hashable, Overlaps] = field(default_factory=dict)  # by rotation
    fresh: Fresh = field(default_factory=Fresh)
    read: int = 0


def walk(model: Model, progress: Progress | None = None) -> Walk:
    """Read every layer once (a shared one is not read again) and keep a few numbers of each."""
    found = Walk()
    model.expect(range(len(model.layers)), progress)
    step = steps(progress, "layers", len(model.layers))
    for layer in model.layers:
        if layer.spec.shared_with is None:
            _gather(layer, found)
            found.read += 1
        step()
    return found


def _gather(layer: Layer, found: Walk) -> None:
    w, spec = layer.weights, layer.spec
    digest = hashlib.sha1(usedforsecurity=False)
    for part in (w.q_HRD, w.k_GRD):
        digest.update(np.ascontiguousarray(part).data)
    found.digests[digest.hexdigest()].append(layer.number)
    groups = spec.heads // spec.kv_heads
    for name, stack in (("query", w.q_HRD), ("output", w.o_HDV)):
        found.dead[name] += [(layer.number, int(h)) for h in np.flatnonzero(~stack.any(axis=(1, 2)))]
    for name, stack in (("key", w.k_GRD), ("value", w.v_GVD)):
        if stack.shape[1] and not (name == "key" and w.k_shared_SD is not None):
            dead = np.flatnonzero(~stack.any(axis=(1, 2)))
            found.dead[name] += [(layer.number, int(g) * groups) for g in dead]
    found.fresh.add(layer.number, w)
    rotary = layer.encoding.rotary
    if rotary is None or spec.kind == "cross":
        return
    overlaps = found.overlaps.setdefault(same_rotation(layer), Overlaps(rotary))
    found.single[layer.number] = overlaps.add(layer)


def sharing(model: Model, found: Walk) -> Iterator[Finding]:
    """Layers that share their weights by design, and copies that nobody declared."""
    shared = {layer.number: layer.spec.shared_with for layer in model.layers if layer.spec.shared_with is not None}
    if shared:
        own = len(model.layers) - len(shared)
        yield Finding(
            "shared-layers",
            "ok",
            "layers share their weights by design",
            f"{len(model.layers)} layers run on the weights of {own}.",
            layers=tuple(shared),
            evidence={"own": own, "layers": len(model.layers)},
        )
    copies = [numbers for numbers in found.digests.values() if len(numbers) > 1]
    copies = [numbers for numbers in copies if not _same_tensors(model, numbers)]
    for numbers in copies:
        yield Finding(
            "identical-layers",
            "warning",
            f"{say_layers(numbers, len(model.layers))} have identical queries and keys",
            "Their weights are equal to the last bit, and the configuration does not declare them shared.",
            "A model grown by copying layers and not trained since looks like this; so does a faulty merge or "
            "conversion.",
            layers=tuple(numbers),
        )


def _same_tensors(model: Model, numbers: list[int]) -> bool:
    """The layers name the very same tensors: shared without being declared so, but plainly on purpose."""
    specs = [model.layers[n].spec for n in numbers]
    return len({(spec.q, spec.qkv) for spec in specs}) == 1


def dead_heads(model: Model, found: Walk) -> Iterator[Finding]:
    """Heads with a part that is all zero."""
    any_dead = False
    for part, heads in found.dead.items():
        if heads:
            any_dead = True
            listed = ", ".join(f"{layer}.{head}" for layer, head in heads[:12]) + (", ..." if len(heads) > 12 else "")
            effect = {
                "query": "their attention does not depend on the query",
                "key": "their attention does not depend on content",
                "value": "they add nothing",
                "output": "they add nothing",
            }[part]
            yield Finding(
                "dead-heads",
                "warning",
                f"{len(heads)} heads have {part} weights of zero",
                f"Layer.head {listed}: {effect}.",
                "Pruned heads look like this; so do tensors that were never filled.",
                layers=tuple(sorted({layer for layer, _ in heads})),
                evidence={"part": part, "heads": heads},
            )
    if not any_dead:
        yield Finding(
            "dead-heads",
            "ok",
            "no head is dead",
            f"In {found.read} layers read, no query, key, value or output is zero.",
        )
