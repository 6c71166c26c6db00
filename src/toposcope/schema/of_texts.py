"""The results of running a model on a text: trace, ablate, beside, loss, refine."""

from __future__ import annotations

from collections.abc import Mapping

from toposcope.schema.parts import MODEL, RUNNING, envelope, options
from toposcope.schema.types import Maybe, Shape, fields, many

CUT = {"text": str, "tokens": int, "sequences": int, "begin": int, "lines": bool}


def trace(schema: str) -> Shape:
    from toposcope.models.trace_agreement import Agreement
    from toposcope.models.trace_result import TraceResult

    derived = {"hits": list[str], "precision": float, "recall": float}
    fast = {f"fast_{name}": kind for name, kind in derived.items()}
    told = Shape("Agreement", "Would the weights have told?", {**fields(Agreement), **derived, **fast})
    body = {
        **fields(TraceResult, without=["about", "skipped"]),
        "agreement": Maybe(told),
        "thresholds": Mapping[str, float],
        "patterns": Mapping[str, list[str]],
    }
    asked = options(
        **CUT,
        layers=str | None,
        heads=str | None,
        dense_limit=int,
        encoding=str | None,
        logits=str | None,
        seed=int,
    )
    return envelope(schema, MODEL, asked, body, "What heads do on a text.")


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
    from toposcope.models.ablation import Ablation
    from toposcope.models.screen import Screen

    heads = {"estimates": Mapping[str, float], "chosen": list[str], "sampled": list[str]}
    screen = Shape(
        "Screen", "What the slopes said of each head, and which were measured.", {**fields(Screen), **heads}
    )
    found = Shape("Ablation", "Every head in turn removed.", {**fields(Ablation), "screen": Maybe(screen)})
    return envelope(schema, RUNNING, _ablate_options(), {"ablation": found}, "Which heads a model needs on a text.")


def ablate_check(schema: str) -> Shape:
    from toposcope.models.proof import Proof

    body = {**fields(Proof), "holds": bool}
    return envelope(
        schema, RUNNING, _ablate_options(), body, "The proof that one head, and only that one, is removed."
    )


def beside(schema: str) -> Shape:
    from toposcope.models.beside import Beside, TextBeside
    from toposcope.models.rank import RankCorrelation
    from toposcope.models.verify import Verification

    counts = Mapping[str, Mapping[str, int]]
    text = Shape("TextBeside", "One text.", {**fields(TextBeside), "correlations": list[RankCorrelation]})
    measured = Shape("Beside", "Layers beside their flow.", {**fields(Beside), "texts": many(text)})
    verified = Shape(
        "Verification",
        "Every certified head run on one text, beside its verdict.",
        {
            **fields(Verification),
            "table": counts,
            "words": counts,
            "contradictions": list[str],
            "stiff": list[str],
            "worst_path": float | None,
            "alone": list[str],
            "correlations": list[RankCorrelation],
        },
    )
    body = {"beside": measured, "verdicts": many(verified)}
    asked = options(text=list[str], tokens=int, begin=int, layers=str | None, verdicts=bool)
    return envelope(schema, MODEL, asked, body, "Real hidden states beside the flow; with --verdicts, heads.", *body)
