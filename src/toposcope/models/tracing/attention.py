"""The attention of a head on the tokens of a text, pair by pair, small enough to be kept: windows of a few heads.

A window is a stretch of at most `WINDOW` tokens of the first sequence. For each kept head it holds, for every query
and every key of the window that the query sees,

* the logit, before cap and softmax; with each row's log-sum over *all* keys that the query sees, inside the window or
  not, so that probabilities are those of the whole text;
* the part of it that is due to position. Where position acts inside the head, that is the logit less the logit of
  the same two tokens with position switched off there (queries and keys not turned, no bias). Where position was
  added to the input, nothing can be switched off in the head; there it is the mean logit at the pair's offset less
  the mean of all logits: what depends on the offset alone.

Numbers are stored in 16 bits between the least and the greatest of each table. Shape suffixes: N tokens of the text,
B queries and M keys of the window, E pairs that are seen, row by row.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadFile, BadValue
from toposcope.core.printable import printable
from toposcope.models.content import Content
from toposcope.models.corpus import Ids
from toposcope.models.tracing.head import in_input_only
from toposcope.models.tracing.logits import HeadLogits, diagonals, head_content, head_logits, rows

Array = NDArray[np.float64]
Due = Literal["switched_off", "offset"]
WINDOW = 128  # tokens
BYTES = 1_500_000  # of all that a result keeps; a third more as text
LEVELS = 2**16 - 1
LONGEST_LABEL = 40
NOTHING = 1e-12  # of the largest logit: less is rounding, where position does nothing


@dataclass(frozen=True)
class Stored:
    """Numbers of 16 bits: low + step * code; `codes` are little-endian, in base64."""

    low: float
    step: float
    codes: str

    @classmethod
    def of(cls, values_E: Array) -> Stored:
        low, high = (float(values_E.min()), float(values_E.max())) if len(values_E) else (0.0, 0.0)
        step = (high - low) / LEVELS
        codes_E = np.zeros(len(values_E)) if step == 0 else np.rint((values_E - low) / step)
        return cls(low, step, base64.b64encode(codes_E.astype("<u2").tobytes()).decode("ascii"))

    def values(self, count: int) -> Array:
        """The numbers, of which there must be so many."""
        try:
            codes_E = np.frombuffer(base64.b64decode(self.codes, validate=True), dtype="<u2")
        except (binascii.Error, ValueError):
            codes_E = np.zeros(0, dtype="<u2")
        if len(codes_E) != count:
            raise BadFile(f"a table of {count} attention logits was expected, and {len(codes_E)} can be read.")
        return np.asarray(self.low + self.step * codes_E)


@dataclass(frozen=True)
class HeadAttention:
    """One head on one window. `due` says how the part due to position was told: see the head of this module.

    Query i sees keys up to itself where `causal`, and none further than `reach` away.
    """

    layer: int
    head: int
    causal: bool
    reach: int | None
    softcap: float | None
    log_sums: tuple[float, ...]
    logits: Stored
    position: Stored
    due: Due

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Which keys of the window each of its queries sees: (B, M)."""
        return _seen(len(self.log_sums), self.causal, self.reach)

    @property
    def logits_BM(self) -> Array:
        """Logits, before cap and softmax; NaN for pairs that are not seen."""
        return self._spread(self.logits)

    @property
    def position_BM(self) -> Array:
        """The part of the logits that is due to position; NaN for pairs that are not seen."""
        return self._spread(self.position)

    @property
    def probabilities_BM(self) -> Array:
        """What each query gives to each key; a row sums to less than 1 where it also looks out of the window."""
        logits_BM = self.logits_BM
        if self.softcap is not None:
            logits_BM = self.softcap * np.tanh(logits_BM / self.softcap)
        return np.where(self.seen, np.exp(logits_BM - np.array(self.log_sums)[:, None]), 0.0)

    def _spread(self, stored: Stored) -> Array:
        found_BM = np.full(self.seen.shape, np.nan)
        found_BM[self.seen] = stored.values(int(self.seen.sum()))
        return found_BM


@dataclass(frozen=True)
class AttentionWindow:
    """Tokens `first`, `first + 1`, ... of the first sequence, of `length` tokens, and heads on them."""

    first: int
    length: int
    tokens: tuple[str, ...]
    heads: tuple[HeadAttention, ...]

    def head(self, name: str) -> HeadAttention:
        """The head of this name: '3.2'."""
        found = next((each for each in self.heads if each.name == name), None)
        if found is None:
            kept = ", ".join(each.name for each in self.heads)
            raise BadValue(f"the attention of head {name} is not kept here; there are {kept}.")
        return found


def window_starts(length: int, window: int | None = None, size: int = WINDOW) -> tuple[int, ...]:
    """Where windows begin: at the start and, in a longer text, so that one ends with it; or where `window` says."""
    last = max(0, length - size)
    if window is None:
        return (0,) if last == 0 else (0, last)
    if not 0 <= window < length:
        raise BadValue(
            f"the window is to begin at token {window}, and the first sequence has tokens 0 to {length - 1}."
        )
    return (min(window, last),)


def affordable(length: int, windows: int, causal: bool, size: int = WINDOW) -> int:
    """How many heads can be kept."""
    side = min(length, size)
    pairs = side * (side + 1) // 2 if causal else side * side
    return max(1, BYTES // (windows * pairs * 4))


def attention_of(content: Content, head: int, sink: float | None, starts: Sequence[int]) -> Iterator[HeadAttention]:
    """One head on the windows that begin at `starts`."""
    whole = head_logits(head_content(content, head, sink))
    absolute = in_input_only(content.encoding)
    if absolute:
        means_T, _ = diagonals(whole)
        offsets_T = np.arange(1 - whole.length, whole.length)
        least, most = whole.offsets
        there_T = (offsets_T >= least) & (offsets_T <= most)
        count_T = (whole.length - np.abs(offsets_T)) * there_T
        by_offset_T = means_T - float((count_T * means_T).sum() / count_T.sum())
    for first in starts:
        stop = min(first + WINDOW, whole.length)
        logits_BM, log_sums_B = _rows_of(whole, first, stop)
        seen_BM = _seen(stop - first, whole.causal, whole.reach)
        if absolute:
            at_B = np.arange(stop - first)
            position_BM = by_offset_T[at_B[:, None] - at_B + whole.length - 1]
        else:
            q_BR, k_MR = content.q_HNR[head, first:stop], content.k_HMR[head, first:stop]
            position_BM = logits_BM - content.scale * (q_BR @ k_MR.T)
            position_BM[np.abs(position_BM) <= NOTHING * np.abs(logits_BM).max()] = 0.0
        yield HeadAttention(
            layer=content.site.number,
            head=head,
            causal=whole.causal,
            reach=whole.reach,
            softcap=whole.softcap,
            log_sums=tuple(round(float(value), 6) for value in log_sums_B),
            logits=Stored.of(logits_BM[seen_BM]),
            position=Stored.of(position_BM[seen_BM]),
            due="offset" if absolute else "switched_off",
        )


def labels(tokenizer: Any, ids: Ids) -> tuple[str, ...]:
    """Tokens as text that can be seen, with the space before a word kept; numbers where there is no tokenizer."""
    if tokenizer is None:
        return tuple(str(int(each)) for each in ids)

    def decoded(*some: int) -> str:
        return str(tokenizer.decode(list(some), clean_up_tokenization_spaces=False))

    found = []
    numbers = [int(each) for each in ids]
    for before, each in zip([None, *numbers], numbers, strict=False):
        text = decoded(each)
        if before is not None and decoded(before, each) == f"{decoded(before)} {text}":
            text = f" {text}"  # some tokenizers drop it from the first word of what they decode
        if not text or "\ufffd" in text:  # a part of a character, or a mark of the tokenizer's own
            text = str(tokenizer.convert_ids_to_tokens(each))
        found.append(printable(text, LONGEST_LABEL))
    return tuple(found)


# -------------------------------------------------------------------- inside
def _rows_of(whole: HeadLogits, first: int, stop: int) -> tuple[Array, Array]:
    """The logits of the window (B, M), and each row's log-sum over all keys that it sees, as softmax has it."""
    inside, sums = [], []
    for block in rows(whole, first, stop):
        logits_BM = block.logits_BM
        capped_BM = logits_BM if whole.softcap is None else whole.softcap * np.tanh(logits_BM / whole.softcap)
        capped_BM = np.where(block.grid.visible_BM, capped_BM, -np.inf)
        if whole.sink is not None:
            capped_BM = np.column_stack([capped_BM, np.full(len(capped_BM), whole.sink)])
        sums.append(np.logaddexp.reduce(capped_BM, axis=1))
        padded = np.zeros((len(logits_BM), stop - first))
        low, high = max(first, block.grid.first), min(stop, block.grid.first + logits_BM.shape[1])
        padded[:, low - first : high - first] = logits_BM[:, low - block.grid.first : high - block.grid.first]
        inside.append(padded)
    return np.concatenate(inside), np.concatenate(sums)


def _seen(size: int, causal: bool, reach: int | None) -> NDArray[np.bool_]:
    at_B = np.arange(size)
    offset_BM = at_B[:, None] - at_B
    seen_BM = offset_BM >= 0 if causal else np.ones_like(offset_BM, dtype=bool)
    return seen_BM if reach is None else seen_BM & (np.abs(offset_BM) <= reach)
