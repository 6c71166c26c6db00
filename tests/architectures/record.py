"""A model is run once, and all that its attention did is noted: every softmax over keys, every map and norm.

Most models of transformers call `eager_attention_forward`, which is wrapped; in others a softmax of a product of two
tensors, multiplied into a third, is recognised while it happens. Neither depends on how Toposcope reads the model.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_WHOLE = frozenset({"multi_head_attention_forward", "scaled_dot_product_attention"})  # attention as one call
_PRODUCTS = frozenset({"matmul", "bmm", "__matmul__", "baddbmm", "einsum", "__rmatmul__"})


@dataclass(frozen=True)
class Attended:
    """One call of attention: when it was, in which module, and its probabilities as they came."""

    at: int
    module: str
    probabilities: Tensor


@dataclass(frozen=True)
class Passed:
    """One call of a module: when it ended, its first tensor and what it gave."""

    at: int
    given: Tensor
    gave: Tensor


@dataclass
class Record:
    """All calls in their order; `entered` is what went into each numbered module (layer) at its first call."""

    attended: list[Attended] = field(default_factory=list)
    passed: dict[str, list[Passed]] = field(default_factory=lambda: defaultdict(list))
    entered: dict[str, list[tuple[int, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    placed: dict[str, Tensor] = field(default_factory=dict)  # what modules gave that place tokens, or look them up
    unseen: bool = False  # a softmax inside attention that was not recognised as one of q k^T
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock


def record(model: nn.Module, inputs: dict[str, Any]) -> Record:
    """Run the model on the inputs, without gradients, and note what happened."""
    noted, running = Record(), []
    with ExitStack() as stack, torch.no_grad():
        mode = _Softmax(noted, running)
        for module in {sys.modules[type(each).__module__] for each in model.modules()}:
            if hasattr(module, "eager_attention_forward"):
                wrapped = _wrapped(module.eager_attention_forward, model, noted, mode)
                stack.enter_context(patch.object(module, "eager_attention_forward", wrapped))
        stack.enter_context(_hooked(model, noted, running))
        stack.enter_context(mode)
        model(**inputs)
    return noted


def _wrapped(eager: Callable[..., Any], model: nn.Module, noted: Record, mode: _Softmax) -> Callable[..., Any]:
    names = {module: name for name, module in model.named_modules()}

    def attend(module: nn.Module, *given: Any, **named: Any) -> Any:
        with mode.paused():
            gave = eager(module, *given, **named)
        if isinstance(gave, tuple) and torch.is_tensor(gave[1]):
            used = _in_force(gave[1].detach(), given[2] if len(given) > 2 else named.get("value"), gave[0].detach())
            noted.attended.append(Attended(noted.tick(), names.get(module, ""), used))
        return gave

    return attend


def _in_force(probabilities: Tensor, values: Tensor | None, out: Tensor) -> Tensor:
    """The probabilities as they act on the values: some models scale the sum afterwards, as a sink would."""
    if values is None or out.ndim != 4 or probabilities.ndim != 4 or probabilities.shape[1] % values.shape[1]:
        return probabilities
    wide = values.repeat_interleave(probabilities.shape[1] // values.shape[1], 1)
    if wide.shape[2] != probabilities.shape[3]:
        return probabilities
    plain = (probabilities @ wide).transpose(1, 2)
    if plain.shape != out.shape:
        return probabilities
    factor = (out * plain).sum(-1) / (plain * plain).sum(-1).clamp_min(1e-30)  # (B, N, H)
    scaled = (out - factor[..., None] * plain).abs().max() < 1e-5 * plain.abs().max()
    changed = (factor - 1).abs().max() > 1e-4
    return probabilities * factor.transpose(1, 2)[..., None] if scaled and changed else probabilities


class _Softmax(TorchFunctionMode):
    """Recognises softmax(q k^T) v, wherever it is computed by hand."""

    def __init__(self, noted: Record, running: list[str]) -> None:
        super().__init__()
        self._noted, self._running = noted, running
        self._products: list[Tensor] = []
        self._probabilities: Tensor | None = None
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _WHOLE:
            self._noted.unseen = True
        if self._pauses or not torch.is_tensor(out):
            return out
        if name == "softmax" and out.ndim >= 3:
            if any(each.ndim >= 3 and each.numel() == out.numel() for each in self._products):
                self._probabilities = out
            elif "att" in (self._running[-1] if self._running else "").lower():
                self._noted.unseen = True
        elif name in _PRODUCTS:
            seen, tensors = self._probabilities, [each for each in args if torch.is_tensor(each)]
            if seen is not None and any(_same(each, seen) for each in tensors):
                module = self._running[-1] if self._running else ""
                self._noted.attended.append(Attended(self._noted.tick(), module, seen.detach()))
                self._probabilities = None
            else:
                self._products = [*self._products[-5:], out]
        return out


def _same(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.reshape(-1), other.reshape(-1))


@contextmanager
def _hooked(model: nn.Module, noted: Record, running: list[str]) -> Iterator[None]:
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(_entering(name, noted, running), with_kwargs=True))
        hooks.append(module.register_forward_hook(_leaving(name, module, noted, running), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _entering(name: str, noted: Record, running: list[str]) -> Callable[..., None]:
    numbered = name.rpartition(".")[2].isdigit()

    def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        running.append(name)
        if numbered:
            found = _first(given, {key: named.get(key) for key in ("hidden_states", "x", "hidden_state")})
            if found is not None:
                noted.entered[name].append((noted.tick(), found.detach().clone()))

    return hook


def _leaving(name: str, module: nn.Module, noted: Record, running: list[str]) -> Callable[..., None]:
    leaf = not any(True for _ in module.children()) and any(True for _ in module.parameters())
    end = name.rpartition(".")[2]
    places = isinstance(module, nn.Embedding) or ("pos" in end.replace("post", "") and "rot" not in name)

    def hook(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], gave: Any) -> None:
        if running and running[-1] == name:
            running.pop()
        x = _first(given, named) if leaf or "norm" in name.lower() else None
        y = gave[0] if isinstance(gave, tuple) and gave else gave
        if places and torch.is_tensor(y):
            noted.placed[name] = y.detach().clone()
        if x is not None and torch.is_tensor(y):
            noted.passed[name].append(Passed(noted.tick(), x.detach().clone(), y.detach().clone()))

    return hook


def _first(given: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
    tensors = (each for each in (*given, *named.values()) if torch.is_tensor(each))
    return next((each for each in tensors if each.is_floating_point() and each.ndim >= 2), None)
