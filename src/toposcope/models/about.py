"""What was analysed, for results on a running model: the same words as for a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from toposcope._version import __version__
from toposcope.checkpoints.identity import fingerprint
from toposcope.models.device import kernel

_ABOUT_FILES = ("_name_or_path", "transformers_version")  # entries of a configuration that no number depends on


def identity_of(model: Any) -> dict[str, str]:
    """All that decides what a loaded transformers model computes: weights, configuration, and who computes where."""
    import torch
    import transformers

    said = {key: value for key, value in model.config.to_dict().items() if key not in _ABOUT_FILES}
    return {
        "weights": weights_digest(model),
        "config": fingerprint([type(model).__name__, said]),
        "toposcope": __version__,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "device": ", ".join(sorted({each.device.type for each in model.parameters()})),
        "attention": str(kernel(model)),
        "transformers": transformers.__version__,
    }


def weights_digest(model: Any) -> str:
    """sha256 over the names, shapes and bytes of all parameters and buffers."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        array = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(memoryview(array.view(dtype=torch.uint8).numpy()))
    return digest.hexdigest()
