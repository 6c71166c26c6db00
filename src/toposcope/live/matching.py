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
        module = _nearest(_query_name(layer.spec), list(runs))
        if module is None:
            continue
        turn = taken.get(module, 0)
        taken[module] = turn + 1
        if turn < len(runs[module]):
            found.append((runs[module][turn], layer))
    if not found and len(modules) == len(layers):
        return list(enumerate(layers))
    return found


def _query_name(spec: LayerSpec) -> str:
    parts = (spec.qkv, spec.q, spec.q_latent and spec.q_latent.down, spec.k, spec.o)
    return next((part.weight for part in parts if part is not None), "")


def _nearest(name: str, modules: Sequence[str]) -> str | None:
    """The module whose path begins like the tensor's for longest; None where none is nearer than the others."""
    path = name.split(".")

    def shared(module: str) -> int:
        parts = module.split(".")
        return next((i for i, (a, b) in enumerate(zip(parts, path, strict=False)) if a != b), min(len(parts), len(path)))

    if not name or not modules:
        return None
    best = max(map(shared, modules))
    near = [module for module in modules if shared(module) == best]
    numbered = any(part.isdigit() for part in path[:best])
    return near[0] if len(near) == 1 and best > 0 and (numbered or len(modules) == 1) else None
