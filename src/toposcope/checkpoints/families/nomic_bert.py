"""Nomic BERT: a post-norm encoder with rotary positions, its projections fused on disk."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding, rope_from_config

FUSED = "encoder.layers.0.attn.Wqkv.weight"
SEPARATE = "layers.0.self_attn.q_proj.weight"


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Both layouts (fused, separate) and both configurations (transformers' own, and Nomic's with GPT-2's names)."""
    if "n_embd" not in config:
        config = config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    fused = any(name.endswith(FUSED) for name in source.names())
    root = find_root(source, FUSED, SEPARATE)
    sizes = Sizes.of(
        config,
        layers=("num_hidden_layers", "n_layer"),
        width=("hidden_size", "n_embd"),
        heads=("num_attention_heads", "n_head"),
    )
    eps = config.number("layer_norm_eps", "layer_norm_epsilon", default=1e-12)
    encoding = _positions(config, source, root, sizes.head_dim)
    prenorm = config.flag("prenorm", default=False)

    def layer(i: int) -> LayerSpec:
        at = f"{root}encoder.layers.{i}." if fused else f"{root}layers.{i}."
        norm = NormSpec.at("layer", f"{at}norm1" if fused else f"{at}post_attention_layernorm", eps)
        return LayerSpec(
            stack="encoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            encoding=encoding,
            qkv=Linear.at(f"{at}attn.Wqkv") if fused else None,
            q=None if fused else Linear.at(f"{at}self_attn.q_proj"),
            k=None if fused else Linear.at(f"{at}self_attn.k_proj"),
            v=None if fused else Linear.at(f"{at}self_attn.v_proj"),
            o=Linear.at(f"{at}attn.out_proj" if fused else f"{at}self_attn.o_proj"),
            input_norm=norm if prenorm else None,
            residual_norm=None if prenorm else norm,
        )

    return ModelSpec(
        family="nomic_bert",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}embeddings.word_embeddings.weight",
        context=claimed_context(config, "max_position_embeddings", "n_positions"),
    )


def _positions(config: Config, source: TensorSource, root: str, head_dim: int) -> Encoding:
    """The rotation; or the learned table of models that Nomic built without one (a rotary fraction of 0)."""
    fraction = config.number("rotary_emb_fraction", default=1.0)
    if fraction <= 0:
        return learned_table(source, f"{root}embeddings.position_embeddings.weight")
    if config.get("rotary_scaling_factor") is not None:
        # what Nomic's own configuration calls a scaling factor is dynamic NTK, measured by the trained length
        config = config.updated(
            rope_scaling={"rope_type": "dynamic", "factor": config.number("rotary_scaling_factor")},
            max_position_embeddings=config.integer("max_trained_positions", "n_positions", default=2048),
        )
    interleaved = config.flag("rotary_emb_interleaved", default=False)
    return rope_from_config(
        config,
        head_dim,
        pairing="interleaved" if interleaved else "half",
        default_base=1000.0,
        default_partial=fraction,
    )


FAMILIES = (
    Family("nomic_bert", ("nomic_bert",), describe, "Nomic BERT: post-norm encoder with rotary positions", FUSED),
)
