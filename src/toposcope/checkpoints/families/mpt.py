"""MPT: one fused projection, ALiBi or a learned table, usually no biases at all."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE, Encoding, alibi


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The settings of attention stand in `attn_config`; what clipping does to q, k and v is left out, and said."""
    root = find_root(source, "blocks.0.attn.Wqkv.weight")
    sizes = Sizes.of(
        config.with_defaults(n_layers=24, d_model=2048, n_heads=16),
        layers=("num_hidden_layers", "n_layers"),
        width=("hidden_size", "d_model"),
        heads=("num_attention_heads", "n_heads"),
    )
    attn = config.part("attn_config")
    encoding = _encoding(attn, source, root, sizes.heads)
    eps = config.number("layer_norm_epsilon", default=1e-5)
    scale = attn.number("softmax_scale", default=sizes.head_dim**-0.5)

    def layer(i: int) -> LayerSpec:
        at = f"{root}blocks.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=scale,
            causal=True,
            encoding=encoding,
            qkv=Linear.at(f"{at}attn.Wqkv"),
            layout="stacked",
            o=Linear.at(f"{at}attn.out_proj"),
            input_norm=NormSpec.at("layer", f"{at}norm_1", eps),
            warnings=_warnings(attn),
        )

    return ModelSpec(
        family="mpt",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}wte.weight",
        context=claimed_context(config, "max_seq_len"),
    )


def _encoding(attn: Config, source: TensorSource, root: str, heads: int) -> Encoding:
    """ALiBi, or without it the learned table where the file holds one."""
    if attn.flag("rope", default=False):
        raise BadConfig(f"{attn.where} asks for rotary positions, which no adapter for MPT reads.")
    # transformers applies ALiBi whatever this key says, and always with a maximum of 8;
    # the models were trained with what the keys say.
    if attn.flag("alibi", default=True):
        return alibi(heads, symmetric=False, max_bias=attn.number("alibi_bias_max", default=8.0))
    table = f"{root}wpe.weight"
    return learned_table(source, table) if table in source.names() else NONE


def _warnings(attn: Config) -> tuple[str, ...]:
    found = []
    if attn.get("clip_qkv"):
        found.append(f"queries, keys and values are clipped to +-{attn.number('clip_qkv'):g} (clip_qkv)")
    if attn.flag("qk_ln", default=False):
        found.append("queries and keys are normalised (qk_ln)")
    if attn.flag("prefix_lm", default=False):
        found.append("tokens of a prefix also see what follows them (prefix_lm)")
    return tuple(found)


FAMILIES = (Family("mpt", ("mpt",), describe, "MPT"),)
