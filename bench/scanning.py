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
from bench.streaming import WIDTH, write_checkpoint
from toposcope.checkpoints.installed import MODELS

WALK = """
import json, sys, time
import toposcope
with toposcope.load(sys.argv[1]) as model:
    began, cpu = time.perf_counter(), time.process_time()
    found = toposcope.scan(model, layers="0", jobs=2)
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(json.dumps({
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "peak": int(peak.split()[1]) * 1024,
        "heads": len(found.heads),
    }))
"""


def measure() -> list[Row]:
    one_layer = 4 * WIDTH * WIDTH * 8
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as where:
        write_checkpoint(Path(where), layers=1)
        run = subprocess.run(
            [sys.executable, "-c", WALK, where], check=True, capture_output=True, text=True, env=environment
        )
    seen = json.loads(run.stdout)
    rows = [
        Row(
            f"scan of one layer of 7B shape ({seen['heads']} heads, head 128)",
            f"{seen['seconds']:.0f} s ({seen['cpu']:.0f} s of CPU), peak {seen['peak'] / 1e6:.0f} MB",
            f"one layer in float64: {one_layer / 1e6:.0f} MB",
            f"{seen['peak'] / one_layer:.1f}x of one layer",
            "-",
            None,
        )
    ]
    if MODELS[0].path() is not None:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "toposcope", "scan", MODELS[0].name, "--json", "-"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows.append(
            Row("scan of SmolLM2-135M, 270 heads", f"{time.perf_counter() - began:.1f} s", "-", "-", "-", None)
        )
    return rows
