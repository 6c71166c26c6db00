"""Peak memory while walking through a checkpoint of 7B shape, against one layer in float64."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from bench.row import Row

WIDTH, HEADS, FEED, VOCABULARY = 4096, 32, 11008, 32000
ALLOWANCE = 300_000_000  # bytes above one layer in float64

WALK = """
import sys, time
import toposcope
began = time.perf_counter()
with toposcope.load(sys.argv[1]) as model:
    total = 0.0
    for layer in model.layers:
        for head in layer.heads:
            total += float(head.q[0, 0] + head.k[0, 0] + head.v[0, 0] + head.o[0, 0])
# of this program alone; getrusage would count what its parent held when it forked
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024, time.perf_counter() - began)
"""


def write_checkpoint(directory: Path, layers: int, groups: int = HEADS, vocabulary: int = VOCABULARY) -> None:
    """A Llama of 7B shape in bfloat16: random attention weights; what is not read is a hole in the file.

    With 8 `groups` of heads that share keys and values, and a `vocabulary` of 128256, it has Llama-3-8B's shape.
    """
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, WIDTH)}
    shared = groups * WIDTH // HEADS
    for i in range(layers):
        at = f"model.layers.{i}."
        shapes |= {f"{at}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qo"}
        shapes |= {f"{at}self_attn.{name}_proj.weight": (shared, WIDTH) for name in "kv"}
        shapes |= {f"{at}mlp.{name}_proj.weight": (FEED, WIDTH) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (WIDTH, FEED), f"{at}input_layernorm.weight": (WIDTH,)}
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for name, entry in header.items():
            if "self_attn" in name or "layernorm" in name:
                file.seek(start + entry["data_offsets"][0])
                values = random.standard_normal(shapes[name], dtype=np.float32) / WIDTH**0.5
                file.write(values.astype(ml_dtypes.bfloat16).tobytes())
        file.truncate(start + offset)
    config = {
        "model_type": "llama",
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": groups,
        "num_hidden_layers": layers,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
    }
    (directory / "config.json").write_text(json.dumps(config))


def peak_and_seconds(directory: Path) -> tuple[int, float]:
    """Peak resident memory in bytes, file pages included, and the time of one walk over all heads."""
    run = subprocess.run([sys.executable, "-c", WALK, str(directory)], check=True, capture_output=True, text=True)
    peak, seconds = run.stdout.split()
    return int(peak), float(seconds)


def measure(layers: int = 4) -> list[Row]:
    one_layer = 4 * WIDTH * WIDTH * 8
    with tempfile.TemporaryDirectory() as where:
        write_checkpoint(Path(where), layers)
        peak, seconds = peak_and_seconds(Path(where))
    limit = one_layer + ALLOWANCE
    return [
        Row(
            f"peak memory, walking {layers} layers of 7B shape (bf16), file pages included",
            f"{peak / 1e6:.0f} MB ({seconds / layers:.2f} s a layer)",
            f"one layer in float64: {one_layer / 1e6:.0f} MB",
            f"{peak / one_layer:.2f}x",
            f"<= {limit / 1e6:.0f} MB",
            peak <= limit,
        )
    ]
