"""Which runs are set beside which: groups of cells that differ in nothing but what is held, and how many seeds.

A group's cells share task, encoding, heads, sizes, windows and first weights. Differences are taken inside a group
and seed by seed, never across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.studies.language.config import ProbeConfig

FREE = "free"  # the cell that a group's others are compared with, where it has it; else its first


@dataclass(frozen=True)
class CellGroup:
    """Cells that are compared with each other. Those that are not `main` have fewer seeds.

    All read 1024 bytes a step. Hidden bytes are learned from short windows, or not at all in the steps there are.
    """

    name: str
    words: str
    task: Literal["bytes", "masked-bytes"]
    encoding: str
    heads: int
    cells: tuple[str, ...]
    length: int = 64
    batch: int = 16
    main: bool = True

    @property
    def base(self) -> str:
        return FREE if FREE in self.cells else self.cells[0]


_FULL = ("full-pd", "full-half", "full-nd")
_FEW = ("free-identity", "full-pd", "full-nd")
GROUPS = (
    CellGroup(
        "causal",
        "next byte, causal, rotary, one head",
        "bytes",
        "rope",
        1,
        (FREE, "free-identity", *_FULL, "released-pd", "released-nd"),
    ),
    CellGroup(
        "heads",
        "next byte, causal, rotary, four heads",
        "bytes",
        "rope",
        4,
        (FREE, "layer-pd", "layer-nd", "head-pd", "head-nd", "slice", "uniform", "control"),
    ),
    CellGroup(
        "unmasked",
        "hidden bytes, no mask, sinusoidal positions, one head",
        "masked-bytes",
        "sinusoidal",
        1,
        (FREE, "free-identity", *_FULL),
        length=32,
        batch=32,
    ),
    CellGroup("learned", "next byte, causal, learned positions, one head", "bytes", "learned", 1, _FEW, main=False),
    CellGroup("none", "next byte, causal, no positions, one head", "bytes", "none", 1, _FEW, main=False),
)


@dataclass(frozen=True)
class ProbeSize:
    """How much is trained. `seconds` is what a run takes on one core before any has been timed."""

    name: str
    seeds: int
    fewer: int  # seeds of the groups that are not main
    steps: int
    seconds: float


SIZES = {"demo": ProbeSize("demo", 3, 0, 600, 20.0), "full": ProbeSize("full", 8, 4, 1200, 38.0)}


def find_size(name: str, *others: str) -> ProbeSize:
    """The size of that name; `others` are names that the caller knows, to be mentioned."""
    if name not in SIZES:
        raise BadValue(f"'{name}' is not a size of a reproduction. {did_you_mean(name, (*SIZES, *others))}")
    return SIZES[name]


def grid(size: ProbeSize, seeds: Sequence[int]) -> dict[str, list[ProbeConfig]]:
    """The runs of every group, seed by seed. Groups that are not main take the first seeds only."""
    found: dict[str, list[ProbeConfig]] = {}
    for group in GROUPS:
        chosen = seeds if group.main else seeds[: size.fewer]
        found[group.name] = [
            ProbeConfig(
                cell,
                group.task,
                group.encoding,
                group.heads,
                seed,
                length=group.length,
                batch=group.batch,
                steps=size.steps,
            )
            for seed in chosen
            for cell in group.cells
        ]
    return found


def in_order(grid_by_group: dict[str, list[ProbeConfig]]) -> list[ProbeConfig]:
    """All runs, the first seed of everything first: every further seed sharpens the whole table."""
    return sorted((each for some in grid_by_group.values() for each in some), key=lambda config: config.seed)
