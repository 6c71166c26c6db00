"""By which frequencies a model turns, in texts of several lengths.

The length of a text is given by the position ids of a few tokens (the last of them is the length less 1), or by a
text that really is so long. Frequencies are not fitted: those of the configuration for several lengths compete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.encodings.record import Rotary
from toposcope.live.ruler import Array, doubled
from toposcope.live.running import Running
from toposcope.live.subject import LiveSubject
from toposcope.live.turning import turned
from toposcope.live.watch import WatchedAttention, watched

SHORT = 16  # tokens of a short text
_CONTEXT = 2048  # where none is said
_MOST_BYTES, _MOST_TOKENS = 2e9, 8192  # of a text that is really run
_FIRST, _SAME = (1, 2, 3, 4, 5, 7), 0.05  # positions of every text; the angle that rounding may leave, in radians
UNKNOWN = "no known frequencies"
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
        lengths = sorted({*self.lengths.values(), 2 * self.original})
        return {self.name(length): self.rotary.frequencies(length) for length in lengths}


@dataclass(frozen=True)
class LayerTurn:
    """What one layer turned by in a text of this length, and what it should have."""

    length: int
    layer: int
    expected: str
    seen: str
    angle_PF: Array | None = field(default=None, compare=False, repr=False)  # of queries at the first positions

    @property
    def right(self) -> bool:
        return self.expected == self.seen

    @property
    def known(self) -> bool:
        return self.seen != UNKNOWN


def rules_of(layers: Mapping[int, Layer], context: int | None) -> list[Rule]:
    """The rules of all layers that turn, those that turn alike together."""
    found: dict[Any, Rule] = {}
    for number, layer in layers.items():
        rotary = layer.encoding.rotary
        if rotary is None or layer.spec.kind != "self":
            continue
        said = layer.encoding.parameters
        original = int(said.get("original_context") or context or _CONTEXT)
        kind = str(said.get("scaling")) if rotary.by_length else "fixed"
        kind = kind if kind in ("longrope", "dynamic", "fixed") else "other"
        longest = int(context or original)
        if kind != "fixed":
            longest = min(4 * original, max(longest, 2 * original))
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


def by_positions(subject: LiveSubject, rule: Rule) -> dict[str, list[LayerTurn]]:
    """What the rule's layers turn by when position ids alone say how long the text is."""

    def measure(at_P: Array) -> Measured:
        with subject.content(1):
            seen = subject.running.attentions(subject.text.ids(1, len(at_P)), at_P[None].astype(np.int64))
        return [columns(seen[number], np.arange(len(at_P))) for number in rule.attentions]

    return _series(subject, rule, rule.layers, measure)


def in_texts(subject: LiveSubject, rule: Rule) -> dict[str, list[LayerTurn]]:
    """What the rule's first layer turns by in texts that really are so long; those that cost too much are not run."""
    number, running = rule.attentions[0], subject.running

    def measure(at_P: Array) -> Measured | None:
        length = int(at_P.max()) + 1
        if not affordable(running, length):
            return None
        stop = _until(running.model, subject.modules[number])
        with suppress(_Enough), subject.content(1), stop, watched(running.model, rows=1) as seen:
            running(subject.text.ids(1, length))
        return [columns(seen[number], at_P.astype(np.int64))]

    return _series(subject, rule, rule.layers[:1], measure)


def affordable(running: Running, length: int) -> bool:
    """Whether a text of this length can be run: its mask, or its logits where they are written out."""
    fused = getattr(running.config, "_attn_implementation", None) == "sdpa"
    heads = 1 if fused else int(getattr(running.config, "num_attention_heads", None) or 32)
    return length <= _MOST_TOKENS and 12.0 * length**2 * heads <= _MOST_BYTES


def _series(
    subject: LiveSubject, rule: Rule, layers: Sequence[int], measure: Callable[[Array], Measured | None]
) -> dict[str, list[LayerTurn]]:
    """What is seen at each length that runs; one that the model refuses (beyond a table, say) is left out."""
    found: dict[str, list[LayerTurn]] = {}
    for key, length in rule.lengths.items():
        at_P = grid(length)
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
) -> Iterator[LayerTurn]:
    """What the queries and the keys turned by; whichever is not as expected comes first."""
    expected = rule.name(length)
    both = [turned(vectors_PHR, at_P, rule.rotary, precision) for vectors_PHR in sides]
    names = [(side and side.best(rule.hypotheses, expected)) or UNKNOWN for side in both]
    first_PF = None if both[0] is None else both[0].angle_PF[: len(_FIRST)]
    yield LayerTurn(length, layer, expected, next((name for name in names if name != expected), expected), first_PF)


def constant(seen: Sequence[LayerTurn], later: Sequence[LayerTurn]) -> bool:
    """Whether the same layers turn their first tokens by the same angles, whatever these are."""
    pairs = [(one.angle_PF, two.angle_PF) for one, two in zip(seen, later, strict=False)]
    apart = [np.abs(np.angle(np.exp(1j * (a - b)))) for a, b in pairs if a is not None and b is not None]
    return bool(apart) and max(float(each.max()) for each in apart) < _SAME


def grid(length: int) -> Array:
    """Some positions of a text: 0, the first few, then each three times the one before and odd, and the last."""
    some = [0, *_FIRST, length - 1]
    while 3 * some[-2] < length:
        some.insert(-1, (3 * some[-2]) | 1)
    return np.unique([each for each in some if 0 <= each < length]).astype(np.float64)


def columns(attention: WatchedAttention, columns_P: NDArray[np.int64]) -> tuple[Array, Array]:
    """Queries and keys (P, H, R) of some tokens of one sequence."""
    query, key = (x[0][:, columns_P].transpose(0, 1) for x in (attention.query_BHNR, attention.key_BGMR))
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
