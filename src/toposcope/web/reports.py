"""Reports under the server's roof: rendered by `toposcope.report`, allowed to run exactly the code they came with.

A report is one file with its styles and scripts inside. Its Content-Security-Policy names each of them by its hash,
so nothing that a result's words might smuggle in would run, and `sandbox` keeps it from reading anything else here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from jinja2 import UndefinedError

from toposcope.errors import BadFile


def report_of(result: Mapping[str, Any]) -> str:
    """The report of a result, as one HTML file."""
    from toposcope.report import render

    try:
        return render([result])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ImportError, UndefinedError) as error:
        words = f"this result cannot be shown as a report ({type(error).__name__}: {str(error)[:200]})."
        raise BadFile(f"{words} Was it written by this version, with --json?") from error


def policy_for(text: str) -> str:
    """A Content-Security-Policy under which this file works and nothing else does."""
    found = _Inline()
    found.feed(text)
    found.close()
    script, style = (
        " ".join(f"'sha256-{each}'" for each in sorted(part)) or "'none'" for part in (found.scripts, found.styles)
    )
    attributes = " ".join(f"'sha256-{each}'" for each in sorted(found.attributes))
    attributes = f"'unsafe-hashes' {attributes}" if attributes else "'none'"
    return (
        f"default-src 'none'; script-src {script}; style-src-elem {style}; style-src-attr {attributes}; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "sandbox allow-scripts allow-downloads"
    )


class _Inline(HTMLParser):
    """Collects the hashes of what stands inside script and style elements and in style attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: set[str] = set()
        self.styles: set[str] = set()
        self.attributes: set[str] = set()
        self._inside: str | None = None
        self._parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {_hash(value) for name, value in attrs if name == "style" and value}
        if tag in ("script", "style"):
            self._inside, self._parts = tag, []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            (self.scripts if tag == "script" else self.styles).add(_hash("".join(self._parts)))
            self._inside = None


def _hash(text: str) -> str:
    plain = text.replace("\r\n", "\n").replace("\r", "\n")  # as a browser reads a file
    return base64.b64encode(hashlib.sha256(plain.encode()).digest()).decode()
