"""Attention in a page, a notebook and a terminal: the same numbers, packed; hostile tokens stay text; sizes."""

from __future__ import annotations

import base64
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from tests.unit.report import making
from tests.unit.report.reading import Reader
from toposcope.core.errors import BadFile
from toposcope.core.result import Provenance, Subject
from toposcope.models.tracing.attention import BYTES, AttentionWindow, HeadAttention, Stored, affordable
from toposcope.models.tracing.result import TraceResult
from toposcope.report import drawing
from toposcope.report.attention import attention_block, packed

HOSTILE = ("<script>alert(1)</script>", " \"quoted'", "\u202eover", " &amp;", "</table>", " plain")


def attended(
    tokens: tuple[str, ...], heads: list[tuple[int, int]], *, causal: bool = True, first: int = 0, length: int = 0
) -> AttentionWindow:
    random = np.random.default_rng(len(heads))
    count = len(tokens)
    made = []
    for layer, head in heads:
        logits = random.standard_normal((count, count)) * 3
        seen = np.tril(np.ones((count, count), dtype=bool)) if causal else np.ones((count, count), dtype=bool)
        sums = np.log(np.where(seen, np.exp(logits), 0).sum(axis=1))
        made.append(
            HeadAttention(
                layer,
                head,
                causal,
                None,
                None,
                tuple(map(float, sums)),
                Stored.of(logits[seen]),
                Stored.of(logits[seen] / 2),
                "switched_off",
            )
        )
    return AttentionWindow(first, length or count, tokens, tuple(made))


def with_attention(*windows: AttentionWindow) -> TraceResult:
    subject = Subject("models/my model", "models/my model", "safetensors", "llama", "0" * 64)
    options = {"text": "notes.txt", "tokens": 64, "sequences": 4, "begin": 0, "lines": False, "encoding": None}
    return replace(making.traced(), attention=windows, provenance=Provenance((subject,), {**options, "seed": 0}))


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


@pytest.mark.parametrize("causal", [True, False])
def test_a_page_holds_what_the_result_holds(causal: bool) -> None:
    result = with_attention(attended(HOSTILE, [(0, 1), (1, 0)], causal=causal))
    page = Reader(drawing.page([result]))
    (block,) = [each for each in page.data["blocks"].values() if each["kind"] == "attention"]
    for theirs, head in zip(block["windows"][0]["heads"], result.attention[0].heads, strict=True):
        low, step, lowest, pace, *sums = unpacked(theirs["numbers"], "<f4").astype(float)
        logits = low + step * unpacked(theirs["logits"], "<u2")
        np.testing.assert_allclose(logits, head.logits_BM[head.seen], atol=1e-5)
        np.testing.assert_allclose(lowest + pace * unpacked(theirs["position"], "<u2"), logits / 2, atol=1e-3)
        np.testing.assert_allclose(sums, head.log_sums, rtol=1e-6)
        assert (theirs["layer"], theirs["head"], theirs["causal"]) == (head.layer, head.head, causal)
    assert block["others"].startswith("toposcope trace 'models/my model' --text notes.txt --tokens 64 --sequences 4")
    assert "{head}" in block["others"]


class Tags(HTMLParser):
    """The names of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)


def test_hostile_tokens_are_text_everywhere() -> None:
    hostile = with_attention(attended(HOSTILE, [(0, 1)]))
    tame = with_attention(attended(tuple(f"t{i}" for i in range(6)), [(0, 1)]))
    for draw in (lambda result: drawing.page([result]), drawing.fragment):
        assert Tags(draw(hostile)).found == Tags(draw(tame)).found
        assert "\u202e" not in draw(hostile)
    assert "\u202e" not in drawing.text(hostile)
    assert "0.1" in drawing.text(hostile)


def test_a_damaged_table_makes_no_page() -> None:
    window = attended(HOSTILE, [(0, 1)])
    head = replace(window.heads[0], position=Stored(0.0, 1.0, "AAAA"))
    with pytest.raises(BadFile):
        packed([replace(window, heads=(head,))])
    assert attention_block(with_attention()) is None


def test_a_page_of_8192_tokens_and_one_of_80_by_64_heads_stay_small() -> None:
    """As many heads as a result keeps: in two windows of a long text, and of a giant model."""
    tokens = tuple(f" token{i}" for i in range(128))
    small = making.traced()
    for layers, across in ((4, 8), (80, 64)):
        heads = tuple(
            replace(small.heads[0], layer=layer, head=head, kernel=tuple(np.linspace(0, 1, 32)))
            for layer in range(layers)
            for head in range(across)
        )
        room = affordable(8192, 2, causal=True)
        kept = [(each.layer, each.head) for each in heads[:room]]
        windows = [attended(tokens, kept, first=first, length=8192) for first in (0, 8064)]
        codes = sum(len(head.logits.codes) + len(head.position.codes) for each in windows for head in each.heads)
        assert codes <= BYTES * 4 / 3 + 100
        result = replace(with_attention(*windows), heads=heads, tokens=8192)
        assert len(drawing.page([result]).encode()) < 10e6
