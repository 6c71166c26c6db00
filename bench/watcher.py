"""A scan of attention against WeightWatcher's analysis of the same layers. They answer different questions: it takes
the singular values of each stored matrix and fits a power law to them; we take the products of each head and say what
they do to tokens. The goal is that ours takes no more than half as long again: as a user runs both, each started
anew, and as calls in a process that is there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import toposcope
from bench.peers import MISSING, PYTHON, ROOT, Peer, there
from bench.row import Row, cpu, interleaved
from toposcope.checkpoints.installed import MODELS
from toposcope.checkpoints.view import Model
from toposcope.scanning.scan import scan

ALL, FEW = range(30), (0, 15, 29)  # with few layers, what is read once weighs more: the moment of all tokens
ROUNDS = 5
ASKED = "{}\n"  # what makes the worker begin
SINGLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GOAL = 1.5  # times their time


def measure() -> list[Row]:
    path = MODELS[0].path()
    if path is None:
        return []
    with toposcope.load(path) as model:
        calls = [_compared(model, layers) for layers in (ALL, FEW)]
        return [*_started(model), *calls] if there() else calls


def _started(model: Model) -> list[Row]:
    """The command from the shell, beside a script that is handed its matrices."""
    script = [sys.executable, "-m", "toposcope", "scan", MODELS[0].name, "--json", "-"]
    with tempfile.TemporaryDirectory() as name:
        theirs = [str(PYTHON), "-m", "bench.peer_weightwatcher", _stored(model, ALL, name)]
        wall = interleaved(ROUNDS, lambda: _spent(script).wall, lambda: _spent([*theirs, "all cores"], ASKED).wall)
        one = [*script, "--jobs", "1"]
        cpus = interleaved(ROUNDS, lambda: _spent(one, **SINGLE).cpu, lambda: _spent(theirs, ASKED, **SINGLE).cpu)
    return [_row_of("all cores", "s", wall), _row_of("one thread", "s of CPU", cpus)]


def _row_of(where: str, unit: str, taken: Sequence[float]) -> Row:
    mine, other = taken
    return Row(
        f"`toposcope scan smollm2` from the shell, from start to end, {where}",
        f"{mine:.1f} {unit}",
        f"WeightWatcher on its attention, from start to end {other:.1f} {unit}",
        f"{other / mine:.2f}x",
        f">= {1 / GOAL:.2f}x",
        mine <= GOAL * other,
    )


class _Spent(NamedTuple):
    wall: float
    cpu: float  # of the process and all that it started


def _spent(command: Sequence[str], given: str = "", **environment: str) -> _Spent:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, check=True, input=given, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **environment}, cwd=ROOT,
    )  # fmt: skip
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Spent(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _compared(model: Model, layers: Sequence[int]) -> Row:
    with tempfile.TemporaryDirectory() as name:
        found = scan(model, layers=layers, jobs=1)
        work = f"attention of {len(layers)} layers of SmolLM2 from its weights (different questions)"
        yields = f"{len(found.heads)} heads: spectra of their products, verdicts"

        def ours() -> float:
            return cpu(lambda: scan(model, layers=layers, jobs=1))

        if not there():
            (mine,) = interleaved(ROUNDS, ours)
            return Row(work, f"{mine:.2f} s; {yields}", MISSING, "-", "-", None)
        file = _stored(model, layers, name)
        with Peer("bench.peer_weightwatcher", file) as peer:
            first = peer.ask()
            for each, matrix in np.load(file).items():
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
        "a head's verdict with its certificate is more work than four singular value decompositions shared among "
        "nine heads; so are its part of the layer as a whole and its kernel. With few layers the moment of all "
        "tokens, which is formed once, weighs more.",
    )


def _stored(model: Model, layers: Sequence[int], directory: str) -> str:
    """A file of the layers' matrices, all heads of a kind in one, as they lie in the checkpoint."""
    found = {}
    for number in layers:
        w = model.layers[number].weights
        for name, each in (("q", w.q_HRD), ("k", w.k_GRD), ("v", w.v_GVD)):
            found[f"{name}{number}"] = np.asarray(each, dtype=np.float32).reshape(-1, each.shape[-1])
        o_HDV = np.asarray(w.o_HDV, dtype=np.float32)
        found[f"o{number}"] = np.ascontiguousarray(o_HDV.transpose(1, 0, 2).reshape(o_HDV.shape[1], -1))
    file = Path(directory) / "matrices.npz"
    np.savez(file, **found)
    return str(file)
