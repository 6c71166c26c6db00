"""What the results of several commands share: what was analysed, options, what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.schema.types import Shape, many

MODEL = Shape(
    "Subject",
    "What was analysed: where it is, what was read of it, and how position is encoded there.",
    {"path": str, "format": str, "family": str, "sha256": str, "encodings": list[str]},
)
RUNNING = Shape(
    "Subject",
    "What was run: where it is, the class that ran it, and the hash of its weights.",
    {"path": str, "architecture": str, "sha256": str},
)
LEFT_OUT = Shape(
    "Skipped",
    "Something that was not read or not done, and why.",
    {"what": str, "why": str | None, "tensors": list[str]},
    may_lack=frozenset({"tensors"}),
)


def options(**kinds: Any) -> Shape:
    """The options of a command as they are kept in its result."""
    return Shape("Options", "What was asked for.", kinds, may_lack=frozenset(kinds))


def envelope(schema: str, about: Any, asked: Shape, body: Mapping[str, Any], sentence: str, *lacks: str) -> Shape:
    """What `results.envelope` writes: the frame of every result, and the body of this one."""
    frame = {
        "schema": str,
        "toposcope": str,
        "subject": about,
        "options": asked,
        "seconds": float,
        "skipped": many(LEFT_OUT),
    }
    return Shape(schema, sentence, {**frame, **body}, may_lack=frozenset(lacks))
