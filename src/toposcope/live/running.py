"""A model that runs, and the ways of running it that the probes need: token ids, positions, masks, a cache."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.core.errors import BadConfig, BadValue
from toposcope.live.watch import Attention, watched

_FIRST_TOKEN = 4  # those before are often special
_MOST_TOKENS = 1000


@dataclass(frozen=True, eq=False)
class Running:
    """A torch model of transformers in evaluation mode, and how it is called."""

    model: Any

    def __post_init__(self) -> None:
        if not hasattr(self.model, "forward"):
            raise BadConfig(f"a torch model was expected, got {type(self.model).__name__}.")
        if self.model.training:
            raise BadConfig(
                "the model is in training mode, where dropout changes every run. Call model.eval() first."
            )
        if not self.takes("input_ids"):
            raise BadValue(f"{type(self.model).__name__} takes no token ids (input_ids), so it cannot be run here.")

    def takes(self, name: str) -> bool:
        """Whether the model's forward has a parameter of this name."""
        return name in inspect.signature(self.model.forward).parameters

    @cached_property
    def dtype(self) -> Any:
        """The precision of its weights."""
        return next(each.dtype for each in self.model.parameters() if each.is_floating_point())

    @cached_property
    def device(self) -> Any:
        """Where its token embedding is."""
        return self.model.get_input_embeddings().weight.device

    @property
    def two_stacks(self) -> bool:
        """Whether an encoder's output enters a decoder."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @property
    def decodes(self) -> bool:
        """Whether it writes on token by token, with a cache."""
        named = type(self.model).__name__
        return self.takes("past_key_values") and not self.two_stacks and "MaskedLM" not in named

    @property
    def takes_positions(self) -> bool:
        """Whether it can be told where its tokens stand."""
        return self.takes("position_ids")

    def tokens(self, count: int, seed: int) -> Any:
        """That many different token ids, drawn at random."""
        import torch

        size = min(self.model.get_input_embeddings().weight.shape[0], _MOST_TOKENS)
        draw = torch.Generator().manual_seed(seed)
        few = torch.randperm(max(size - _FIRST_TOKEN - 1, 1), generator=draw)
        return (few.repeat(-(-count // len(few)))[:count] + min(_FIRST_TOKEN, size - 1)).clamp(max=size - 1)

    def __call__(self, ids_BN: Any, positions_BN: ArrayLike | None = None, **more: Any) -> Any:
        """Run it; `more` goes to its forward as it is."""
        import torch

        given: dict[str, Any] = {"input_ids": ids_BN.to(self.device), **more}
        if positions_BN is not None:
            given["position_ids"] = torch.as_tensor(np.asarray(positions_BN)).to(self.device)
        if self.takes("use_cache"):
            given.setdefault("use_cache", False)
        if self.two_stacks:
            given["decoder_input_ids"] = given["input_ids"]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of positions beyond the context, and the like
            return self.model(**given)

    def attentions(
        self, ids_BN: Any, positions_BN: ArrayLike | None = None, *, maps: bool = False, **more: Any
    ) -> list[Attention]:
        """Its attentions on these tokens, in the order in which they run."""
        with watched(self.model, maps=maps) as seen:
            self(ids_BN, positions_BN, **more)
        return seen
