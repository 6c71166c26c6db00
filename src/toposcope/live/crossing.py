"""Keys in a cache that was filled within the original context, once tokens stand behind it.

Models that choose frequencies (or the length of turned vectors) by the length of the text turn all keys of a long
text alike; a cache holds them as they were turned when the text was short. Nothing is fitted: are the cached keys
those of a short text, or those of the whole text in one pass?
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.live.ruler import Array, doubled
from toposcope.live.stretched import LayerTurn, Rule, affordable, columns, grid
from toposcope.live.subject import LiveSubject
from toposcope.live.ways import Way, run

BEHIND = 3  # tokens behind the original context
WHOLE, WITHIN = "the keys of the whole text", "the keys of a text within the original context"
_MOST_WORK = 3e11  # parameters times tokens that `generate` may cost
_ROUNDINGS = 2  # by which keys of a short and of a long text must differ, on the average, to be told apart


def crossed(subject: LiveSubject, rule: Rule) -> tuple[dict[str, list[LayerTurn]], list[str]]:
    """What cached keys are, with a "cache" and in "generate", and why one of them was not run."""
    import torch

    beyond = rule.kind == "fixed" and rule.original + BEHIND > rule.longest  # where tables end
    if beyond or not subject.running.decodes or not rule.original > 8:
        return {}, []
    at_P = grid(rule.original - 1)
    columns_P = at_P.astype(np.int64)
    try:
        within = _keys(subject, rule, columns_P)
        whole = _keys(subject, rule, np.append(columns_P, rule.original + BEHIND - 1))
    except (IndexError, RuntimeError, ValueError) as error:
        return {}, [f"A text beyond the original context does not run: {str(error).strip()[:120]}."]
    if within is None or whole is None:
        return {}, ["A cache across the original context was not looked at: such long texts cost too much here."]
    noise = _ROUNDINGS * float(torch.finfo(subject.running.dtype).eps)
    told = {
        number: (short, long)
        for number, (short, long) in enumerate(zip(within, whole, strict=True))
        if _apart(short, long) > noise * np.sqrt((short**2).mean())
    }
    if not told:
        return {}, []
    ways: dict[str, Way] = {}
    notes = []
    if subject.running.takes_positions:
        ways["cache"] = _with_cache(columns_P, rule.original)
    if _generates(subject, rule):
        ways["generate"] = _with_generate(rule.original)
    else:
        notes.append(
            "generate across the original context was not run: the model has none, or it costs too much here."
        )
    found: dict[str, list[LayerTurn]] = {}
    for key, way in ways.items():
        try:
            cached = _cached(subject, rule, way, columns_P if way.generates else np.arange(len(columns_P)))
        except (IndexError, RuntimeError, ValueError, TypeError) as error:
            notes.append(f"{way.name} does not run: {str(error).strip()[:120]}.")
            continue
        found[key] = [
            LayerTurn(
                rule.original + BEHIND, rule.layers[number], WHOLE, WITHIN if _stale(keys, *told[number]) else WHOLE
            )
            for number, keys in cached.items()
            if number in told
        ]
    return found, notes


def _stale(cached: Array, short: Array, long: Array) -> bool:
    return _apart(cached, short) < _apart(cached, long) / 2


def _apart(left_PHR: Array, right_PHR: Array) -> float:
    """How far vectors are apart; keys may be shown once per group here and once per head there."""
    fewer = min(left_PHR.shape[1], right_PHR.shape[1])
    left, right = (each[:, :: each.shape[1] // fewer][:, :fewer] for each in (left_PHR, right_PHR))
    return float(np.sqrt(((left - right) ** 2).mean()))


def _keys(subject: LiveSubject, rule: Rule, at_P: NDArray[np.int64]) -> list[Array] | None:
    """The keys of a text that ends at the last of these positions, by layer of the rule (a later one is left out)."""
    running, last = subject.running, int(at_P.max())
    kept = at_P[at_P < rule.original]
    if running.takes_positions:
        with subject.content(1):
            seen = running.attentions(subject.text.ids(1, len(at_P)), at_P[None])
        return [columns(seen[number], np.arange(len(kept)))[1] for number in rule.attentions]
    if not affordable(running, last + 1):
        return None
    with subject.content(1):
        seen = running.attentions(subject.text.ids(1, last + 1))
    return [columns(seen[number], kept)[1] for number in rule.attentions]


def _with_cache(at_P: NDArray[np.int64], original: int) -> Way:
    """Tokens at some positions within the original context, then one by one behind it."""
    positions = np.concatenate([at_P, original + np.arange(BEHIND)])
    real_BT = np.ones((1, len(positions)), dtype=bool)
    pieces = (len(at_P), *[1] * BEHIND)
    return Way("A cache across the original context", real_BT, pieces, positions[None], cache="dynamic")


def _with_generate(original: int) -> Way:
    """A prompt that just fits the original context, and tokens that leave it."""
    total = original + BEHIND
    pieces = (original - 1, *[1] * (BEHIND + 1))
    real_BT = np.ones((1, total), dtype=bool)
    return Way("generate across the original context", real_BT, pieces, cache="dynamic", masked=True, generates=True)


def _generates(subject: LiveSubject, rule: Rule) -> bool:
    running, tokens = subject.running, rule.original + BEHIND
    work = tokens * sum(each.numel() for each in running.model.parameters())
    return hasattr(running.model, "generate") and work <= _MOST_WORK and affordable(running, tokens)


def _cached(subject: LiveSubject, rule: Rule, way: Way, columns_P: NDArray[Any]) -> dict[int, Array]:
    """The keys in these columns of the last pass, by layer of the rule; where a window dropped some, none."""
    with subject.content(1):
        last = run(subject, way)[-1]
    keys = {number: last.attentions[each].key_BGMR for number, each in enumerate(rule.attentions)}
    return {
        number: doubled(key_BGMR[0][:, columns_P].transpose(0, 1))
        for number, key_BGMR in keys.items()
        if key_BGMR.shape[2] >= last.stop
    }
