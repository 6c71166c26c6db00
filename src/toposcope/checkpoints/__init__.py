"""From a file on disk to per-head weights and their positional encoding, one layer at a time, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toposcope.checkpoints.view import Head, Layer, LayerWeights, Model, Norm

__all__ = ["Head", "Layer", "LayerWeights", "Model", "Norm", "load"]


def load(
    target: str | Path,
    *,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
) -> Model:
    """Open a checkpoint: a directory, a .safetensors, .gguf or torch file, an installed model's name, or org/name.

    Only headers and position tables are read now; a layer's weights are read when they are used. `family` forces
    the reader of a family; `num_heads` gives the number of heads where the file does not say it (plain state dicts).
    `adapter` is the directory, or the name on the hub, of a LoRA, rsLoRA or DoRA that PEFT saved: it is merged as
    tensors are read.
    """
    from toposcope.checkpoints.description import described
    from toposcope.checkpoints.families.common import Config
    from toposcope.checkpoints.locate import open_checkpoint
    from toposcope.checkpoints.peft import AdaptedSource, adapted
    from toposcope.checkpoints.read import read_layer
    from toposcope.checkpoints.unclaimed import not_understood

    opened = open_checkpoint(target)
    values: dict[str, Any] = dict(opened.config or {})
    if num_heads is not None:
        values["num_attention_heads"] = values["num_heads"] = num_heads
    config = Config(values, str(opened.config_path or opened.source.path))
    source = opened.source if adapter is None else adapted(opened.source, adapter)
    found = described(config, source, family)
    spec = not_understood(found.spec, source, forced=found.forced)
    remarks = [*opened.notes, *found.remarks]
    if values.get("auto_map"):
        remarks.append("the configuration names code to be run (auto_map), which is never done.")
    if isinstance(source, AdaptedSource):
        remarks += [*source.settle(spec), *source.remarks(str(target), values)]
    return Model(spec, source, values, read_layer, tuple(remarks), hub=opened.hub, commit=opened.commit)
