"""Attention kept pair by pair: against transformers' own, with position switched off, in windows, from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.models.making import TEXT, write_llama_lm
from tests.unit.models.test_trace import MODELS, ready, texts
from toposcope.core.errors import BadFile, BadValue
from toposcope.models.intervene import captured
from toposcope.models.load import load_reference
from toposcope.models.tracing.attention import WINDOW, Stored, affordable, labels, window_starts
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import TraceResult

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")


def own_attention(model: Any, ids: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
        found = model(input_ids=torch.from_numpy(ids)[None], output_attentions=True).attentions
    return [each[0].double().numpy() for each in found]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_neox", "bert", "bloom", "t5_encoder"])
def test_probabilities_are_the_model_s_own(family: str) -> None:
    model, corpus = ready(MODELS[family]()), texts(2)
    (window,) = trace_corpus(model, corpus, logits=1).attention
    own = own_attention(model, corpus.sequences[0])
    assert (window.first, window.length, len(window.tokens)) == (0, 20, 20)
    assert len(window.heads) == sum(len(layer) for layer in own)  # so short a text leaves room for all
    for each in window.heads:
        np.testing.assert_allclose(each.probabilities_BM, own[each.layer][each.head], atol=2e-4)
        np.testing.assert_allclose(each.probabilities_BM.sum(axis=1), 1, atol=1e-3)


def test_the_part_due_to_position_is_what_switching_it_off_takes() -> None:
    """A Llama at positions 0 is the same content without position: the first layer's logits there are the rest."""
    model, corpus = ready(MODELS["llama"]()), texts(2)
    ids = torch.from_numpy(corpus.sequences[0])[None]
    with captured(model, [0]) as seen, torch.no_grad():
        model(input_ids=ids, position_ids=torch.zeros_like(ids))
    q, k = (part[0].double().numpy() for part in (seen[0].query_BHNR, seen[0].key_BGMR))
    without = q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(1, 2) * seen[0].scaling
    (window,) = trace_corpus(model, corpus, logits=[(0, 1), (0, 3)]).attention
    assert [each.name for each in window.heads] == ["0.1", "0.3"]
    for each in window.heads:
        assert each.due == "switched_off"
        left = (each.logits_BM - each.position_BM)[each.seen]
        np.testing.assert_allclose(left, without[each.head][each.seen], atol=1e-3)
    with pytest.raises(BadValue, match=r"0\.1, 0\.3"):
        window.head("1.1")


def test_where_position_is_in_the_input_its_part_is_that_of_the_offset() -> None:
    model, corpus = ready(MODELS["bert"]()), texts(1)
    (window,) = trace_corpus(model, corpus, logits=1).attention
    for each in window.heads:
        logits, part = each.logits_BM, each.position_BM
        assert each.due == "offset"
        for t in range(-19, 20):
            expected = np.diagonal(logits, t).mean() - logits.mean()
            np.testing.assert_allclose(np.diagonal(part, t), expected, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_long_text_is_kept_in_windows_of_the_whole(family: str) -> None:
    model, corpus = ready(MODELS[family]()), texts(1, length=WINDOW + 72)
    own = own_attention(model, corpus.sequences[0])
    for given, starts in ((None, [0, 72]), (30, [30]), (199, [72])):
        found = trace_corpus(model, corpus, logits=[(1, 2)], window=given).attention
        assert [each.first for each in found] == starts
        for window in found:
            inside = slice(window.first, window.first + WINDOW)
            head = window.head("1.2")
            np.testing.assert_allclose(head.probabilities_BM, own[1][2][inside, inside], atol=2e-4)
    with pytest.raises(BadValue, match="0 to 199"):
        trace_corpus(model, corpus, logits=1, window=200)


def test_as_many_heads_are_kept_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.models.tracing.attention.BYTES", 3 * 4 * 210)
    found = trace_corpus(ready(MODELS["llama"]()), texts(2), logits=1)
    assert affordable(20, 1, causal=True) == 3 == len(found.attention[0].heads)
    assert found.logits[0].name in {each.name for each in found.attention[0].heads}
    assert window_starts(8192) == (0, 8192 - WINDOW)
    assert trace_corpus(ready(MODELS["llama"]()), texts(2)).attention == ()


def test_it_is_read_back_and_a_damaged_table_is_refused() -> None:
    found = trace_corpus(ready(MODELS["llama"]()), texts(1), logits=[(0, 0)])
    again = TraceResult.from_dict(found.as_dict())
    assert again.attention == found.attention
    head = again.attention[0].heads[0]
    for codes in ("", "AAAA", "<script>", head.logits.codes[4:]):
        with pytest.raises(BadFile):
            replace(head, logits=replace(head.logits, codes=codes)).probabilities_BM


def test_storing_costs_half_a_step() -> None:
    values = np.random.default_rng(0).standard_normal(300) * 20
    stored = Stored.of(values)
    assert np.abs(stored.values(300) - values).max() <= stored.step / 2 * (1 + 1e-6)
    assert (Stored.of(np.full(5, 2.5)).values(5) == 2.5).all()


class Hostile:
    """A tokenizer whose tokens would command a terminal, turn words around, or have no text of their own."""

    tokens = ("\x1b[31m", "a\u202eb", "<script>alert(1)</script>", " x" * 300, "\ufffd", "\n")

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.tokens[each] for each in ids)

    def convert_ids_to_tokens(self, number: int) -> str:
        return f"<0x{number:02X}>"


def test_labels_can_be_seen_and_command_nothing() -> None:
    found = labels(Hostile(), np.arange(6))
    assert found[:3] == ("\\x1b[31m", "a\\u202eb", "<script>alert(1)</script>")
    assert len(found[3]) <= 40
    assert found[4:] == ("<0x04>", "\\n")
    assert labels(None, np.array([7, 3])) == ("7", "3")


def test_labels_keep_the_space_that_a_tokenizer_drops(tmp_path: Path) -> None:
    write_llama_lm(tmp_path)
    tokenizer = load_reference(tmp_path).tokenizer
    assert "".join(labels(tokenizer, np.array(tokenizer(TEXT)["input_ids"]))) == tokenizer.decode(
        tokenizer(TEXT)["input_ids"]
    )
