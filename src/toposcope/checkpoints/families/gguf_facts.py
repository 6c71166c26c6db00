"""What a GGUF file says of itself: sizes, windows and the rotation of its positions.

GGUF keeps settings as key-value pairs under the name of the architecture ('llama.attention.head_count'). Some may be
one number for all layers or a list with one for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from toposcope.checkpoints.families.common import Config, LayerSizes
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadConfig, BadEncoding, MissingTensor

LONG, SHORT, DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"
NORM_EPS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}


class GgufFacts:
    """The settings of one file, asked for by the part of their key after the architecture's name."""

    def __init__(self, source: TensorSource) -> None:
        self.source = source
        self.config = Config(source.metadata, str(source.path))
        self.architecture = self.config.text("general.architecture", default="")
        if not self.architecture:
            raise BadConfig(f"{source.path} lacks 'general.architecture': it is no GGUF file of a model.")

    def key(self, name: str) -> str:
        """The full key: 'attention.head_count' -> 'llama.attention.head_count'."""
        return f"{self.architecture}.{name}"

    def get(self, name: str) -> Any:
        return self.config.get(self.key(name))

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        return self.config.integer(*map(self.key, names), default=default, least=least)

    def number(self, *names: str, default: float | None = None) -> float:
        return self.config.number(*map(self.key, names), default=default)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.config.flag(self.key(name), default=default)

    def text(self, name: str, *, default: str) -> str:
        return self.config.text(self.key(name), default=default)

    def has(self, tensor: str) -> bool:
        return tensor in self.source.names()

    @property
    def layers(self) -> int:
        return self.sizes(0).layers

    @property
    def context(self) -> int | None:
        return None if self.get("context_length") is None else self.integer("context_length")

    def sizes(self, layer: int) -> LayerSizes:
        """The sizes of one layer, checked to fit together."""
        count, heads, groups = (
            self.key(name) for name in ("block_count", "attention.head_count", "attention.head_count_kv")
        )
        own = {name: self._in_layer(name, layer) for name in (heads, groups) if name in self.config}
        return LayerSizes.of(
            Config({**self.config, **own}, self.config.where),
            layers=(count,),
            width=(self.key("embedding_length"),),
            heads=(heads,),
            kv_heads=(groups,),
            head_dim=(self.key("attention.key_length"),),
        )

    def value_dim(self, sizes: LayerSizes) -> int:
        """The width of a head's value: stated, or the model's width shared out among the heads."""
        return self.integer("attention.value_length", default=max(sizes.width // sizes.heads, 1))

    def eps(self, norm: str) -> float:
        """The small number under the root of the norms; a file without it could not be run."""
        return self.number(NORM_EPS[norm])

    def window(self, default: int = 0) -> int:
        """The sliding window in tokens, 0 where there is none."""
        return self.integer("attention.sliding_window", default=default, least=0)

    def slides(self, layer: int, period: int) -> bool:
        """Whether a layer slides: all but every `period`-th do, unless the file has a period or a list of its own."""
        pattern = self.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            return bool(self._in_layer(self.key("attention.sliding_window_pattern"), layer))
        period = self.integer("attention.sliding_window_pattern", default=period, least=0)
        return period == 0 or layer % period < period - 1

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Name the file where its settings make no encoding."""
        try:
            yield
        except BadEncoding as error:
            raise BadConfig(
                f"the settings '{self.key('rope.*')}' in {self.config.where} make no sense: {error}"
            ) from error

    def _in_layer(self, key: str, layer: int) -> Any:
        value = self.config[key]
        if not isinstance(value, list):
            return value
        if layer >= len(value):
            raise BadConfig(
                f"'{key}' in {self.config.where} lists {len(value)} layers and has none for layer {layer}."
            )
        return value[layer]


def rotation(facts: GgufFacts, *, base: float | None = None, stretched: bool = True) -> dict[str, Any]:
    """The parameters of `rope` that the file states, beside the head's width and the pairing.

    `base` replaces the stated one and `stretched=False` leaves out all scaling: layers with a sliding window.
    """
    settings: dict[str, Any] = {"base": facts.number("rope.freq_base", default=10_000.0) if base is None else base}
    if not stretched:
        return settings
    if facts.has(DIVISORS):
        settings["divisors"] = _list(facts, DIVISORS)
    if facts.has(LONG) and facts.has(SHORT):
        return settings | {
            "scaling": "longrope",
            "long_factor": _list(facts, LONG),
            "short_factor": _list(facts, SHORT),
            "original_context": facts.integer("rope.scaling.original_context_length", "context_length"),
            "context": facts.integer("context_length"),
            "attention_factor": facts.number("rope.scaling.attn_factor", default=1.0),
        }
    return settings | _scaling(facts)


def _scaling(facts: GgufFacts) -> dict[str, Any]:
    kind = facts.text("rope.scaling.type", default="linear")
    factor = facts.number("rope.scaling.factor", "rope.scale_linear", default=0.0)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise BadConfig(
            f"'{facts.key('rope.scaling.type')}' in {facts.config.where} is {kind!r}; "
            "known are 'none', 'linear', 'yarn' and 'longrope'."
        )
    if kind == "longrope":
        raise MissingTensor(f"{facts.source.path} names LongRoPE but holds no tensors '{LONG}' and '{SHORT}'.")
    if kind == "none" or factor in (0.0, 1.0):
        return {}
    if factor < 0:
        raise BadConfig(
            f"'{facts.key('rope.scaling.factor')}' in {facts.config.where} is {factor}; it is never negative."
        )
    if kind == "linear":
        return {"scaling": "linear", "factor": factor}
    return {
        "scaling": "yarn",
        "factor": factor,
        "original_context": facts.integer("rope.scaling.original_context_length", "context_length"),
        "beta_fast": facts.number("rope.scaling.yarn_beta_fast", default=32.0),
        "beta_slow": facts.number("rope.scaling.yarn_beta_slow", default=1.0),
        "attention_factor": _yarn_attention(facts, factor),
    }


def yarn_size(factor: float, weight: float) -> float:
    """YaRN's growth of logits with the stretching factor: 1 + 0.1 weight ln(factor)."""
    return 1.0 if factor <= 1 else 1.0 + 0.1 * weight * math.log(factor)


def _yarn_attention(facts: GgufFacts, factor: float) -> float:
    """What rotated queries and keys are multiplied by; the logarithm's weight is taken back where one is stated."""
    weight = facts.number("rope.scaling.yarn_log_multiplier", default=0.0)
    taken_back = yarn_size(factor, weight) if weight else 1.0
    return yarn_size(factor, 1.0) / taken_back * facts.number("rope.scaling.attn_factor", default=1.0)


def _list(facts: GgufFacts, tensor: str) -> list[float]:
    return [float(value) for value in np.ravel(facts.source.read(tensor))]
