"""One-head ablation of SmolLM2: our resumed runs against TransformerLens, which runs the model in full for each head.

Both are given the same weights and the same text, and must agree on the loss before they are timed. As in
`bench.ablation`, heads of some layers are timed and the layers between lie on the line between them.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stderr
from typing import Any

import numpy as np

from bench.ablation import LAYERS, scores
from bench.peers import MISSING, Peer, there
from bench.row import Row, cpu, interleaved
from toposcope.models.ablation.runner import AblationRunner, ablation_runner, texts_of
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text

ROUNDS = 3
TOKENS = 128
GOAL, SAME = 1.5, 1e-5


def measure() -> list[Row]:
    if not there():
        return [Row(_work(None), "-", MISSING, "-", _goal(), None)]
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = load_reference("smollm2", head=True, attention="sdpa")
        corpus = cut(reference, read_text("wiki"), tokens=TOKENS, count=4, name="wiki", begin=1000)
        with (
            tempfile.TemporaryDirectory() as name,
            ablation_runner(reference.model, texts_of(reference, corpus, ["text"])) as runner,
        ):
            _save(reference, name)
            with Peer("bench.peer_lens", name) as peer:
                return [_row(runner, peer)]
    finally:
        torch.set_num_threads(threads)


def _row(runner: AblationRunner, peer: Peer) -> Row:
    each = runner.texts["text"].trials[0]
    ids = each.inputs["input_ids"].tolist()

    def theirs(layer: int) -> dict[str, Any]:
        return peer.ask(ids=ids, layer=layer, head=0)

    def record() -> None:
        runner._run(each, runner.resumable.record)

    record()
    difference = max(abs(scores(runner, layer, each)[0] - theirs(layer)["loss"]) for layer in LAYERS)
    first, *times = interleaved(
        ROUNDS,
        lambda: cpu(record),
        *(lambda layer=layer: cpu(lambda: scores(runner, layer, each)) for layer in LAYERS),
        *(lambda layer=layer: float(theirs(layer)["seconds"]) for layer in LAYERS),
    )
    every = range(len(runner.sizes))
    ours, full = (np.interp(every, LAYERS, part) for part in (times[: len(LAYERS)], times[len(LAYERS) :]))
    layers = [layer for ((layer, _),) in runner.all_heads()]
    sweep, sweep_full = first + sum(ours[layers]), sum(full[layers])
    return Row(
        _work(len(layers)),
        f"{sweep:.0f} s a sequence; loss equal to {difference:.0e}",
        f"TransformerLens {sweep_full:.0f} s",
        f"{sweep_full / sweep:.2f}x",
        _goal(),
        sweep_full / sweep >= GOAL and difference <= SAME,
    )


def _save(reference: Reference, where: str) -> None:
    """The model in Hugging Face layout, from which the worker loads it."""
    with redirect_stderr(io.StringIO()):  # a progress bar
        reference.model.save_pretrained(where)
    reference.tokenizer.save_pretrained(where)


def _work(heads: int | None) -> str:
    many = "all heads" if heads is None else f"all {heads} heads"
    return f"one-head ablation, {many} of SmolLM2, {TOKENS} tokens, against TransformerLens"


def _goal() -> str:
    return f">= {GOAL}x, loss equal to {SAME:.0e}"
