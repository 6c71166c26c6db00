"""Run a model of transformers and note what went into and out of its attention, linear maps, norms and layers.

Attention is noted where `eager_attention_forward` is called; a model that computes softmax(q k^T) v by itself is
caught by watching torch's functions. Shapes: B texts, H heads, N tokens, R head width, V value width, C channels.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.generic.bounds import Deadline, Refused

Array = NDArray[np.float64]
_LINEARS = ("Linear", "Conv1D", "ClippableLinear", "BitLinear", "AutoBitLinear")
_PRODUCTS = ("matmul", "bmm", "__matmul__", "baddbmm", "einsum", "__rmatmul__")
_one_at_a_time = threading.RLock()  # modules of transformers are patched while a model runs


@dataclass(eq=False)
class AttentionCall:
    """One computation of attention: what torch saw, and the arrays `arrays` makes of it."""

    module: str
    q: Any
    k: Any
    v: Any
    probabilities: Any
    out: Any = None
    scaling: float | None = None
    softcap: float | None = None
    eager: bool = False
    layer: str | None = None  # the numbered module it belongs to
    layer_input: Any = None
    layer_output: Any = None


@dataclass(eq=False)
class Passed:
    """What went through a module, and how many attentions had been computed by then."""

    name: str
    x: Any
    y: Any
    after: int


@dataclass(eq=False)
class Recorded:
    """One run: `texts` texts of `length` tokens."""

    texts: int
    calls: list[AttentionCall] = field(default_factory=list)
    linears: list[Passed] = field(default_factory=list)
    norms: list[Passed] = field(default_factory=list)
    embeddings: list[Passed] = field(default_factory=list)
    layer_inputs: dict[str, Any] = field(default_factory=dict)  # the last one of each numbered module
    layers: list[str] = field(default_factory=list)  # numbered modules that ran, in order
    softmaxes: int = 0  # over three axes or more

    def add(self, call: AttentionCall) -> None:
        """Note a call, with the innermost numbered module it belongs to and what that was given."""
        parts = call.module.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            if parts[end - 1].isdigit() and name in self.layer_inputs:
                call.layer, call.layer_input = name, self.layer_inputs[name]
                break
        self.calls.append(call)


def run(
    model: Any,
    inputs: dict[str, Any],
    texts: int,
    deadline: Deadline,
    keep: Callable[[str], bool] = lambda name: True,
    boost: float = 1.0,
    until: str | None = None,
) -> Recorded:
    """Run the model on the inputs. Linear maps and norms are noted where `keep(module name)` holds.

    `boost` multiplies the queries of noted attentions, so that logits grow until a cap is felt. `until` is the module
    after which the run may end.
    """
    import torch

    noted = Recorded(texts)
    watch = _watch(noted)
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(_before(noted, watch, name, deadline), with_kwargs=True))
        hooks.append(module.register_forward_hook(_after(noted, watch, name, module, keep), with_kwargs=True))
        if name == until:
            hooks.append(module.register_forward_hook(_enough))
    try:
        with (
            _one_at_a_time,
            _eager_noted(model, noted, watch, boost),
            torch.no_grad(),
            watch,
            contextlib.suppress(_AllHaveRun),
        ):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return noted


class _AllHaveRun(Exception):
    """All that was asked for has run."""


def _enough(*_: Any) -> None:
    raise _AllHaveRun


def flat(tensor: Any, texts: int, length: int) -> Array | None:
    """An activation as (B, N, C) in float64; None where it has no such axes."""
    shape = tuple(tensor.shape)
    if len(shape) >= 2 and shape[0] == texts * length:
        return double(tensor).reshape(texts, length, -1)
    if len(shape) >= 3 and shape[:2] == (length, texts) and length != texts:
        return double(tensor).swapaxes(0, 1).reshape(texts, length, -1)
    if not shape or shape[0] != texts:
        return None
    axis = next((i for i in range(1, len(shape)) if shape[i] == length), None)
    return None if axis is None else np.moveaxis(double(tensor), axis, 1).reshape(texts, length, -1)


def double(tensor: Any) -> Array:
    """A tensor as numpy float64."""
    import torch

    return np.asarray(tensor.detach().to(torch.float64).numpy())


def arrays(call: AttentionCall, texts: int) -> tuple[Array, Array, Array, Array]:
    """Queries (B, H, N, R), keys (B, G, M, R), values (B, G', M, V) and probabilities (B, H, N, M) of a call."""
    q, k, v, p = (_four(double(each), texts) for each in (call.q, call.k, call.v, call.probabilities))
    if q.ndim != 4 or q.shape[0] != texts or p.ndim != 4 or k.ndim != 4:
        raise Refused(f"queries of shape {q.shape}")
    if p.shape[2] != q.shape[2] or p.shape[3] != k.shape[2] or v.shape[2] != k.shape[2]:
        raise Refused(f"probabilities of shape {p.shape} for {q.shape[2]} queries and {k.shape[2]} keys")
    k, v = _ungrouped(k), _ungrouped(v)
    if call.eager and call.out is not None and call.out.dim() == 4:
        p = _as_used(p, v, double(call.out))
    return q, k, v, p


def _four(array: Array, texts: int) -> Array:
    """Heads and texts on one axis are taken apart."""
    if array.ndim == 3 and array.shape[0] % texts == 0:
        return array.reshape(texts, -1, *array.shape[1:])
    return array


def _ungrouped(array: Array) -> Array:
    """Keys or values that the caller repeated for the heads of a group, once each."""
    heads = array.shape[1]
    for groups in (n for n in range(1, heads) if heads % n == 0):
        first = array[:, :: heads // groups]
        if np.array_equal(np.repeat(first, heads // groups, axis=1), array):
            return first
    return array


def _as_used(p: Array, v: Array, out: Array) -> Array:
    """The probabilities times a factor per query that the function applied after it had made them (sinks)."""
    mine = np.einsum("bhnm,bhmv->bnhv", p, np.repeat(v, p.shape[1] // v.shape[1], axis=1))
    if out.shape != mine.shape:
        return p
    factor = (out * mine).sum(-1) / np.maximum((mine * mine).sum(-1), 1e-300)
    if np.abs(out - factor[..., None] * mine).max() < 1e-5 * np.abs(mine).max() and np.abs(factor - 1).max() > 1e-5:
        return p * np.moveaxis(factor, 1, 2)[..., None]
    return p


@contextlib.contextmanager
def _eager_noted(model: Any, noted: Recorded, watch: Any, boost: float) -> Iterator[None]:
    """For the time of a run, every `eager_attention_forward` of the model's modules also notes its call."""
    names = {module: name for name, module in model.named_modules()}
    homes = {type(module).__module__ for module in model.modules()}
    replaced = []
    for home in sorted(homes):
        source = sys.modules.get(home)
        function = getattr(source, "eager_attention_forward", None)
        if function is not None:
            replaced.append((source, function))
            source.eager_attention_forward = _noting(function, names, noted, watch, boost)  # type: ignore[union-attr]
    try:
        yield
    finally:
        for source, function in replaced:
            source.eager_attention_forward = function  # type: ignore[union-attr]


def _noting(function: Any, names: dict[Any, str], noted: Recorded, watch: Any, boost: float) -> Any:
    def noting(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        watch.inside += 1
        query = query if boost == 1 else query * boost
        try:
            result = function(module, query, key, value, *rest, **options)
        finally:
            watch.inside -= 1
        scaling = options.get("scaling", next((each for each in rest if isinstance(each, float)), None))
        softcap = options.get("softcap")
        noted.add(
            AttentionCall(
                module=names.get(module, ""),
                q=query,
                k=key,
                v=value,
                probabilities=result[1],
                out=result[0],
                scaling=None if scaling is None else float(scaling),
                softcap=None if softcap is None else float(softcap),
                eager=True,
            )
        )
        return result

    return noting


def _watch(noted: Recorded) -> Any:
    from torch import is_tensor
    from torch.overrides import TorchFunctionMode

    class SoftmaxWatch(TorchFunctionMode):  # type: ignore[misc]
        """Finds softmax(q k^T) v where a model computes it by itself."""

        def __init__(self) -> None:
            super().__init__()
            self.inside = 0  # of an attention that is noted anyway
            self.modules: list[str] = []
            self._products: list[tuple[Any, Any, Any]] = []
            self._begun: AttentionCall | None = None

        def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
            result = function(*given, **(options or {}))
            if not self.inside:
                self._look(getattr(function, "__name__", ""), (*given, *(options or {}).values()), result)
            return result

        def _look(self, name: str, given: Any, result: Any) -> None:
            if name in _PRODUCTS:
                factors = [each for each in given if is_tensor(each)]
                factors = factors[1:] if name == "baddbmm" else factors
                if len(factors) != 2:
                    return
                begun = self._begun
                if begun is not None and _is(factors[0], begun.probabilities):
                    begun.v, begun.out = factors[1], result
                    noted.add(begun)
                    self._begun = None
                elif name != "einsum" and is_tensor(result):
                    self._products = [*self._products[-5:], (*factors, result)]
            elif name == "softmax" and is_tensor(given[0]) and given[0].dim() >= 3:
                noted.softmaxes += 1
                for q, kt, product in reversed(self._products):
                    same = product.dim() >= 3 and product.shape[-1] == result.shape[-1]
                    if same and product.numel() == result.numel():
                        where = self.modules[-1] if self.modules else ""
                        self._begun = AttentionCall(where, q, kt.transpose(-1, -2), None, result)
                        return

    def _is(one: Any, other: Any) -> bool:
        same = one is other or (one.numel() == other.numel() and one.shape[-2:] == other.shape[-2:])
        return bool(same and (one is other or (one.reshape(other.shape) == other).all()))

    return SoftmaxWatch()


def _before(noted: Recorded, watch: Any, name: str, deadline: Deadline) -> Any:
    numbered = name.split(".")[-1].isdigit()

    def hook(module: Any, given: Any, options: Any) -> None:
        deadline.check()
        watch.modules.append(name)
        if numbered:
            named = [options.get(key) for key in ("hidden_states", "x", "hidden_state")]
            x = next((each for each in (*given, *named) if _is_stream(each)), None)
            if x is not None:
                noted.layer_inputs[name] = x.detach().clone()
                noted.layers.append(name)

    return hook


def _after(noted: Recorded, watch: Any, name: str, module: Any, keep: Callable[[str], bool]) -> Any:
    import torch

    kept = keep(name)
    target = noted.linears if _is_linear(module) else noted.norms if _is_norm(module) else None
    if isinstance(module, torch.nn.Embedding):
        target, kept = noted.embeddings, True
    numbered = name.split(".")[-1].isdigit()

    def hook(module: Any, given: Any, options: Any, result: Any) -> None:
        if watch.modules and watch.modules[-1] == name:
            watch.modules.pop()
        result = result[0] if isinstance(result, tuple) and result else result
        if not torch.is_tensor(result):
            return
        if numbered and _is_stream(result):
            for call in noted.calls:
                if call.layer == name and call.layer_output is None:
                    call.layer_output = result.detach().clone()
        if target is None or not kept:
            return
        x = next((each for each in (*given, *options.values()) if torch.is_tensor(each)), None)
        if x is None and target is noted.embeddings:
            x = result  # a table that is asked by shape
        if x is not None:
            target.append(Passed(name, x.detach().clone(), result.detach().clone(), len(noted.calls)))

    return hook


def _is_stream(value: Any) -> bool:
    import torch

    return torch.is_tensor(value) and value.is_floating_point() and value.dim() >= 2


def _is_linear(module: Any) -> bool:
    import torch

    weight: Any = getattr(module, "weight", None)
    named = type(module).__name__ in _LINEARS or type(module).__name__.endswith("Linear")
    return isinstance(module, torch.nn.Linear) or (named and torch.is_tensor(weight) and weight.dim() == 2)


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
