"""Where the tokens of a forward pass stand: those it is given, and those whose keys a cache holds.

A cache holds keys as the model has turned them, but not where they stand. So each pass of an attached model writes
the positions of its tokens onto the cache that it fills, and the next pass reads them there. A cache that was filled
outside, or under another encoding, has no such note or a wrong one, and is refused by whoever asks for positions.

Two counts are kept, which differ only under padding without position_ids:

* own    what the model turns queries and keys by: its position_ids, or the number of tokens before
* text   where a token stands in its text: its position_ids, or the number of tokens before that the mask shows
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings.record import Rotary

Array = NDArray[np.float64]
KNOWN_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer")
_NOTE = "_toposcope_places"


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of M tokens: one row for each of B sequences, or one row for all.

    `own_lengths` and `text_lengths` are the shortest and the longest text, by either count, that a pass has seen up
    to now: scalings that choose their frequencies by the length must choose the same for both. `under` names the
    rewrites of attention that were in force.
    """

    own_BM: Array
    text_BM: Array
    own_lengths: tuple[int, int]
    text_lengths: tuple[int, int]
    under: tuple[int, ...] = ()

    @classmethod
    def of(cls, own_BM: Array, text_BM: Array, under: tuple[int, ...] = ()) -> Places:
        """The places of tokens that one pass meets."""
        own, text = (int(rows.max()) + 1 for rows in (own_BM, text_BM))
        shortest = int(text_BM.max(axis=1).min()) + 1
        return cls(own_BM, text_BM, (own, own), (shortest, text), under)

    @property
    def count(self) -> int:
        return self.text_BM.shape[1]

    def then(self, new: Places) -> Places:
        """These tokens, and those of the next pass behind them."""
        return Places(
            _side_by_side(self.own_BM, new.own_BM),
            _side_by_side(self.text_BM, new.text_BM),
            _span(self.own_lengths, new.own_lengths),
            _span(self.text_lengths, new.text_lengths),
            new.under,
        )

    def cut(self, columns: slice) -> Places:
        """Some of the tokens, in the same passes."""
        own_BM, text_BM = self.own_BM[:, columns], self.text_BM[:, columns]
        return Places(own_BM, text_BM, self.own_lengths, self.text_lengths, self.under)

    def padded(self, count: int) -> Places:
        """Followed by keys that no query sees, as a cache of fixed size holds them."""
        own_BM, text_BM = (np.pad(rows, ((0, 0), (0, count - self.count))) for rows in (self.own_BM, self.text_BM))
        return Places(own_BM, text_BM, self.own_lengths, self.text_lengths, self.under)


@dataclass(frozen=True, eq=False)
class _Note:
    """What is written onto a cache: where its tokens stand, and by which key a row was known at each length."""

    places: Places
    marks: Mapping[int, Array]


class ForwardPass:
    """One forward pass of a stack of layers: what it was given that tells where its tokens stand.

    Positions are computed when they are asked for: a pass that nobody asks may be given any cache.
    """

    def __init__(
        self,
        module: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        under: tuple[int, ...] = (),
        *,
        outermost: bool = True,
    ) -> None:
        self.thread = threading.get_ident()
        self.given = _by_name(module, args, kwargs)
        self.under, self.outermost = under, outermost
        self.inner = False  # whether another pass runs inside, with the arguments that this one hands on
        cache = self.given.get("past_key_values")
        self.cache = getattr(cache, "self_attention_cache", cache)
        self.past = _length(self.cache)  # now: the layers are about to add to it
        self._note: _Note | None = getattr(self.cache, _NOTE, None)
        self._mark = _last_keys(self.cache, self.past) if self._note is not None and self.past else None

    @property
    def tokens(self) -> int | None:
        """How many tokens the pass was given, where it was given tokens."""
        for name in ("input_ids", "inputs_embeds", "ids_BN"):
            if self.given.get(name) is not None:
                return int(self.given[name].shape[1])
        return None

    @cached_property
    def whole(self) -> Places:
        """All tokens that queries of this pass may see: those in the cache, then its own."""
        if self.past == 0:
            return self._new
        if self._note is None or self.past is None or self._note.places.count < self.past:
            raise BadValue(
                "the cache holds keys that were put there outside of this block: where they stand, and what computed "
                "them, is not known. Fill a new cache inside the block, or run the whole text without one."
            )
        before, new = self._note.places.cut(slice(self.past)), self._new  # what was cropped since lay at the end
        if before.under != self.under:
            raise BadValue(
                "the cache was filled under another encoding than the one now in force. Fill a new one in this block."
            )
        if len(before.text_BM) > 1 and not _same_rows(before, self._note.marks.get(self.past), self._mark):
            raise BadValue(
                f"the cache was filled for {len(before.text_BM)} sequences that stand differently, and since then "
                "they were exchanged, selected or repeated: which row is which is not known. Fill a new one."
            )
        return before.then(new)

    def queries(self, count: int) -> Places:
        """Where the queries of an attention stand."""
        if self.tokens != count:
            return self._counted(count)
        return self.whole.cut(slice(self.whole.count - count, None))

    def keys(self, count: int, queries: int) -> Places:
        """Where the keys of an attention stand that sees its own tokens, and those in the cache."""
        if self.tokens != queries:
            return self._counted(count)
        whole, kinds = self.whole, self._kinds()
        if count == whole.count:
            return whole
        if count > whole.count and "StaticLayer" in kinds:
            return whole.padded(count)
        if count < whole.count and "DynamicSlidingWindowLayer" in kinds:
            return whole.cut(slice(whole.count - count, None))
        raise BadValue(f"attention was given {count} keys for {whole.count} tokens: where they stand is not known.")

    def other_keys(self, count: int) -> Places:
        """Where the keys of cross-attention stand: in the text that the encoder has read."""
        own_BM = _from_zero(count)
        shown = _shown(self.given.get("encoder_attention_mask"), count)
        return Places.of(own_BM, own_BM if shown is None else shown)

    def note(self, cache: Any) -> None:
        """Write the positions onto the cache that has been filled, or that they are not known."""
        cache = getattr(cache, "self_attention_cache", cache)
        if cache is None or not hasattr(cache, "get_seq_length"):
            return
        note = None
        try:
            places = self.whole
            marks = {} if self._note is None or not self.past else dict(self._note.marks)
            if len(places.text_BM) > 1:
                marks[places.count] = _last_keys(cache, places.count)
            note = _Note(places, marks)
        except BadValue:
            pass  # whoever asks will be told
        setattr(cache, _NOTE, note)

    # ------------------------------------------------------------- inside
    @cached_property
    def _new(self) -> Places:
        count, past = self.tokens, self.past
        if count is None or past is None:
            raise BadValue("the model was given neither token numbers nor embeddings: its tokens cannot be counted.")
        given = self.given.get("position_ids")
        if given is not None:
            rows = given[None] if given.ndim == 1 else given
            if rows.ndim != 2 or rows.shape[1] != count:
                raise BadValue(
                    f"position_ids of shape {tuple(given.shape)} given for {count} tokens; expected one each."
                )
            own_BN = _distinct(rows)
            return Places.of(own_BN, own_BN, self.under)
        own_BN = past + _from_zero(count)
        text_BM = _shown(self.given.get("attention_mask"), past + count)
        if text_BM is not None:
            return Places.of(own_BN, text_BM[:, past:], self.under)
        before = None if self._note is None else self._note.places
        if past and before is not None and not np.array_equal(before.text_BM[:, :past], before.own_BM[:, :past]):
            raise BadValue(
                "the cache was filled with an attention mask, and this step has none. Give the mask of all tokens, "
                "those in the cache included, with every step."
            )
        return Places.of(own_BN, own_BN, self.under)

    def _counted(self, count: int) -> Places:
        """Tokens that are not those the pass was given (the patches of an image): counted from 0."""
        if self.past != 0:
            raise BadValue(f"attention over {count} tokens beside a cache: where they stand is not known.")
        return Places.of(_from_zero(count), _from_zero(count), self.under)

    def _kinds(self) -> set[str]:
        """The kinds of the cache's layers, if all of them are known."""
        if self.cache is None:
            return set()
        kinds = {type(layer).__name__ for layer in getattr(self.cache, "layers", ())}
        strange = sorted(kinds - set(KNOWN_CACHES)) or ([] if kinds else [type(self.cache).__name__])
        if strange:
            raise BadValue(
                f"the cache keeps its keys as {strange[0]}, and where each of them stands is not known. "
                "Use transformers' DynamicCache or StaticCache without a sliding window, or run without a cache."
            )
        return kinds


def one_length(rotary: Rotary, lengths: tuple[int, int]) -> Array:
    """The frequencies of a rotation for the shortest and the longest of some texts, if they are the same."""
    shortest, longest = lengths
    found: Array = rotary.frequencies(longest)
    if shortest != longest and not np.array_equal(found, rotary.frequencies(shortest)):
        raise BadEncoding(
            f"this rotation chooses its frequencies by the length of the text, and they differ for {shortest} and "
            f"{longest} tokens: with a cache, or for sequences of both lengths, there is no one answer. Run "
            "sequences of one length, whole and without a cache."
        )
    return found


def _by_name(module: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = inspect.signature(module.forward).parameters if args else ()
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _length(cache: Any) -> int | None:
    if cache is None:
        return 0
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else None


def _last_keys(cache: Any, count: int | None) -> Array:
    """The sum of the last of so many keys, for each row of the first layer that has keys: tells rows apart."""
    layers = [each for each in getattr(cache, "layers", ()) if getattr(each, "keys", None) is not None]
    if not layers or not count:
        return np.zeros(0)
    at = count - 1 if type(layers[0]).__name__ == "StaticLayer" else -1
    found: Array = layers[0].keys[:, :, at].detach().cpu().double().sum((1, 2)).numpy()
    return found


def _same_rows(before: Places, then_B: Array | None, now_B: Array | None) -> bool:
    """Whether each row is one that stood where it stands now (beams of one text may have traded places)."""
    if then_B is None or now_B is None or len(then_B) != len(now_B):
        return False
    return all(
        any(np.array_equal(before.text_BM[was], row) for was in np.flatnonzero(np.isclose(then_B, mark, rtol=1e-9)))
        for row, mark in zip(before.text_BM, now_B, strict=True)
    )


def _shown(mask: Any, count: int) -> Array | None:
    """The number of tokens before each that a mask (B, M) shows; None without such a mask."""
    if mask is None or getattr(mask, "ndim", 0) != 2:
        return None
    if mask.shape[1] < count:
        raise BadValue(
            f"an attention mask of {mask.shape[1]} tokens was given for {count}. Give one of all tokens, those in "
            "the cache included."
        )
    shown = _distinct(mask[:, :count] != 0)
    return np.maximum(shown.cumsum(axis=1) - 1, 0)


def _distinct(rows: Any) -> Array:
    """A tensor's rows, or one row where all are the same."""
    found = np.asarray(rows.detach().cpu().numpy(), dtype=np.float64)
    return found[:1] if (found == found[:1]).all() else found


def _from_zero(count: int) -> Array:
    return np.arange(count, dtype=np.float64)[None]


def _side_by_side(left: Array, right: Array) -> Array:
    rows = max(len(left), len(right))
    return np.concatenate([np.broadcast_to(part, (rows, part.shape[1])) for part in (left, right)], axis=1)


def _span(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return min(left[0], right[0]), max(left[1], right[1])
