"""Where the residual stream of a running model is: its layers, and in each the modules that add to the stream.

Nothing is taken from names. The model is run once on a few tokens, everything inside a layer that has the stream's
shape is noted, and a layer is split only if its input x and its output y add up, to the rounding of the model:

    y = x + c a + d m                                  a from its attention, m from its MLP
    y = norm(h + d m), h = norm(x + c a)               norms after the additions (BERT)

c and d are 1, or the numbers that fit (models which scale their branches). A layer for which neither holds stays
whole. In the first case the state between is what a later module reads; where none reads x + c a, attention and MLP
act side by side, and attention is counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadConfig
from toposcope.models.corpus import Ids
from toposcope.models.device import home
from toposcope.models.instrument import Call, Enough, Instrument
from toposcope.models.sites import Site

Array = NDArray[np.float64]
Order = Literal["sequential", "parallel", "post-norm"]
Key = tuple[Any, int]  # a module, and which of its calls within one run of the layer
Seen = Mapping[Key, tuple[Any | None, Any | None]]  # what it was given and what it gave, where that is a stream

FEW = 16  # tokens of the run that finds the layers
ROUNDINGS = 8  # by which a sum may miss, in units of the model's precision, relative to its terms
LEFT_OVER = 0.05  # of y - x that may stay unexplained: in half precision small branches drown in rounding
UNSPLIT = "whole"


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """Where a layer adds to the stream: its branches with their factors, who reads the state between, later norms.

    `reader` is None for parallel branches; `norms` are those after the additions.
    """

    order: Order
    attention: Key
    attention_factor: float
    mlp: Key
    mlp_factor: float
    reader: Key | None = None
    norms: tuple[Key, Key] | None = None

    @property
    def parts(self) -> tuple[Literal["attention", "norm", "mlp"], ...]:
        """What acts on the stream, in this order."""
        return ("attention", "mlp") if self.norms is None else ("attention", "norm", "mlp", "norm")

    @property
    def modules(self) -> tuple[Any, ...]:
        """All that must be watched."""
        keys = (self.attention, self.mlp, self.reader, *(self.norms or ()))
        return tuple(key[0] for key in keys if key is not None)

    def states(self, x: Any, y: Any, seen: Seen) -> tuple[Any, ...]:
        """The stream (B, N, D) after each part, from the layer's input and output and what was seen inside."""
        if self.norms is not None:
            (first, between), (second, _) = (seen[key] for key in self.norms)
            return first, between, second, y
        if self.reader is not None:
            return seen[self.reader][0], y
        added: Any = seen[self.attention][1]
        wide = added.float() if added.device.type == "mps" else added.double()
        return x + self.attention_factor * wide, y


@dataclass(frozen=True, eq=False)
class Residual:
    """The layers of a model in the order in which they run, and the norm after the last.

    `blocks` are modules, one for each layer (the same one again where layers share their weights); `joined` says of
    each whether its input is the output of the layer before. `without_attention` counts members of the same lists
    that do not attend.
    """

    blocks: tuple[Any, ...]
    splits: tuple[LayerSplit | None, ...]
    joined: tuple[bool, ...]
    final_norm: Any | None
    without_attention: int

    @property
    def order(self) -> str:
        """How its layers are built, as it was found."""
        return " and ".join(dict.fromkeys(UNSPLIT if each is None else each.order for each in self.splits))


Ends = Callable[
    [int, Any, Any, Seen], None
]  # the layer's number, its input and output (B, N, D), what was seen inside


def residual_of(instrument: Instrument, ids: Ids) -> Residual:
    """Run the model on a few tokens and find its layers."""
    if any(site.cross for site in instrument.sites):
        raise BadConfig(f"{type(instrument.model).__name__} has an encoder and a decoder, which share no stream.")
    names = {module: name for name, module in instrument.model.named_modules()}
    blocks = [_block(instrument, site) for site in instrument.sites]
    splits: list[LayerSplit | None] = []
    joined: list[bool] = []
    last: list[Any] = []
    attended: list[Any] = []

    def note(call: Call, output: Any) -> None:
        attended.append(call.site.module)

    def ends(number: int, x: Any, y: Any, seen: Seen) -> None:
        if len(attended) != 1:
            raise BadConfig(f"layer {number} attends {len(attended)} times; one attention in each layer is followed.")
        attention = names[attended.pop()]
        joined.append(not last or bool((last[0] == x.cpu()).all()))
        splits.append(_split(x, y, seen, {key: _along(names[key[0]], attention) for key in seen}))
        last[:] = [y.cpu().clone()]  # layers may lie on several devices

    instrument.observers.append(note)
    try:
        with watching(blocks, [part for block in blocks for part in block.modules() if part is not block], ends):
            norms = _norms_after(instrument.model, blocks, lambda: last[0] if len(splits) == len(blocks) else None)
            with norms as final:
                forward(instrument.model, [ids[:FEW]])
    finally:
        instrument.observers.remove(note)
    if len(splits) != len(blocks):
        raise BadConfig(f"{len(splits)} layers ran for {len(blocks)} attentions; one for each was expected.")
    listed = {each for block in blocks for each in instrument.model.get_submodule(names[block].rpartition(".")[0])}
    return Residual(
        tuple(blocks), tuple(splits), tuple(joined), final[0] if final else None, len(listed - set(blocks))
    )


def forward(model: Any, sequences: Sequence[Ids]) -> None:
    """Run sequences of one length, for what hooks see on the way, until one of them has seen enough."""
    import torch

    with torch.no_grad(), suppress(Enough):
        model(input_ids=torch.from_numpy(np.stack(sequences)).to(home(model)))


@contextmanager
def watching(blocks: Sequence[Any], modules: Iterable[Any], ends: Ends) -> Iterator[Callable[[], None]]:
    """Show each layer when it has run: its number in the pass, its input, its output, and what modules saw inside.

    What is given back is to be called before each pass: it counts layers from 0 again.
    """
    ran, inside = 0, False
    x_BND: Any = None
    seen: dict[Key, tuple[Any | None, Any | None]] = {}
    calls: dict[Any, int] = {}

    def begin() -> None:
        nonlocal ran, inside
        ran, inside = 0, False

    def block_begins(block: Any, args: Any, kwargs: Any) -> None:
        nonlocal x_BND, inside
        x_BND = next((each for each in _tensors((args, kwargs)) if each.ndim == 3 and each.is_floating_point()), None)
        if x_BND is None:
            raise BadConfig(f"layer {ran} is not given a residual stream (sequences, tokens, width).")
        x_BND, inside = x_BND.detach().clone(), True  # some models add in place
        seen.clear()
        calls.clear()

    def module_ends(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not inside:
            return
        turn = calls.get(module, 0)
        calls[module] = turn + 1
        given, gives = (_like(part, x_BND) for part in ((args, kwargs), output))
        if given is not None or gives is not None:
            seen[module, turn] = given, gives

    def block_ends(block: Any, args: Any, output: Any) -> None:
        nonlocal ran, inside
        y_BND = _like(output, x_BND)
        if y_BND is None:
            raise BadConfig(f"layer {ran} does not hand on what has the shape of its input.")
        number, ran, inside = ran, ran + 1, False
        ends(number, x_BND, y_BND, seen)

    with ExitStack() as stack:
        for module in dict.fromkeys(modules):
            stack.callback(module.register_forward_hook(module_ends, with_kwargs=True).remove)
        for block in dict.fromkeys(blocks):
            stack.callback(block.register_forward_pre_hook(block_begins, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(block_ends).remove)
        yield begin


@contextmanager
def after_norm(norm: Any | None, see: Callable[[Any], None]) -> Iterator[None]:
    """Show what the final norm gives, where there is one."""
    with ExitStack() as stack:
        if norm is not None:
            stack.callback(norm.register_forward_hook(lambda module, args, output: see(output)).remove)
        yield


# -------------------------------------------------------------------- inside
def _block(instrument: Instrument, site: Site) -> Any:
    """The layer of an attention: the outermost member of a list of modules that holds no other attention."""
    import torch

    model = instrument.model
    attentions = {each.module for each in instrument.sites}
    parts = site.name.split(".")
    for end in range(1, len(parts)):
        parent, module = (model.get_submodule(".".join(parts[:stop])) for stop in (end - 1, end))
        if isinstance(parent, torch.nn.ModuleList) and sum(each in attentions for each in module.modules()) == 1:
            return module
    raise BadConfig(f"the attention {site.name} of {type(model).__name__} does not lie in a list of layers.")


@contextmanager
def _norms_after(model: Any, blocks: Sequence[Any], last: Callable[[], Any | None]) -> Iterator[list[Any]]:
    """The module that norms the output of the last layer; `last` gives that once it is there."""
    inside = {part for block in blocks for part in block.modules()}
    found: list[Any] = []

    def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        y_BND = last()
        if y_BND is None or found:
            return
        given, gives = (_like(part, y_BND) for part in ((args, kwargs), output))
        if given is not None and gives is not None and bool((given.cpu() == y_BND).all()):
            found.append(module)

    with ExitStack() as stack:
        for module in model.modules():
            if module not in inside and "norm" in type(module).__name__.lower():
                stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        yield found


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in the arguments or the output of a module, one after the other."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _like(value: Any, x_BND: Any) -> Any | None:
    """A copy of the first tensor of the stream's shape, if any; some models lay sequences one after the other."""
    for each in _tensors(value):
        if each.is_floating_point() and each.numel() == x_BND.numel() and each.shape[-1:] == x_BND.shape[-1:]:
            return each.detach().reshape(x_BND.shape).clone()
    return None


def _along(name: str, attention: str) -> bool:
    """Whether a module is the attention, holds it, or is a part of it."""
    return f"{name}.".startswith(f"{attention}.") or f"{attention}.".startswith(f"{name}.")


def _split(x: Any, y: Any, seen: Seen, along: Mapping[Key, bool]) -> LayerSplit | None:
    """How a layer adds up, or None if it cannot be told."""
    import torch

    numbers = {key: tuple(None if part is None else _flat(part) for part in parts) for key, parts in seen.items()}
    given = {key: parts[0] for key, parts in numbers.items() if parts[0] is not None}
    gives = {key: parts[1] for key, parts in numbers.items() if parts[1] is not None}
    start, end = _flat(x), _flat(y)
    sums = _Sums(float(torch.finfo(x.dtype).eps))
    attention: dict[Key, Array] = {}
    for key, out in gives.items():  # a norm or dropout of what attention gives is attention's too
        if along[key] or (key in given and any(np.array_equal(given[key], each) for each in attention.values())):
            attention[key] = out
    found = sums.of_two(end, start, attention, gives)
    if found is not None:
        (a, c), (m, d) = found
        middle = start + c * gives[a]
        reader = next((key for key, each in given.items() if key != m and sums.equal(each, middle, start)), None)
        return LayerSplit("parallel" if reader is None else "sequential", a, c, m, d, reader)
    leaves = [key for key in given if key in gives and not list(key[0].children())]
    for second in (key for key in leaves if np.array_equal(gives[key], end)):
        for first in (key for key in leaves if key != second):
            before = sums.of_one(given[first], start, attention)
            after = None if before is None else sums.of_one(given[second], gives[first], gives)
            if before is not None and after is not None:
                return LayerSplit("post-norm", *before, *after, norms=(first, second))
    return None


def _flat(tensor: Any) -> Array:
    """(tokens, width) in float64."""
    return np.asarray(tensor.flatten(0, -2).cpu().double().numpy())


@dataclass(frozen=True)
class _Sums:
    """Which parts make a sum, up to rounding to `eps`."""

    eps: float

    def equal(self, left: Array, right: Array, *terms: Array) -> bool:
        """Whether two states are one, token by token, as far as the rounding of these terms lets one tell."""
        size = np.max([np.linalg.norm(each, axis=1) for each in (left, right, *terms)], axis=0)
        return bool((np.linalg.norm(left - right, axis=1) <= ROUNDINGS * self.eps * size).all())

    def explains(self, end: Array, start: Array, *added: Array) -> bool:
        """Whether start and what is added make the end, and not only because all of it is small."""
        total = start + np.sum(added, axis=0)
        if not self.equal(end, total, start, *added):
            return False
        change, rest = (np.linalg.norm(each, axis=1) for each in (end - start, end - total))
        return bool(np.median(rest) <= LEFT_OVER * np.median(change))

    def of_one(self, end: Array, start: Array, parts: Mapping[Key, Array]) -> tuple[Key, float] | None:
        """end = start + c part."""
        for key, part in parts.items():
            square = float((part * part).sum())
            fitted = float(((end - start) * part).sum()) / square if square else 1.0
            for factor in (1.0, fitted):
                if factor > 0 and self.explains(end, start, factor * part):
                    return key, factor
        return None

    def of_two(
        self, end: Array, start: Array, first: Mapping[Key, Array], second: Mapping[Key, Array]
    ) -> tuple[tuple[Key, float], tuple[Key, float]] | None:
        """end = start + c a + d m, with c = d = 1 where that will do."""
        keys = list(second)
        stacked = np.stack([second[key].ravel() for key in keys])
        gram, change = stacked @ stacked.T, (end - start).ravel()
        along, total = stacked @ change, float(change @ change)
        for fit in (False, True):
            for i, a in ((keys.index(key), key) for key in first):
                for j, m in enumerate(keys):
                    factors = _factors(gram, along, i, j) if fit else (1.0, 1.0)
                    if i == j or factors is None:
                        continue
                    c, d = factors
                    square = c * c * gram[i, i] + 2 * c * d * gram[i, j] + d * d * gram[j, j]
                    rest = total - 2 * (c * along[i] + d * along[j]) + square
                    near = rest <= 1e-3 * max(total, square)  # cheap, and right to half of the digits
                    if near and self.explains(end, start, c * first[a], d * second[m]):
                        return (a, c), (m, d)
        return None


def _factors(gram: Array, along: Array, i: int, j: int) -> tuple[float, float] | None:
    """The two positive numbers by which a pair of parts fits a sum best, if there are such."""
    determinant = gram[i, i] * gram[j, j] - gram[i, j] ** 2
    if determinant <= 1e-10 * gram[i, i] * gram[j, j]:
        return None
    c = (gram[j, j] * along[i] - gram[i, j] * along[j]) / determinant
    d = (gram[i, i] * along[j] - gram[i, j] * along[i]) / determinant
    return (float(c), float(d)) if c > 0 and d > 0 else None
