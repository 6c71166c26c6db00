"""The one mouth for words from elsewhere: what a file, a path or a store says, as text that commands nothing.

A terminal obeys escape sequences, a right-to-left mark turns a name around, a name of 20 MB floods the screen.
A single name goes through `printable`, several sentences through `sentences`. Behind both stand the streams that
commands print to (`Mouth`), which let no such character pass, whoever wrote it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TextIO

LONGEST = 200
LONGEST_PATH = 4096  # a path must stay one that can be copied
LONGEST_TEXT = 4000
# controls, formats (direction marks, zero widths), halves of surrogate pairs, private use, line and paragraph ends
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(words: object, most: int = LONGEST) -> str:
    """The words with unseen characters written as escapes, shortened in the middle to at most so many characters."""
    return visible(_cut(str(words), most), keep="")


def sentences(words: object, most: int = LONGEST_TEXT, word: int = LONGEST, keep: str = "\n\t") -> str:
    """The same for a text in which names stand: line ends stay, and each word too long to be one is shortened."""
    return visible(shortened(str(words), most, word), keep)


def visible(text: str, keep: str = "\n\t") -> str:
    """The text with every unseen character, but those to keep, written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        each if each in keep or unicodedata.category(each) not in _UNSEEN else _escape(each) for each in text
    )


def shortened(text: str, most: int, word: int) -> str:
    """The text with words and itself cut in the middle to at most so many characters."""
    text = _cut(text, 10 * most)  # first of all short enough to be looked through
    if len(text) > word:
        text = re.sub(rf"\S{{{word + 1},}}", lambda found: _cut(found[0], word), text)
    return _cut(text, most)


def is_unseen(character: str) -> bool:
    """Whether a reader would not see this character, though a machine obeys it."""
    return unicodedata.category(character) in _UNSEEN


class Mouth:
    """A text stream that writes what `clean` makes of the words; what else it can do is the stream's own."""

    def __init__(self, stream: TextIO, clean: Callable[[str], str] = visible) -> None:
        self.rich_proxied_file = stream  # where rich writes colours and cursor moves; our console cleans its words
        self._clean = clean

    def write(self, text: str) -> int:
        """Write the text as it may be seen."""
        if not isinstance(text, str):  # whoever tries bytes asks whether this is a binary stream
            raise TypeError(f"a text stream takes str, not {type(text).__name__}")
        self.rich_proxied_file.write(self._clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line so."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _cut(text: str, most: int) -> str:
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
