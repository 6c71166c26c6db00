"""A scan of attention against WeightWatcher's analysis of the same layers. They answer different questions: it takes
the singular values of each stored matrix and fits a power law to them; we take the products of each head and say what
they do to tokens. The goal is that ours takes no more than half as long again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import toposcope
from bench.peers import MISSING, Peer, there
from bench.row import Row, cpu, interleaved
from toposcope.checkpoints.installed import MODELS
from toposcope.checkpoints.view import Model
from toposcope.scanning.scan import scan

ALL, FEW = range(30), (0, 15, 29)  # with few layers, what is read once weighs more: the moment of all tokens
ROUNDS = 5
GOAL = 1.5  # times their time


def measure() -> list[Row]:
    path = MODELS[0].path()
    if path is None:
        return []
    with toposcope.load(path) as model:
        return [_compared(model, layers) for layers in (ALL, FEW)]


def _compared(model: Model, layers: Sequence[int]) -> Row:
    with tempfile.TemporaryDirectory() as name:
        matrices = _matrices(model, layers)
        found = scan(model, layers=layers, jobs=1)
        work = f"attention of {len(layers)} layers of SmolLM2 from its weights (different questions)"
        yields = f"{len(found.heads)} heads: spectra of their products, verdicts"

        def ours() -> float:
            return cpu(lambda: scan(model, layers=layers, jobs=1))

        if not there():
            (mine,) = interleaved(ROUNDS, ours)
            return Row(work, f"{mine:.2f} s; {yields}", MISSING, "-", "-", None)
        file = Path(name) / "matrices.npz"
        np.savez(file, **matrices)
        with Peer("bench.peer_weightwatcher", str(file)) as peer:
            first = peer.ask()
            for each, matrix in matrices.items():
                assert abs(first["largest"][each] / np.linalg.norm(matrix, 2) - 1) < 1e-4, each
            mine, theirs = interleaved(ROUNDS, ours, lambda: float(peer.ask()["seconds"]))
    said = f"WeightWatcher {theirs:.2f} s; {first['matrices']} matrices: singular values, power-law fits"
    return Row(
        work,
        f"{mine:.2f} s; {yields}",
        said,
        f"{theirs / mine:.2f}x",
        f">= {1 / GOAL:.2f}x",
        mine <= GOAL * theirs,
        "of a head's 19 ms, eigenvalues and norms of its products alone take 9, the proof of its verdict 4",
    )


def _matrices(model: Model, layers: Sequence[int]) -> dict[str, Any]:
    """The stored matrices of the layers, all heads of a kind in one, as they lie in the checkpoint."""
    found = {}
    for number in layers:
        w = model.layers[number].weights
        for name, each in (("q", w.q_HRD), ("k", w.k_GRD), ("v", w.v_GVD)):
            found[f"{name}{number}"] = np.asarray(each, dtype=np.float32).reshape(-1, each.shape[-1])
        o_HDV = np.asarray(w.o_HDV, dtype=np.float32)
        found[f"o{number}"] = np.ascontiguousarray(o_HDV.transpose(1, 0, 2).reshape(o_HDV.shape[1], -1))
    return found
