"""A family as a table: what it calls its settings and its tensors, and what its layers are like.

The defaults are Llama's, the plain causal decoder that most families vary, so a table says only what differs. Where a
table is all there is to say, `Table.describe` is the family's adapter; elsewhere the adapter makes a `Draft` of it,
works out what depends on the file, and passes each plain layer through a function that says what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toposcope.checkpoints.config_only import without_weights
from toposcope.checkpoints.families.common import Config, LayerSizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Layout, Linear, ModelSpec, NormSpec, Skipped
from toposcope.core.errors import BadConfig, MissingTensor
from toposcope.encodings import NONE, Encoding, rope_from_config

SLIDING, FULL = "sliding_attention", "full_attention"
Keys = tuple[str, ...]  # of a setting, the first that is set counts

# What differs in one layer: the plain layer and the prefix of its tensors ('model.layers.3.') -> the family's layer.
Variation = Callable[[LayerSpec, str], LayerSpec]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What tells one family's files from another's. Names of tensors are without '.weight', after the layer's prefix.

    `linear` names the maps for queries, keys, values and output, or one fused map (laid out as `layout` says) and the
    output. `sizes` names the settings that `LayerSizes.of` reads, where they are not the usual ones.
    """

    family: str
    stack: str = "decoder"
    causal: bool = True
    # settings
    defaults: Mapping[str, Any] = field(
        default_factory=dict
    )  # the architecture's own, for keys that a file leaves out
    sizes: Mapping[str, Keys] = field(default_factory=dict)
    grouped: bool = True  # heads may share keys and values; False: the setting is not used
    eps_keys: Keys = ("rms_norm_eps",)
    eps: float = 1e-6
    context: Keys = ("max_position_embeddings",)
    context_of_table: bool = False  # the length is that of the learned table, where there is one
    windowed: bool = False  # every layer has the window `sliding_window`, where one is set
    rope: Mapping[str, Any] = field(default_factory=dict)  # for `rope_from_config`: default_base, pairing, ...
    rotates: bool = True  # False: attention has no position of its own
    rope_unsaid: Mapping[str, Any] = field(
        default_factory=dict
    )  # rotary settings of a file that says nothing of them
    # tensors
    layer: str = "layers.{}."
    some: bool = False  # only the layers whose tensors the file holds are attention: the others mix tokens otherwise
    linear: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    layout: Layout = "stacked"
    transposed: bool = False
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0  # added to the stored gains
    input_norm: str | None = "input_layernorm"
    output_norm: str | None = None
    residual_norm: str | None = None
    qk_norm: tuple[str, str] | None = None
    qk_norm_if: tuple[str, bool] | None = None  # the flag that says whether there are such norms, and its default
    qk_norm_over: Literal["head", "layer"] = "head"
    qk_norm_after: bool = False  # of what was rotated already
    embedding: str | None = "embed_tokens"
    marker: str | None = None  # a tensor that only this family's first layer surely has; None: its first map

    @property
    def first(self) -> str:
        """The end of the name by which a file of this family is known."""
        return f"{self.layer.format(0)}{self._mark}"

    @property
    def _mark(self) -> str:
        return f"{self.marker or self.linear[0]}.weight"

    def attending(self, source: TensorSource) -> tuple[str, list[int]]:
        """What stands before all names, and which layers hold the tensors of attention."""
        before, after = (re.escape(part) for part in self.layer.split("{}"))
        pattern = re.compile(rf"(?P<root>.*?){before}(?P<index>\d+){after}{re.escape(self._mark)}")
        seen = [found for name in source.names() if (found := pattern.fullmatch(name))]
        root = min((found["root"] for found in seen), key=len, default=None)
        if root is None:
            root = find_root(source, self.first)  # there is none: this says so
        return root, sorted(int(found["index"]) for found in seen if found["root"] == root)

    def found(self, source: TensorSource) -> bool:
        """Whether a file has the names of this table."""
        return any(name.endswith(self.first) for name in source.names())

    def root(self, source: TensorSource) -> str:
        """What stands before all names of the table ('', 'model.', 'bert.', ...)."""
        return self.attending(source)[0] if self.some else find_root(source, self.first)

    def draft(self, config: Config, source: TensorSource, root: str | None = None) -> Draft:
        """The settings that every layer needs; `root` is the prefix of all names, where it is known already."""
        config = config.with_defaults(**self.defaults)
        if self.rope_unsaid and not any(config.get(key) for key in ("rope_parameters", "rope_scaling", "rope_theta")):
            config = config.updated(rope_parameters=dict(self.rope_unsaid))
        root = self.root(source) if root is None else root
        if self.some and config.get("num_hidden_layers") is None:
            if without_weights(source):
                raise MissingTensor(f"{config.where} does not count its layers; the names of its tensors do.")
            config = config.updated(num_hidden_layers=1 + max(self.attending(source)[1]))
        sizes = LayerSizes.of(config, **self.sizes)
        if not self.grouped:
            sizes = replace(sizes, kv_heads=sizes.heads)
        return Draft(self, config, source, root, sizes, config.number(*self.eps_keys, default=self.eps))

    def describe(self, config: Config, source: TensorSource) -> ModelSpec:
        """The adapter of a family with rotary positions of which there is no more to say."""
        draft = self.draft(config, source)
        return draft.spec(draft.rope())


@dataclass(frozen=True)
class Draft:
    """A table and a file: enough to describe plain layers."""

    table: Table
    config: Config
    source: TensorSource
    root: str
    sizes: LayerSizes
    eps: float

    def rope(self) -> Encoding:
        """The rotation that the configuration asks for; a family whose table names a `default_partial` reads one."""
        if not self.table.rotates:
            return NONE
        whole = "default_partial" not in self.table.rope
        return rope_from_config(self.config, self.sizes.head_dim, whole_heads=whole, **self.table.rope)

    def prefix(self, index: int) -> str:
        """What stands before the names of a layer's tensors."""
        return self.root + self.table.layer.format(index)

    def norm(self, name: str | None) -> NormSpec | None:
        """A norm under its present names, or under those of the first TensorFlow conversions (gamma, beta)."""
        if name is None:
            return None
        kind, offset = self.table.norm, self.table.norm_offset
        if f"{name}.weight" not in self.source.names() and f"{name}.gamma" in self.source.names():
            return NormSpec(kind, self.eps, f"{name}.gamma", f"{name}.beta", offset)
        return NormSpec.at(kind, name, self.eps, offset=offset)

    def layer(self, index: int, encoding: Encoding, at: str | None = None) -> LayerSpec:
        """The plain layer; `at` is the prefix of its tensors, where it is not the table's."""
        table, at = self.table, self.prefix(index) if at is None else at
        linear = [Linear.at(f"{at}{name}", transposed=table.transposed) for name in table.linear]
        maps = dict(zip(("q", "k", "v") if len(linear) == 4 else ("qkv",), linear, strict=False))
        normed = table.qk_norm_if is None or self.config.flag(table.qk_norm_if[0], default=table.qk_norm_if[1])
        q_norm, k_norm = table.qk_norm if table.qk_norm and normed else (None, None)
        return self.sizes.layer(
            stack=table.stack,
            index=index,
            causal=table.causal,
            encoding=encoding,
            **maps,
            o=linear[-1],
            layout=table.layout,
            reach=window_reach(self.config) if table.windowed else None,
            **{
                place: self.norm(None if name is None else f"{at}{name}")
                for place, name in (
                    ("input_norm", table.input_norm),
                    ("output_norm", table.output_norm),
                    ("residual_norm", table.residual_norm),
                    ("q_norm", q_norm),
                    ("k_norm", k_norm),
                )
            },
            qk_norm_over=table.qk_norm_over,
            qk_norm_after=table.qk_norm_after and q_norm is not None,
        )

    def spec(
        self,
        encoding: Encoding,
        vary: Variation | None = None,
        *,
        layers: Iterable[LayerSpec] | None = None,
        skipped: tuple[Skipped, ...] = (),
    ) -> ModelSpec:
        """The model: its plain layers, each passed through `vary`, or the layers given."""
        table = self.table
        if layers is None and table.some:
            chosen = [index for index in self._attending() if index < self.sizes.layers]
            layers = (self.layer(index, encoding) for index in chosen)
            skipped = (*skipped, *self._not_attention(chosen))
        elif layers is None:
            layers = (self.layer(i, encoding) for i in range(self.sizes.layers))
        if vary is not None:
            layers = (vary(layer, self.prefix(layer.index)) for layer in layers)
        length = encoding.input.length if table.context_of_table and encoding.input is not None else None
        return ModelSpec(
            family=table.family,
            layers=tuple(layers),
            embedding=None if table.embedding is None else f"{self.root}{table.embedding}.weight",
            context=claimed_context(self.config, *table.context) if length is None else length,
            skipped=skipped,
        )

    def _attending(self) -> list[int]:
        """Which layers are attention: those whose tensors the file holds, or that a lone configuration names so."""
        if not without_weights(self.source):
            return self.table.attending(self.source)[1]
        kinds = self.config.listed("layer_types", self.sizes.layers)
        if kinds is None:
            raise MissingTensor(f"{self.config.where} has no layer_types, so which layers are attention is not told.")
        return [index for index, kind in enumerate(kinds) if kind in (SLIDING, FULL, "attention")]

    def _not_attention(self, chosen: list[int]) -> tuple[Skipped, ...]:
        """The layers that are no attention, as one entry."""
        others = tuple(self.prefix(index) for index in range(self.sizes.layers) if index not in chosen)
        names = tuple(sorted(name for name in self.source.names() if name.startswith(others))) if others else ()
        what = f"{len(others)} of {self.sizes.layers} layers"
        return (
            (Skipped(what, "not attention: they mix tokens without a softmax, or not at all", names),)
            if others
            else ()
        )


def layer_kinds(config: Config, sliding: Callable[[int], bool]) -> list[str]:
    """For each layer SLIDING or FULL: as `layer_types` lists them, else SLIDING where `sliding(index)` holds."""
    layers = config.integer("num_hidden_layers")
    kinds = config.listed("layer_types", layers)
    if kinds is None:
        return [SLIDING if sliding(i) else FULL for i in range(layers)]
    unknown = [kind for kind in kinds[:layers] if kind not in (SLIDING, FULL)]
    if unknown:
        raise BadConfig(f"'layer_types' in {config.where} names {unknown[0]!r}; known are '{SLIDING}' and '{FULL}'.")
    return kinds[:layers]


def window_reach(config: Config) -> int | None:
    """How far back a token sees under the sliding window: itself and the window - 1 tokens before it."""
    return config.integer("sliding_window") - 1 if config.get("sliding_window") else None


def windows(config: Config, sliding: Callable[[int], bool], reach: int | None) -> Variation:
    """The variation 'sliding layers see `reach` tokens back'."""
    kinds = layer_kinds(config, sliding)
    return lambda layer, at: replace(layer, reach=reach if kinds[layer.index] == SLIDING else None)


def every(interval: int) -> Callable[[int], bool]:
    """The pattern 'all layers slide but every interval-th'."""
    return lambda index: bool((index + 1) % interval)
