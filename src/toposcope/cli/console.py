"""The console that commands print to: wrapped lines keep their indent."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class IndentedConsole(Console):
    """A line that begins with blanks and is too long goes on under its beginning, not at the left edge."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's own."""
        line = objects[0] if len(objects) == 1 else None
        if isinstance(line, str) and line.startswith(" ") and not options.get("soft_wrap"):
            text = Text.from_markup(line)
            indent = len(text.plain) - len(text.plain.lstrip(" "))
            if "\n" not in text.plain and len(text) > self.width > 2 * indent:
                parts = text[indent:].wrap(self, self.width - indent)
                objects = (Text("\n").join(Text(" " * indent).append_text(part) for part in parts),)
        super().print(*objects, **options)
