"""One record for every positional encoding: the tables p, w, g and b of the one logit formula.

    l_ij = s(i) Re sum_f q_i^f conj(k_j^f) e^{(i w_f - g_f)(i-j)} + b(i, j),   q_i = Q(x_i + p_i),  k_j = K(x_j + p_j)

* `InputTable` holds p, the vectors added to the input (sinusoidal, learned, random);
* `Rotary` holds w and g, angle and decay of every channel pair (RoPE and its scalings, xPos, MLA's rotary part);
* `LogitBias` holds b, what is added to the logits (T5 buckets, ALiBi, Kerple, FIRE);
* `QueryScale` holds s, what multiplies a query by its own position (Llama 4, Ministral 3).

Positions are integers or floats of any size; the tables are functions of them, so no length is built in.
Shape suffixes: N query positions, M key positions, F channel pairs, H heads, R head width, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.memory import require_memory

Array = NDArray[np.float64]
Pairing = Literal["half", "interleaved"]
MOST_DIGITS = 12  # of a whole number that is written out in a title
KEPT_TABLES, KEPT_POSITIONS = 4, 1024  # cosines and sines that a rotation keeps, and of how many positions at most


@dataclass(frozen=True, eq=False)
class InputTable:
    """The vectors p added to the input; `length` is None where any position has one."""

    width: int
    vectors_at: Callable[[Array], Array]
    length: int | None = None

    def vectors(self, positions: ArrayLike) -> Array:
        """p_ND for the given positions."""
        at_N = np.atleast_1d(np.asarray(positions, dtype=np.float64))
        if self.length is not None and at_N.size and (at_N.min() < 0 or at_N.max() >= self.length):
            raise BadValue(
                f"position {int(at_N.max() if at_N.max() >= self.length else at_N.min())} has no vector: "
                f"the table holds positions 0 to {self.length - 1}. Use a shorter context."
            )
        require_memory(32 * at_N.size * self.width, f"{at_N.size:,} position vectors", "Use a shorter context.")
        return _shaped(self.vectors_at(at_N), (at_N.size, self.width), "position vectors")


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of every channel pair of a head's query and key.

    `pairs_F2` lists the channels (first, second) of each pair inside the head; channels that appear in no pair are
    left alone. The pair (a, b) at position i becomes (a cos - b sin, a sin + b cos) * attention_factor, with
    angle w_f * i. `decay_F` (xPos) further multiplies queries by e^{-g i} and keys by e^{+g j}.
    `frequencies_at(context)` gives w_F; some scalings choose it by the length of the text.
    `turning_heads` limits the rotation to the first so many heads of a layer (None: all heads turn).
    Positions may have several axes (time, height and width in Qwen2-VL; row and column in an image): `axis_F` says by
    which of `axes` a pair turns. A position given as one number stands on all axes at once, as words do in Qwen2-VL.
    """

    head_dim: int
    pairs_F2: NDArray[np.intp]
    frequencies_at: Callable[[int | None], Array]
    pairing: Pairing
    attention_factor: float = 1.0
    decay_F: Array | None = None
    turning_heads: int | None = None
    axis_F: NDArray[np.intp] | None = None  # None: positions have one axis
    axes: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        """How many channels of the head rotate."""
        return 2 * len(self.pairs_F2)

    def frequencies(self, context: int | None = None) -> Array:
        """w_F, in radians per token, as used for a text of `context` tokens (None: the trained length)."""
        return self.frequencies_at(context)

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on the length of the text."""
        return not np.array_equal(self.frequencies(1), self.frequencies(2**40))

    def rotate(
        self, vectors_NR: Array, positions: ArrayLike, *, side: Literal["query", "key"], context: int | None = None
    ) -> Array:
        """Turn the rows of `vectors_NR` (…, N, R) to their positions; rows are never mixed with one another.

        Where only some heads turn, an array with a heads axis (…, H, N, R) keeps the others as they are; an array
        without one is taken to belong to a head that turns. With axes, positions are (N,) or (N, A).
        """
        vectors_NR = np.asarray(vectors_NR, dtype=np.float64)
        if vectors_NR.shape[-1] != self.head_dim:
            raise BadValue(f"vectors of width {vectors_NR.shape[-1]} given to a rotation of width {self.head_dim}.")
        at_N = np.atleast_1d(np.asarray(positions, dtype=np.float64))
        each = (
            16 if all(isinstance(some, slice) for some in self._channels) else 24
        )  # of an entry, until it is turned
        taken = each * vectors_NR.size + 8 * at_N.size * self.head_dim  # and the cosines and sines
        require_memory(taken, f"rotating {at_N.size:,} vectors of width {self.head_dim:,}", "Use fewer positions.")
        if at_N.ndim == 2 and (self.axis_F is None or self.decay_F is not None or at_N.shape[1] != len(self.axes)):
            raise BadValue(f"positions with {at_N.shape[1]} axes given to a rotation with {len(self.axes) or 1}.")
        cos_NF, sin_NF = self._kept_turns(at_N, side, context)
        first, second = self._channels
        a, b = vectors_NR[..., first], vectors_NR[..., second]
        turned_NR = vectors_NR.copy()
        turned_NR[..., first] = a * cos_NF - b * sin_NF
        turned_NR[..., second] = a * sin_NF + b * cos_NF
        if self.turning_heads is not None and vectors_NR.ndim >= 3:
            turned_NR[..., self.turning_heads :, :, :] = vectors_NR[..., self.turning_heads :, :, :]
        return turned_NR

    def _kept_turns(self, at_N: Array, side: str, context: int | None) -> tuple[Array, Array]:
        """`_turns`, of small tables the last ones kept: many heads turn to the same positions one after the other."""
        if at_N.size > KEPT_POSITIONS:
            return self._turns(at_N, side, context)
        asked = (at_N.shape, at_N.tobytes(), None if self.decay_F is None else side, context)
        found = self._tables.get(asked)
        if found is None:
            found = self._turns(at_N, side, context)
            if len(self._tables) >= KEPT_TABLES:
                self._tables.clear()
            self._tables[asked] = found
        return found

    @cached_property
    def _channels(self) -> tuple[slice | NDArray[np.intp], slice | NDArray[np.intp]]:
        """First and second channels of the pairs, as slices where they lie evenly: these are not copied."""
        first, second = (_evenly(self.pairs_F2[:, side]) for side in (0, 1))
        return first, second

    @cached_property
    def unpaired_R(self) -> NDArray[np.intp]:
        """The channels in no pair."""
        return np.setdiff1d(np.arange(self.head_dim), self.pairs_F2)

    @cached_property
    def _tables(self) -> dict[tuple[Any, ...], tuple[Array, Array]]:
        return {}

    def _turns(self, at_N: Array, side: str, context: int | None) -> tuple[Array, Array]:
        """Cosine and sine (N, F) of every pair's angle, times its size."""
        along_NF = at_N[:, None] if at_N.ndim == 1 else at_N[:, self.axis_F]
        angle_NF = along_NF * self.frequencies(context)
        size_NF = np.full_like(angle_NF, self.attention_factor)
        if self.decay_F is not None:
            if at_N.size and np.abs(at_N).max() * np.abs(self.decay_F).max() > 700:  # e^709 is the end of float64
                raise BadValue(
                    f"at position {int(np.abs(at_N).max())} the decay leaves the range of float64. "
                    "Count positions from the middle of the text, or use fewer of them."
                )
            size_NF = size_NF * np.exp((-at_N if side == "query" else at_N)[:, None] * self.decay_F)
        return np.cos(angle_NF) * size_NF, np.sin(angle_NF) * size_NF


@dataclass(frozen=True, eq=False)
class LogitBias:
    """What is added to the logits of each head; `toeplitz` where it depends on i - j only."""

    heads: int
    bias_at: Callable[[Array, Array], Array]
    toeplitz: bool

    def table(self, query_positions: ArrayLike, key_positions: ArrayLike) -> Array:
        """b_HNM for the given positions."""
        query_N = np.atleast_1d(np.asarray(query_positions, dtype=np.float64))
        key_M = np.atleast_1d(np.asarray(key_positions, dtype=np.float64))
        taken = 32 * max(self.heads, 2) * query_N.size * key_M.size  # of one head the offsets weigh as much
        require_memory(taken, f"a bias of {query_N.size:,} x {key_M.size:,} positions", "Use fewer positions.")
        return _shaped(self.bias_at(query_N, key_M), (self.heads, query_N.size, key_M.size), "a bias")

    def by_offset(self, offsets: ArrayLike) -> Array:
        """b_HT for offsets t = i - j (query minus key), for biases that depend on nothing else."""
        if not self.toeplitz:
            raise BadValue("this bias depends on both positions, not on their difference alone; use table().")
        offset_T = np.atleast_1d(np.asarray(offsets, dtype=np.float64))
        return self.table(np.zeros(1), -offset_T)[:, 0, :]


@dataclass(frozen=True)
class QueryScale:
    """s(i) = 1 + rate log(1 + floor((i + shift) / period)): queries grow with their own position, step by step."""

    rate: float
    period: int
    shift: int = 0

    def __post_init__(self) -> None:
        if not (self.period >= 1 and self.shift >= 0 and 0 <= self.rate < 1e6):
            raise BadEncoding(f"{self}: expected a rate of at least 0 and a period of at least 1 token.")

    def factors(self, positions: ArrayLike) -> Array:
        """s_N for the given positions."""
        at_N = np.atleast_1d(np.asarray(positions, dtype=np.float64))
        return np.asarray(1 + self.rate * np.log1p(np.floor((at_N + self.shift) / self.period)))

    @property
    def plain_below(self) -> int:
        """Queries at positions below this one are as they were."""
        return max(self.period - self.shift, 0)


@dataclass(frozen=True, eq=False)
class Encoding:
    """A positional encoding: a name, its parameters and its tables.

    `exact_tables` is False where position depends on content (CoPE, PoPE) or lies in a plane (images): such an
    encoding can be trained and traced, but the weights-only analyses cannot speak of it, and say so.
    """

    name: str
    title: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    input: InputTable | None = None
    rotary: Rotary | None = None
    bias: LogitBias | None = None
    query_scale: QueryScale | None = None
    exact_tables: bool = True
    notes: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()  # keys of the papers behind it

    def tables(self) -> None:
        """Raise unless the encoding is given by tables."""
        if not self.exact_tables:
            why = "".join(f" ({note.rstrip('.')})" for note in self.notes[:1])
            raise BadEncoding(
                f"'{self.name}' is not given by tables{why}; only the commands that run a model can analyse it."
            )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Where position enters: any of 'input', 'rotary', 'bias', 'query_scale', or 'content'."""
        found = [part for part in ("input", "rotary", "bias", "query_scale") if getattr(self, part) is not None]
        in_plane = self.rotary is not None and bool(self.rotary.axes)
        return tuple(found) if self.exact_tables or in_plane else ("content",)


def _evenly(channels_F: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """The same channels as a slice, where they rise in even steps."""
    steps = np.diff(channels_F)
    if not len(steps) or steps[0] < 1 or (steps != steps[0]).any():
        return channels_F
    return slice(int(channels_F[0]), int(channels_F[-1]) + 1, int(steps[0]))


def _shaped(table: Array, expected: tuple[int, ...], what: str) -> Array:
    """The table, if it has its shape: functions of other packages may give anything."""
    if np.shape(table) != expected:
        raise BadEncoding(f"{what} came out with shape {np.shape(table)}; expected {expected}.")
    return table


NONE = Encoding(name="none", title="no positional encoding")


def combine(first: Encoding, second: Encoding) -> Encoding:
    """Both encodings at once (absolute beside rotary, say); each mechanism may be present once."""
    if first.name == "none":
        return second
    if second.name == "none":
        return first
    clash = [part for part in first.mechanisms if part in second.mechanisms]
    if clash:
        raise BadEncoding(f"'{first.name}' and '{second.name}' both use the {clash[0]}; they cannot be combined.")
    return Encoding(
        name=f"{first.name}+{second.name}",
        title=f"{first.title}; {second.title}",
        parameters=MappingProxyType({first.name: dict(first.parameters), second.name: dict(second.parameters)}),
        input=first.input or second.input,
        rotary=first.rotary or second.rotary,
        bias=first.bias or second.bias,
        query_scale=first.query_scale or second.query_scale,
        exact_tables=first.exact_tables and second.exact_tables,
        notes=first.notes + second.notes,
        citations=first.citations + second.citations,
    )


def plain(number: float) -> str:
    """A number as a person would write it, exact enough to be read back: 500000, 0.25, 1e-05."""
    if isinstance(number, int) or (abs(number) < 1e16 and float(number).is_integer()):
        return str(int(number))
    return repr(float(number))


def short(number: float) -> str:
    """A number for a title: 500,000, and six figures of one that is not whole."""
    text = plain(number)
    if text.lstrip("-").isdigit() and len(text) <= MOST_DIGITS:
        return f"{int(text):,}"
    return text if len(text) <= 8 else f"{number:.6g}"


def stated(**parameters: Any) -> Mapping[str, Any]:
    """The parameters that have a value, read-only and ready for JSON."""
    return MappingProxyType({name: value for name, value in parameters.items() if value is not None})
