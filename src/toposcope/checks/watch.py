"""Look over a torch module's shoulder: the queries, keys and logits it forms while it runs.

Every attention ends in a product of queries with keys and a softmax over the keys. While the module runs, each of its
tensor operations passes through here, and the first softmax over an N x N table is kept, with the product before it.
The module is not changed and need not expose anything. A fused kernel that hides the softmax cannot be watched;
PyTorch's own fused attention is switched to its written-out form for the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Array

_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_SOFTMAXES = ("aten::_softmax", "aten::_safe_softmax")
_MAPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::mul", "aten::native_layer_norm")


@dataclass(frozen=True, eq=False)
class Seen:
    """What one run of a module showed. Shapes: B samples, H heads, N tokens, R head width.

    `q_BHNR` and `k_BHNR` are the operands of the product, after any rotation; `logits_BHNN` is what the softmax was
    given, masks included. `maps` are the outputs of the operations before the product, which hold the
    queries and keys before rotation. `softmaxes` counts the attentions met; only the first is kept. `extra_keys` says
    that there are keys beside the tokens' (an attention sink), which are left out.
    """

    q_BHNR: Array | None = None
    k_BHNR: Array | None = None
    logits_BHNN: Array | None = None
    maps: tuple[Array, ...] = ()
    softmaxes: int = 0
    extra_keys: bool = False


def watch(run: Callable[[], Any], batch: int, length: int, *, keep_maps: bool = False) -> tuple[Any, Seen]:
    """Run a module and return its output with what was seen of its first attention."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    product: list[tuple[Array, Array]] = []
    logits: list[Array] = []
    maps: list[Array] = []
    more = {"softmaxes": 0, "extra": 0}

    class Watcher(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name
            if name in _SOFTMAXES:
                self.softmax(args[0])
            elif not logits:
                if name in _PRODUCTS and out.shape[-2] == length <= out.shape[-1]:
                    a, b = args[-2:]
                    product[:] = [(_array(a), _array(b.transpose(1, 2)[:, :length]))]
                if keep_maps and name in _MAPS:
                    first = out[0] if isinstance(out, tuple) else out
                    if first.is_floating_point():
                        maps.append(_array(first))
            return out

        def softmax(self, given: Any) -> None:
            rows, columns = given.shape[-2:] if given.ndim >= 2 else (0, 0)
            if rows != length or given.shape[0] % batch:
                return
            if columns >= length:  # keys beyond the tokens (sinks, a bias key) stand last
                more["softmaxes"] += 1
                more["extra"] += columns > length
                if not logits:
                    logits.append(_array(given[..., :length]))

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Watcher():
            out = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    if not logits:
        return out, Seen(maps=tuple(maps), extra_keys=bool(more["extra"]))
    table = logits[0].reshape(batch, -1, length, length)
    heads = table.shape[1]
    q = k = None
    if product and product[0][0].shape[0] == batch * heads:
        q, k = (side.reshape(batch, heads, length, -1) for side in product[0])
    return out, Seen(q, k, table, tuple(maps), more["softmaxes"], bool(more["extra"]))


def _array(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().to(torch.float64).cpu().numpy().copy()
    return array


def visible(logits_BHNN: Array) -> NDArray[np.bool_]:
    """Which keys each query sees (N, N), on ordinary inputs: masks come as -inf or a huge negative number."""
    seen: NDArray[np.bool_] = np.all(logits_BHNN > -5e3, axis=(0, 1))
    return seen
