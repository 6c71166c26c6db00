"""The console that commands print to: wrapped lines keep their indent, and words from elsewhere command nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from toposcope.core.printable import LONGEST_PATH, shortened, visible

# All the markup there is. Everything else in brackets is text, so no name can be wrong markup.
_TAG = re.compile(r"\[(/?)(bold|cyan|dim|green|red|yellow)\]")
_NO_TAG = "\0"  # behind a bracket: it opens no tag


def literal(words: str) -> str:
    """Words in which no tag is obeyed."""
    return words.replace("[", f"[{_NO_TAG}")


class IndentedConsole(Console):
    """A line that begins with blanks and is too long goes on under its beginning; no broken line ends in blanks."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's own."""
        line = objects[0] if len(objects) == 1 else None
        if isinstance(line, str) and not options.get("soft_wrap"):
            text = self.render_str(line, markup=options.get("markup"))
            if text.cell_len > self.width:
                lines = text.split("\n", allow_blank=True)
                objects = (Text("\n").join(part for each in lines for part in self._wrapped(each)),)
        super().print(*objects, **options)

    def _wrapped(self, line: Text) -> list[Text]:
        """A line in parts that fit."""
        indent = len(line.plain) - len(line.plain.lstrip(" "))
        if line.cell_len <= self.width or self.width <= 2 * indent:
            return [line]
        parts = line[indent:].wrap(self, self.width - indent)
        for part in parts:
            part.rstrip()
        return [Text(" " * indent).append_text(part) for part in parts]

    def render_str(self, text: str, *, markup: bool | None = None, style: Any = "", **options: Any) -> Text:
        """A string as rich text: our few tags, if they are to be obeyed, and nothing that is not seen."""
        text = shortened(text, most=1_000_000, word=LONGEST_PATH)
        found = Text(style=style, justify=options.get("justify"), overflow=options.get("overflow"))
        if markup is False:
            return found.append(visible(text))
        open_tags: list[str] = []
        end = 0
        for tag in _TAG.finditer(text):
            found.append(_words(text[end : tag.start()]), " ".join(open_tags))
            end = tag.end()
            if not tag[1]:
                open_tags.append(tag[2])
            elif tag[2] in open_tags:
                open_tags.remove(tag[2])
            else:
                found.append(tag[0], " ".join(open_tags))
        return found.append(_words(text[end:]), " ".join(open_tags))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's own; whatever the words came in, unseen characters leave it as escapes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _words(text: str) -> str:
    return visible(text.replace(_NO_TAG, ""))
