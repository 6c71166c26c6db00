"""`toposcope scan` of a checkpoint of 7B shape: time per layer and peak memory; and of SmolLM2 as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.row import Row
from bench.streaming import HEADS, VOCABULARY, WIDTH, write_checkpoint
from toposcope.checkpoints.installed import MODELS
from toposcope.core.cluster import cores

WALK = """
import json, sys, time
import toposcope
with toposcope.load(sys.argv[1]) as model:
    began, cpu = time.perf_counter(), time.process_time()
    found = toposcope.scan(model, layers="0", jobs=1)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps({
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "peak": int(peak.split()[1]) * 1024,
        "heads": len(found.heads),
    }))
"""


SHAPES = (  # name, groups of heads with keys of their own, words in the vocabulary, seconds of CPU a layer may take
    ("7B shape", HEADS, VOCABULARY, 8),
    ("Llama-3-8B's shape, with the sum over its heads", 8, 128256, 15),
)
WHOLE_CPU, WHOLE_WALL = 12, 8  # seconds that SmolLM2 may take


def measure() -> list[Row]:
    rows = [_layer(*shape) for shape in SHAPES]
    return [*rows, *_whole()] if MODELS[0].path() is not None else rows


def _layer(name: str, groups: int, vocabulary: int, goal: int) -> Row:
    one_layer = 2 * (1 + groups / HEADS) * WIDTH * WIDTH * 8
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as where:
        write_checkpoint(Path(where), layers=1, groups=groups, vocabulary=vocabulary)
        run = subprocess.run(
            [sys.executable, "-c", WALK, where], check=True, capture_output=True, text=True, env=environment
        )
    seen = json.loads(run.stdout)
    return Row(
        f"scan of one layer of {name} ({seen['heads']} heads, head 128)",
        f"{seen['seconds']:.0f} s ({seen['cpu']:.0f} s of CPU), peak {seen['peak'] / 1e6:.0f} MB",
        f"one layer in float64: {one_layer / 1e6:.0f} MB",
        f"{seen['peak'] / one_layer:.1f}x of one layer",
        f"<= {goal} s of CPU",
        seen["cpu"] <= goal,
        "random weights, whose spectra have no gap: every certificate is at its longest",
    )


def _whole() -> list[Row]:
    """SmolLM2 from the shell, on one core and on all."""
    rows = []
    for jobs, limit in ((1, WHOLE_CPU), (cores(), WHOLE_WALL)):
        before, began = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "toposcope", "scan", MODELS[0].name, "--json", "-", "--jobs", str(jobs)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wall, after = time.perf_counter() - began, os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        cost, unit = (used, "s of CPU") if jobs == 1 else (wall, "s")
        rows.append(
            Row(
                f"scan of SmolLM2-135M, 270 heads, {'one core' if jobs == 1 else f'{jobs} cores'}",
                f"{wall:.1f} s ({used:.1f} s of CPU)",
                "-",
                "-",
                f"<= {limit} {unit}",
                cost <= limit,
            )
        )
    return rows
