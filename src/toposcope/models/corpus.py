"""Token sequences for measurements: cut from a text, made from one, or drawn without any text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.ranges import is_whole
from toposcope.core.tokenizer import frame, unknown_share
from toposcope.models.load import Reference

Ids = NDArray[np.int64]
RANDOM = "random"  # the name, in place of a text's, that asks for tokens by Zipf's law
NO_TEXT = "random text, drawn by Zipf's law"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sequences of token numbers, special tokens included; `cut` says in words how they came to be.

    `unknown` is the share of tokens that the tokenizer did not know.
    """

    name: str
    sequences: tuple[Ids, ...]
    cut: str
    unknown: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(each) for each in self.sequences)


def cut(
    reference: Reference,
    content: str,
    *,
    tokens: int,
    count: int = 1,
    name: str = "the text",
    begin: int = 0,
    lines: bool = False,
    beyond: bool = False,
) -> Corpus:
    """The first `count` stretches of `tokens` tokens, one after the other; or, with `lines`, one for each line.

    A length over the model's context is cut to it, and `Corpus.cut` says so; `beyond` keeps it. A last stretch that
    is shorter than half is left out, unless it is the only one.
    """
    length, limit = _length(reference, tokens, count, beyond)
    if begin < 0:
        raise BadValue(f"begin counts characters from the start of the text: expected 0 or more, got {begin}.")
    if 0 < len(content) <= begin:
        raise BadValue(f"{name} has {len(content):,} characters; begin at {begin:,} leaves none of them.")
    pieces = _lines(content[begin:], count) if lines else [content[begin:][: count * (40 * length + 200)]]
    found: list[Ids] = []
    for piece in pieces:
        found += _stretches(reference.tokenizer, piece, length)[: 1 if lines else count]
    whole = [each for each in found if len(each) >= (2 if lines else length / 2)] or found[:1]
    if not whole or len(whole[0]) < 2:
        seen = len(whole[0]) if whole else 0
        raise BadValue(f"{name} holds {seen} tokens, and a sequence needs at least 2. Give a longer text.")
    missed = unknown_share(reference.tokenizer, whole, "".join(pieces), name)
    words = _words(whole, count, tokens, length, limit, name, begin, lines)
    return Corpus(name, tuple(whole), f"{words}{missed}", missed.tokens)


def batches(sequences: Sequence[Ids], size: int) -> Iterator[list[Ids]]:
    """Sequences that are run together: up to `size`, one after the other, of one length."""
    for _, alike in groupby(sequences, key=len):
        some = list(alike)
        yield from (some[at : at + size] for at in range(0, len(some), size))


def drawn(reference: Reference, *, tokens: int, count: int = 1, seed: int = 0) -> Corpus:
    """No text at all: ordinary tokens by Zipf's law, with the special tokens that the model expects around a text.

    Without a tokenizer all tokens of the model's vocabulary are ordinary.
    """
    length, limit = _length(reference, tokens, count, beyond=False)
    tokenizer = reference.tokenizer
    before, after = ((), ()) if tokenizer is None else frame(tokenizer)
    room = length - len(before) - len(after)
    if room < 2:
        raise BadValue(f"{length} tokens leave no room for two beside {len(before) + len(after)} special ones.")
    rows = reference.model.get_input_embeddings().weight.shape[0]
    ordinary = np.arange(rows)
    if tokenizer is not None:
        ordinary = np.setdiff1d(ordinary[: len(tokenizer)], tokenizer.all_special_ids)
    plain = zipf(ordinary, [room] * count, seed)
    whole = [np.array([*before, *ids, *after], dtype=np.int64) for ids in plain]
    return Corpus(RANDOM, tuple(whole), _words(whole, count, tokens, length, limit, NO_TEXT, 0, False))


def zipf(ordinary: Ids, lengths: Sequence[int], seed: int = 0) -> list[Ids]:
    """Sequences of these tokens, the token of rank r drawn with probability proportional to 1 / r.

    Ranks are dealt by the seed. The order of a vocabulary is no order of frequency in general: byte-level ones begin
    with single bytes, BERT's with a thousand unused slots.
    """
    if len(ordinary) < 2:
        raise BadValue(f"drawing tokens needs two ordinary ones at least; the vocabulary has {len(ordinary)}.")
    rng = np.random.default_rng(seed)
    ranked = rng.permutation(ordinary)
    chance = 1 / np.arange(1, len(ranked) + 1)
    return [rng.choice(ranked, length, p=chance / chance.sum()).astype(np.int64) for length in lengths]


def shuffled(corpus: Corpus, *, keep: tuple[int, ...] = (), seed: int = 0) -> Corpus:
    """The same tokens in random order; tokens numbered in `keep` (the special ones) stay where they are."""
    rng = np.random.default_rng(seed)
    found = []
    for ids in corpus.sequences:
        free = np.flatnonzero(~np.isin(ids, keep))
        mixed = ids.copy()
        mixed[free] = ids[rng.permutation(free)]
        found.append(mixed)
    return Corpus(f"{corpus.name}, shuffled", tuple(found), f"{corpus.cut}, in random order")


def repeated(corpus: Corpus, *, keep: tuple[int, ...] = (), seed: int = 0) -> Corpus:
    """Random tokens of the corpus, then the same once more: only the order of the first half tells the second.

    Tokens are drawn from those the corpus holds, so that all of them are ordinary; sequences keep their lengths.
    """
    rng = np.random.default_rng(seed)
    known = np.unique(np.concatenate(corpus.sequences))
    known = known[~np.isin(known, keep)]
    if len(known) < 2:
        raise BadValue(f"{corpus.name} holds {len(known)} different tokens; at least 2 are needed to repeat them.")
    found = []
    for ids in corpus.sequences:
        half = rng.choice(known, (len(ids) + 1) // 2)
        found.append(np.concatenate([half, half])[: len(ids)])
    return Corpus("repeated random tokens", tuple(found), f"random tokens twice, in the lengths of: {corpus.cut}")


# -------------------------------------------------------------------- inside
def _length(reference: Reference, tokens: int, count: int, beyond: bool) -> tuple[int, int | None]:
    """How long sequences will be, and the model's context."""
    for name, given in (("tokens", tokens), ("sequences", count)):
        if not is_whole(given):
            raise BadValue(f"{name} is a whole number, got {given!r:.80}.")
    if tokens < 2:
        raise BadValue(f"a sequence needs at least 2 tokens, got {tokens}: there is nothing to predict from one.")
    if count < 1:
        raise BadValue(f"at least one sequence is needed, got {count}.")
    limit = reference.context
    return (tokens if limit is None or beyond else min(tokens, limit)), limit


def _lines(content: str, count: int) -> list[str]:
    return [line for line in content.splitlines() if line.strip()][:count]


def _stretches(tokenizer: Any, piece: str, length: int) -> list[Ids]:
    """A text cut into stretches of at most `length` tokens, each with the special tokens the model expects."""
    specials = tokenizer.num_special_tokens_to_add()
    if length <= specials:
        raise BadValue(f"{length} tokens leave no room for text beside the model's {specials} special tokens.")
    if getattr(tokenizer, "is_fast", False):
        given = tokenizer(piece, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    else:
        plain = tokenizer(piece, add_special_tokens=False)["input_ids"]
        room = length - specials
        parts = [plain[at : at + room] for at in range(0, len(plain), room)]
        given = [tokenizer.build_inputs_with_special_tokens(part) for part in parts]
    return [np.array(each, dtype=np.int64) for each in given]


def _words(
    whole: list[Ids], count: int, tokens: int, length: int, limit: int | None, name: str, begin: int, lines: bool
) -> str:
    what = f"{len(whole)} {'line' if lines else 'stretch'}{'' if len(whole) == 1 else 's' if lines else 'es'}"
    sizes = sorted({len(each) for each in whole})
    span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    said = f"{what} of {span} tokens of {name}" + (f" from character {begin:,} on" if begin else "")
    if length < tokens:
        said += f" (of {tokens} asked for: the model's context is {limit})"
    if len(whole) < count:
        said += f" (of {count} asked for: the text has no more)"
    return said
