"""nanoGPT: a plain PyTorch checkpoint with GPT-2's names and ordinary linear maps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toposcope.checkpoints.families import Family, gpt2
from toposcope.checkpoints.families.common import Config, find_root
from toposcope.checkpoints.families.state_dict import with_unknown_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import BadConfig, MissingTensor
from toposcope.encodings.stored import table_encoding

_FUSED = "h.0.attn.c_attn.weight"


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Sizes come from `model_args` in the checkpoint, else from the tensors; only the head count can be missing.

    GPT-2's own state dict has the same names but stores its maps as (in, out); the shape tells them apart.
    """
    root = find_root(source, _FUSED)
    shape = source.info(f"{root}{_FUSED}").shape
    if len(shape) != 2 or 3 * min(shape) != max(shape):
        raise MissingTensor(f"tensor '{root}{_FUSED}' in {source.path} has shape {shape}; expected (3n, n).")
    width, transposed = min(shape), shape[0] < shape[1]
    args = source.metadata.get("model_args")
    said: dict[str, Any] = {**args} if isinstance(args, Mapping) else {}
    values = {"n_layer": _count_layers(source, root), "n_embd": width, **said, **config}
    if not any(values.get(key) for key in ("num_attention_heads", "n_head")):
        raise BadConfig(
            f"{source.path} does not say how many heads a layer has, and a plain state dict cannot show it. "
            f"Give their number with --num-heads (a divisor of the width, {width})."
        )
    if "block_size" in values:
        values.setdefault("n_positions", values["block_size"])
    table = gpt2.GPT2 if transposed else replace(gpt2.GPT2, family="nanogpt", transposed=False)
    spec = gpt2.describe(Config(values, str(source.path)), source, table=table)
    name = f"{root}wpe.weight"
    encoding = table_encoding(source.read(name), note=f"the table is the tensor '{name}', as stored.")
    if encoding.name == "sinusoidal":
        spec = replace(spec, layers=tuple(replace(layer, encoding=encoding) for layer in spec.layers))
    return with_unknown_positions(spec, source)


def _count_layers(source: TensorSource, root: str) -> int:
    pattern = re.compile(re.escape(root) + r"h\.(\d+)\.attn\.c_attn\.weight")
    return sum(1 for name in source.names() if pattern.fullmatch(name))


FAMILIES = (Family("nanogpt", (), describe, "nanoGPT checkpoints (torch.save)", signature=_FUSED, container="torch"),)
