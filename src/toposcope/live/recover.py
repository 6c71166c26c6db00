"""Recover what position does in a model that runs, layer by layer, without asking its configuration.

One pass holds every content at every position: each sequence is one token with a position id of its own, so attention
has one key and no content can depend on position; and each attention is given random content of ours. Models that
take no position ids are given sequences that repeat one token; so are those with layers that pad each text to a
chunk, with the position ids in question. A second, short pass shows scale and bias of the
logits, and what position adds to the input.
Shapes: T contents, P positions, H heads, R head width, F channel pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.encodings.record import Array
from toposcope.live import fit
from toposcope.live.content import given_content
from toposcope.live.inputs import AddedInput
from toposcope.live.logits import SeenLogits, logits_and_input
from toposcope.live.running import Running
from toposcope.live.watch import WatchedAttention

CONTENTS = 10
IN_SEQUENCE = 64  # positions, where they cannot be given
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
Mode = Literal["positions", "constant"]


@dataclass(frozen=True, eq=False)
class RecoveredSide:
    """The queries or the keys of one attention at all positions, and what they say. `rounding` is of their precision.

    `gain_R` is by what each channel at the first position is larger than the map that gave it (NaN: none was found);
    `row_R` its place among the head's stored rows (-1: not known).
    """

    vectors_TPHR: NDArray[Any]
    positions_P: Array
    rounding: float
    gain_R: Array
    row_R: NDArray[np.intp]
    floor: float | None = None

    @property
    def finite(self) -> bool:
        """Whether all are numbers."""
        return bool(np.isfinite(self.vectors_TPHR).all())

    @cached_property
    def partners(self) -> fit.Partners:
        """Which channels turn together, which stay still, which move otherwise."""
        return fit.partners(self.vectors_TPHR, self.rounding, floor=self.floor)

    @cached_property
    def turning(self) -> fit.Turning:
        """What the pairs that were found do."""
        return fit.turning(self.vectors_TPHR, self.partners.pairs_F2)

    @cached_property
    def _frequencies(self) -> tuple[Array, Array]:
        return fit.frequencies(self.turning, self.positions_P, self.rounding)

    @property
    def pairs_F2(self) -> fit.Pairs:
        """The pairs, in channels as they are while the model runs; the first is the lower one."""
        return self.partners.pairs_F2

    @property
    def frequency_F(self) -> Array:
        """Radians per token of every pair; negative where it turns from its second channel to its first."""
        return self._frequencies[0]

    @property
    def error_F(self) -> Array:
        """The error bar of each frequency."""
        return self._frequencies[1]

    @property
    def remainder(self) -> float:
        """How much of the pairs' movement is no turning, relative to their size, at most."""
        return float(self.turning.remainder_PF.max(initial=0.0))

    @property
    def drift(self) -> float:
        """How much a pair's length changes with position, at most."""
        return float(np.abs(self.turning.length_PF - 1).max(initial=0.0))

    @cached_property
    def moves(self) -> float:
        """How far any channel moves at most, relative to its size."""
        return float(fit.movement(self.vectors_TPHR).max(initial=0.0))

    @property
    def still(self) -> bool:
        """Whether nothing moves beyond rounding."""
        return self.finite and self.moves <= (6 * self.rounding if self.floor is None else self.floor)


@dataclass(frozen=True, eq=False)
class RecoveredLayer:
    """One attention as it ran: its queries and keys, and the logits between them.

    `query` or `key` is None where they do not belong to the contents and positions that were given (cross-attention).
    `logits` is None where they were not looked at.
    """

    module: str
    dtype: str
    query: RecoveredSide | None
    key: RecoveredSide | None
    logits: SeenLogits | None = None

    @property
    def sides(self) -> tuple[tuple[Literal["queries", "keys"], RecoveredSide | None], ...]:
        return (("queries", self.query), ("keys", self.key))


@dataclass(frozen=True, eq=False)
class Recovery:
    """What position does in a running model. `ignored` says that position ids that were given changed nothing,
    though its tokens turn by their order."""

    layers: tuple[RecoveredLayer, ...]
    positions_P: Array
    mode: Mode
    dtype: str
    inputs: tuple[AddedInput, ...] = ()
    ignored: bool = False

    @property
    def context(self) -> int:
        """The length of the text that the model took it for."""
        return int(self.positions_P.max()) + 1


def spread_positions(top: int) -> Array:
    """Positions below `top`: near ones, powers of two, and numbers between that half precision cannot hold."""
    if top < 2:
        raise BadValue(f"positions below {top} leave nothing to compare; give a top of at least 2.")
    chosen = {0, 1, 2, 3, 5, 7, top - 1}
    power = 4
    while power < top:
        chosen |= {power, power + 1, power + power // 2 - 1}
        power *= 2
    return np.array(sorted(each for each in chosen if each < top), dtype=np.float64)


def recover(
    running: Running,
    *,
    top: int | None = None,
    positions: ArrayLike | None = None,
    contents: int = CONTENTS,
    logits: bool = True,
    mode: Mode | None = None,
    seed: int = 0,
) -> Recovery:
    """Measure what position does in each attention of a running model.

    Positions are spread up to `top` (by default the context that its configuration names), or those given, beginning
    with the one that the others are compared with. `mode` forces sequences that repeat one token ("constant").
    Without `logits`, scale, bias and input are left out.
    """
    told: Mode = mode or ("positions" if running.takes_positions else "constant")
    top = running.context if top is None else top
    if told == "positions":
        at_P = spread_positions(top) if positions is None else np.asarray(positions, dtype=np.float64)
        top = int(at_P.max()) + 1
    else:
        at_P = np.arange(min(IN_SEQUENCE, top), dtype=np.float64)
    attending = running.attending(top)
    met = _run(running, attending, at_P, contents, told, seed)
    dtype = _name(running.dtype)
    layers = tuple(_layer(each, contents, at_P, told, dtype) for each in met)
    if not logits:
        return Recovery(layers, at_P, told, dtype)
    seen, inputs = logits_and_input(running, attending, seed=seed)
    same = len(seen) == len(layers)
    layers = tuple(replace(layer, logits=seen[i] if same else None) for i, layer in enumerate(layers))
    ignored = told == "positions" and same and _nothing_moves(layers) and any(each.turns for each in seen)
    return Recovery(layers, at_P, told, dtype, inputs, ignored)


def _run(
    running: Running, attending: frozenset[str], at_P: Array, contents: int, mode: Mode, seed: int
) -> Sequence[WatchedAttention]:

    tokens_T = running.tokens(contents, seed)
    many = len(at_P)
    apart = mode == "positions" and not running.convolves
    position_ids = np.tile(at_P.astype(np.int64), (contents, 1)) if mode == "positions" else None
    ids, numbers = tokens_T[:, None].repeat(1, many), np.arange(contents)
    if apart:
        ids, numbers = ids.reshape(-1, 1), np.repeat(numbers, many)
        position_ids = None if position_ids is None else position_ids.reshape(-1, 1)

    def first_position(out: Any) -> Any | None:
        rows = len(numbers)
        if not apart:
            if out.dim() < 3 or sorted(out.shape[:2]) != sorted((rows, many)):
                return None
            return (out[:, 0] if out.shape[0] == rows else out[0]).clone()
        if out.shape[0] % rows:
            return None
        return out.reshape(rows, -1)[::many].clone()

    with running.failing_as_told(), given_content(running.model, attending, numbers):
        return running.attentions(ids, position_ids, maps=first_position)


def _layer(seen: WatchedAttention, contents: int, at_P: Array, mode: Mode, model_dtype: str) -> RecoveredLayer:
    dtype = _precision(seen.query_BHNR, model_dtype)
    rounding = ROUNDING.get(dtype, ROUNDING["float32"])
    outputs = [_array(out).reshape(contents, -1) for _, out in seen.maps]
    query, key = (_side(each, outputs, contents, at_P, mode, rounding) for each in (seen.query_BHNR, seen.key_BGMR))
    return RecoveredLayer(seen.module, dtype, query, key)


def _side(
    vectors: Any, outputs: list[Array], contents: int, at_P: Array, mode: Mode, rounding: float
) -> RecoveredSide | None:
    many = len(at_P)
    tokens = vectors.shape[-2]  # one, or all positions
    rows = contents * many // tokens
    if tokens not in (1, many) or vectors.shape[0] % rows:
        return None
    by_head = vectors.reshape(rows, -1, *vectors.shape[-2:])
    x_TPHR = by_head.reshape(contents, many, *by_head.shape[1:2], -1) if tokens == 1 else by_head.transpose(1, 2)
    x_TPHR = x_TPHR.cpu().to(_wide(vectors.dtype)).numpy()
    found = fit.sources(x_TPHR[:, 0, 0].astype(np.float64), outputs, rounding)
    floor = None if mode == "positions" else 400 * rounding
    return RecoveredSide(x_TPHR, at_P, rounding, found.gain_R, found.row_R, floor)


def _nothing_moves(layers: Sequence[RecoveredLayer]) -> bool:
    return all(side.still for layer in layers for _, side in layer.sides if side is not None)


def _precision(vectors: Any, model_dtype: str) -> str:
    """The precision of the vectors: the model's own where they were only cast to a wider one (GPT-J)."""
    import torch

    own = getattr(torch, model_dtype, vectors.dtype)
    if own.is_floating_point and own.itemsize < vectors.dtype.itemsize:
        widened = torch.equal(torch.nan_to_num(vectors.to(own).to(vectors.dtype)), torch.nan_to_num(vectors))
        return model_dtype if widened else _name(vectors.dtype)
    return _name(vectors.dtype)


def _wide(dtype: Any) -> Any:
    import torch

    return torch.float64 if dtype == torch.float64 else torch.float32


def _array(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().cpu().to(torch.float64).numpy()
    return array


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
