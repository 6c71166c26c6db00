"""OPT: learned positions that start at row 2, norm before attention or (350M) after it."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec, Skipped

_RESERVED = 2  # rows of the position table that no position uses
_EPS = 1e-5  # torch's default: the configuration does not name it


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Where embeddings are narrower than the model, a projection widens them before positions are added."""
    root = find_root(source, "layers.0.self_attn.q_proj.weight")
    sizes = Sizes.of(config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12))
    before = config.flag("do_layer_norm_before", default=True)
    encoding = learned_table(source, f"{root}embed_positions.weight", offset=_RESERVED)

    def layer(i: int) -> LayerSpec:
        at = f"{root}layers.{i}."
        norm = _norm(source, f"{at}self_attn_layer_norm")
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            q=Linear.at(f"{at}self_attn.q_proj"),
            k=Linear.at(f"{at}self_attn.k_proj"),
            v=Linear.at(f"{at}self_attn.v_proj"),
            o=Linear.at(f"{at}self_attn.out_proj"),
            input_norm=norm if before else None,
            residual_norm=None if before else norm,
        )

    embedding, widened = f"{root}embed_tokens.weight", f"{root}project_in.weight"
    narrow = widened in source.names()
    return ModelSpec(
        family="opt",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=None if narrow else embedding,
        context=claimed_context(config, "max_position_embeddings"),
        skipped=(
            (Skipped("embed_tokens", "it enters the model through project_in, not directly", (embedding, widened)),)
            if narrow
            else ()
        ),
    )


def _norm(source: TensorSource, prefix: str) -> NormSpec:
    """A LayerNorm, which may be without gain and bias (`layer_norm_elementwise_affine`: false)."""
    if f"{prefix}.weight" in source.names():
        return NormSpec.at("layer", prefix, _EPS)
    return NormSpec("layer", _EPS)


FAMILIES = (Family("opt", ("opt",), describe, "OPT and Galactica"),)
