"""ESM, the protein language models: BERT's names with norms before attention, and rotary or learned positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.bert import BERT, attention_layers, decoding
from toposcope.checkpoints.families.common import Config, learned_table, with_note
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import BadConfig, MissingTensor
from toposcope.encodings import NONE, Encoding, rope

ESM = replace(
    BERT,
    family="esm",
    defaults={"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    input_norm="LayerNorm",
    residual_norm=None,
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """ESM-1b and ESM-2. Queries are scaled before they turn, which is the same as scaling the logits."""
    draft = decoding(ESM, config).draft(config, source)
    encoding = _positions(config, source, draft.root, draft.sizes.head_dim)
    # this architecture turns the queries and keys of its cross-attention too
    crossing = encoding if encoding.rotary is not None else NONE
    return draft.spec(encoding, layers=attention_layers(draft, encoding, crossing))


def _positions(config: Config, source: TensorSource, root: str, head_dim: int) -> Encoding:
    kind = config.text("position_embedding_type", default="absolute")
    if kind == "rotary":
        return _with_stored_frequencies(source, root, rope(head_dim, base=config.number("rope_theta", default=1e4)))
    if kind == "absolute":
        offset = config.integer("pad_token_id", default=1, least=0) + 1
        return learned_table(source, f"{root}embeddings.position_embeddings.weight", offset=offset)
    if kind == "none":
        return NONE
    raise BadConfig(f"'position_embedding_type' in {config.where} is {kind!r}; expected 'rotary' or 'absolute'.")


def _with_stored_frequencies(source: TensorSource, root: str, encoding: Encoding) -> Encoding:
    """The rotation with the frequencies the file holds, if any: they may be rounded to half precision.

    Files keep them once for the model, or once in each layer, of which the first counts.
    """
    names = [f"{root}rotary_embeddings.inv_freq"]
    names += sorted(name for name in source.names() if name.endswith(".self.rotary_embeddings.inv_freq"))
    name = next((name for name in names if name in source.names()), None)
    if name is None or encoding.rotary is None:
        return encoding
    frequencies_F = source.read(name).astype(np.float64)
    expected = encoding.rotary.frequencies().shape
    if frequencies_F.shape != expected:
        raise MissingTensor(
            f"tensor '{name}' in {source.path} has shape {frequencies_F.shape}; the heads ask for {expected}."
        )
    frequencies_F.flags.writeable = False
    stored = replace(encoding, rotary=replace(encoding.rotary, frequencies_at=lambda context: frequencies_F))
    return with_note(stored, f"the frequencies are those stored as '{name}'.")


FAMILIES = (
    Family(
        "esm",
        ("esm",),
        describe,
        "ESM-1b and ESM-2: pre-norm protein encoders, learned or rotary positions",
        ("encoder.layer.0.attention.LayerNorm.weight", "encoder.layer.0.attention.LayerNorm.gamma"),
    ),
)
