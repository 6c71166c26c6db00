"""Nemotron 3 and 4, and Minitron: LayerNorm gains stored minus one and half of each head rotating."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

NEMOTRON = Table(
    family="nemotron",
    norm="layer",
    norm_offset=1.0,
    eps_keys=("norm_eps",),
    eps=1e-5,
    rope={"default_partial": 0.5},
)

FAMILIES = (Family("nemotron", ("nemotron",), NEMOTRON.describe, "Nemotron: LayerNorm stored minus one"),)
