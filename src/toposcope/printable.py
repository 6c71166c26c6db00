"""The one mouth for words from elsewhere: what a file, a path or a store says, as text that commands nothing.

A terminal obeys escape sequences, a right-to-left mark turns a name around, a name of 20 MB floods the screen.
"""

from __future__ import annotations

import unicodedata

LONGEST = 200
# controls, formats (direction marks, zero widths), halves of surrogate pairs, private use, line and paragraph ends
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(words: object, most: int = LONGEST) -> str:
    """The words with unseen characters written as escapes, shortened in the middle to at most so many characters."""
    text = str(words)
    if len(text) > most:
        half = (most - 5) // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text if text.isprintable() else "".join(map(_seen, text))


def _seen(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
