"""From a file on disk to per-head weights and their positional encoding, one layer at a time, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toposcope.checkpoints.view import Head, Layer, LayerWeights, Model, Norm

__all__ = ["Head", "Layer", "LayerWeights", "Model", "Norm", "load"]


def load(target: str | Path, *, family: str | None = None, num_heads: int | None = None) -> Model:
    """Open a checkpoint: a directory, a .safetensors, .gguf or torch file, an installed model's name, or org/name.

    Only headers and position tables are read now; a layer's weights are read when they are used. `family` forces an
    adapter; `num_heads` gives the number of heads where the file does not say it (plain PyTorch state dicts).
    """
    from toposcope.checkpoints.families import choose_family
    from toposcope.checkpoints.families.common import Config
    from toposcope.checkpoints.locate import open_checkpoint
    from toposcope.checkpoints.read import read_layer
    from toposcope.checkpoints.spec import code_not_run, not_understood

    opened = open_checkpoint(target)
    values: dict[str, Any] = dict(opened.config or {})
    if num_heads is not None:
        values["num_attention_heads"] = values["num_heads"] = num_heads
    config = Config(values, str(opened.config_path or opened.source.path))
    adapter = choose_family(config, opened.source, family)
    spec = adapter.describe(config, opened.source)
    spec = code_not_run(not_understood(spec, opened.source), values)
    return Model(spec, opened.source, values, read_layer, hub=opened.hub, commit=opened.commit)
