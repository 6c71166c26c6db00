"""Mixtures over heads and layers: what is written, what it means, and what is refused."""

from __future__ import annotations

import pytest

from toposcope.core.errors import BadEncoding
from toposcope.lab.mix import parse_mix


def in_layer(text: str, layer: int, heads: int = 8, layers: int = 3, **more: int) -> list[tuple[str, object]]:
    found = parse_mix(text).in_layer(layer, layers=layers, heads=heads, **more)
    return [(str(part.spec), part.heads) for part in found]


@pytest.mark.parametrize(
    ("text", "layer", "expected"),
    [
        ("rope", 0, [("rope", None)]),
        ("nope", 0, []),
        ("rope@heads:0-1,none", 2, [("rope", (0, 1))]),
        ("rope@heads:0", 1, [("rope", (0,))]),
        ("rope@heads:-1", 1, [("rope", (0, 1))]),
        ("rope@heads:0,alibi", 0, [("rope", (0,)), ("alibi", tuple(range(1, 8)))]),
        ("alibi@heads:1,3-4", 0, [("alibi", (1, 3, 4))]),
        ("rope@layers:1-", 0, []),
        ("rope@layers:1-", 2, [("rope", None)]),
        ("rope@layers:-0", 0, [("rope", None)]),
        ("rope@layers:-0", 1, []),
        ("rope@layers:0,alibi@layers:1-", 1, [("alibi", None)]),
        ("rope:base=500,pairing=half@heads:0@layers:2", 2, [("rope:base=500,pairing=half", (0,))]),
        ("rope@heads:0-7", 0, [("rope", None)]),
        ("sinusoidal", 0, []),
    ],
)
def test_where_an_encoding_acts(text: str, layer: int, expected: list[tuple[str, object]]) -> None:
    assert in_layer(text, layer) == expected


@pytest.mark.parametrize(
    "text", ["rope", "rope:base=500,pairing=half@heads:0@layers:2", "alibi@heads:1,3-4", "rope@heads:0-1,none"]
)
def test_what_is_written_is_read_back(text: str) -> None:
    assert str(parse_mix(text)) == text
    assert parse_mix(str(parse_mix(text))) == parse_mix(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ropee@heads:0", "'rope'"),
        ("rope@head:0", "'heads'"),
        ("rope@heads", "no heads"),
        ("rope@heads:a", "range"),
        ("rope@heads:0-1-2", "range"),
        ("rope@heads:-", "range"),
        ("rope@heads:0@heads:1", "given twice"),
        ("sinusoidal@heads:0", "input"),
        ("learned@layers:1-", "input"),
        ("sinusoidal,rope", "input"),
        ("rope:base=1@heads:0", "'base'"),
        ("", "no encoding"),
        ("rope,", "no encoding"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(BadEncoding, match=said):
        parse_mix(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rope@heads:0-8", "to 7"),
        ("rope@layers:3-", "to 2"),
        ("rope@heads:0-1,alibi@heads:1-2", "head 1"),
        ("rope,alibi", "both claim"),
        ("rope@heads:2-3", "rope@heads:0-1"),
        ("mla@heads:0", "layers"),
        ("cope@heads:0", "layers"),
        ("rope-partial:heads=2@heads:0", "Leave out"),
    ],
)
def test_what_does_not_fit_the_model_is_said(text: str, said: str) -> None:
    with pytest.raises(BadEncoding, match=said):
        in_layer(text, 0)


def test_heads_that_share_a_key_turn_together() -> None:
    assert in_layer("rope@heads:0-3", 0, kv_heads=2) == [("rope", (0, 1, 2, 3))]
    with pytest.raises(BadEncoding, match="share"):
        in_layer("rope@heads:0-1", 0, kv_heads=2)
