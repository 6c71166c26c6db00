"""How cost grows with size: scan in heads, width and layers, spectrum in positions, a sweep in runs (and in
`bench.tracing` trace in tokens); four sizes each and their slope.

A slope is that of log time over log size by least squares: 1 is proportional. What every call costs whatever its
size (a model that is opened, a token table that is read) makes the first sizes dearer and the slope smaller.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import toposcope
from bench.row import Row, cpu, interleaved

HEAD, WIDTH, ROUNDS = 64, 512, 3
HEADS = (4, 8, 16, 32)
WIDTHS = (512, 1024, 2048, 4096)
LAYERS = (2, 4, 8, 16)
RUNS = (1, 2, 3, 4)  # each trains for some fifteen seconds, so once
POSITIONS = (2**14, 2**16, 2**18, 2**20)
ENCODINGS = ("rope", "alibi", "t5", "kerple", "sinusoidal", "fire")


def write_model(directory: Path, *, width: int, heads: int, layers: int, groups: int | None = None) -> Path:
    """A Llama of these sizes with random weights."""
    random, shared = np.random.default_rng(0), groups or heads
    rows = {"q": heads * HEAD, "k": shared * HEAD, "v": shared * HEAD}
    made = {"model.embed_tokens.weight": random.standard_normal((1000, width), dtype=np.float32)}
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, size in rows.items():
            made[f"{at}self_attn.{name}_proj.weight"] = random.standard_normal((size, width), dtype=np.float32)
        made[f"{at}self_attn.o_proj.weight"] = random.standard_normal((width, heads * HEAD), dtype=np.float32)
        made[f"{at}input_layernorm.weight"] = np.ones(width, dtype=np.float32)
    directory.mkdir(parents=True)
    save_file({name: value / width**0.5 for name, value in made.items()}, directory / "model.safetensors")
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": HEAD,
        "num_hidden_layers": layers,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "vocab_size": 1000,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """d log time / d log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as where:
        begin = Path(where)
        models = {
            "heads (one layer, width 512, heads of 64, without their sum)": {
                n: write_model(begin / f"h{n}", width=WIDTH, heads=n, layers=1) for n in HEADS
            },
            "width (one layer of 8 heads of 64, without their sum)": {
                n: write_model(begin / f"w{n}", width=n, heads=8, layers=1) for n in WIDTHS
            },
            "layers (8 heads of 64, 2 for keys, width 512)": {
                n: write_model(begin / f"l{n}", width=WIDTH, heads=8, layers=n, groups=2) for n in LAYERS
            },
        }
        for what, paths in models.items():
            sums = None if what.startswith("layers") else False
            rows.append(grown(f"scan against {what}", list(paths), [_scanned(path, sums) for path in paths.values()]))
    for name in ENCODINGS:
        calls = [_spectrum(name, n) for n in POSITIONS]
        rows.append(grown(f"spectrum of {name} against positions", POSITIONS, calls))
    sweeps = [_sweep(n) for n in RUNS]
    return [*rows, grown("sweep against runs (20 steps each, one at a time)", RUNS, sweeps, _all_processes, rounds=1)]


def _scanned(path: Path, sums: bool | None) -> Callable[[], object]:
    return lambda: toposcope.scan(path, jobs=1, layer_sums=sums)


def _spectrum(name: str, n: int) -> Callable[[], object]:
    return lambda: toposcope.spectrum(name, n)


def _sweep(runs: int) -> Callable[[], object]:
    """Short trainings in a fresh store."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as store:
            toposcope.sweep(["copy"], ["rope"], seeds=runs, settings={"steps": 20}, jobs=1, store=store)

    return work


def _all_processes(work: Callable[[], object]) -> float:
    """Processor seconds of this process and of those it has started and seen end."""
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def grown(
    work: str,
    sizes: Sequence[int],
    calls: Sequence[Callable[[], object]],
    seconds: Callable[[Callable[[], object]], float] = cpu,
    rounds: int = ROUNDS,
) -> Row:
    """The row of one kind of work at several sizes, with its slope."""
    if rounds > 1:
        calls[0]()  # what is imported and kept once
    taken = interleaved(rounds, *((lambda call=call: seconds(call)) for call in calls))
    said = ", ".join(f"{size:,}: {_time(seconds)}" for size, seconds in zip(sizes, taken, strict=True))
    return Row(work, said, "-", f"slope {slope(sizes, taken):.2f}", "-", None)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
