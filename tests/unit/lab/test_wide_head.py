"""The flow of a head as wide as its model: LayerNorm leaves one direction unread, and V O is singular."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.lab.making import model
from toposcope.checkpoints import load
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import SINGULAR, head_problem
from toposcope.dynamics.tokens import embeddings
from toposcope.dynamics.trajectory import Status
from toposcope.lab.export import export


@pytest.mark.parametrize("biased", [False, True], ids=["compressed", "all coordinates"])
def test_it_moves_and_moves_as_in_all_coordinates(biased: bool, tmp_path: Path) -> None:
    made = model("rope", heads=1)
    if not biased:
        with torch.no_grad():
            for layer in made.layers:
                layer.attention_norm.bias.zero_()
    export(made, tmp_path / "m", task="distance", run="0" * 16)
    with load(tmp_path / "m") as opened:
        x_ND = embeddings(opened, np.array([1, 5, 2, 9]))
        small = head_problem(opened, 0, 0, x_ND, norms="off")
        whole = head_problem(opened, 0, 0, x_ND, norms="off", reduced=False)
        options = {"horizon": 0.02, "rtol": 1e-9, "growth_cap": 1e6}
        a, b = run(small, **options), run(whole, **options)
        assert (SINGULAR in small.notes) is biased
        assert small.start.shape == (4, 16 if biased else 15)
        assert a.status is not Status.CONVERGED
        tokens_ND = small.pieces[0].make().tokens(a.final)
        assert np.abs(b.final - whole.start).max() > 1e-3
        assert np.abs(tokens_ND - b.final).max() < 1e-6 * np.abs(b.final).max()
