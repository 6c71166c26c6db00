"""The tokens of reactions, and what is taken for a vocabulary of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toposcope.models.smiles import TELLING, is_smiles, smiles_tokenizer

pytest.importorskip("transformers", reason="tokenizers need transformers: pip install transformers")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*sorted(TELLING), "O", "N", "1", "%12", "[C@@H]", ".", "#"]) + "\n")
    return path


def test_tokens_are_atoms_rings_and_arrows(vocabulary: Path) -> None:
    made = smiles_tokenizer(vocabulary)
    found = made("ClC%12=N[C@@H](O)Br.CC#N>>c1\n")["input_ids"]
    tokens = ["Cl", "C", "%12", "=", "N", "[C@@H]", "(", "O", ")", "Br", ".", "C", "C", "#", "N", ">>", "c", "1"]
    assert made.convert_ids_to_tokens(found) == ["[CLS]", *tokens, "[SEP]"]
    assert found[1] == vocabulary.read_text().split("\n").index("Cl")
    assert made.convert_ids_to_tokens(made("[Xe]C")["input_ids"]) == ["[CLS]", "[UNK]", "C", "[SEP]"]
    assert made.mask_token_id == vocabulary.read_text().split("\n").index("[MASK]")
    assert made.num_special_tokens_to_add() == 2


def test_pieces_of_words_are_no_smiles(vocabulary: Path) -> None:
    assert is_smiles(vocabulary)
    vocabulary.write_text(vocabulary.read_text() + "##ing\n")
    assert not is_smiles(vocabulary)
    assert not is_smiles(vocabulary.with_name("none.txt"))
