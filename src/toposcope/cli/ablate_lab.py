"""`toposcope ablate` on a model of the laboratory: accuracy on its own task without each head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toposcope.cli.deliver import deliver

if TYPE_CHECKING:
    from pathlib import Path


SENTENCES = 2048


def run_lab(
    directory: Path, *, seed: int, json: str | None, csv: str | None, html: str | None, figure: str | None
) -> None:
    """Measure, print and write the map of a trained small model."""
    from toposcope.lab.ablation import ablate_lab

    deliver(ablate_lab(directory, sentences=SENTENCES, seed=seed), json=json, csv=csv, html=html, figure=figure)
