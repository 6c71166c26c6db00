"""Does a tokenizer know a text? One place for everything that runs a model on a text.

What a tokenizer cannot read becomes its unknown token, and a text of such tokens says nothing of the model. The share
is counted wherever a text is tokenised: a text that is mostly unknown is refused, any smaller share is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue

Ids = NDArray[np.int64]
MOST_UNKNOWN = 0.5  # share of unknown tokens, or of unreadable characters, above which a text is refused


@dataclass(frozen=True)
class UnknownShare:
    """The share of tokens that the tokenizer did not know, and that of characters which were no UTF-8."""

    tokens: float = 0.0
    characters: float = 0.0

    def __str__(self) -> str:
        """A remark to put after what a text is called; empty where all is known."""
        said = [f"{_percent(self.tokens)} of its tokens are unknown to the tokenizer"] if self.tokens else []
        said += [f"{_percent(self.characters)} of its characters are not UTF-8"] if self.characters else []
        return f"; {' and '.join(said)}" if said else ""


def unknown_share(
    tokenizer: Any, sequences: Sequence[Ids], content: str, name: str, *, framed: bool = True
) -> UnknownShare:
    """How much of a text was not understood; a BadValue where that is more than half.

    `content` is what became `sequences`: a file that is no UTF-8 is read as replacement characters, which byte-level
    tokenizers know, so those are counted too. `framed`: the sequences hold the special tokens around a text.
    """
    before, after = (len(part) for part in frame(tokenizer)) if framed else (0, 0)
    inner = [ids[before : len(ids) - after] for ids in sequences]
    total, number = sum(map(len, inner)), getattr(tokenizer, "unk_token_id", None)
    missed = 0 if number is None else sum(int((ids == number).sum()) for ids in inner)
    found = UnknownShare(missed / total if total else 0.0, content.count("\ufffd") / len(content) if content else 0.0)
    for share, what, advice in (
        (found.tokens, "tokens are unknown to the model's tokenizer", "a text of the kind it was trained on"),
        (found.characters, "characters are not UTF-8", "a text file in UTF-8"),
    ):
        if share > MOST_UNKNOWN:
            raise BadValue(
                f"{share:.0%} of the {what} in {name}: what is measured on it would not speak of the model. "
                f"Give {advice}."
            )
    return found


def frame(tokenizer: Any) -> tuple[Ids, Ids]:
    """The special tokens that a tokenizer puts before and after a text."""
    whole, plain = (
        np.array(tokenizer("a", add_special_tokens=each)["input_ids"], dtype=np.int64) for each in (True, False)
    )
    extra = len(whole) - len(plain)
    places = [at for at in range(extra + 1) if np.array_equal(whole[at : at + len(plain)], plain)]
    at = places[0] if places else extra
    return whole[:at], whole[at + len(plain) :]


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "under 1%"
