"""Small models and a small task for the tests of the lab."""

from __future__ import annotations

from typing import Any

import torch

from toposcope.lab.model import ModelConfig, Transformer

ENCODINGS = (
    "none",
    "sinusoidal",
    "learned",
    "random",
    "t5",
    "alibi",
    "kerple",
    "kerple:kernel=power,r2=0.7",
    "fire:threshold=4",
    "rope",
    "rope:pairing=half",
    "rope:scaling=linear,factor=4",
    "rope:scaling=yarn,factor=4,original_context=3",
    "rope:scaling=dynamic,factor=2,original_context=5",
    "rope:scaling=llama3,factor=4,original_context=6",
    "rope:scaling=longrope,factor=2,original_context=6,short_factor=1/2,long_factor=2/3",
    "rope:scaling=proportional,partial=0.5,pairing=half",
    "rope-partial",
    "rope-partial:heads=2",
    "rope@heads:0",
    "rope@heads:0-1,alibi",
    "t5@heads:1-2",
    "rope@layers:1-",
    "rope@layers:-0,alibi@layers:1",
    "xpos:scale_base=8",
    "mla",
    "mla:nope_dim=3,rope_dim=2",
)


def model(encoding: str = "none", *, noise: float = 0.3, **changes: Any) -> Transformer:
    """A model of two layers and four heads of width 4, away from its initial weights."""
    settings = {"vocabulary": 12, "classes": 5, "length": 10, "width": 16, "heads": 4, "ff": 24, **changes}
    made = Transformer(ModelConfig(encoding=encoding, **settings)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    return made


def sentences(count: int = 3, length: int = 10, vocabulary: int = 12, seed: int = 2) -> torch.Tensor:
    """Ids without padding."""
    return torch.randint(1, vocabulary, (count, length), generator=torch.Generator().manual_seed(seed))
