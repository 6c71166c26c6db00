"""The results of running a model on a text: refine."""

from __future__ import annotations

from typing import Any

from toposcope.schema.parts import MODEL, envelope, options
from toposcope.schema.types import Shape, fields


def refine(schema: str) -> Shape:
    from toposcope.studies.refine import Settings, TuneResult

    asked: dict[str, Any] = {"model": str, "text": str, "tokens": int, "held_out": int, **fields(Settings)}
    return envelope(schema, MODEL, options(**asked), fields(TuneResult), "The diagonal tuned, beside its control.")
