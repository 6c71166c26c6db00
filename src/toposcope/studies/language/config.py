"""One run of the language-model probe: a frozen record with a key of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.lab.model import ModelConfig
from toposcope.lab.parameters import nearest_ff, trained_parameters
from toposcope.lab.settings import from_settings
from toposcope.studies.language.cells import Cell, build, find_cell
from toposcope.studies.language.texts import CLASSES, VOCABULARY, find

SCHEMA = 3  # a change of meaning makes every key a new one (3: times are the processor's)
TASKS = ("bytes", "masked-bytes")
_LATER = {"loops": 1, "parameters": None}  # settings that came later: left out where they are usual


@dataclass(frozen=True)
class ProbeConfig:
    """A cell, a task (causal next byte, or unmasked with hidden bytes), an encoding and a seed; sizes and training.

    Runs of one seed see the same windows in the same order and begin from the same weights, whatever their cell.
    `other` is a text that is only measured on. The layers run `loops` times with the same weights; `parameters`
    chooses the width of the MLPs, in place of `ff`, with which the cell has as many, or as nearly as can be.
    """

    cell: str
    task: Literal["bytes", "masked-bytes"] = "bytes"
    encoding: str = "rope"
    heads: int = 1
    seed: int = 0
    text: str = "sotu"
    other: str = "wiki"
    width: int = 64
    layers: int = 2
    ff: int = 128
    length: int = 64
    steps: int = 600
    batch: int = 16
    lr: float = 3e-3
    weight_decay: float = 0.01
    diagonal_lr: float = 0.1
    windows: int = 256
    loops: int = 1
    parameters: int | None = None

    def __post_init__(self) -> None:
        find_cell(self.cell)
        if self.task not in TASKS:
            raise BadValue(f"'{self.task}' is no task on bytes. {did_you_mean(self.task, TASKS)}")
        for name in ("steps", "batch", "windows", "parameters"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise BadValue(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not (self.lr > 0 and self.diagonal_lr > 0 and 0 <= self.weight_decay < 1):
            raise BadValue("learning rates must be positive, and weight_decay in [0, 1).")
        if not 0 <= self.seed < 2**31:
            raise BadValue(f"the seed must be a whole number from 0 to 2147483647, got {self.seed}.")
        self.model()

    @property
    def causal(self) -> bool:
        return self.task == "bytes"

    @property
    def held(self) -> Cell:
        return find_cell(self.cell)

    @cached_property
    def mlp(self) -> int:
        """The width of the MLPs."""
        if self.parameters is None:
            return self.ff
        plain = replace(self, parameters=None)

        def count(ff: int) -> int:
            return trained_parameters(build(self.held, replace(plain, ff=ff).model()).model)

        return nearest_ff(count, self.parameters)

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def model(self) -> ModelConfig:
        return ModelConfig(
            vocabulary=VOCABULARY,
            classes=CLASSES,
            length=self.length,
            encoding=self.encoding,
            reads="token",
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            ff=self.mlp,
            loops=self.loops,
            causal=self.causal,
            seed=self.seed,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, from which `from_dict` makes the same configuration."""
        return {name: value for name, value in asdict(self).items() if name not in _LATER or value != _LATER[name]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return from_settings(cls, data)

    def key(self) -> str:
        """16 hex digits of all that decides the run, the bytes of its texts among it."""
        texts = [find(name).digest for name in (self.text, self.other)]
        settings = {**self.as_dict(), "ff": self.mlp}
        settings.pop("parameters", None)  # they show in ff
        told = {"schema": SCHEMA, "probe": "bytes", **settings, "held": asdict(self.held), "texts": texts}
        del told["text"], told["other"]  # their bytes count, not their names
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
