"""Sequences from a text: how they are cut, mixed and repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.models.making import TEXT, write_llama
from toposcope.errors import BadValue
from toposcope.models.corpus import cut, repeated, shuffled
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


def test_what_was_cut_is_said(reference: Reference) -> None:
    found = cut(reference, TEXT * 9, tokens=50, count=2, name="a text")
    assert [len(ids) for ids in found.sequences] == [32, 32]
    assert found.cut == "2 stretches of 32 tokens of a text (of 50 asked for: the model's context is 32)"
    beyond = cut(reference, TEXT * 9, tokens=50, count=2, name="a text", beyond=True)
    assert [len(ids) for ids in beyond.sequences] == [50, 50]
    short = cut(reference, TEXT, tokens=20, count=5, name="a text")
    assert "(of 5 asked for: the text has no more)" in short.cut


def test_lines_are_sequences(reference: Reference) -> None:
    found = cut(reference, "the disc\n\nyou tells where everything is\n", tokens=30, count=9, lines=True)
    assert [len(ids) for ids in found.sequences] == [2, 5]
    assert found.cut.startswith("2 lines of 2 to 5 tokens")


@pytest.mark.parametrize(
    ("content", "tokens", "said"),
    [("", 8, "holds 0 tokens"), ("disc", 8, "holds 1 tokens"), (TEXT, 1, "at least 2 tokens, got 1")],
    ids=["empty", "one", "asked"],
)
def test_too_short(reference: Reference, content: str, tokens: int, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        cut(reference, content, tokens=tokens)


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
