"""The models that are compared: one small Transformer, held to a regime or given a few more numbers.

In all of them the bias of the norm before attention stays 0, so that values have no bias and the theorems speak
(T6 exactly, T3 and T4 about the flow without norms). All begin from the same weights, as far as they share them.
"""

# mypy: allow-subclassing-any
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from toposcope import refinements as refine
from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.files import write_bytes
from toposcope.lab.model import ModelConfig, SelfAttention, Transformer

SELF_LOGIT = 0.1  # what D adds to a token's logit with itself at the start


@dataclass(frozen=True)
class Cell:
    """What is done to the plain model. `output` is of kind "full": see `refine.definite`."""

    name: str
    words: str
    kind: Literal["head", "layer", "full"] | None = None
    regime: str | None = None
    output: Literal["free", "identity"] = "free"
    added: Literal["slice", "uniform", "control"] | None = None


_SIGNS = {"pd": "positive", "half": "half", "nd": "negative"}
_WORDS = {"pd": "positive", "half": "half positive, half negative", "nd": "negative"}
_CELLS = (
    Cell("free", "nothing held"),
    Cell("free-identity", "nothing held, output projection the identity", output="identity"),
    *(
        Cell(f"full-{s}", f"W > 0, A {_WORDS[s]}, output projection the identity", "full", _SIGNS[s], "identity")
        for s in ("pd", "half", "nd")
    ),
    *(
        Cell(f"released-{s}", f"W > 0, A {_WORDS[s]}, output projection learned, as released", "full", _SIGNS[s])
        for s in ("pd", "nd")
    ),
    *(Cell(f"layer-{s}", f"U of every layer {_WORDS[s]}", "layer", _SIGNS[s]) for s in ("pd", "nd")),
    *(Cell(f"head-{s}", f"V~ of every head {_WORDS[s]}", "head", _SIGNS[s]) for s in ("pd", "nd")),
    Cell("slice", "diagonal D, each head its slice, as released", added="slice"),
    Cell("uniform", "diagonal D on all coordinates in every head", added="uniform"),
    Cell("control", "as many numbers as D: a bias of the queries", added="control"),
)
CELLS: Mapping[str, Cell] = MappingProxyType({cell.name: cell for cell in _CELLS})


def find_cell(name: str) -> Cell:
    """The cell of that name."""
    if name not in CELLS:
        raise BadValue(f"'{name}' is no cell. {did_you_mean(name, CELLS)}")
    return CELLS[name]


class Biases:
    """A bias of the queries before they turn, d numbers a layer, from 0: logits gain b^T k_j."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        for attention in _attentions(model):
            attention.query_bias = nn.Parameter(torch.zeros(attention.heads, 1, attention.head_dim))
            attention.split = _with_bias(attention)
            attention.together = False  # the bias comes first, then they turn

    def values(self) -> dict[int, Tensor]:
        return {n: attention.query_bias.detach() for n, attention in enumerate(_attentions(self.model))}

    def save(self, path: Path) -> Path:
        tensors = {f"layer.{number}.query_bias": value.contiguous() for number, value in self.values().items()}
        return write_bytes(path, to_bytes(tensors, metadata={"format": "pt"}))

    def remove(self) -> None:
        for attention in _attentions(self.model):
            del attention.query_bias, attention.split
            attention.together = attention.position.alike


def _with_bias(attention: SelfAttention) -> Any:
    plain = attention.split  # the class's own method

    def split(flat_BNW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BHNR, k_BGNR, v_BGNV = plain(flat_BNW)
        return q_BHNR + attention.query_bias, k_BGNR, v_BGNV

    return split


@dataclass(frozen=True, eq=False)
class Built:
    """A model ready to be trained. `promised` is the word that `scan` will have for every head (or layer)."""

    model: Transformer
    cell: Cell
    promised: str | None
    promise: str | None
    redundant: int
    added: refine.Installed | Biases | None

    @property
    def judged(self) -> Literal["heads", "layers"]:
        """Whose verdicts the promise is about."""
        return "layers" if self.cell.kind == "layer" else "heads"

    def plain(self, place: Path) -> Transformer:
        """The model with plain weights; what was added is written beside it and taken off."""
        if self.added is not None:
            name = "diagonal" if isinstance(self.added, refine.Installed) else "query_bias"
            self.added.save(place / f"{name}.safetensors")
            self.added.remove()
        made: Transformer = refine.materialise(self.model)
        return made


def build(cell: Cell, config: ModelConfig) -> Built:
    """The model of a cell before its first step."""
    model = Transformer(config)
    for layer in model.layers:
        layer.attention_norm.bias.requires_grad_(False)  # 0 from the start
    if cell.kind is not None:
        # W starts as m I: at the usual size of W a token's logit with itself would be sqrt(width) times the usual
        # one, and attention would see nothing else
        start = config.width**-0.5 if cell.kind == "full" else 1.0
        applied = refine.apply(model, cell.kind, cell.regime or "", output=cell.output, w_scale=start)
        return Built(model, cell, applied.verdict, applied.promise, applied.redundant, None)
    if cell.output == "identity":
        for attention in _attentions(model):
            if attention.heads * attention.value_dim != config.width:
                raise BadValue(f"{attention.heads} heads of {attention.value_dim} values have no identity as output.")
            nn.init.eye_(attention.o_proj.weight)
            attention.o_proj.weight.requires_grad_(False)
    return Built(model, cell, None, None, 0, _added(cell, model, config))


def _added(cell: Cell, model: Transformer, config: ModelConfig) -> refine.Installed | Biases | None:
    if cell.added == "control":
        return Biases(model)
    if cell.added is None:
        return None
    read = config.width // config.heads if cell.added == "slice" else config.width
    return refine.install(model, form=cell.added, start=SELF_LOGIT / read)  # a normalised token has |x|^2 = width


def _attentions(model: Transformer) -> list[Any]:
    return [layer.attention for layer in model.layers]
