"""What an adapter says about a model: plain data, from which one reader builds every head.

A family adapter is a function `describe(config, names) -> ModelSpec`. It reads no tensors and does no arithmetic on
weights: it only names them and says how they are laid out. `read.py` does the rest, the same way for all families.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadConfig
from toposcope.core.ranges import LARGEST, SMALLEST, computable
from toposcope.core.result import Skipped as Skipped
from toposcope.encodings.record import NONE, Encoding

Layout = Literal["stacked", "per_head", "grouped"]


@dataclass(frozen=True)
class RowPattern:
    """Which rows of a stored tensor a map uses: `count` runs of `size` rows, `step` apart, the first at `start`."""

    start: int
    size: int
    count: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 1 or self.count < 1 or (self.count > 1 and self.step < self.size):
            raise BadConfig(f"{self} is no pattern of rows: runs of at least one row that do not overlap.")

    @property
    def rows(self) -> NDArray[np.intp]:
        """The numbers of the rows."""
        return (self.start + self.step * np.arange(self.count)[:, None] + np.arange(self.size)).reshape(-1)


@dataclass(frozen=True)
class Linear:
    """The names of a linear map's tensors. The bias is used where the checkpoint holds it."""

    weight: str
    bias: str | None = None
    transposed: bool = False  # stored as (in, out), as in GPT-2's Conv1D
    bias_part: tuple[int, int] | None = None  # (i, n): the i-th of n equal parts of a bias that maps share
    rows: RowPattern | None = None  # of the weight and of the bias, where a tensor holds more than this map
    factor: float = 1.0  # multiplies what the map gives

    @classmethod
    def at(cls, prefix: str, *, transposed: bool = False) -> Linear:
        """The usual naming: `prefix.weight`, `prefix.bias`."""
        return cls(f"{prefix}.weight", f"{prefix}.bias", transposed)


@dataclass(frozen=True)
class NormSpec:
    """A normalisation and the names of its gain and bias (None: it has none).

    `offset` is added to the stored gain (Gemma stores gain - 1). In a norm of queries or keys the names may hold
    '{head}', where each head has tensors of its own.
    """

    kind: Literal["rms", "layer"]
    eps: float
    weight: str | None = None
    bias: str | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (computable(self.eps) and self.eps >= 0):
            raise BadConfig(f"a norm's epsilon is {self.eps!r}; expected a small number, such as 1e-5.")

    @classmethod
    def at(cls, kind: Literal["rms", "layer"], prefix: str, eps: float, *, offset: float = 0.0) -> NormSpec:
        """The usual naming: `prefix.weight`, `prefix.bias` (the bias where the checkpoint holds it)."""
        return cls(kind, eps, f"{prefix}.weight", f"{prefix}.bias", offset)


@dataclass(frozen=True)
class LatentSpec:
    """A low-rank bottleneck before a projection (MLA): latent = norm(down x)[rows]."""

    down: Linear
    norm: NormSpec | None
    rank: int


@dataclass(frozen=True)
class GateSpec:
    """What multiplies the heads' outputs before O: an activation of a linear map of the layer's normed input."""

    linear: Linear
    activation: Literal["sigmoid", "double_sigmoid", "softplus"]
    over: Literal["channel", "head"] = "channel"  # one number per channel of a head's output, or one per head


@dataclass(frozen=True)
class LayerSpec:
    """One attention layer: sizes, mask, encoding, and the names and layout of its tensors.

    Queries, keys and values come from `q`, `k`, `v`, or from one fused `qkv`, laid out as
    * `stacked`: all query rows, then all key rows, then all value rows;
    * `per_head`: for each head its query, key and value rows;
    * `grouped`: for each key-value group its heads' query rows, then one key and one value.
    With latents (MLA) `q` acts on `q_latent` and `kv_up` on `kv_latent`, giving per head `head_dim - shared_key`
    key rows and `value_dim` value rows; the remaining `shared_key` key rows are the last rows of `kv_latent.down`,
    shared by all heads and read straight from x. GGUF may hold in place of `kv_up` one matrix per head and kind:
    `k_up` (heads, latent, key rows) and `v_up` (heads, value rows, latent).
    A layer of kind "cross" reads its keys and values from elsewhere: the other stack, or with `keys_of` the keys and
    values that an earlier layer of its own stack has made (`k`, `v` and `k_norm` then name that layer's tensors).
    """

    stack: str  # "decoder", "encoder", "text", "vision"
    index: int  # within the stack
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    o: Linear
    q: Linear | None = None
    k: Linear | None = None
    v: Linear | None = None
    qkv: Linear | None = None
    layout: Layout = "stacked"
    kind: Literal["self", "cross"] = "self"
    encoding: Encoding = NONE
    value_dim: int | None = None  # None: as head_dim
    source_width: int | None = None  # width of what keys and values read (cross-attention); None: as width
    reach: int | None = None  # the greatest |i - j| a token sees; None: no window
    input_norm: NormSpec | None = None  # x -> attention(norm(x))
    output_norm: NormSpec | None = None  # attention's output, before it is added
    residual_norm: NormSpec | None = None  # after the addition (post-norm)
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None
    qk_norm_over: Literal["head", "layer"] = "head"  # one norm per head, or one over all heads together
    qk_norm_after: bool = False  # queries and keys are normed after they were rotated
    v_norm: NormSpec | None = None  # of each head's values
    inner_norm: NormSpec | None = None  # of the heads' outputs, joined, before O
    gate: GateSpec | None = None
    sinks: str | None = None  # one more logit per head that takes its share of the softmax and gives no value
    chunk: int | None = None  # tokens see only tokens of their own chunk of so many
    keys_of: int | None = None  # the earlier layer of the stack whose keys and values are used
    softcap: float | None = None  # logits -> softcap * tanh(logits / softcap)
    output_gain: str | float | None = None  # multiplies what attention adds (layer scale, residual multiplier)
    q_latent: LatentSpec | None = None
    kv_latent: LatentSpec | None = None
    kv_up: Linear | None = None
    k_up: str | None = None
    v_up: str | None = None
    shared_key: int = 0  # rotary key rows shared by all heads (MLA)
    ggml_permuted: bool = False  # llama.cpp stores Q and K rows so that rotary pairs are adjacent
    shared_with: int | None = None  # an earlier layer of the stack with the very same tensors
    warnings: tuple[str, ...] = ()  # what the bilinear view leaves out ("clip_qkv", ...)

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise BadConfig(f"the chunks of layer {self.index} have {self.chunk} tokens; expected 1 or more.")
        for name, value in (("the scale of the logits", self.scale), ("the cap of the logits", self.softcap)):
            if value is not None and not (SMALLEST <= value <= LARGEST):
                raise BadConfig(f"{name} in layer {self.index} is {value!r}; expected a number above 0.")
        if self.reach is not None and self.reach < 0:
            raise BadConfig(f"the window of layer {self.index} reaches {self.reach} tokens; expected 0 or more.")

    @property
    def value_width(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def key_source_width(self) -> int:
        return self.width if self.source_width is None else self.source_width

    @property
    def value_path(self) -> tuple[str, ...]:
        """What stands between V and O, so that their product is not all that a head writes."""
        named = {"output_gate": self.gate, "value_norm": self.v_norm, "norm_before_O": self.inner_norm}
        return tuple(name for name, part in named.items() if part is not None)

    def logit_path(self, length: int | None = None) -> tuple[str, ...]:
        """What shapes the logits or the mask of a text beside Q, K, w, g and b (None: of a long text)."""
        grows = self.encoding.query_scale
        named = {
            "norms_after_rotation": self.qk_norm_after and not self._norms_commute,
            "chunked_mask": self.chunk is not None and (length is None or length > self.chunk),
            "query_scale": grows is not None and (length is None or length > grows.plain_below),
        }
        return tuple(name for name, part in named.items() if part)

    @property
    def _norms_commute(self) -> bool:
        """Whether norming a turned vector is turning a normed one: a rotation keeps lengths, a gain has channels."""
        rotary = self.encoding.rotary
        keeps = rotary is None or (rotary.attention_factor == 1 and rotary.decay_F is None)
        norms = [norm for norm in (self.q_norm, self.k_norm) if norm is not None]
        return keeps and all(norm.kind == "rms" and norm.weight is None and norm.bias is None for norm in norms)

    @property
    def placement(self) -> str:
        """Where normalisation stands: 'pre', 'post', 'sandwich', 'branch' or 'none'."""
        if self.residual_norm is not None:
            return "post"
        if self.input_norm is not None:
            return "sandwich" if self.output_norm is not None else "pre"
        return "branch" if self.output_norm is not None else "none"


@dataclass(frozen=True)
class Compared:
    """How a description that was measured rather than written by hand agrees with what it was measured on."""

    reference: str  # "transformers 5.22.2"
    attention: float  # the largest difference of an attention probability
    output: float  # of attention's output, relative to the largest entry
    unreached: tuple[str, ...] = ()  # settings that could change attention, and that the comparison did not reach

    @property
    def sentence(self) -> str:
        """The same as a remark."""
        beyond = f"; not reached: {', '.join(self.unreached)}" if self.unreached else ""
        return (
            f"measured on a small copy in {self.reference}, not written by hand: attention differs by at most "
            f"{self.attention:.1g}, its output by {self.output:.1g}{beyond}."
        )


@dataclass(frozen=True)
class ModelSpec:
    """A whole model, as its adapter sees it."""

    family: str
    layers: tuple[LayerSpec, ...]
    embedding: str | None = None  # the token embedding's tensor
    context: int | None = None  # the length the configuration claims
    skipped: tuple[Skipped, ...] = field(default=())
    accounted: tuple[str, ...] = ()  # tensors named like attention that are something else: tables, other norms
    compared: Compared | None = None  # None: an adapter of ours, which the reference tests compare


def claimed(spec: ModelSpec) -> set[str]:
    """The names of all tensors that a description uses ('{head}' stands for the number of each head)."""
    names = {name for layer in spec.layers for name in _names(layer)} | set(spec.accounted)
    return names if spec.embedding is None else names | {spec.embedding}


def tensor_names(layer: LayerSpec) -> Iterator[str]:
    """The names of the tensors that a layer may read."""
    return _names(layer)


def linears(part: LayerSpec | LatentSpec | GateSpec) -> Iterator[Linear]:
    """The linear maps of a layer."""
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, Linear):
            yield value
        elif isinstance(value, LatentSpec | GateSpec):
            yield from linears(value)


def _names(part: LayerSpec | Linear | NormSpec | LatentSpec | GateSpec) -> Iterator[str]:
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, Linear | NormSpec | LatentSpec | GateSpec):
            yield from _names(value)
