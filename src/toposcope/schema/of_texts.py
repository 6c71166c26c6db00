"""The results of running a model on a text: ablate, refine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.schema.parts import MODEL, RUNNING, envelope, options
from toposcope.schema.types import Maybe, Shape, fields

CUT = {"text": str, "tokens": int, "sequences": int, "begin": int, "lines": bool}


def _ablate_options() -> Shape:
    return options(
        **CUT,
        method=str,
        mode=str,
        layers=str | None,
        heads=str | None,
        pairs=str | None,
        only=list[str],
        sample=int,
        seed=int,
    )


def ablate(schema: str) -> Shape:
    from toposcope.models.ablation.result import Ablation
    from toposcope.models.ablation.screen import Screen

    heads = {"estimates": Mapping[str, float], "chosen": list[str], "sampled": list[str]}
    screen = Shape(
        "Screen", "What the slopes said of each head, and which were measured.", {**fields(Screen), **heads}
    )
    found = Shape("Ablation", "Every head in turn removed.", {**fields(Ablation), "screen": Maybe(screen)})
    return envelope(schema, RUNNING, _ablate_options(), {"ablation": found}, "Which heads a model needs on a text.")


def ablate_check(schema: str) -> Shape:
    from toposcope.models.ablation.check import Proof

    body = {**fields(Proof), "holds": bool}
    return envelope(
        schema, RUNNING, _ablate_options(), body, "The proof that one head, and only that one, is removed."
    )


def refine(schema: str) -> Shape:
    from toposcope.studies.refine import Settings, TuneResult

    asked: dict[str, Any] = {"model": str, "text": str, "tokens": int, "held_out": int, **fields(Settings)}
    return envelope(schema, MODEL, options(**asked), fields(TuneResult), "The diagonal tuned, beside its control.")
