"""`toposcope trace` of SmolLM2: how long a user waits, and what it costs in units of the plain forward pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from bench.row import Row, cpu, interleaved
from bench.scaling import grown
from toposcope.checkpoints.installed import MODELS
from toposcope.core.cache import SETTING
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text
from toposcope.models.tracing.measure import REPEATS, trace_corpus

TOKENS, SEQUENCES, ROUNDS = 256, 4, 3  # as the command has them by default
LENGTHS = (64, 128, 256, 512)
WALL = 25  # seconds that the command may take


def measure() -> list[Row]:
    if MODELS[0].path() is None:
        return []
    import torch

    with tempfile.TemporaryDirectory() as cache:  # the command's own, empty at first
        (first,) = interleaved(1, lambda: _wall(cache))
        (wall,) = interleaved(ROUNDS, lambda: _wall(cache))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = load_reference("smollm2", attention="sdpa")
        traced = _traced(reference, TOKENS, SEQUENCES)
        traced()
        ours, plain = interleaved(ROUNDS, lambda: cpu(traced), lambda: cpu(_plain(reference)))
        longer = [_traced(reference, tokens, 1) for tokens in LENGTHS]
        tokens = grown("trace of one sequence of SmolLM2 against tokens", LENGTHS, longer)
    finally:
        torch.set_num_threads(threads)
    passes = SEQUENCES + REPEATS
    work = f"`toposcope trace smollm2`: 270 heads on {SEQUENCES} sequences of {TOKENS} tokens"
    return [
        Row(work, f"{wall:.1f} s", "-", "-", f"<= {WALL} s", wall <= WALL),
        Row(
            "the same, the first time: the file is converted for transformers", f"{first:.1f} s", "-", "-", "-", None
        ),
        Row(
            "the same, in units of the plain forward pass",
            f"{ours:.1f} s of CPU, {passes} passes among them",
            f"{passes} plain forward passes {passes * plain:.1f} s",
            f"{ours / (passes * plain):.1f}x",
            "-",
            None,
        ),
        tokens,
    ]


def _wall(cache: str) -> float:
    """Seconds of the command, from start to end."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "toposcope", "trace", "smollm2", "--json", "-"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, SETTING: cache},
    )
    return time.perf_counter() - began


def _traced(reference: Reference, tokens: int, sequences: int) -> Callable[[], object]:
    corpus = cut(reference, read_text("wiki"), tokens=tokens, count=sequences, name="wiki", begin=0)
    return lambda: trace_corpus(reference, corpus, logits=4)


def _plain(reference: Reference) -> Callable[[], object]:
    """One forward pass over as many tokens, as anyone would run it."""
    import torch

    corpus = cut(reference, read_text("wiki"), tokens=TOKENS, count=1, name="wiki", begin=0)
    ids = torch.from_numpy(np.stack(corpus.sequences))

    def forward() -> None:
        with torch.no_grad():
            reference.model(input_ids=ids, use_cache=False)

    return forward
