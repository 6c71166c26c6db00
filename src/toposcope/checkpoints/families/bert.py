"""BERT and its relatives: norms after the addition, separate projections, learned positions added to the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, learned_table, with_note
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped
from toposcope.core.errors import BadConfig, MissingTensor
from toposcope.encodings import NONE, Encoding, combine, t5

NARROW = "added to the embeddings, before they are projected to the model's width."
BERT = Table(
    family="bert",
    stack="encoder",
    causal=False,
    grouped=False,
    eps_keys=("layer_norm_eps",),
    eps=1e-12,
    context_of_table=True,
    layer="encoder.layer.{}.attention.",
    linear=("self.query", "self.key", "self.value", "output.dense"),
    norm="layer",
    input_norm=None,
    residual_norm="output.LayerNorm",
    embedding="embeddings.word_embeddings",
)
SIGNATURE = (
    "encoder.layer.0.attention.output.LayerNorm.weight",
    "encoder.layer.0.attention.output.LayerNorm.gamma",
)

# RoBERTa without its prefix has the same tensor names, and nothing else would tell.
UNTYPED = ("the configuration names no model_type: read as BERT, whose positions count from row 0",)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """BERT; a file that names no type but keeps its tensors under 'roberta.' counts positions as RoBERTa does."""
    if config.get("model_type") is None and BERT.root(source).endswith("roberta."):
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


def sized(config: Config, **sizes: int) -> Config:
    """The configuration with its type's default sizes; a file that names no type has no type's defaults."""
    return config if config.get("model_type") is None else config.with_defaults(**sizes)


def decoding(table: Table, config: Config) -> Table:
    """The table, or that of the same model used as a decoder."""
    return replace(table, stack="decoder", causal=True) if config.flag("is_decoder", default=False) else table


def attention_layers(draft: Draft, encoding: Encoding, crossing: Encoding) -> Iterator[LayerSpec]:
    """Each layer's self-attention and, where the file holds it, its cross-attention."""
    for i in range(draft.sizes.layers):
        yield draft.layer(i, encoding)
        at = draft.prefix(i).replace(".attention.", ".crossattention.")
        if f"{at}self.query.weight" in draft.source.names():
            yield replace(draft.layer(i, crossing, at), kind="cross", causal=False)


def _encoder(config: Config, source: TensorSource, family: str, *, offset: int = 0) -> ModelSpec:
    config = sized(config, num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    draft = decoding(replace(BERT, family=family), config).draft(config, source)
    encoding, skipped = _positions(config, source, f"{draft.root}embeddings.position_embeddings.weight", offset)
    warnings = UNTYPED if family == "bert" and config.get("model_type") is None else ()
    layers = attention_layers(draft, encoding, NONE)
    return draft.spec(encoding, lambda layer, at: replace(layer, warnings=warnings), layers=layers, skipped=skipped)


def _positions(config: Config, source: TensorSource, table: str, offset: int) -> tuple[Encoding, tuple[Skipped, ...]]:
    """The learned table; or, for the relative variants of old files, an encoding that says it has no tables."""
    kind = config.text("position_embedding_type", default="absolute")
    if not kind.startswith("relative"):
        encoding = learned_table(source, table, offset=offset)
        narrow = encoding.input is not None and encoding.input.width != config.get("hidden_size")
        return with_note(encoding, NARROW) if narrow else encoding, ()
    distances = tuple(sorted(name for name in source.names() if name.endswith("distance_embedding.weight")))
    why = "a learned vector for each distance meets the query, so position depends on content"
    return (
        Encoding(name="relative-key", title=f"learned distances ({kind})", exact_tables=False, notes=(f"{why}.",)),
        (Skipped("distance_embedding", why, distances),),
    )


def describe_relative(family: str, sizes: Mapping[str, int], config: Config, source: TensorSource) -> ModelSpec:
    """BERT under another name."""
    return _encoder(config.with_defaults(**sizes), source, family)


def describe_roberta_relative(family: str, config: Config, source: TensorSource, *, padding: int = 1) -> ModelSpec:
    """RoBERTa under another name; `padding` is the padding token of a file that names none."""
    offset = config.integer("pad_token_id", default=padding, least=0) + 1
    return _encoder(config, source, family, offset=offset)


def describe_xmod(config: Config, source: TensorSource) -> ModelSpec:
    """X-MOD: RoBERTa; where `pre_norm` is set, the same norm stands before attention."""
    if config.flag("pre_norm", default=False):
        return describe_pre_norm(
            replace(PRE_NORM, family="xmod", input_norm="output.LayerNorm"), None, config, source
        )
    return describe_roberta_relative("xmod", config, source)


def describe_ibert(config: Config, source: TensorSource) -> ModelSpec:
    """I-BERT: RoBERTa; what it counts with when it computes in whole numbers is skipped."""
    if config.flag("quant_mode", default=False):
        raise BadConfig(f"{config.where} asks for whole numbers (quant_mode), which are not read.")
    spec = describe_roberta_relative("ibert", config, source)
    endings = ("act_scaling_factor", "x_min", "x_max", "weight_integer", "bias_integer", "fc_scaling_factor", "shift")
    names = tuple(sorted(name for name in source.names() if name.endswith((*endings, "weight_scaling_factor"))))
    why = "of the computation in whole numbers, which is off"
    return replace(spec, skipped=(*spec.skipped, Skipped("scaling factors", why, names))) if names else spec


def describe_luke(config: Config, source: TensorSource) -> ModelSpec:
    """LUKE: RoBERTa; between words and entities other queries act, which are skipped."""
    spec = describe_roberta_relative("luke", config, source)
    kinds = ("w2e_query", "e2w_query", "e2e_query")
    names = tuple(sorted(name for name in source.names() if any(f".{kind}." in name for kind in kinds)))
    why = "queries between words and entities; a text without entities has none"
    return replace(spec, skipped=(*spec.skipped, Skipped("queries of entities", why, names))) if names else spec


def describe_big_bird(config: Config, source: TensorSource) -> ModelSpec:
    """BigBird: short texts see everything; in long ones a token sees blocks, some of them drawn at random."""
    spec = _encoder(config, source, "big_bird")
    if config.text("attention_type", default="block_sparse") != "block_sparse":
        return spec
    block = config.integer("block_size", default=64)
    many = (5 + 2 * config.integer("num_random_blocks", default=3, least=0)) * block
    warning = f"beyond {many} tokens a token sees only some blocks of the text, which is left out here"
    return replace(spec, layers=tuple(replace(layer, warnings=(*layer.warnings, warning)) for layer in spec.layers))


def describe_pre_norm(table: Table, offset: int | None, config: Config, source: TensorSource) -> ModelSpec:
    """BERT with its norm before attention; `offset` None: positions are counted as RoBERTa does."""
    draft = decoding(table, config).draft(config, source)
    row = config.integer("pad_token_id", default=1, least=0) + 1 if offset is None else offset
    encoding = learned_table(source, f"{draft.root}embeddings.position_embeddings.weight", offset=row)
    return draft.spec(encoding, layers=attention_layers(draft, encoding, NONE))


def describe_mpnet(config: Config, source: TensorSource) -> ModelSpec:
    """MPNet: learned positions at the input and T5's buckets of distances on the logits of every layer."""
    draft = MPNET.draft(config, source)
    encoding = learned_table(source, f"{draft.root}embeddings.position_embeddings.weight", offset=2)
    name = f"{draft.root}encoder.relative_attention_bias.weight"
    if name not in source.names():
        raise MissingTensor(f"{source.path} holds no tensor '{name}', the relative bias of all layers.")
    table = source.read(name)[:_MPNET_BUCKETS]  # whatever the configuration says
    if table.ndim != 2 or len(table) < _MPNET_BUCKETS:
        raise MissingTensor(
            f"the relative bias '{name}' in {source.path} has shape {table.shape}; expected {_MPNET_BUCKETS} buckets."
        )
    both = combine(encoding, t5(table, bidirectional=True, max_distance=128))
    return replace(draft.spec(both), accounted=(name,))


_MPNET_BUCKETS = 32
_LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
_XL = {"num_hidden_layers": 36, "hidden_size": 2560, "num_attention_heads": 32, "layer_norm_eps": 1e-5}
_SMALL = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
PRE_NORM = replace(BERT, residual_norm=None, defaults=_SMALL)
MEGATRON = replace(PRE_NORM, family="megatron-bert", defaults=_LARGE, input_norm="ln")
XLM_ROBERTA_XL = replace(PRE_NORM, family="xlm-roberta-xl", defaults=_XL, input_norm="self_attn_layer_norm")
ROBERTA_PRE_NORM = replace(PRE_NORM, family="roberta-prelayernorm", input_norm="LayerNorm")
MPNET = replace(
    BERT, family="mpnet", defaults=_SMALL, linear=("attn.q", "attn.k", "attn.v", "attn.o"), residual_norm="LayerNorm"
)

_BASE: Mapping[str, int] = {}
_REMBERT = {"num_hidden_layers": 32, "hidden_size": 1152, "num_attention_heads": 18}
_GENERATION = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
RELATIVES = (
    ("ernie", _BASE, "ERNIE: built like BERT"),
    ("rembert", _REMBERT, "RemBERT: BERT with narrower embeddings"),
    ("layoutlm", _BASE, "LayoutLM: BERT that also places its tokens on a page"),
    ("splinter", _BASE, "Splinter: built like BERT"),
    ("roc_bert", _BASE, "RoCBert: built like BERT"),
    ("dpr", _BASE, "DPR: a BERT for passages, a BERT for questions"),
    ("bert-generation", _GENERATION, "BERT for generation"),
)

FAMILIES = (
    *(Family(name, (name,), partial(describe_relative, name, sizes), about) for name, sizes, about in RELATIVES),
    Family(
        "data2vec-text",
        ("data2vec-text",),
        partial(describe_roberta_relative, "data2vec-text"),
        "data2vec (text): built like RoBERTa",
    ),
    Family("xmod", ("xmod",), describe_xmod, "X-MOD: RoBERTa with adapters by language"),
    Family(
        "markuplm",
        ("markuplm",),
        partial(describe_roberta_relative, "markuplm", padding=0),
        "MarkupLM: RoBERTa that also knows where in a page a token stands",
    ),
    Family(
        "megatron-bert",
        ("megatron-bert",),
        partial(describe_pre_norm, MEGATRON, 0),
        "Megatron BERT: BERT with norms before attention",
    ),
    Family(
        "xlm-roberta-xl",
        ("xlm-roberta-xl",),
        partial(describe_pre_norm, XLM_ROBERTA_XL, None),
        "XLM-RoBERTa XL: RoBERTa with norms before attention",
    ),
    Family(
        "roberta-prelayernorm",
        ("roberta-prelayernorm",),
        partial(describe_pre_norm, ROBERTA_PRE_NORM, None),
        "RoBERTa with norms before attention",
    ),
    Family("mpnet", ("mpnet",), describe_mpnet, "MPNet: learned positions and buckets of distances"),
    Family("ibert", ("ibert",), describe_ibert, "I-BERT: RoBERTa for whole numbers"),
    Family("luke", ("luke",), describe_luke, "LUKE: RoBERTa with entities"),
    Family("big_bird", ("big_bird",), describe_big_bird, "BigBird: BERT, sparse in long texts"),
    Family("bert", ("bert",), describe, "BERT: post-norm encoder with learned positions", SIGNATURE),
    Family(
        "roberta",
        ("roberta", "xlm-roberta", "camembert"),
        describe_roberta,
        "RoBERTa, XLM-RoBERTa, CamemBERT: BERT with positions counted from padding_idx + 1",
    ),
    Family("electra", ("electra",), describe_electra, "ELECTRA: BERT with narrower embeddings"),
)
