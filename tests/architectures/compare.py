"""Our attention of every layer beside the running model's: on what really entered the layer, by our own numpy code.

Layers are paired with calls by the values of their weights, not by their names: the tensor that we read as queries is
looked up among the model's parameters, and the next call of attention after this map was used is the layer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.architectures.record import Attended, Passed, Record
from tests.architectures.shrink import HEAD
from toposcope.checkpoints import Layer, Model
from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.spec import LayerSpec
from toposcope.encodings.record import NONE, InputTable
from toposcope.encodings.rotary_plane import AXES, patches

ATTENTION, OUTPUT = 1e-4, 1e-3  # the largest differences allowed; that of the output is relative to its largest entry


class Unpaired(Exception):
    """A layer of ours has no counterpart in what was recorded."""


@dataclass(frozen=True)
class Difference:
    """What one layer of ours differs by; `place` says where its input was taken: of the layer, its norm, or a map."""

    layer: int
    attention: float
    output: float | None
    place: str
    at: int  # when the model's own call was
    peaked: bool  # whether attention was far from uniform, so that agreement says something
    stream: float | None = None  # how near the stream after attention comes to what a later norm or map of theirs saw

    @property
    def agrees(self) -> bool:
        return self.attention <= ATTENTION and (self.output is None or self.output <= OUTPUT)


# MiniMax adds attention's output to what its norm gave, not to what entered it: the stream is normed already.
NORMED_STREAM = frozenset({"minimax"})


def differences(ours: Model, theirs: nn.Module, noted: Record, batch: int) -> tuple[list[Difference], dict[int, str]]:
    """For each layer of ours that was run its difference, and for the others the reason why there is none."""
    pairing = _Pairing(ours, theirs, noted)
    found: list[Difference] = []
    missing: dict[int, str] = {}
    for layer in ours.layers:
        try:
            found.append(_difference(layer, pairing, batch))
        except Unpaired as reason:
            missing[layer.number] = str(reason)
    return found, missing


def at_input(ours: Model, noted: Record, batch: int) -> tuple[float | None, str | None]:
    """What the named tables of positions differ by (None: nothing to compare with), and a module that has no name.

    A module places tokens if what it gives is the same for all texts and differs along them.
    """
    placing = {name: table for name, y in noted.placed.items() if (table := _placing(y, batch)) is not None}
    tables = list({id(each): each for layer in ours.layers if (each := layer.encoding.input) is not None}.values())
    width = max(layer.spec.width for layer in ours.layers)
    near = {
        name: min((_apart(table, theirs) for table in tables if table.width == theirs.shape[1]), default=np.inf)
        for name, theirs in placing.items()
    }
    unnamed = [name for name, off in near.items() if off > ATTENTION and placing[name].shape[1] == width]
    met = [table for table in tables if any(_meets(table, theirs) for theirs in placing.values())]
    if unnamed and len(met) < len(tables):  # a table of ours and a module of theirs, and neither has a counterpart
        return float(near[unnamed[0]]), None
    return None, unnamed[0] if unnamed else None


def _meets(table: InputTable, theirs: np.ndarray) -> bool:
    return table.width == theirs.shape[1] and _apart(table, theirs) <= ATTENTION


def _placing(y: Tensor, batch: int) -> np.ndarray | None:
    if not y.is_floating_point() or y.ndim not in (2, 3):
        return None
    texts = _array(y.reshape(-1, *y.shape[-2:]))
    if len(texts) not in (1, batch) or not np.array_equal(texts[0], texts[-1]):
        return None
    return texts[0] if np.abs(texts[0] - texts[0][:1]).max() > 1e-6 else None


def _apart(table: InputTable, theirs: np.ndarray) -> float:
    length = len(theirs) if table.length is None else min(len(theirs), table.length)
    return float(np.abs(table.vectors(np.arange(length)) - theirs[:length]).max())


class _Pairing:
    """Finds what the running model did with the tensors of a layer of ours."""

    def __init__(self, ours: Model, theirs: nn.Module, noted: Record) -> None:
        self.ours, self.noted = ours, noted
        self.config = theirs.config
        self._stream_is_normed = theirs.config.model_type in NORMED_STREAM
        self._values = {name: _flat(values) for name, values in theirs.state_dict().items()}
        self._used: dict[str, int] = {}

    def module(self, tensor: str) -> str:
        """The module whose parameter holds the values of one of our tensors."""
        if tensor not in self.ours.source.names():
            raise Unpaired(f"no tensor {tensor}")
        ours = _flat(torch.from_numpy(np.asarray(self.ours.source.read(tensor), dtype=np.float32)))
        for alike in (lambda each: each.size == ours.size, lambda each: min(each.size, ours.size) >= HEAD):
            for name, theirs in self._values.items():  # the same; or one is the other's first rows (fused, or not)
                common = min(theirs.size, ours.size)
                if alike(theirs) and np.array_equal(theirs[:common], ours[:common]):
                    return name.rpartition(".")[0]
        raise Unpaired(f"the running model has no parameter with the values of {tensor}")

    def call(self, layer: LayerSpec) -> tuple[Passed | None, Attended]:
        """When the layer's queries were made, and the call of attention that used them."""
        parts = (layer.qkv, layer.q_latent and layer.q_latent.down, layer.q)
        name = self.module(next(part.weight for part in parts if part is not None))
        turn = self._used[name] = self._used.get(name, -1) + 1
        calls = self.noted.passed.get(name, [])
        if not calls:  # the weight is used without a module of its own
            inside = [each for each in self.noted.attended if _within(name, each.module)]
            if turn >= len(inside):
                raise Unpaired(f"{name} was not run")
            return None, inside[turn]
        if turn >= len(calls):
            raise Unpaired(f"{name} was run {len(calls)} times")
        later = [each for each in self.noted.attended if each.at > calls[turn].at]
        if not later:
            raise Unpaired(f"no attention after {name}")
        return calls[turn], later[0]

    def entered(self, layer: LayerSpec, query: Passed | None, call: Attended) -> list[tuple[str, Tensor]]:
        """What entered the layer, and, where that is something else, its norm or its map for queries."""
        found = []
        before = query.at if query is not None else call.at
        parts = call.module.split(".")
        for end in range(len(parts), 0, -1):
            name = ".".join(parts[:end])
            earlier = [x for at, x in self.noted.entered.get(name, []) if at < before]
            if parts[end - 1].isdigit() and earlier:
                found.append(("layer", earlier[-1]))
                break
        if layer.input_norm is not None and layer.input_norm.weight is not None:
            norms = self.noted.passed.get(self.module(layer.input_norm.weight), [])
            found += [("norm", each.given) for each in norms if each.at < before][-1:]
        elif layer.input_norm is None and query is not None and not self._is_normed(query.given):
            found.append(("map", query.given))
        return found

    def source(self, layer: LayerSpec, call: Attended) -> Tensor:
        """What keys and values of a layer of cross-attention read."""
        parts = (layer.kv_latent and layer.kv_latent.down, layer.k)
        name = self.module(next(part.weight for part in parts if part is not None))
        earlier = [each for each in self.noted.passed.get(name, []) if each.at < call.at]
        if not earlier:
            raise Unpaired(f"{name} was not run")
        return earlier[-1].given

    def output(self, layer: LayerSpec, call: Attended) -> Tensor | None:
        """What the output projection gave after the call."""
        later = [each for each in self.noted.passed.get(self.module(layer.o.weight), []) if each.at > call.at]
        return later[0].gave if later else None

    def nearest(self, stream_BND: np.ndarray, call: Attended) -> float | None:
        """The least difference from what a norm or map read or gave after the call, relative to the largest entry."""
        later = (each for calls in self.noted.passed.values() for each in calls if each.at > call.at)
        seen = (_array(side) for each in later for side in (each.given, each.gave) if side.ndim in (2, 3))
        alike = (each.reshape(stream_BND.shape) for each in seen if each.size == stream_BND.size)
        size = max(1.0, float(np.abs(stream_BND).max()))
        return min((float(np.abs(each - stream_BND).max()) / size for each in alike), default=None)

    def _is_normed(self, x: Tensor) -> bool:
        """Whether a norm gave this just so, and no layer of ours has it after its addition: then one is missed."""
        if self._stream_is_normed:
            return False
        after = {layer.residual_norm.weight for layer in self.ours.spec.layers if layer.residual_norm is not None}
        known = {self.module(name) for name in after if name is not None}
        return any(
            each.gave.shape == x.shape and torch.equal(each.gave, x)
            for name, calls in self.noted.passed.items()
            if "norm" in name.lower() and name not in known
            for each in calls
            if not self._after_addition(each)
        )

    def _after_addition(self, norm: Passed) -> bool:
        """Whether what entered a norm is what a map read, plus what a map gave: the stream is what the norm gives."""
        before = [
            each
            for name, calls in self.noted.passed.items()
            if "norm" not in name.lower()
            for each in calls
            if each.at < norm.at and norm.given.shape in (each.given.shape, each.gave.shape)
        ]
        given = [each.given for each in before if each.given.shape == norm.given.shape]
        return any(
            torch.allclose(norm.given - each.gave, read, atol=1e-4)
            for each in sorted(before, key=lambda one: -one.at)[:8]
            if each.gave.shape == norm.given.shape
            for read in given
        )


def _difference(layer: Layer, pairing: _Pairing, batch: int) -> Difference:
    spec = layer.spec
    if not layer.encoding.exact_tables and layer.encoding.rotary is None:  # position is declared to be elsewhere
        spec = replace(spec, encoding=NONE)
        layer = SimpleNamespace(number=layer.number, spec=spec, weights=layer.weights, encoding=NONE)  # type: ignore[assignment]
    query, call = pairing.call(spec)
    theirs_BHNM = _by_head(call.probabilities, batch, spec.heads)
    length = theirs_BHNM.shape[2]
    out = pairing.output(spec, call)
    theirs_out = None if out is None else _by_token(out, batch, length, None)
    plain = SimpleNamespace(  # up to the output projection: what follows it is not recorded
        number=layer.number, spec=spec, weights=replace(layer.weights, output_norm=None, output_gain=None)
    )
    tried: list[Difference] = []
    for place, entered in pairing.entered(spec, query, call):
        try:
            x_BND = _by_token(entered, batch, length, spec.width)
        except Unpaired:
            continue
        worst, off = 0.0, None if theirs_out is None else 0.0
        after_BND = np.empty_like(x_BND)
        for text in range(batch):
            source = _source(layer, pairing, call, text, batch)
            ours_HNM = attention(layer, x_BND[text], source, positions=_in_plane(layer, pairing, length))
            theirs_HNM = theirs_BHNM[text]
            if ours_HNM.shape != theirs_HNM.shape:
                raise Unpaired(f"probabilities of shape {theirs_HNM.shape}, ours {ours_HNM.shape}")
            worst = max(worst, float(np.abs(ours_HNM - theirs_HNM).max()))
            values = project(layer, x_BND[text], source)[2]
            after_BND[text] = _added_to(layer, x_BND[text], ours_HNM, values)
            if theirs_out is not None:
                ours_ND = output(plain, ours_HNM, values, x_BND[text])
                if ours_ND.shape != theirs_out[text].shape:
                    raise Unpaired(f"outputs of shape {theirs_out[text].shape}, ours {ours_ND.shape}")
                size = max(1.0, float(np.abs(theirs_out[text]).max()))
                off = max(off or 0.0, float(np.abs(ours_ND - theirs_out[text]).max()) / size)
        near = pairing.nearest(after_BND, call)
        tried.append(
            Difference(layer.number, _number(worst), _number(off), place, call.at, _peaked(theirs_BHNM), near)
        )
        if tried[-1].agrees:
            return tried[-1]
    if not tried:
        raise Unpaired("what enters the layer was not found")
    return tried[0]


def _added_to(layer: Layer, x_ND: np.ndarray, probabilities: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The stream after attention: its input and all that was added, normed where a norm follows the addition."""
    after_ND = x_ND + output(layer, probabilities, values, x_ND)
    norm = layer.weights.residual_norm
    return after_ND if norm is None else norm(after_ND)


def _in_plane(layer: Layer, pairing: _Pairing, length: int) -> np.ndarray | None:
    """Where tokens stand that are patches of an image; None where their number is their position."""
    rotary = layer.encoding.rotary
    if rotary is None or rotary.axes != AXES:
        return None
    side = pairing.config.image_size // pairing.config.patch_size
    return patches(layer.encoding, side, side, length - side * side)


def _source(layer: Layer, pairing: _Pairing, call: Attended, text: int, batch: int) -> np.ndarray | None:
    spec = layer.spec
    if spec.kind != "cross":
        return None
    given = pairing.source(spec, call)
    if given.ndim == 3 and given.shape[0] != batch == given.shape[1]:  # tokens first, then texts
        given = given.transpose(0, 1)
    return _array(given.reshape(batch, -1, given.shape[-1]))[text]


def _by_head(probabilities: Tensor, batch: int, heads: int) -> np.ndarray:
    """Probabilities as (B, H, N, M)."""
    if probabilities.ndim == 3 and probabilities.shape[0] == batch * heads:
        probabilities = probabilities.reshape(batch, heads, *probabilities.shape[1:])
    if probabilities.ndim == 5 and probabilities.shape[1] * probabilities.shape[2] == heads:  # by group
        probabilities = probabilities.flatten(1, 2)
    if probabilities.ndim == 4 and probabilities.shape[0] == 1 < batch and probabilities.shape[2] % batch == 0:
        each = probabilities.shape[2] // batch  # images side by side in one sequence, blind to each other
        blocks = probabilities.reshape(heads, batch, each, batch, each)
        own = torch.stack([blocks[:, image, :, image] for image in range(batch)])
        if bool((own.sum(-1) - 1).abs().max() < 1e-4):
            probabilities = own
    if probabilities.ndim != 4 or probabilities.shape[:2] != (batch, heads):
        raise Unpaired(f"probabilities of shape {tuple(probabilities.shape)} for {heads} heads")
    return _array(probabilities)


def _by_token(x: Tensor, batch: int, length: int, width: int | None) -> np.ndarray:
    """Vectors as (B, N, D)."""
    width = x.shape[-1] if width is None else width
    if x.shape[-1] != width or x.numel() != batch * length * width:
        raise Unpaired(f"vectors of shape {tuple(x.shape)} for {length} tokens of width {width}")
    if x.ndim == 3 and x.shape[0] == length and x.shape[1] == batch != length:
        x = x.transpose(0, 1)
    return _array(x.reshape(batch, length, width))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).cpu().numpy()


def _flat(values: Tensor) -> np.ndarray:
    return values.detach().to(torch.float32).cpu().numpy().reshape(-1)


def _within(name: str, module: str) -> bool:
    return bool(module) and (name == module or name.startswith(f"{module}.") or module.startswith(f"{name}."))


def _peaked(theirs: np.ndarray) -> bool:
    """Some row puts at least twice the uniform weight on one key."""
    return bool((theirs.max(axis=-1) * (theirs > 0).sum(axis=-1)).max() > 2)


def _number(value: Any) -> Any:
    return float("inf") if value is not None and not np.isfinite(value) else value
