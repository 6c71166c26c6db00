"""OPT: learned positions that start at row 2, norm before attention or (350M) after it."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec, Skipped

_RESERVED = 2  # rows of the position table that no position uses

OPT = Table(
    family="opt",
    defaults={"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    grouped=False,
    eps_keys=(),  # torch's default: the configuration does not name it
    eps=1e-5,
    linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    norm="layer",
    input_norm=None,
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Where embeddings are narrower than the model, a projection widens them before positions are added."""
    draft = OPT.draft(config, source)
    before = config.flag("do_layer_norm_before", default=True)
    encoding = learned_table(source, f"{draft.root}embed_positions.weight", offset=_RESERVED)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        norm = draft.norm(f"{at}self_attn_layer_norm")
        if f"{at}self_attn_layer_norm.weight" not in source.names():
            norm = NormSpec("layer", draft.eps)  # without gain and bias (`layer_norm_elementwise_affine`: false)
        return replace(layer, input_norm=norm) if before else replace(layer, residual_norm=norm)

    spec = draft.spec(encoding, vary)
    embedding, widened = f"{draft.root}embed_tokens.weight", f"{draft.root}project_in.weight"
    if widened not in source.names():
        return spec
    why = "it enters the model through project_in, not directly"
    return replace(spec, embedding=None, skipped=(Skipped("embed_tokens", why, (embedding, widened)),))


def describe_biogpt(config: Config, source: TensorSource) -> ModelSpec:
    """BioGPT: OPT under other defaults."""
    sizes = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
    return replace(describe(config.with_defaults(**sizes), source), family="biogpt")


FAMILIES = (
    Family("opt", ("opt",), describe, "OPT and Galactica"),
    Family("biogpt", ("biogpt",), describe_biogpt, "BioGPT: built like OPT"),
)
