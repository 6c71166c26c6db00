"""A checkpoint of 70B shape, larger than memory: what `scan` reads of it, how much it holds, how long a layer takes.

The shards are real but for their content: 30 files of 141 GB with true headers, all holes save the attention of the
layers that are scanned and some rows of the embedding. A hole reads as zeros, and a layer of zeros would be decided
at once, so only filled layers are timed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from bench.row import Row
from toposcope.scanning.sample import draw

WIDTH, HEADS, GROUPS, HEAD, FEED, VOCABULARY, LAYERS, SHARDS = 8192, 64, 8, 128, 28672, 128256, 80, 30
ONE_LAYER = 2 * (WIDTH * HEADS + WIDTH * GROUPS) * HEAD * 8  # bytes of q, k, v and o in float64
ALLOWANCE = 300_000_000  # bytes above it, as in bench/streaming.py
FILLED_TOKENS = 4096  # rows of the embedding that are not zero
A_LAYER = 15  # seconds that one more layer may take
HEADERS = 50_000_000  # bytes that 30 headers and what the system reads ahead may take

RUN = """
import json, sys
from toposcope.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024, file=sys.stderr)
"""


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the model, in the order in which they are stored."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        found |= {
            f"{at}self_attn.q_proj.weight": (HEADS * HEAD, WIDTH),
            f"{at}self_attn.k_proj.weight": (GROUPS * HEAD, WIDTH),
            f"{at}self_attn.v_proj.weight": (GROUPS * HEAD, WIDTH),
            f"{at}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD),
            f"{at}mlp.gate_proj.weight": (FEED, WIDTH),
            f"{at}mlp.up_proj.weight": (FEED, WIDTH),
            f"{at}mlp.down_proj.weight": (WIDTH, FEED),
            f"{at}input_layernorm.weight": (WIDTH,),
            f"{at}post_attention_layernorm.weight": (WIDTH,),
        }
    return found | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def write_giant(directory: Path, filled: Sequence[int]) -> None:
    """The checkpoint, with the attention of the `filled` layers drawn at random."""
    sizes = {name: 2 * int(np.prod(shape)) for name, shape in shapes().items()}
    goal, parts = sum(sizes.values()) / SHARDS, [[]]  # type: list[list[str]]
    held = 0.0
    for name in shapes():
        if held >= goal * len(parts) and len(parts) < SHARDS:
            parts.append([])
        parts[-1].append(name)
        held += sizes[name]
    where: dict[str, str] = {}
    random = np.random.default_rng(0)
    for number, names in enumerate(parts, 1):
        file_name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        where |= dict.fromkeys(names, file_name)
        _write_shard(directory / file_name, names, sizes, filled, random)
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FEED,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
    }
    (directory / "config.json").write_text(json.dumps(config))


def _write_shard(
    path: Path, names: Sequence[str], sizes: dict[str, int], filled: Sequence[int], random: np.random.Generator
) -> None:
    header, offset = {}, 0
    for name in names:
        span = [offset, offset + sizes[name]]
        header[name] = {"dtype": "BF16", "shape": list(shapes()[name]), "data_offsets": span}
        offset = span[1]
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        file.truncate(start + offset)
        for name in names:
            shape: tuple[int, ...] = shapes()[name]
            if name == "model.embed_tokens.weight":
                shape = (FILLED_TOKENS, WIDTH)
            elif not any(f"layers.{i}.self_attn" in name or f"layers.{i}.input_layernorm" in name for i in filled):
                continue
            file.seek(start + header[name]["data_offsets"][0])
            values = random.standard_normal(shape, dtype=np.float32) / WIDTH**0.5
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())


def forget(directory: Path) -> None:
    """Write the files to the disk and drop their pages from the system's cache."""
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(directory: Path) -> int:
    """How much of the shards the system holds in its cache: what was read since `forget`, read-ahead included."""
    library = ctypes.CDLL(None, use_errno=True)
    total = 0
    for path in directory.glob("*.safetensors"):
        size = path.stat().st_size
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            pages = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
            start = np.frombuffer(mapped, dtype=np.uint8)
            address = ctypes.c_void_p(start.ctypes.data)
            if library.mincore(address, ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)):
                raise OSError(ctypes.get_errno(), "mincore")
            total += int((pages & 1).sum()) * mmap.PAGESIZE
            del start, address
    return total


def command(directory: Path, *arguments: str) -> tuple[dict[str, object], int, int]:
    """A command's JSON, its peak memory, and how many bytes of the checkpoint it read."""
    forget(directory)
    name, *rest = arguments
    run = subprocess.run(
        [sys.executable, "-c", RUN, name, str(directory), *rest, "--json", "-"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    return json.loads(run.stdout), int(run.stderr.split()[-1]), cached_bytes(directory)


def measure(counts: Sequence[int] = (1, 2, 4)) -> list[Row]:
    layer_bytes = ONE_LAYER // 4  # as stored
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as where:
        directory = Path(where)
        filled = sorted({number for count in counts for number in draw(range(LAYERS), count, 0).layers})
        write_giant(directory, filled)
        size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
        taken = 512 * sum(path.stat().st_blocks for path in directory.glob("*.safetensors"))
        seconds, peaks, read = {}, {}, {}
        for count in counts:
            found, peaks[count], read[count] = command(directory, "scan", "--layers", f"sample:{count}")
            seconds[count] = float(str(found["provenance"]["seconds"]))
        _, inspect_peak, inspect_read = command(directory, "inspect", "--layers", str(filled[0]))
    few, many = min(counts), max(counts)
    each = (seconds[many] - seconds[few]) / (many - few)
    begin = seconds[few] - few * each
    limit = ONE_LAYER + ALLOWANCE
    peak = max(peaks.values())
    shown = ", ".join(f"{count}: {peaks[count] / 1e6:.0f} MB" for count in counts)
    rows.append(
        Row(
            f"peak memory, scan of {few} to {many} layers of 70B shape ({size / 1e9:.0f} GB; {taken / 1e9:.1f} GB of "
            "them on the disk)",
            shown,
            f"one layer in float64: {ONE_LAYER / 1e6:.0f} MB",
            f"{peak / ONE_LAYER:.2f}x",
            f"<= {limit / 1e6:.0f} MB, not growing by 5%",
            peak <= limit and peaks[many] <= 1.05 * peaks[few],
        )
    )
    rows.append(
        Row(
            f"time of one more layer of 70B shape ({HEADS} heads, random weights)",
            f"{each:.0f} s",
            f"all {LAYERS} layers: about {(begin + LAYERS * each) / 60:.0f} minutes, extrapolated",
            "-",
            f"<= {A_LAYER} s",
            each <= A_LAYER,
        )
    )
    extra = read[many] - many * layer_bytes
    rows.append(
        Row(
            f"bytes of the checkpoint that scan of {many} layers reads",
            f"{read[many] / 1e6:.0f} MB",
            f"their attention as stored: {many * layer_bytes / 1e6:.0f} MB",
            f"{read[many] / (many * layer_bytes):.2f}x",
            "<= 1.2x",
            extra <= 0.2 * many * layer_bytes,
        )
    )
    rows.append(
        Row(
            "bytes that inspect of one layer reads (`check` walks through the attention of all layers)",
            f"{inspect_read / 1e6:.0f} MB (peak {inspect_peak / 1e6:.0f} MB)",
            f"one layer as stored: {layer_bytes / 1e6:.0f} MB",
            f"{inspect_read / layer_bytes:.2f}x",
            f"<= {(layer_bytes + HEADERS) / 1e6:.0f} MB",
            inspect_read <= layer_bytes + HEADERS,
        )
    )
    return rows
