"""What an adapter says about a model: plain data, from which one reader builds every head.

A family adapter is a function `describe(config, names) -> ModelSpec`. It reads no tensors and does no arithmetic on
weights: it only names them and says how they are laid out. `read.py` does the rest, the same way for all families.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadConfig
from toposcope.core.ranges import LARGEST, SMALLEST, computable
from toposcope.core.result import Skipped as Skipped
from toposcope.encodings.record import NONE, Encoding

Layout = Literal["stacked", "per_head", "grouped"]

_ATTENTION = re.compile(
    r"(^|[._])(attn|attention|self_attn|q_proj|k_proj|v_proj|query|qkv|wqkv|in_proj_weight|attn_q|attn_k|attn_v)([._]|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Linear:
    """The names of a linear map's tensors. The bias is used where the checkpoint holds it."""

    weight: str
    bias: str | None = None
    transposed: bool = False  # stored as (in, out), as in GPT-2's Conv1D
    bias_part: tuple[int, int] | None = None  # (i, n): the i-th of n equal parts of a bias that maps share

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
    def placement(self) -> str:
        """Where normalisation stands: 'pre', 'post', 'sandwich', 'branch' or 'none'."""
        if self.residual_norm is not None:
            return "post"
        if self.input_norm is not None:
            return "sandwich" if self.output_norm is not None else "pre"
        return "branch" if self.output_norm is not None else "none"


@dataclass(frozen=True)
class ModelSpec:
    """A whole model, as its adapter sees it."""

    family: str
    layers: tuple[LayerSpec, ...]
    embedding: str | None = None  # the token embedding's tensor
    context: int | None = None  # the length the configuration claims
    skipped: tuple[Skipped, ...] = field(default=())
    tables: tuple[str, ...] = ()  # position tables the adapter itself has read, where their names look like attention


def not_understood(spec: ModelSpec, source: TensorSource) -> ModelSpec:
    """The description with one `Skipped` entry per kind of attention tensor that no layer uses."""
    claimed = {name for layer in spec.layers for name in _names(layer)}
    claimed |= {*spec.tables, *(name for skipped in spec.skipped for name in skipped.tensors)}
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(source.names()) - claimed):
        if _ATTENTION.search(name) and len(source.info(name).shape) == 2:
            kinds[_NUMBER.sub("N", name)].append(name)
    found = tuple(
        Skipped(kind, "an attention tensor that this family's adapter does not use", tuple(names))
        for kind, names in kinds.items()
    )
    return replace(spec, skipped=spec.skipped + found)


def code_not_run(spec: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """The description with a remark where the configuration names code to run, which is never done."""
    if not config.get("auto_map"):
        return spec
    why = "it names code to be run, which is never done: the weights are read as the family's adapter describes them"
    return replace(spec, skipped=(*spec.skipped, Skipped("auto_map of the configuration", why)))


def tensor_names(layer: LayerSpec) -> Iterator[str]:
    """The names of the tensors that a layer may read."""
    return _names(layer)


def _names(part: LayerSpec | Linear | NormSpec | LatentSpec) -> Iterator[str]:
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, Linear | NormSpec | LatentSpec):
            yield from _names(value)
