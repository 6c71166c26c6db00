"""Sequences from a text: how they are cut, mixed and repeated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.models.making import TEXT, write_llama
from toposcope.core.errors import BadValue
from toposcope.models.corpus import cut, drawn, repeated, shuffled, zipf
from toposcope.models.load import Reference, load_reference

pytest.importorskip("transformers", reason="tokenizers come with transformers: pip install transformers")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    directory: Path = tmp_path_factory.mktemp("llama")
    write_llama(directory)
    return load_reference(directory)


def test_stretches_follow_one_another(reference: Reference) -> None:
    whole = reference.tokenizer(TEXT * 3)["input_ids"]
    found = cut(reference, TEXT * 3, tokens=10, count=4, name="a text")
    assert np.concatenate(found.sequences).tolist() == whole[:40]
    assert found.cut == "4 stretches of 10 tokens of a text"


def numbers(words: str) -> set[int]:
    return {int(each) for each in re.findall(r"\d+", words)}


def test_what_was_cut_is_said(reference: Reference) -> None:
    found = cut(reference, TEXT * 9, tokens=50, count=2, name="a text")
    assert [len(ids) for ids in found.sequences] == [32, 32]
    assert numbers(found.cut) == {2, 32, 50}
    beyond = cut(reference, TEXT * 9, tokens=50, count=2, name="a text", beyond=True)
    assert [len(ids) for ids in beyond.sequences] == [50, 50]
    short = cut(reference, TEXT, tokens=20, count=5, name="a text")
    assert {len(short.sequences), 5} <= numbers(short.cut)


def test_lines_are_sequences(reference: Reference) -> None:
    found = cut(reference, "the disc\n\nyou tells where everything is\n", tokens=30, count=9, lines=True)
    assert [len(ids) for ids in found.sequences] == [2, 5]
    assert numbers(found.cut) >= {2, 5}


@pytest.mark.parametrize(
    ("content", "tokens", "said"),
    [("", 8, "0 tokens"), ("disc", 8, "1 tokens"), (TEXT, 1, "got 1")],
    ids=["empty", "one", "asked"],
)
def test_too_short(reference: Reference, content: str, tokens: int, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        cut(reference, content, tokens=tokens)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"begin": -1}, "-1"), ({"begin": len(TEXT)}, f"{len(TEXT):,}"), ({"tokens": "8"}, "tokens"),
        ({"tokens": 8.5}, "tokens"), ({"count": "2"}, "sequences"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_named(reference: Reference, more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        cut(reference, TEXT, **{"tokens": 8, **more})


def test_without_a_tokenizer_all_tokens_of_the_model_are_drawn(reference: Reference) -> None:
    found = drawn(replace(reference, tokenizer=None), tokens=32, count=64, seed=1)
    seen = set(np.concatenate(found.sequences).tolist())
    assert seen == set(range(reference.model.get_input_embeddings().weight.shape[0]))


def test_shuffled_keeps_the_tokens_and_repeated_repeats(reference: Reference) -> None:
    found = cut(reference, TEXT * 3, tokens=20, count=2)
    keep = (int(found.sequences[0][0]),)
    mixed = shuffled(found, keep=keep, seed=3)
    for before, after in zip(found.sequences, mixed.sequences, strict=True):
        assert sorted(before) == sorted(after)
        assert (before != after).any()
        assert ((before == keep[0]) == (after == keep[0])).all()
    again = shuffled(found, keep=keep, seed=3)
    assert all((a == b).all() for a, b in zip(mixed.sequences, again.sequences, strict=True))
    for ids in repeated(found, keep=keep, seed=3).sequences:
        assert len(ids) == 20
        assert (ids[:10] == ids[10:]).all()
        assert keep[0] not in ids


def test_drawn_tokens_follow_zipf_and_need_no_text(reference: Reference) -> None:
    found = drawn(reference, tokens=20, count=3, seed=4)
    assert [len(ids) for ids in found.sequences] == [20, 20, 20]
    special = set(reference.tokenizer.all_special_ids)
    assert not special & set(np.concatenate(found.sequences).tolist())
    again, other = drawn(reference, tokens=20, count=3, seed=4), drawn(reference, tokens=20, count=3, seed=5)
    assert all((a == b).all() for a, b in zip(found.sequences, again.sequences, strict=True))
    assert any((a != b).any() for a, b in zip(found.sequences, other.sequences, strict=True))
    cut_short = drawn(reference, tokens=50, count=1)
    assert len(cut_short.sequences[0]) == 32
    assert {32, 50} <= numbers(cut_short.cut)


def test_zipf_by_rank() -> None:
    (ids,) = zipf(np.arange(100, 150), [200_000], seed=1)
    counts = np.sort(np.bincount(ids, minlength=150)[100:])[::-1]
    expected = 1 / np.arange(1, 51)
    assert counts / counts.sum() == pytest.approx(expected / expected.sum(), rel=0.1)
    with pytest.raises(BadValue, match="two ordinary"):
        zipf(np.arange(1), [3])


def test_a_text_of_unknown_words(reference: Reference) -> None:
    assert cut(reference, TEXT + "zug hub ", tokens=22, name="a text").unknown == pytest.approx(2 / 22)
    with pytest.raises(BadValue, match="100%"):
        cut(reference, "zug hub vor", tokens=10)
