"""`toposcope.check`: is a model's positional encoding there, in force, and of one kind? From files, or as it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toposcope.checkpoints.opened import ModelLike
from toposcope.checks.findings import CheckResult
from toposcope.checks.model import check_files
from toposcope.core.progress import Progress
from toposcope.live.module.check import check_module


def check(
    model: ModelLike,
    *,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> CheckResult:
    """Test whether a model's positional encoding is really there, in force, and of one kind.

    `model` is a name, a path, a `Model`, a loaded model of transformers or TransformerLens, or a torch attention
    module (which `check_module` tests, with more options). `family` and `num_heads` say how a file is to be read,
    `adapter` is one of PEFT that is merged as it is read.
    Without `weights`, only configuration and tables are looked at.
    """
    if _is_attention(model):
        return check_module(model)
    return check_files(model, family=family, num_heads=num_heads, adapter=adapter, weights=weights, progress=progress)


def _is_attention(model: Any) -> bool:
    """Whether this is a torch module, but no whole model of transformers or TransformerLens."""
    whole = ("get_input_embeddings", "blocks", "original_model")
    return hasattr(model, "forward") and not any(hasattr(model, name) for name in whole)
