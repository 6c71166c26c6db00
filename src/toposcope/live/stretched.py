"""By which frequencies a model turns, for texts of several lengths, and behind a cache that was filled before.

The length of a text is given by position ids on sequences of one token (its last position is the length less 1), or
by a text that really is so long. Frequencies are not fitted: those of the configuration for several lengths compete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.encodings.record import Rotary
from toposcope.live.ruler import Array, doubled
from toposcope.live.running import Running
from toposcope.live.subject import Subject
from toposcope.live.turning import turned
from toposcope.live.watch import Attention, watched
from toposcope.live.ways import Way, run

SHORT, BEHIND = 16, 3  # tokens of a short text; tokens behind the original context
_MOST_BYTES, _MOST_TOKENS = 2e9, 8192  # of a text that is really run
_MOST_WORK = 3e11  # parameters times tokens that `generate` may cost
_UNKNOWN = "no known frequencies"
Measured = Sequence[tuple[Array, Array]]  # by layer: vectors (P, H, R) of queries and of keys, at position 0 first


@dataclass(frozen=True, eq=False)
class Rule:
    """Layers that turn alike, and how their frequencies go by the length of the text."""

    attentions: tuple[int, ...]  # their numbers in a run
    layers: tuple[int, ...]  # their numbers in the description
    rotary: Rotary
    kind: Literal["longrope", "dynamic", "other", "fixed"]
    original: int
    longest: int

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths that are tried, in this order."""
        first, short = self.original, max(min(SHORT, self.original // 2), 2)
        if self.kind == "fixed":
            return {"short": short, "below": first - 1, "longest": self.longest, "short, after longer": short}
        return {
            "short": short,
            "below": first - 1,
            "at": first,
            "above": first + 1,
            "longest": self.longest,
            "above, after longer": min(first + 7, self.longest),
            "at, after longer": first,
            "below, after longer": first - 1,
            "short, after longer": short,
        }

    def name(self, length: int) -> str:
        """What the frequencies of a text of this length are called."""
        if self.kind == "fixed":
            return "the frequencies of the configuration"
        if self.kind == "longrope":
            return f"the {'short' if length <= self.original else 'long'} factors"
        return (
            "the frequencies of the original context"
            if length <= self.original
            else f"those of a text of {length} tokens"
        )

    @property
    def hypotheses(self) -> dict[str, Array]:
        """The frequencies that may be seen, by name."""
        lengths = {*self.lengths.values(), *range(self.original + 1, self.original + BEHIND + 2), 2 * self.original}
        return {self.name(length): self.rotary.frequencies(length) for length in sorted(lengths)}


@dataclass(frozen=True)
class Seen:
    """What one layer turned by in a text of this length, and what it should have."""

    length: int
    layer: int
    expected: str
    seen: str

    @property
    def right(self) -> bool:
        return self.expected == self.seen

    @property
    def known(self) -> bool:
        return self.seen != _UNKNOWN


def rules_of(layers: Mapping[int, Layer], context: int | None) -> list[Rule]:
    """The rules of all layers that turn, those that turn alike together."""
    found: dict[Any, Rule] = {}
    for number, layer in layers.items():
        rotary = layer.encoding.rotary
        if rotary is None or layer.spec.kind != "self":
            continue
        said = layer.encoding.parameters
        original = int(said.get("original_context") or context or 2048) if rotary.by_length else int(context or 2048)
        kind = str(said.get("scaling")) if rotary.by_length else "fixed"
        kind = kind if kind in ("longrope", "dynamic", "fixed") else "other"
        longest = 2 * original if kind == "fixed" else min(4 * original, max(context or 0, 2 * original))
        key = (
            kind,
            original,
            rotary.pairs_F2.tobytes(),
            *(rotary.frequencies(n).tobytes() for n in (1, 4 * original)),
        )
        if key in found:
            same = found[key]
            found[key] = replace(same, attentions=(*same.attentions, number), layers=(*same.layers, layer.number))
        else:
            found[key] = Rule((number,), (layer.number,), rotary, kind, original, longest)  # type: ignore[arg-type]
    return list(found.values())


# ------------------------------------------------------------------ texts of several lengths
def by_positions(subject: Subject, rule: Rule) -> dict[str, list[Seen]]:
    """What the rule's layers turn by when position ids alone say how long the text is."""

    def measure(at_P: Array) -> Measured:
        with subject.content(len(at_P)):
            seen = subject.running.attentions(subject.text.ids(len(at_P), 1), at_P[:, None].astype(np.int64))
        return [_rows(seen[number]) for number in rule.attentions]

    return _series(subject, rule, rule.layers, measure)


def in_texts(subject: Subject, rule: Rule) -> dict[str, list[Seen]]:
    """What the rule's first layer turns by in texts that really are so long; those that cost too much are not run."""
    number, running = rule.attentions[0], subject.running

    def measure(at_P: Array) -> Measured | None:
        length = int(at_P.max()) + 1
        if not affordable(running, length):
            return None
        stop = _until(running.model, subject.modules[number])
        with suppress(_Enough), subject.content(1), stop, watched(running.model) as seen:
            running(subject.text.ids(1, length))
        return [_columns(seen[number], at_P)]

    return _series(subject, rule, rule.layers[:1], measure)


def affordable(running: Running, length: int) -> bool:
    """Whether a text of this length can be run: its mask, or its logits where they are written out."""
    fused = getattr(running.config, "_attn_implementation", None) == "sdpa"
    heads = 1 if fused else int(getattr(running.config, "num_attention_heads", None) or 32)
    return length <= _MOST_TOKENS and 12.0 * length**2 * heads <= _MOST_BYTES


def _series(
    subject: Subject, rule: Rule, layers: Sequence[int], measure: Callable[[Array], Measured | None]
) -> dict[str, list[Seen]]:
    """What is seen at each length that runs; one that the model refuses (beyond a table, say) is left out."""
    found: dict[str, list[Seen]] = {}
    for key, length in rule.lengths.items():
        at_P = _grid(length)
        try:
            measured = measure(at_P)
        except (IndexError, RuntimeError, ValueError):
            continue
        if measured is not None:
            found[key] = [
                seen
                for layer, sides in zip(layers, measured, strict=True)
                for seen in _judged(rule, layer, length, at_P, sides, subject.precision)
            ]
    return found


def _judged(
    rule: Rule, layer: int, length: int, at_P: Array, sides: Sequence[Array], precision: str
) -> Iterator[Seen]:
    """What the queries and the keys turned by; whichever is not as expected comes first."""
    names = []
    for vectors_PHR in sides:
        angles = turned(vectors_PHR, at_P, rule.rotary, precision)
        best = None if angles is None else angles.best(rule.hypotheses, rule.name(length))
        names.append(_UNKNOWN if best is None else best)
    expected = rule.name(length)
    yield Seen(length, layer, expected, next((name for name in names if name != expected), expected))


def _grid(length: int) -> Array:
    """Positions of a text: 0, powers of two and odd ones between them, and the last."""
    powers = 2 ** np.arange(int(np.log2(max(length, 2))) + 1)
    some = np.unique(np.concatenate([[0, 1, 2, 3, 5, 7, length - 1], powers, 3 * powers // 2 - 1]))
    return np.asarray(some[(some >= 0) & (some < length)], dtype=np.float64)


def _rows(attention: Attention) -> tuple[Array, Array]:
    """Queries and keys of sequences of one token: a row of the batch for each position."""
    return doubled(attention.query_BHNR)[:, :, 0], doubled(attention.key_BGMR)[:, :, 0]


def _columns(attention: Attention, at_P: Array) -> tuple[Array, Array]:
    """Queries and keys of one sequence at some of its positions."""
    columns = at_P.astype(np.int64)
    query, key = (x[0][:, columns].transpose(0, 1) for x in (attention.query_BHNR, attention.key_BGMR))
    return doubled(query), doubled(key)


class _Enough(Exception):
    """What ends a run whose rest is not looked at."""


@contextmanager
def _until(model: Any, module: str) -> Iterator[None]:
    def stop(*given: Any) -> None:
        raise _Enough

    handle = model.get_submodule(module).register_forward_hook(stop)
    try:
        yield
    finally:
        handle.remove()


# ------------------------------------------------------------------ a cache across the original context
def behind_cache(subject: Subject, rule: Rule) -> list[Seen]:
    """What keys that were cached within the original context turn by, once tokens stand behind it."""
    at_P = np.concatenate([_grid(rule.original), rule.original + np.arange(BEHIND)])
    first = len(at_P) - BEHIND
    way = Way(
        "a cache across the original context",
        np.ones((1, len(at_P)), dtype=bool),
        (first, *[1] * BEHIND),
        at_P[None].astype(np.int64),
        cache="dynamic",
    )
    return _cached(subject, rule, way, at_P, np.arange(first))


def behind_generate(subject: Subject, rule: Rule) -> list[Seen] | None:
    """The same where `generate` writes across the original context; None where that would take too long."""
    running = subject.running
    size = sum(each.numel() for each in running.model.parameters())
    total = rule.original + BEHIND
    if not hasattr(running.model, "generate") or size * total > _MOST_WORK or not affordable(running, total):
        return None
    way = Way(
        "generate across the original context",
        np.ones((1, total), dtype=bool),
        (total - BEHIND - 1, *[1] * BEHIND),
        cache="dynamic",
        masked=True,
        generates=True,
    )
    at_P = _grid(rule.original - 1)
    return _cached(subject, rule, way, at_P, at_P.astype(np.int64))


def _cached(subject: Subject, rule: Rule, way: Way, at_P: Array, columns_P: NDArray[np.int64]) -> list[Seen]:
    """What the keys in these columns turn by in the last pass; they stand at the first of these positions."""
    with subject.content(1):
        last = run(subject, way)[-1]
    found: list[Seen] = []
    for number, layer in zip(rule.attentions, rule.layers, strict=True):
        key_BGMR = last.attentions[number].key_BGMR
        if key_BGMR.shape[2] < last.stop:
            continue  # a window has dropped the first key
        keys_PHR = doubled(key_BGMR[0][:, columns_P].transpose(0, 1))
        length, at = rule.original + BEHIND, at_P[: len(columns_P)]
        found += _judged(rule, layer, length, at, [keys_PHR], subject.precision)
    return found
