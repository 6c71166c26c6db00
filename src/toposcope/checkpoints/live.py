"""Toposcope's view of a model that transformers already holds in memory: the same layers and heads as from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.description import described
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.quantised import dequantised
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.source import ByName, Rows, Stored, TensorInfo
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadValue, BadWeights


class MemorySource:
    """The tensors of a torch module, read one at a time like those of a file."""

    format = "torch"

    def __init__(self, name: str, tensors: Mapping[str, Any]) -> None:
        self.path = Path(name)
        self.metadata: Mapping[str, Any] = {}
        self._tensors = ByName(tensors, self.path)
        self.files: tuple[Path, ...] = ()
        self.ledger = Ledger()

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensors[name]
        kind = str(tensor.dtype).removeprefix("torch.")
        return TensorInfo(name, tuple(tensor.shape), kind, tensor.numel() * tensor.element_size())

    def read(self, name: str) -> Stored:
        import torch

        tensor = self._tensors[name].detach()
        if _stands_for_floats(tensor):
            tensor = tensor.dequantize()
        tensor = tensor.cpu()
        wide = tensor.dtype == torch.float64 or not (tensor.is_floating_point() or tensor.is_complex())
        array: Stored = tensor.to(torch.float64 if wide else torch.float32).numpy()
        if not np.isfinite(array).all():
            raise BadWeights(f"tensor '{name}' of the running model holds NaN or infinity.")
        self.ledger.add(name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest())
        return array

    def read_rows(self, name: str, rows: Rows) -> Stored:
        return self.read(name)[rows]

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        """Nothing to close: the tensors belong to the model."""


def _stands_for_floats(tensor: Any) -> bool:
    """Whether this is a tensor of torchao or quanto, which behaves like its floats and holds codes."""
    import torch

    own = type(tensor) not in (torch.Tensor, torch.nn.Parameter)
    return own and tensor.is_floating_point() and tensor.element_size() > 1


def view(model: Any) -> Model:
    """The layers and heads of a loaded transformers model. Its tensors are shared, not copied; nothing is written."""
    if not (hasattr(model, "config") and hasattr(model, "state_dict")):
        raise BadValue(
            f"{type(model).__name__} is no loaded model of transformers. Open a name or a path with toposcope.load."
        )
    return view_of(model, model.state_dict())


def view_of(model: Any, tensors: Mapping[str, Any]) -> Model:
    """The same from the model's tensors by the names that transformers gives them."""
    values = model.config.to_dict()
    source = dequantised(MemorySource(type(model).__name__, tensors), values)
    config = Config(values, f"the configuration of {type(model).__name__}")
    found = described(config, source)
    return Model(found.spec, source, values, read_layer, found.remarks)
