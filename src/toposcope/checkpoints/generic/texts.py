"""Inputs for a copy: random texts whose first tokens differ, and what else its forward pass asks for."""

from __future__ import annotations

from typing import Any

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.shrink import SPECIAL

TEXTS, LENGTH = 6, 23


def text_inputs(model: Any, texts: int, length: int, seed: int) -> dict[str, Any]:
    """Token numbers for a model that reads text, for both its stacks where it has two."""
    import torch

    if getattr(model, "main_input_name", "input_ids") not in ("input_ids", "pixel_values", "input_features"):
        raise Refused(f"it reads {model.main_input_name}, not text")
    table = model.get_input_embeddings()
    size = int(getattr(table, "num_embeddings", 0) or table.weight.shape[0])
    if size < SPECIAL + texts:
        raise Refused(f"its vocabulary has {size} tokens")
    generator = torch.Generator().manual_seed(seed)

    def ids() -> Any:
        drawn = torch.randint(SPECIAL, size, (texts, length), generator=generator)
        drawn[:, 0] = torch.randperm(size - SPECIAL, generator=generator)[:texts] + SPECIAL
        return drawn

    inputs: dict[str, Any] = {"input_ids": ids()}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids()
    if hasattr(model.config, "use_cache"):
        inputs["use_cache"] = False
    return inputs
