"""Attention windows as a page's script takes them (`assets/attention.js`), and what of them stands still without one.

`packed` is for reports, the text page of `serve` and the widget alike: tables stay the 16-bit codes they are, and the
numbers that belong to them become float32, all in base64. Everything is decoded once here, so that a damaged file is
told before a page is made of it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from toposcope.models.tracing.attention import AttentionWindow, HeadAttention
from toposcope.models.tracing.result import TraceResult
from toposcope.report.blocks import Attention, PackedNumbers, StillAttention, count
from toposcope.report.commands import command

STILL = 24  # tokens of what stands still
STRONGEST = 6  # pairs that are named
REPEATED = ("text", "tokens", "sequences", "begin", "lines", "encoding", "seed")


def attention_block(result: TraceResult) -> Attention | None:
    """The attention that a trace has kept, or None."""
    windows = tuple(window for window in result.attention if window.tokens and window.heads)
    if not windows:
        return None
    first = windows[0]
    kept, traced = len(first.heads), len(result.heads)
    places = " and ".join(f"{each.first:,} to {each.first + len(each.tokens) - 1:,}" for each in windows)
    which = "every traced head" if kept == traced else f"{kept} of {count(traced, 'traced head')}"
    return Attention(
        title="Which token looks at which",
        sentence=(
            f"Tokens {places} of the first sequence ({first.length:,} tokens), {which}. Point at a token, or move to "
            "it with the arrow keys, to see where it looks; a click or Enter holds it."
        ),
        windows=packed(windows),
        others=_command(result),
        still=_still(first),
    )


def packed(windows: Sequence[AttentionWindow]) -> tuple[dict[str, Any], ...]:
    """Windows as `toposcope.attention` of the script takes them."""
    return tuple(
        {
            "first": window.first,
            "length": window.length,
            "tokens": list(window.tokens),
            "heads": [_head(each, len(window.tokens)) for each in window.heads],
        }
        for window in windows
    )


def _head(head: HeadAttention, tokens: int) -> dict[str, Any]:
    seen = int(head.seen[:tokens, :tokens].sum())
    for table in (head.logits, head.position):
        table.values(seen)
    ends = (head.logits.low, head.logits.step, head.position.low, head.position.step)
    numbers = np.array([*ends, *head.log_sums], dtype="<f4")
    return {
        "layer": head.layer,
        "head": head.head,
        "causal": head.causal,
        "reach": head.reach,
        "softcap": head.softcap,
        "due": head.due,
        "numbers": PackedNumbers(base64.b64encode(numbers.tobytes()).decode("ascii")),
        "logits": PackedNumbers(head.logits.codes),
        "position": PackedNumbers(head.position.codes),
    }


def _still(window: AttentionWindow) -> StillAttention:
    """The first tokens under the head that looks most sharply, and its strongest pairs."""
    sharpest = max(window.heads, key=lambda head: float(_others(head).max(initial=0.0, axis=1).mean()))
    found_BM = sharpest.probabilities_BM
    others_BM = _others(sharpest)
    order = np.argsort(-others_BM, axis=None, kind="stable")[:STRONGEST]
    pairs = [divmod(int(each), others_BM.shape[1]) for each in order]
    names = window.tokens
    said = tuple(
        f"'{names[i].strip()}' ({window.first + i}) looks at '{names[j].strip()}' ({window.first + j}): "
        f"{others_BM[i, j]:.0%}"
        for i, j in pairs
        if others_BM[i, j] > 0
    )
    side = min(STILL, len(names))
    cells = [[float(found_BM[i, j]) if sharpest.seen[i, j] else None for j in range(side)] for i in range(side)]
    return StillAttention(sharpest.name, tuple(names[:side]), tuple(map(tuple, cells)), said)


def _others(head: HeadAttention) -> np.ndarray:
    """Attention on other tokens than the own one and the first: a head that only rests shows nothing."""
    found_BM = head.probabilities_BM.copy()
    np.fill_diagonal(found_BM, 0.0)
    found_BM[:, 0] = 0.0
    return found_BM


def _command(result: TraceResult) -> str:
    """The command that keeps another head, written {head}."""
    return " ".join([*command(result, "trace", REPEATED), "--logits", "{head}", "--html", "heads.html"])
