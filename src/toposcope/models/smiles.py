"""A tokenizer for models of molecules and reactions, whose files hold a vocabulary of SMILES and no code to read it.

A token is an atom in brackets, Br, Cl, a ring number of two digits, the arrow >>, or one character.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toposcope.core.untrusted import SETTINGS, read_bytes

TOKEN = r"\[[^\]]+\]|Br|Cl|%[0-9][0-9]|>>|."
TELLING = {"c", "C", "Br", "Cl", "=", "(", ")", ">>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"}


def _words(vocabulary: Path) -> list[str]:
    content = read_bytes(vocabulary, most=SETTINGS, inside=vocabulary.parent)
    return content.decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")


def is_smiles(vocabulary: Path) -> bool:
    """Whether a vocab.txt lists the tokens of reactions, and no pieces of words."""
    if not vocabulary.is_file():
        return False
    words = _words(vocabulary)
    return set(words) >= TELLING and not any(word.startswith("##") for word in words)


def smiles_tokenizer(vocabulary: Path) -> Any:
    """A fast tokenizer of transformers: [CLS], the tokens, [SEP]."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    words = _words(vocabulary)
    numbers = {word: number for number, word in enumerate(words) if word}
    made = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = Sequence([WhitespaceSplit(), Split(Regex(TOKEN), "isolated")])
    ends = [(name, numbers[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)
