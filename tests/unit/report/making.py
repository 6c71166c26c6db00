"""Results to make reports of: those of real commands on tiny models, and some put together by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core.results import envelope


def command(*arguments: str, out: Path) -> dict[str, Any]:
    """The JSON result of a command."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--json", str(out)])
    assert stop.value.code in (0, None)
    return json.loads(out.read_text())


def scanned(tmp_path: Path, *more: str, **changes: Any) -> dict[str, Any]:
    """The scan of a tiny Llama."""
    return command("scan", str(write_llama(tmp_path / "model", **changes)), *more, out=tmp_path / "scan.json")


def flowed(tmp_path: Path) -> dict[str, Any]:
    return command("flow", "--preset", "clusters", "--n", "6", out=tmp_path / "flow.json")


def loss() -> dict[str, Any]:
    """A loss with two other encodings, one of which is clearly worse."""
    bins = [{"first": 0, "last": 0, "loss": 5.0, "tokens": 3}, {"first": 1, "last": 7, "loss": 2.0, "tokens": 21}]
    conditions = [
        {"encoding": name, "title": name, "where": None, "loss": 2.4 + d, "difference": d, "half_width": half,
         "by_sequence": [2.4 + d] * 3, "bins": bins}
        for name, d, half in (("own", 0.0, 0.0), ("none", 1.5, 0.25), ("rope:base=500", 0.01, 0.2))
    ]  # fmt: skip
    body = {"model": "m", "text": "t", "kind": "next token", "context": 64, "conditions": conditions}
    return envelope("loss", body, about=None, options={}, seconds=1.0)


def traced() -> dict[str, Any]:
    def part(value: float) -> dict[str, float]:
        return {"median": value, "low": value - 0.1, "high": value + 0.1, "count": 2}

    heads = [
        {
            "layer": layer,
            "head": head,
            "tokens": 16,
            "names": ["previous"] if (layer, head) == (0, 1) else [],
            "route": "factors",
            "peak_offset": 1,
            "peak_agreement": 0.9,
            "kernel": [0.1 * head, 0.5, 0.2, 0.1],
            "metrics": {"rho": part(0.5 + 0.2 * head), "toeplitz": part(0.3), "position": part(0.25 * (head + 1)),
                        "coupling": None, "distance": part(2.0), "entropy": part(1.0)},
            "scores": {"previous": part(0.2 + 0.6 * (layer == 0 and head == 1)), "first": part(0.1)},
            "uniform": {"previous": 0.06, "first": 0.2},
        }
        for layer in range(2)
        for head in range(2)
    ]  # fmt: skip
    body = {
        "text": "two stretches",
        "sequences": 2,
        "tokens": 16,
        "rebuilt": 1e-7,
        "thresholds": {"previous": 0.35},
        "patterns": {"previous": ["0.1"], "first": []},
        "agreement": None,
        "null_share": 0.1,
        "gaps": [],
        "heads": heads,
    }
    return envelope("trace", body, about=None, options={}, seconds=1.0)


def ablated() -> dict[str, Any]:
    heads = [
        {
            "layer": layer,
            "head": head,
            "scores": {"text": [2.0 + 0.1 * head, 2.2 + 0.1 * head]},
            "damage": {"text": 0.1 * head, "shuffled": 0.02},
            "error": {"text": 0.01, "shuffled": None},
        }
        for layer in range(2)
        for head in range(3)
    ]
    deposit = {"d_max": 0.2, "d_rel": 0.2, "share": 0.66, "gini": 0.4, "di": 0.1, "head": 2, "second": 1}
    spread = {
        "deposit": deposit,
        "d_rel": None,
        "share": None,
        "gini": None,
        "same_head": 0.9,
        "draws": 100,
        "level": 0.95,
        "di": {"low": 0.05, "high": 0.2, "defined": 1.0},
    }
    ablation = {
        "model": "m", "score": "loss", "unit": "nats", "method": "zero", "mode": "exact",
        "texts": [{"name": "text", "cut": "c", "base": [2.0, 2.2], "floor": None},
                  {"name": "shuffled", "cut": "c", "base": [4.0, 4.2], "floor": None}],
        "heads": heads, "layers": [{"layer": i, "deposit": deposit, "spread": spread} for i in range(2)],
        "pairs": [], "screen": None, "notes": [],
    }  # fmt: skip
    return envelope("ablate", {"ablation": ablation}, about=None, options={}, seconds=1.0)


def trained(encoding: str, seed: int, accuracy: float, **config: Any) -> dict[str, Any]:
    """A training run as its directory holds it, without the seal."""
    from tests.unit.runs.making import trained as base

    curve = [{"step": step, "loss": 1.0 / (1 + step), "accuracy": accuracy * step / 20} for step in (0, 10, 20)]
    settings = {"task": "copy", "encoding": encoding, "seed": seed, **config}
    key = f"{encoding}{seed}"
    return base(key=key, config=settings, accuracy=accuracy, floor=0.1, prior=0.1, step=20, steps=20, curve=curve)


def swept() -> dict[str, Any]:
    from toposcope.lab.result import TrainResult
    from toposcope.runs.sweep import SweepCell, SweepResult, SweptRun

    cells = tuple(
        SweepCell("copy", name, 2, mean, 0.02, mean - 0.01, mean + 0.01, 0.1, 1.0, 2.0)
        for name, mean in (("rope", 0.9), ("none", 0.3))
    )
    names = ("accuracy", "loss", "floor", "ceiling", "parameters", "seconds", "curve", "key", "config")
    found = [
        TrainResult.from_dict(trained(cell.encoding, seed, cell.least + seed / 50))
        for cell in cells
        for seed in (0, 1)
    ]
    runs = [SweptRun(status="done", words=None, **{name: getattr(each, name) for name in names}) for each in found]
    return SweepResult(cells=cells, runs=tuple(runs)).as_dict()


def reproduced(tmp_path: Path) -> dict[str, Any]:
    return command("reproduce", "dynamics", "--size", "facts", out=tmp_path / "reproduce.json")


# ------------------------------------------------------------------ small models that run
def language_model(place: Path) -> Path:
    """A tiny Llama that predicts the next token, with a tokenizer and a text."""
    from tests.unit.models.making import TEXT, write_llama_lm

    place.mkdir()
    write_llama_lm(place)
    (place / "text.txt").write_text(TEXT * 30)
    return place


def really_traced(model: Path, *more: str) -> dict[str, Any]:
    words = ("--text", str(model / "text.txt"), "--tokens", "24", "--sequences", "2", *more)
    return command("trace", str(model), *words, out=model / "trace.json")


def refined(model: Path) -> dict[str, Any]:
    words = ("--text", str(model / "text.txt"), "--tokens", "16", "--steps", "4", "--held-out", "3")
    return command("refine", str(model), *words, "--out", str(model / "refined"), out=model / "refine.json")


def proved(model: Path) -> dict[str, Any]:
    words = ("--text", str(model / "text.txt"), "--tokens", "16", "--sequences", "2", "--check")
    return command("ablate", str(model), *words, out=model / "proof.json")


def beside(model: Path, *more: str) -> dict[str, Any]:
    words = ("--text", str(model / "text.txt"), "--tokens", "12", *more)
    return command("beside", str(model), *words, out=model / "beside.json")


def really_trained(place: Path) -> dict[str, Any]:
    """A short run in `place/run` that learns to copy, with its probes and its ablation map."""
    sizes = ("steps=60", "lr=0.01", "width=32", "layers=2", "heads=2", "ff=32", "batch=16")
    settings = [word for size in sizes for word in ("--set", size)]
    words = ("--task", "copy", "--encoding", "rope", "--out", str(place / "run"), *settings)
    return command("train", *words, out=place / "train.json")


def lab_ablated(place: Path) -> dict[str, Any]:
    """The map of the model that `really_trained` left."""
    return command("ablate", str(place / "run" / "model"), out=place / "lab.json")


def coupled() -> dict[str, Any]:
    """A reproduction of coupling, from runs that are made up: two seeds of two encodings, described and published."""
    from toposcope.lab.result import TrainResult
    from toposcope.studies.reproduce.coupling import CLAIMS
    from toposcope.studies.reproduce.evidence import Evidence
    from toposcope.studies.reproduce.outcome import judged_claims, numbers, table
    from toposcope.studies.reproduce.result import ReproduceResult

    runs = [
        TrainResult.from_dict(trained(encoding, seed, accuracy + 0.01 * seed, task="distance", variant=variant))
        for variant in ("described", "published")
        for encoding, accuracy in (("rope", 0.9), ("none", 0.3))
        for seed in (0, 1)
    ]
    evidence = Evidence(replace(run, key=f"{number:016x}", ablation=None) for number, run in enumerate(runs))
    return ReproduceResult(
        what="coupling", size="demo", seeds=2, profile="laptop-s", runs_done=len(runs),
        claims=tuple(judged_claims(CLAIMS, evidence)), cells=tuple(table(evidence)),
        numbers=tuple(numbers(CLAIMS, evidence)),
    ).as_dict()  # fmt: skip
