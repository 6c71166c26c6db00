"""The model that the probes of parity, lengths and axes look at: its text, its attentions, the layers they are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer, Model
from toposcope.live.content import given_content
from toposcope.live.matching import matched
from toposcope.live.running import Running


@dataclass(frozen=True, eq=False)
class Text:
    """The token that all texts repeat, so that nothing but position tells its places apart, and the one that pads."""

    token: int
    padding: int

    @classmethod
    def of(cls, running: Running) -> Text:
        special: set[Any] = set()
        for name in ("pad", "bos", "eos"):
            told = getattr(running.config, f"{name}_token_id", None)
            special |= set(told if isinstance(told, list | tuple) else [told])
        ids = [int(each) for each in running.tokens(20, seed=3)]
        token = next((each for each in ids if each not in special), ids[0])
        padding = getattr(running.config, "pad_token_id", None)
        if not isinstance(padding, int) or not 0 <= padding < int(getattr(running.config, "vocab_size", 0) or 0):
            padding = next((each for each in ids if each != token), token)
        return cls(token, padding)

    def ids(self, rows: int, columns: int) -> Any:
        """So many rows of so many tokens, without padding."""
        return self.ids_BT(np.ones((rows, columns), dtype=bool))

    def ids_BT(self, real_BT: NDArray[np.bool_]) -> Any:
        import torch

        return torch.as_tensor(np.where(real_BT, self.token, self.padding))


@dataclass(frozen=True, eq=False)
class LiveSubject:
    """A model as it is looked at: its text, the modules that attend (in the order of a run), the layers they are."""

    running: Running
    text: Text
    modules: tuple[str, ...]
    layers: Mapping[int, Layer]  # by the number of the attention in a run

    @classmethod
    def of(cls, running: Running, model: Model) -> LiveSubject:
        """Found by running a short text."""
        text = Text.of(running)
        modules = [each.module for each in running.attentions(text.ids(1, 6))]
        return cls(running, text, tuple(modules), dict(sorted(matched(modules, model.layers))))

    def content(self, rows: int, *, size: float = 1.0) -> AbstractContextManager[None]:
        """Inside the block every token enters every attention as the same random vector (size 0: as nothing)."""
        return given_content(self.running.model, set(self.modules), [0] * rows, sizes=size)

    @property
    def precision(self) -> str:
        """The name of the model's precision."""
        return str(self.running.dtype).removeprefix("torch.")
