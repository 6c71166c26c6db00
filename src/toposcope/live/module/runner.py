"""Run somebody's torch attention module on chosen inputs, without changing it, and watch what it forms inside.

Every attention ends in a product of queries with keys and a softmax over the keys. While the module runs, each of its
tensor operations passes through here, and the first softmax over an N x N table is kept, with the product before it.
The module need not expose anything. A fused kernel that hides the softmax cannot be watched; PyTorch's own fused
attention is switched to its written-out form for the time of the call.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.encodings.record import Array

Call = Callable[..., Any]
_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_SOFTMAXES = ("aten::_softmax", "aten::_safe_softmax")
_MAPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::mul", "aten::native_layer_norm")


class Runner:
    """A module with the way to call it: arrays (B, N, D) in, arrays (B, N, D) out."""

    def __init__(self, module: Any, call: Call | None, width: int | None) -> None:
        self.module, self.copied = _precise(module)
        self.call = call or default_call(module)
        self.takes_positions = call is not None and _takes_positions(call)
        self.width = width or find_width(module)
        self.dtype, self.device = _dtype_and_device(self.module)

    @property
    def rounding(self) -> float:
        """The relative rounding error of the module's precision."""
        import torch

        return float(torch.finfo(self.dtype).eps)

    def __call__(self, x_BND: Array, positions: Array | None = None) -> Array:
        return self._out(self._run(x_BND, positions)())

    def watched(self, x_BND: Array, *, keep_maps: bool = False) -> tuple[Array, WatchedRun]:
        """The output, and what was seen of the attention inside."""
        out, seen = watch(self._run(x_BND, None), x_BND.shape[0], x_BND.shape[1], keep_maps=keep_maps)
        return self._out(out), seen

    def given(self, function: Callable[[Any, Any], Any], x_BND: Array) -> Any:
        """What a user's `qk` or `logits` function returns for this input, as arrays."""
        import torch

        with torch.no_grad():
            out = function(self.module, self.tensor(x_BND))
        return tuple(map(_array, out)) if isinstance(out, tuple | list) else _array(out)

    def tensor(self, x_BND: Array) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(x_BND)).to(self.device, self.dtype)

    def _run(self, x_BND: Array, positions: Array | None) -> Callable[[], Any]:
        import torch

        x = self.tensor(x_BND)

        def run() -> Any:
            with torch.no_grad():
                if not self.takes_positions:
                    return self.call(self.module, x)
                at = np.arange(x_BND.shape[1]) if positions is None else positions
                return self.call(self.module, x, torch.from_numpy(np.asarray(at, dtype=np.int64)).to(self.device))

        return run

    def _out(self, out: Any) -> Array:
        y = out[0] if isinstance(out, tuple | list) else out
        if not hasattr(y, "detach"):
            raise BadValue(
                f"the module returned {type(y).__name__}; expected a tensor (batch, tokens, width), or a tuple that "
                "starts with one. Give call=lambda module, x: ... to say how it is called."
            )
        return _array(y)


def default_call(module: Any) -> Call:
    """`module(x)`, or for `nn.MultiheadAttention` query, key and value all x."""
    from torch import nn

    if isinstance(module, nn.MultiheadAttention):

        def attend(module: Any, x: Any) -> Any:
            if module.batch_first:
                return module(x, x, x, need_weights=False)[0]
            x = x.transpose(0, 1)
            return module(x, x, x, need_weights=False)[0].transpose(0, 1)

        return attend
    return lambda module, x: module(x)


def find_width(module: Any) -> int:
    """The width of the module's input, from its usual attributes or its first linear map."""
    from torch import nn

    for name in ("embed_dim", "hidden_size", "d_model", "dim", "n_embd"):
        value = getattr(module, name, None)
        if isinstance(value, int) and value > 0:
            return value
    for part in module.modules() if hasattr(module, "modules") else ():
        if isinstance(part, nn.Linear):
            return int(part.in_features)
    raise BadValue("the width of the module's input cannot be found; give width=, the last axis of its input.")


@contextmanager
def at_rest(module: Any) -> Iterator[None]:
    """The module in evaluation mode, each part returned to its former mode afterwards."""
    parts = [(part, part.training) for part in module.modules()] if hasattr(module, "modules") else []
    try:
        if hasattr(module, "eval"):
            module.eval()
        yield
    finally:
        for part, training in parts:
            part.training = training


def _takes_positions(call: Call) -> bool:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and (p.default is p.empty or p.name == "positions")
    ]
    return len(needed) >= 3


def _precise(module: Any) -> tuple[Any, bool]:
    """The module, or for half precision a copy in float32: rounding would pass for position, or hide it."""
    import torch

    if _dtype_and_device(module)[0] in (torch.float16, torch.bfloat16):
        return copy.deepcopy(module).float(), True
    return module, False


def _dtype_and_device(module: Any) -> tuple[Any, Any]:
    import torch

    for part in module.parameters() if hasattr(module, "parameters") else ():
        if part.is_floating_point():
            return part.dtype, part.device
    return torch.float32, torch.device("cpu")


def _array(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().cpu().to(torch.float64).numpy()
    return array


def _copy(tensor: Any) -> Array:
    return _array(tensor).copy()


# ------------------------------------------------------------------ watching
@dataclass(frozen=True, eq=False)
class WatchedRun:
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


def watch(run: Callable[[], Any], batch: int, length: int, *, keep_maps: bool = False) -> tuple[Any, WatchedRun]:
    """Run a module and return its output with what was seen of its first attention."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    product: list[tuple[Array, Array]] = []
    logits: list[Array] = []
    maps: list[Array] = []
    more = {"softmaxes": 0, "extra": 0}

    class AttentionWatcher(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func._schema.name
            if name in _SOFTMAXES:
                self.softmax(args[0])
            elif not logits:
                if name in _PRODUCTS and out.shape[-2] == length <= out.shape[-1]:
                    a, b = args[-2:]
                    product[:] = [(_copy(a), _copy(b.transpose(1, 2)[:, :length]))]
                if keep_maps and name in _MAPS:
                    first = out[0] if isinstance(out, tuple) else out
                    if first.is_floating_point():
                        maps.append(_copy(first))
            return out

        def softmax(self, given: Any) -> None:
            rows, columns = given.shape[-2:] if given.ndim >= 2 else (0, 0)
            if rows != length or given.shape[0] % batch:
                return
            if columns >= length:  # keys beyond the tokens (sinks, a bias key) stand last
                more["softmaxes"] += 1
                more["extra"] += columns > length
                if not logits:
                    logits.append(_copy(given[..., :length]))

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), AttentionWatcher():
            out = run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    if not logits:
        return out, WatchedRun(maps=tuple(maps), extra_keys=bool(more["extra"]))
    table = logits[0].reshape(batch, -1, length, length)
    heads = table.shape[1]
    q = k = None
    if product and product[0][0].shape[0] == batch * heads:
        q, k = (side.reshape(batch, heads, length, -1) for side in product[0])
    return out, WatchedRun(q, k, table, tuple(maps), more["softmaxes"], bool(more["extra"]))


def visible(logits_BHNN: Array) -> NDArray[np.bool_]:
    """Which keys each query sees (N, N), on ordinary inputs: masks come as -inf or a huge negative number."""
    seen: NDArray[np.bool_] = np.all(logits_BHNN > -5e3, axis=(0, 1))
    return seen
