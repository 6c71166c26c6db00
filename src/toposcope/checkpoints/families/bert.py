"""BERT and its relatives: norms after the addition, separate projections, learned positions added to the input."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec, Skipped
from toposcope.encodings import NONE, Encoding

QUERY = "encoder.layer.0.attention.self.query.weight"
SIGNATURE = (
    "encoder.layer.0.attention.output.LayerNorm.weight",
    "encoder.layer.0.attention.output.LayerNorm.gamma",
)

# RoBERTa without its prefix has the same tensor names, and nothing else would tell.
UNTYPED = ("the configuration names no model_type: read as BERT, whose positions count from row 0",)


def layer_norm(source: TensorSource, prefix: str, eps: float) -> NormSpec:
    """A LayerNorm under its present names, or under those of the first TensorFlow conversions (gamma, beta)."""
    if f"{prefix}.weight" not in source.names() and f"{prefix}.gamma" in source.names():
        return NormSpec("layer", eps, f"{prefix}.gamma", f"{prefix}.beta")
    return NormSpec.at("layer", prefix, eps)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """BERT; a file that names no type but keeps its tensors under 'roberta.' counts positions as RoBERTa does."""
    if config.get("model_type") is None and find_root(source, QUERY).endswith("roberta."):
        return describe_roberta(config, source)
    return _encoder(config, source, "bert")


def describe_roberta(config: Config, source: TensorSource) -> ModelSpec:
    """RoBERTa: the first token has position padding_idx + 1, so the rows before it are never used."""
    offset = config.integer("pad_token_id", default=1, least=0) + 1
    return _encoder(config, source, "roberta", offset=offset)


def describe_electra(config: Config, source: TensorSource) -> ModelSpec:
    """ELECTRA: BERT whose embeddings may be narrower than its layers."""
    config = config.with_defaults(hidden_size=256, num_attention_heads=4, embedding_size=128)
    return _encoder(config, source, "electra")


def _encoder(config: Config, source: TensorSource, family: str, *, offset: int = 0) -> ModelSpec:
    if config.get("model_type") is not None:  # a file that names no type has no type's defaults
        config = config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    root = find_root(source, QUERY)
    sizes = Sizes.of(config)
    eps = config.number("layer_norm_eps", default=1e-12)
    decoder = config.flag("is_decoder", default=False)
    encoding, skipped = _positions(config, source, f"{root}embeddings.position_embeddings.weight", offset)

    def attention(i: int, name: str) -> LayerSpec:
        at = f"{root}encoder.layer.{i}.{name}."
        return LayerSpec(
            stack="decoder" if decoder else "encoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=decoder,
            encoding=encoding,
            q=Linear.at(f"{at}self.query"),
            k=Linear.at(f"{at}self.key"),
            v=Linear.at(f"{at}self.value"),
            o=Linear.at(f"{at}output.dense"),
            residual_norm=layer_norm(source, f"{at}output.LayerNorm", eps),
            warnings=UNTYPED if family == "bert" and config.get("model_type") is None else (),
        )

    layers: list[LayerSpec] = []
    for i in range(sizes.layers):
        layers.append(attention(i, "attention"))
        if f"{root}encoder.layer.{i}.crossattention.self.query.weight" in source.names():
            layers.append(replace(attention(i, "crossattention"), kind="cross", causal=False, encoding=NONE))
    return ModelSpec(
        family=family,
        layers=tuple(layers),
        embedding=f"{root}embeddings.word_embeddings.weight",
        context=claimed_context(config, "max_position_embeddings")
        if encoding.input is None
        else encoding.input.length,
        skipped=skipped,
    )


def _positions(config: Config, source: TensorSource, table: str, offset: int) -> tuple[Encoding, tuple[Skipped, ...]]:
    """The learned table; or, for the relative variants of old files, an encoding that says it has no tables."""
    kind = config.text("position_embedding_type", default="absolute")
    if not kind.startswith("relative"):
        encoding = learned_table(source, table, offset=offset)
        narrow = encoding.input is not None and encoding.input.width != config.get("hidden_size")
        if narrow:
            encoding = replace(
                encoding,
                notes=(*encoding.notes, "added to the embeddings, before they are projected to the model's width."),
            )
        return encoding, ()
    distances = tuple(sorted(name for name in source.names() if name.endswith("distance_embedding.weight")))
    why = "a learned vector for each distance meets the query, so position depends on content"
    return (
        Encoding(name="relative-key", title=f"learned distances ({kind})", exact_tables=False, notes=(f"{why}.",)),
        (Skipped("distance_embedding", why, distances),),
    )


FAMILIES = (
    Family("bert", ("bert",), describe, "BERT: post-norm encoder with learned positions", SIGNATURE),
    Family(
        "roberta",
        ("roberta", "xlm-roberta", "camembert"),
        describe_roberta,
        "RoBERTa, XLM-RoBERTa, CamemBERT: BERT with positions counted from padding_idx + 1",
    ),
    Family("electra", ("electra",), describe_electra, "ELECTRA: BERT with narrower embeddings"),
)
