"""A model that runs, and the ways of running it that the probes need: token ids, positions, masks, a cache."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from toposcope.core.errors import BadConfig, BadValue, ToposcopeError
from toposcope.live.watch import Keep, WatchedAttention, watched

_FIRST_TOKEN = 4  # those before are often special
_MOST_TOKENS = 1000
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length", "n_ctx", "seq_length")
UNKNOWN_CONTEXT = 512  # where a configuration names none (T5)


@dataclass(frozen=True, eq=False)
class Running:
    """A torch model in evaluation mode, and how it is called: of transformers, TransformerLens or the laboratory."""

    model: Any

    def __post_init__(self) -> None:
        if not hasattr(self.model, "forward"):
            raise BadConfig(f"a torch model was expected, got {type(self.model).__name__}.")
        if self.model.training:
            raise BadConfig(
                "the model is in training mode, where dropout changes every run. Call model.eval() first."
            )
        if not self.takes("input_ids") and not self._by_place:
            raise BadValue(f"{type(self.model).__name__} takes no token ids (input_ids), so it cannot be run here.")

    @property
    def _by_place(self) -> bool:
        """Whether token ids are its first argument, under another name: the laboratory's, TransformerLens's."""
        if self.takes("input_ids"):
            return False
        lab = type(self.model).__module__.startswith("toposcope.lab") and hasattr(self.model, "embed")
        return lab or all(hasattr(self.model, name) for name in ("cfg", "blocks", "embed"))

    def takes(self, name: str) -> bool:
        """Whether the model's forward has a parameter of this name."""
        return name in inspect.signature(self.model.forward).parameters

    @cached_property
    def dtype(self) -> Any:
        """The precision of its weights."""
        return next(each.dtype for each in self.model.parameters() if each.is_floating_point())

    @cached_property
    def _embedding(self) -> Any:
        """The token embedding's weight."""
        if not self._by_place:
            try:
                return self.model.get_input_embeddings().weight
            except (AttributeError, NotImplementedError) as error:
                name = type(self.model).__name__
                raise BadValue(f"the token embedding of {name} cannot be found, so it cannot be run here.") from error
        embed = self.model.embed
        return embed.W_E if hasattr(embed, "W_E") else embed.weight

    @property
    def device(self) -> Any:
        """Where its token embedding is."""
        return self._embedding.device

    @property
    def config(self) -> Any:
        """Its configuration: that of the text, where there are several."""
        config: Any = getattr(self.model, "config", None) or getattr(self.model, "cfg", None)
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def context(self) -> int:
        """The most tokens its configuration speaks of."""
        config = self.config
        values = config.to_dict() if not hasattr(config, "model_type") and hasattr(config, "to_dict") else {}
        said = (values.get(name, getattr(config, name, None)) for name in (*_CONTEXTS, "length"))
        return next((each for each in said if isinstance(each, int) and 1 < each < 10**9), UNKNOWN_CONTEXT)

    @property
    def two_stacks(self) -> bool:
        """Whether an encoder's output enters a decoder."""
        return bool(getattr(getattr(self.model, "config", None), "is_encoder_decoder", False))

    @property
    def decodes(self) -> bool:
        """Whether it writes on token by token, with a cache."""
        named = type(self.model).__name__
        return self.takes("past_key_values") and not self.two_stacks and "MaskedLM" not in named

    @property
    def takes_positions(self) -> bool:
        """Whether it can be told where its tokens stand."""
        return self.takes("position_ids")

    @cached_property
    def convolves(self) -> bool:
        """Whether layers of another kind mix tokens (Mamba, gated delta nets): they pad every text to a chunk."""
        return any(type(module).__name__ == "Conv1d" for module in self.model.modules())

    def tokens(self, count: int, seed: int) -> Any:
        """That many different token ids, drawn at random."""
        import torch

        size = min(self._embedding.shape[0], _MOST_TOKENS)
        draw = torch.Generator().manual_seed(seed)
        few = torch.randperm(max(size - _FIRST_TOKEN - 1, 1), generator=draw)
        return (few.repeat(-(-count // len(few)))[:count] + min(_FIRST_TOKEN, size - 1)).clamp(max=size - 1)

    def __call__(self, ids_BN: Any, positions_BN: ArrayLike | None = None, **more: Any) -> Any:
        """Run it; `more` goes to its forward as it is."""
        import torch

        if self._by_place:
            with torch.no_grad():
                return self.model(ids_BN.to(self.device), **more)
        given: dict[str, Any] = {"input_ids": ids_BN.to(self.device), **more}
        if positions_BN is not None:
            given["position_ids"] = torch.as_tensor(np.asarray(positions_BN)).to(self.device)
            if self.takes("decoder_position_ids"):
                given["decoder_position_ids"] = given["position_ids"]
        if self.takes("use_cache"):
            given.setdefault("use_cache", False)
        if self.two_stacks:
            given["decoder_input_ids"] = given["input_ids"]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of positions beyond the context, and the like
            return self.model(**given)

    def attentions(
        self, ids_BN: Any, positions_BN: ArrayLike | None = None, *, maps: bool | Keep = False, **more: Any
    ) -> list[WatchedAttention]:
        """Its attentions on these tokens, in the order in which they run."""
        with watched(self.model, maps=maps, rows=len(ids_BN)) as seen:
            self(ids_BN, positions_BN, **more)
        return seen

    def attending(self, top: int) -> frozenset[str]:
        """The names of the modules that attend, from a run of two texts of one token, at 0 and at `top` - 1.

        It is the first run of a model that is looked into: by its last position it must not be a shorter text than
        those that follow, since frequencies may depend on the longest text so far.
        """
        if "_attending" not in self.__dict__:
            ids = self.tokens(2, seed=0)[:, None]
            with self.failing_as_told():
                met = self.attentions(ids, [[0], [top - 1]] if self.takes_positions else None)
            if not met:
                raise BadConfig(
                    f"no attention was seen while {type(self.model).__name__} ran: neither torch's fused attention "
                    "nor a product that a softmax follows. Its weights can still be read: 'toposcope scan'."
                )
            self.__dict__["_attending"] = frozenset(_with_weights(self.model, each.module) for each in met)
        found: frozenset[str] = self.__dict__["_attending"]
        return found

    @contextmanager
    def failing_as_told(self) -> Iterator[None]:
        """Inside the block, what the model's own code raises becomes an error that says so."""
        try:
            yield
        except ToposcopeError:
            raise
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0][:160]
            raise BadValue(
                f"{type(self.model).__name__} could not be run on a few tokens: {type(error).__name__}: {said} "
                "Its weights can still be read: 'toposcope scan'."
            ) from error

    @contextmanager
    def written_out(self) -> Iterator[None]:
        """Inside the block attention is computed step by step, so that its logits can be seen."""
        held = (getattr(module, "config", None) for module in self.model.modules())
        configs: dict[int, Any] = {id(each): each for each in held if hasattr(each, "_attn_implementation")}
        before = {key: config._attn_implementation for key, config in configs.items()}
        try:
            for config in configs.values():
                config._attn_implementation = "eager"
            yield
        finally:
            for key, config in configs.items():
                config._attn_implementation = before[key]


def _with_weights(model: Any, name: str) -> str:
    """The module, or the one around it that has weights: a softmax may be a module of its own."""
    while name and next(model.get_submodule(name).parameters(), None) is None:
        name = name.rpartition(".")[0]
    return name
