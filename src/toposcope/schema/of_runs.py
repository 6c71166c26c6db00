"""The results of the laboratory: train, sweep, runs, reproduce, and the ablation of a trained small model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.schema.parts import MODEL, envelope, options
from toposcope.schema.types import Maybe, Shape, fields, many


def _map() -> Shape:
    """`lab.ablation.AblationMap.as_dict`, written out: that module needs torch, a schema does not."""
    from toposcope.models.deposit import Deposit, Interval

    more = {"same_head": float, "interval": Maybe(Interval)}
    layer = Shape(
        "LayerLoss",
        "One layer: accuracy without each head, and its deposit with an interval over resampled sentences.",
        {"layer": int, "accuracy": list[float], **fields(Deposit), **more},
    )
    joint = Shape(
        "Joint",
        "The head that matters most in each layer, all removed together.",
        {"heads": list[tuple[int, int]], "accuracy": float, "alone": list[float]},
    )
    return Shape(
        "AblationMap",
        "All heads of a small model removed in turn, by zero and by mean.",
        {
            "sentences": int,
            "base": float,
            "floor": float,
            "zero": many(layer),
            "mean": many(layer),
            "joint": Maybe(joint),
            "draws": int,
            "level": float,
        },
    )


def _trained() -> dict[str, Any]:
    from toposcope.lab.config import RunConfig
    from toposcope.lab.result import TrainResult

    curve = Shape("Point", "A moment of training.", {"step": int, "loss": float, "accuracy": float})
    return {**fields(TrainResult), "config": RunConfig, "curve": many(curve), "ablation": Maybe(_map())}


def train(schema: str) -> Shape:
    more = {"directory": str, "trained_now": bool, "training_seconds": float}
    asked = options(store=str | None, out=str | None, threads=int)
    words = "One small model trained on one task. The result.json of a run has the same body without the frame."
    return envelope(schema, type(None), asked, {**_trained(), "seconds": float, **more}, words)


def lab_ablate(schema: str) -> Shape:
    body = {"task": str, "ablation": _map()}
    return envelope(
        schema, MODEL, options(sentences=int, seed=int), body, "Accuracy without each head of a lab model."
    )


def sweep(schema: str) -> Shape:
    from toposcope.lab.config import RunConfig
    from toposcope.runs.store import Row
    from toposcope.runs.table import Cell

    found = {"accuracy": float, "loss": float, "floor": float, "ceiling": float, "seconds": float}
    run = {**fields(Row, "key", "status", "words"), "config": RunConfig, **found, "parameters": int | None}
    body = {"cells": list[Cell], "runs": many(Shape("Run", "One run, in short.", run))}
    asked = options(store=str, profile=str, variant=str, seeds=str, engine=str)
    return envelope(schema, type(None), asked, body, "Tasks, encodings and seeds: a table and its runs.")


def runs(schema: str) -> Shape:
    from toposcope.runs.store import Row

    return envelope(schema, type(None), options(store=str), {"runs": list[Row]}, "What a store of runs holds.")


def run(schema: str) -> Shape:
    from toposcope.runs.store import Row

    about = Shape("Subject", "Where the run is kept.", {"path": str})
    body = {"run": Row, "result": Mapping[str, Any] | None}
    return envelope(schema, about, options(), body, "One run, and the result it left if it is done.")


def reproduce(schema: str) -> Shape:
    from toposcope.studies.reproduce.claims import Verdict

    estimate = {"mean": float, "half": float, "n": int}
    claim = Shape(
        "Claim",
        "A claim as stated, what the released code does, what was measured, and the verdict.",
        {
            "id": str,
            "claim": str,
            "released_code": str,
            "measured": list[str],
            "verdict": Verdict,
            "measured_published": list[str],
            "verdict_published": Verdict,
            "rule": str,
            "runs": list[str],
        },
        may_lack=frozenset({"measured_published", "verdict_published", "runs"}),
    )
    number = Shape(
        "Number",
        "One number behind a verdict (`decides`) or beside it, with the keys of its runs.",
        {"claim": str, "variant": str, "decides": bool, "what": str, "unit": str, **estimate, "runs": list[str]},
    )
    deposits = {f"{name}_{layer}": float for name in ("deposit", "deposit_half") for layer in (0, 1)}
    cell = Shape(
        "Cell",
        "One cell of the coupling grid.",
        {"variant": str, "task": str, "encoding": str, "seeds": int, "accuracy": float, "half": float, "floor": float}
        | {"ceiling": float, "reported": float, **deposits, "runs": list[str]},
    )
    probe = Shape(
        "Probe",
        "The byte models of dynamics: their sizes, and a row for each cell.",
        {"size": str, "runs_done": int, "sizes": Mapping[str, Any], "rows": list[Mapping[str, Any]]},
    )
    body = {
        "what": str,
        "claims": many(claim),
        "profile": str,
        "runs_done": int,
        "table": many(cell),
        "numbers": many(number),
        "probe": probe,
    }
    asked = options(size=str, seeds=int, store=str)
    lacks = ("profile", "runs_done", "table", "numbers", "probe")
    return envelope(schema, type(None), asked, body, "The papers' claims beside what was measured.", *lacks)
