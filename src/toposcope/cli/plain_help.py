"""Help as people write it: MODEL, --seed N, zero|mean; not {MODEL}, <str>, <int range>, <zero|mean>."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_BRACED = re.compile(r"\{([A-Za-z.]+)\}")
_TYPE = re.compile(r" <([^<>\n]+)>")
_TOLD_IN_WORDS = ("str", "list[str]", "path")
_NUMBERS = ("int", "float", "int range", "float range")


class PlainHelp(TyperCommand):
    """A command whose help has no braces around arguments, no types, and choices without brackets."""

    def get_usage(self, ctx: Any) -> str:
        """As typer's own, which errors print too."""
        return _unbraced(super().get_usage(ctx))

    def get_help(self, ctx: Any) -> str:
        """As typer's own; what is left out of a column leaves blanks, so that columns stay in line."""
        text = _unbraced(super().get_help(ctx))
        return "\n".join(line.rstrip() for line in _TYPE.sub(_shorter, text).splitlines())


def _unbraced(text: str) -> str:
    return _BRACED.sub(r"\1", text).replace("......", "...").replace("[[", "[").replace("]]", "]")


def _shorter(found: re.Match[str]) -> str:
    kind = found[1]
    word = "" if kind in _TOLD_IN_WORDS else "N" if kind in _NUMBERS else kind
    return f" {word}".ljust(len(found[0]))
