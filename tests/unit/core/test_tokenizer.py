"""How much of a text a tokenizer did not know: special tokens around it do not count, mostly unknown is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from toposcope.core.errors import BadValue
from toposcope.core.tokenizer import UnknownShare, frame, unknown_share


class Letters:
    """Letters a to y are 10, 11, ...; all else is unknown. A text stands between 1 and 2; 2 is unknown as well."""

    unk_token_id: int | None = 2

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        plain = [10 + ord(letter) - ord("a") if letter in "abcdefghijklmnopqrstuvwxy" else 2 for letter in text]
        return {"input_ids": [1, *plain, 2] if add_special_tokens else plain}


def read(text: str) -> np.ndarray:
    return np.array(Letters()(text)["input_ids"])


def test_the_frame_of_a_text() -> None:
    before, after = frame(Letters())
    assert (before.tolist(), after.tolist()) == ([1], [2])


@pytest.mark.parametrize(("text", "share"), [("abc", 0.0), ("abcz", 0.25), ("abzz", 0.5)])
def test_the_share_leaves_special_tokens_out(text: str, share: float) -> None:
    found = unknown_share(Letters(), [read(text), read(text)], text, "a text")
    assert found == UnknownShare(share, 0.0)
    assert (str(found) == "") == (share == 0)


def test_mostly_unknown_is_refused() -> None:
    with pytest.raises(BadValue, match="75%"):
        unknown_share(Letters(), [read("azzz")], "azzz", "a text")
    plain = np.array(Letters()("azzz", add_special_tokens=False)["input_ids"])
    with pytest.raises(BadValue, match="75%"):
        unknown_share(Letters(), [plain], "azzz", "a text", framed=False)


def test_characters_that_were_no_utf8_count_where_a_tokenizer_knows_every_byte() -> None:
    bytes_known = Letters()
    bytes_known.unk_token_id = None
    assert unknown_share(bytes_known, [read("ab")], "ab\ufffd", "a text").characters == pytest.approx(1 / 3)
    with pytest.raises(BadValue, match="UTF-8"):
        unknown_share(bytes_known, [read("ab")], "a\ufffd\ufffd", "a text")
