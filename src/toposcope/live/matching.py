"""Which attention of a running model is which layer of its description: by the names of modules and of weights."""

from __future__ import annotations

from collections.abc import Sequence

from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Layer


def matched(modules: Sequence[str], layers: Sequence[Layer]) -> list[tuple[int, Layer]]:
    """Pairs of (number of the attention in the order of running, layer), in the order of layers.

    A layer belongs to the module that shares most of the path of its query weight. Where a module runs several times,
    its layers are taken in turn. Where names say nothing, attentions and layers are paired in order if there are as
    many of both; layers without an attention are left out.
    """
    runs: dict[str, list[int]] = {}
    for number, module in enumerate(modules):
        runs.setdefault(module, []).append(number)
    found: list[tuple[int, Layer]] = []
    taken: dict[str, int] = {}
    for layer in layers:
        near = _nearest(_query_name(layer.spec), list(runs))
        if near is None:
            continue
        turn = taken.get(near, 0)
        taken[near] = turn + 1
        if turn < len(runs[near]):
            found.append((runs[near][turn], layer))
    if not found and len(modules) == len(layers):
        return list(enumerate(layers))
    return found


def _query_name(spec: LayerSpec) -> str:
    down = None if spec.q_latent is None else spec.q_latent.down
    parts = (spec.qkv, spec.q, down, spec.k, spec.o)
    return next((part.weight for part in parts if part is not None), "")


def _nearest(name: str, modules: Sequence[str]) -> str | None:
    """The module whose path begins like the tensor's for longest; None where none is nearer than the others."""
    if not name or not modules:
        return None
    path = name.split(".")
    depth = 0  # a wrapper's own name stands before those that its tensors have
    while depth < 3 and not any(module.split(".")[depth : depth + 1] == path[:1] for module in modules):
        depth += 1

    def shared(module: str) -> int:
        same = [a == b for a, b in zip(module.split(".")[depth:], path, strict=False)]
        return same.index(False) if False in same else len(same)

    best = max(map(shared, modules))
    near = [module for module in modules if shared(module) == best]
    numbered = any(part.isdigit() for part in path[:best])
    return near[0] if len(near) == 1 and best > 0 and (numbered or len(modules) == 1) else None
