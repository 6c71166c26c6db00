"""BART and its relatives: an encoder and a decoder with a norm before or after attention, positions at the input.

Positions are learned (from row 2 on in most), or sinusoids, which files may leave out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, find_root, learned_table
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE, Encoding, sinusoidal

OUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
NORM = "self_attn_layer_norm"


@dataclass(frozen=True)
class BartRelative:
    """What tells the relatives apart."""

    family: str
    about: str
    before: bool  # the norm stands before attention, not after the addition
    positions: Literal["learned", "sinusoidal", "fairseq"] = "learned"
    offset: int = 2  # the row of the first position
    layers: int = 12
    width: int = 1024
    heads: int = 16
    decoder_layers: int | None = None  # None: as many as the encoder's
    cross: str = "encoder_attn"  # what cross-attention is called

    def table(self, stack: str) -> Table:
        """The stack's table; keys, values and queries all have biases."""
        layers = self.layers if stack == "encoder" or self.decoder_layers is None else self.decoder_layers
        return Table(
            family=self.family,
            stack=stack,
            causal=stack == "decoder",
            defaults={f"{stack}_layers": layers, "d_model": self.width, f"{stack}_attention_heads": self.heads},
            sizes={
                "layers": (f"{stack}_layers",),
                "width": ("d_model",),
                "heads": (f"{stack}_attention_heads",),
                "kv_heads": (),
            },
            eps_keys=(),  # torch's default: the configuration does not name it
            eps=1e-5,
            layer=f"{stack}.layers.{{}}.",
            linear=OUT,
            norm="layer",
            input_norm=NORM if self.before else None,
            residual_norm=None if self.before else NORM,
            embedding=None,
        )


KINDS = (
    BartRelative("bart", "BART: norms after the addition", before=False),
    BartRelative("mbart", "mBART: BART with norms before attention", before=True),
    BartRelative("plbart", "PLBART: built like BART", before=False, layers=6, width=768, heads=12),
    BartRelative("mvp", "MVP: built like BART", before=False),
    BartRelative(
        "blenderbot",
        "Blenderbot: norms before attention",
        before=True,
        offset=0,
        layers=2,
        decoder_layers=24,
        width=2560,
        heads=32,
    ),
    BartRelative("blenderbot-small", "Blenderbot small", before=False, offset=0, layers=8, width=512),
    BartRelative("marian", "Marian (Opus-MT): sinusoids", before=False, positions="sinusoidal", offset=0),
    BartRelative(
        "pegasus", "Pegasus: sinusoids, norms before attention", before=True, positions="sinusoidal", offset=0
    ),
    BartRelative("m2m_100", "M2M-100 and NLLB: sinusoids", before=True, positions="fairseq"),
    BartRelative(
        "speech_to_text",
        "Speech2Text: an encoder of sound, built like M2M-100",
        before=True,
        positions="fairseq",
        width=256,
        heads=4,
        decoder_layers=6,
    ),
    BartRelative("nllb-moe", "NLLB mixtures of experts", before=True, positions="fairseq", cross="cross_attention"),
)


def describe(kind: BartRelative, config: Config, source: TensorSource) -> ModelSpec:
    """Encoder layers, then for each decoder layer its self- and its cross-attention; either stack may be missing."""
    if kind.family == "mvp" and config.flag("use_prompt", default=False):
        raise BadConfig(
            f"{config.where} asks for prompts (use_prompt): learned keys and values beside those of the text, which "
            "have no place in the description."
        )
    tables = [kind.table(stack) for stack in ("encoder", "decoder")]
    root = find_root(source, *(table.first for table in tables))
    drafts = [table.draft(config, source, root) for table in tables if f"{root}{table.first}" in source.names()]
    spec = drafts[0].spec(NONE, layers=(layer for draft in drafts for layer in _layers(kind, draft)))
    names = (f"{root}{name}.weight" for name in ("shared", "decoder.embed_tokens", "encoder.embed_tokens"))
    return replace(spec, embedding=next((name for name in names if name in source.names()), None))


def _layers(kind: BartRelative, draft: Draft) -> Iterator[LayerSpec]:
    stack = draft.table.stack
    encoding = _positions(kind, draft, f"{draft.root}{stack}.embed_positions.weight")
    norm = f"{kind.cross}_layer_norm"
    crossing = replace(
        draft,
        table=replace(
            draft.table,
            causal=False,
            linear=tuple(name.replace("self_attn", kind.cross) for name in OUT),
            input_norm=norm if kind.before else None,
            residual_norm=None if kind.before else norm,
        ),
    )
    for index in range(draft.sizes.layers):
        yield draft.layer(index, encoding)
        if f"{draft.prefix(index)}{kind.cross}.q_proj.weight" in draft.source.names():
            yield replace(crossing.layer(index, NONE), kind="cross")


def _positions(kind: BartRelative, draft: Draft, name: str) -> Encoding:
    width = draft.sizes.width
    if kind.positions == "learned":
        return learned_table(draft.source, name, offset=kind.offset, width=width)
    if kind.positions == "fairseq":  # the frequencies end at 1/10000 sharp; the first position follows the padding's
        return sinusoidal(width, layout="half", offset=draft.config.integer("pad_token_id", default=1, least=0) + 1)
    made = sinusoidal(width, layout="half", denominator=width / 2)
    if name not in draft.source.names() or made.input is None:
        return made
    stored = draft.source.read(name)
    same = stored.shape[1:] == (width,) and np.allclose(made.input.vectors(np.arange(len(stored))), stored, atol=1e-3)
    return made if same else learned_table(draft.source, name, width=width)


FAMILIES = tuple(Family(kind.family, (kind.family,), partial(describe, kind), kind.about) for kind in KINDS)
