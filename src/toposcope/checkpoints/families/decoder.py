"""The plain causal decoder that most families vary: separate projections, a norm before attention, rotary positions.

A family's adapter calls `decoder` and says what differs; the layer it gets has the names and the layout of Llama.
"""

from __future__ import annotations

from collections.abc import Callable

from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import Encoding, rope_from_config

SLIDING, FULL = "sliding_attention", "full_attention"

# What differs in one layer: the plain layer and the prefix of its tensors ('model.layers.3.') -> the family's layer.
Variation = Callable[[LayerSpec, str], LayerSpec]


def decoder(
    family: str,
    config: Config,
    source: TensorSource,
    vary: Variation | None = None,
    *,
    encoding: Encoding | None = None,
    marker: str = "self_attn.q_proj.weight",
) -> ModelSpec:
    """Describe a decoder in Llama's layout, each layer passed through `vary`.

    `marker` is a tensor that the first layer surely has: what stands before it is the prefix of all names.
    """
    root = find_root(source, f"layers.0.{marker}")
    sizes = Sizes.of(config)
    encoding = rope_from_config(config, sizes.head_dim) if encoding is None else encoding
    eps = config.number("rms_norm_eps", default=1e-6)

    def layer(i: int) -> LayerSpec:
        at = f"{root}layers.{i}."
        plain = LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            q=Linear.at(f"{at}self_attn.q_proj"),
            k=Linear.at(f"{at}self_attn.k_proj"),
            v=Linear.at(f"{at}self_attn.v_proj"),
            o=Linear.at(f"{at}self_attn.o_proj"),
            input_norm=NormSpec.at("rms", f"{at}input_layernorm", eps),
        )
        return plain if vary is None else vary(plain, at)

    return ModelSpec(
        family=family,
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}embed_tokens.weight",
        context=claimed_context(config, "max_position_embeddings"),
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


def every(interval: int) -> Callable[[int], bool]:
    """The pattern 'all layers slide but every interval-th'."""
    return lambda index: bool((index + 1) % interval)
