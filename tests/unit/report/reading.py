"""A report read back: its parts, and the tables in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Reader(HTMLParser):
    """The parts of a page: its scripts with their types, its styles, tags with a source, ids, and the text shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[str | None, str]] = []
        self.styles: list[str] = []
        self.sources: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self.policy = ""
        self.words = ""
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.sources += [value or "" for key, value in attrs if key in ("src", "href", "action", "srcset", "data")]
        self.handlers += [key for key, _ in attrs if key.startswith("on") or key == "style"]
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag == "script":
            self.scripts.append((given.get("type"), ""))
        if tag == "style":
            self.styles.append("")
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.words += data.replace("\u00a0", " ")

    @property
    def data(self) -> Any:
        (found,) = [json.loads(text) for kind, text in self.scripts if kind == "application/json"]
        return found


def table(page: Reader, name: str) -> list[dict[str, Any]]:
    columns = page.data["tables"][name]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
