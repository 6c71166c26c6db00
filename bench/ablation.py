"""One-head ablation of SmolLM2: resumed runs against full ones, and the screen against the sweep of all heads.

Whole sweeps take long, so each part is timed on its own, in turns, and the sweeps' times are added up from the parts:
a full run, the resumed runs of some layers, as many heads side by side as the command takes (the others lie on the
line between them), the recorded run, the backward passes. The screen's miss rate is that of a sweep of all heads,
where one lies in out/ablate-smollm2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.row import Row, cpu, interleaved
from toposcope.models.ablation.expected import expected_damages
from toposcope.models.ablation.runner import (
    WHOLE,
    AblationRunner,
    ablation_runner,
    name_of,
    side_by_side,
    texts_of,
)
from toposcope.models.ablation.screen import CHOSEN, DRAWS, RECALL, TOP, estimates
from toposcope.models.corpus import cut
from toposcope.models.load import load_reference, read_text

LAYERS = (0, 10, 20, 29)
ROUNDS = 3
SWEEP = Path("out/ablate-smollm2/journal.jsonl")


def measure() -> list[Row]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        reference = load_reference("smollm2", head=True, attention="sdpa")
        corpus = cut(reference, read_text("wiki"), tokens=128, count=4, name="wiki", begin=1000)
        texts = texts_of(reference, corpus, ["text"])
        with (
            ablation_runner(reference.model, texts, batch=side_by_side(corpus)) as resumed,
            ablation_runner(reference.model, texts, resume=False) as full,
        ):
            return _rows(resumed, full)
    finally:
        torch.set_num_threads(threads)


def _rows(resumed: AblationRunner, full: AblationRunner) -> list[Row]:
    each = resumed.texts["text"].trials[0]
    heads = resumed.all_heads()
    resumed._run(each, resumed.resumable.record)
    difference = 0.0
    for layer in LAYERS:
        many, alone = (scores(runner, layer, each) for runner in (resumed, full))
        difference = max(difference, abs(many[0] - alone[0]))

    def one(runner: AblationRunner, layer: int) -> Callable[[], float]:
        return lambda: cpu(lambda: scores(runner, layer, each)) / runner.batch

    draws = DRAWS // len(resumed.texts["text"].trials)
    whole, record, backward, *some = interleaved(
        ROUNDS,
        one(full, 0),
        lambda: cpu(lambda: resumed._run(each, resumed.resumable.record)),
        lambda: cpu(lambda: expected_damages(resumed, each, lambda layer, heads: 0.0, draws=draws, seed=(0, 0))),
        *(one(resumed, layer) for layer in LAYERS),
    )
    by_layer = np.interp(range(len(resumed.sizes)), LAYERS, some)
    sweep_full = whole * len(heads)
    sweep = record + sum(by_layer[layer] for ((layer, _),) in heads)
    guess = estimates(resumed, heads)
    order = np.argsort(-guess, kind="stable")
    measured = math.ceil(CHOSEN * len(heads))
    chosen = [heads[number][0][0] for number in order[:measured]]
    screened = record + backward + sum(by_layer[layer] for layer in chosen)
    return [
        Row(
            f"one-head ablation, all {len(heads)} heads of SmolLM2, 128 tokens, exact "
            f"(layers {', '.join(map(str, LAYERS))} timed)",
            f"{sweep:.0f} s a sequence; loss equal to {difference:.0e}",
            f"a full run for each head {sweep_full:.0f} s",
            f"{sweep_full / sweep:.2f}x",
            ">= 1.6x, loss equal to 1e-6",
            sweep_full / sweep >= 1.6 and difference <= 1e-6,
        ),
        Row(
            f"the same, screened: {1 + draws} backward passes, {measured} heads chosen",
            f"{screened:.1f} s a sequence; {_missed(heads, guess, measured)}; on other texts {RECALL.found} of "
            f"{RECALL.looked_for} found, at least {RECALL.least:.0%}",
            f"a full run for each head {sweep_full:.0f} s (resumed {sweep:.0f} s)",
            f"{sweep_full / screened:.1f}x ({sweep / screened:.1f}x of the resumed)",
            ">= 5x of the full sweep, recall >= 95% on texts it was not made on",
            sweep_full / screened >= 5 and RECALL.found >= 0.95 * RECALL.looked_for,
            f"the {measured} heads it measures take {(screened - record - backward):.1f} s by themselves, which "
            f"leaves {sweep_full / (screened - record - backward):.1f}x.",
        ),
    ]


def scores(runner: AblationRunner, layer: int, each: Any) -> list[float]:
    """The scores without each of a layer's first heads, side by side, from the run that was recorded before."""
    from toposcope.models.intervene import ablated_rows
    from toposcope.models.score import as_number, trial_loss

    with ablated_rows(runner.model, [{layer: ([head], 0.0)} for head in range(runner.batch)]):
        output = runner._run(each, runner.resumable.run, layer, runner.batch)
    return [as_number(trial_loss(each, output, None, row)) for row in range(runner.batch)]


def _missed(heads: list[Any], guess: np.ndarray, measured: int) -> str:
    """What the screen misses of the true top tenth, from a sweep of the same text."""
    from scipy.stats import spearmanr

    try:
        entries = [json.loads(line) for line in SWEEP.read_text().splitlines()[1:]]
        scores = {(each["what"], each["sequence"]): each["value"] for each in entries if each["on"] == "text"}
        numbers = sorted({number for what, number in scores if what == WHOLE})
        true = np.array([np.mean([scores[name_of(each), n] - scores[WHOLE, n] for n in numbers]) for each in heads])
    except (OSError, KeyError, ValueError):
        return f"miss rate unknown: no sweep in {SWEEP.parent}"
    ranked, top = np.argsort(-true, kind="stable"), math.ceil(TOP * len(heads))
    chosen = set(np.argsort(-guess, kind="stable")[:measured].tolist())
    missed = [number for number in ranked[:top] if number not in chosen]
    lost = true[missed].sum() / true[ranked[:top]].sum()
    return (
        f"misses {len(missed) / top:.0%} of the true top tenth, with {lost:.0%} of its damage, and "
        f"{len(set(ranked[:8].tolist()) - chosen)} of the worst 8; Spearman {spearmanr(guess, true).statistic:.2f}"
    )
