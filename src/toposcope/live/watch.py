"""Watch every attention of a model while it runs: the queries and keys as the product meets them.

A function mode sees each call of torch's fused attention, and each product of two tensors that a softmax follows,
whoever wrote the model. Nothing is changed. Tensors stay in the model's precision, on its device.
Shapes: B sequences, H heads, G key heads, N queries, M keys, R head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

MOST_CHANNELS = 20_000  # outputs of wider maps (vocabularies) are not kept
_PRODUCTS = {"matmul", "bmm", "__matmul__", "__rmatmul__", "baddbmm", "einsum"}
_REMEMBERED = 6  # products that may stand between q k^T and its softmax (those of a bias, say)
Keep = Callable[[Any], Any | None]  # the part of an output that is kept, or None


@dataclass(frozen=True, eq=False)
class WatchedAttention:
    """One attention as it ran.

    `module` is the innermost module that was running, `scale` what the fused attention was told, `logits_BHNM` what
    a softmax was given (None where it is hidden in the fused attention), `added` what the fused attention adds to
    the logits or hides of them. `maps` are the outputs of modules without parts since the attention before.
    """

    module: str
    query_BHNR: Any
    key_BGMR: Any
    scale: float | None = None
    logits_BHNM: Any | None = None
    added: Any | None = None
    maps: tuple[tuple[str, Any], ...] = ()


@contextmanager
def watched(model: Any, *, maps: bool | Keep = False, rows: int | None = None) -> Iterator[list[WatchedAttention]]:
    """The attentions of all runs inside the block, in their order.

    `maps` keeps what modules give before each; as a function, it says which part of such an output. `rows` is how
    many sequences are run: with it, sequences and heads that a model keeps on one axis are taken apart.
    """
    import torch

    seen: list[WatchedAttention] = []
    watch = _watch(seen, rows)
    with ExitStack() as stack:
        for name, module in model.named_modules() if hasattr(model, "named_modules") else ():
            keeps = None if not maps or any(True for _ in module.children()) else _all if maps is True else maps
            for handle in (
                module.register_forward_pre_hook(watch.enters(name), with_kwargs=True),
                module.register_forward_hook(watch.leaves(keeps), always_call=True),
            ):
                stack.callback(handle.remove)
        fast = torch.backends.mha.get_fastpath_enabled()
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.no_grad())
        stack.enter_context(watch)
        yield seen


def _all(out: Any) -> Any:
    return out


def _watch(seen: list[WatchedAttention], rows: int | None) -> Any:
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._running: list[tuple[str, int]] = []  # modules, and by how many heads of one token they may pack
            self._maps: list[tuple[str, Any]] = []
            self._products: list[tuple[Any, Any, tuple[int, ...]]] = []

        def enters(self, name: str) -> Any:
            def hook(module: Any, given: Any, options: Any) -> None:
                self._running.append((name, _packs(module, (*given, *options.values()))))

            return hook

        def leaves(self, keeps: Keep | None) -> Any:
            def hook(module: Any, given: Any, out: Any) -> None:
                name = self._running.pop()[0] if self._running else ""
                if keeps is None or not torch.is_tensor(out) or not out.is_floating_point() or not out.dim():
                    return
                kept = keeps(out.detach()) if out.shape[-1] <= MOST_CHANNELS else None
                if kept is not None:
                    self._maps.append((name, kept))

            return hook

        def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
            options = options or {}
            if function is functional.scaled_dot_product_attention:
                self._fused(*given, **options)
                return function(*given, **options)
            out = function(*given, **options)
            name = getattr(function, "__name__", "")
            if name in _PRODUCTS and torch.is_tensor(out) and out.dim() >= 3:
                operands = _operands(name, (*given, *options.values()))
                if operands is not None:
                    self._products = [*self._products[1 - _REMEMBERED :], (*operands, tuple(out.shape))]
            elif name == "softmax" and self._products and torch.is_tensor(given[0]) and given[0].dim() >= 3:
                self._softmax(given[0])
            return out

        def _fused(
            self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, **options: Any,
        ) -> None:  # fmt: skip
            told = query.shape[-1] ** -0.5 if scale is None else float(scale)
            packed = self._running[-1][1] if self._running else 1
            if packed > 1 and query.dim() == 4 and query.shape[1:3] == (key.shape[1], packed):
                query = query.flatten(1, 2)[:, :, None]
                if attn_mask is not None and attn_mask.dim() == 4 and attn_mask.shape[2] == packed:
                    attn_mask = attn_mask.flatten(1, 2)[:, :, None]
            self._note(query, key, scale=told, added=attn_mask)

        def _softmax(self, logits: Any) -> None:
            for query, key, shape in reversed(self._products):
                # a sink is one more column, which no key has
                same = logits.shape[-2] == shape[-2] and 0 <= logits.shape[-1] - shape[-1] <= 1
                if same and logits[..., : shape[-1]].numel() == math.prod(shape):
                    lead = logits.shape[:-2]
                    self._note(
                        query.reshape(*lead, *query.shape[-2:]),
                        key.reshape(*lead, *key.shape[-2:]),
                        logits=logits[..., : shape[-1]],
                    )
                    return

        def _note(self, query: Any, key: Any, *, logits: Any = None, **more: Any) -> None:
            kept = None if logits is None else _apart(logits, rows).detach().clone()
            where = self._running[-1][0] if self._running else ""
            query, key = (_apart(each, rows).detach().clone() for each in (query, key))
            seen.append(WatchedAttention(where, query, key, logits_BHNM=kept, maps=tuple(self._maps), **more))
            self._maps, self._products = [], []

    return Watching()


def _packs(module: Any, given: tuple[Any, ...]) -> int:
    """How many query heads this module may show as so many queries of one head: 1 where it does not.

    transformers (5.23) does so where one token enters and several query heads share a key head.
    """
    import torch

    groups = getattr(module, "num_key_value_groups", 1)
    if not isinstance(groups, int) or groups < 2:
        return 1
    entering = next((each for each in given if torch.is_tensor(each) and each.dim() == 3), None)
    return groups if entering is not None and entering.is_floating_point() and entering.shape[1] == 1 else 1


def _apart(tensor: Any, rows: int | None) -> Any:
    """(B H, N, R) as (B, H, N, R)."""
    joined = rows is not None and tensor.dim() == 3 and tensor.shape[0] % rows == 0
    return tensor.reshape(rows, -1, *tensor.shape[1:]) if joined else tensor


def _operands(name: str, given: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """The two factors of a product as (…, N, R) and (…, M, R); None where it is no product of such."""
    import torch

    tensors = [each for each in given if torch.is_tensor(each)]
    if name == "einsum":
        return _of_einsum(given[0], tensors) if isinstance(given[0], str) and len(tensors) == 2 else None
    tensors = tensors[-2:] if name != "__rmatmul__" else tensors[::-1]
    if len(tensors) != 2 or min(each.dim() for each in tensors) < 3:
        return None
    first, second = tensors
    if first.shape[:-2] != second.shape[:-2]:
        lead = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
        first, second = (each.expand(*lead, *each.shape[-2:]) for each in (first, second))
    return first, second.transpose(-1, -2)


def _of_einsum(equation: str, tensors: list[Any]) -> tuple[Any, Any] | None:
    sides, _, out = equation.replace(" ", "").partition("->")
    names = sides.split(",")
    if len(names) != 2 or len(out) < 3 or "." in equation:
        return None
    lead, query, key = out[:-2], out[-2], out[-1]
    summed = (set(names[0]) & set(names[1])) - set(out)
    if len(summed) != 1:
        return None
    wide = summed.pop()
    wanted = (lead + query + wide, lead + key + wide)
    if any(sorted(name) != sorted(order) for name, order in zip(names, wanted, strict=True)):
        return None
    first, second = (
        tensor.permute([name.index(letter) for letter in order])
        for tensor, name, order in zip(tensors, names, wanted, strict=True)
    )
    return first, second
