"""Results to make reports of: those of real commands on tiny models, and some put together by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core.statistics import from_error
from toposcope.models.ablation.result import AblateResult, HeadDamage, LayerDeposit, TextLoss
from toposcope.models.deposit import Deposit, DepositBootstrap, Interval
from toposcope.models.loss import Bin, Condition, LossResult
from toposcope.models.tracing.patterns import THRESHOLDS, WORDS
from toposcope.models.tracing.result import METRICS, HeadTrace, Spread, TraceResult


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


def loss() -> LossResult:
    """A loss with two other encodings, one of which is clearly worse."""
    bins = (Bin(0, 0, 5.0, 3), Bin(1, 7, 2.0, 21))
    conditions = tuple(
        Condition(name, name, None, 2.4 + d, d, half, (2.4 + d,) * 3, bins)
        for name, d, half in (("own", 0.0, 0.0), ("none", 1.5, 0.25), ("rope:base=500", 0.01, 0.2))
    )
    return LossResult(text="t", predicts="next token", context=64, conditions=conditions)


def traced() -> TraceResult:
    """Two layers of two heads, of which 0.1 looks at the previous token."""

    def part(value: float) -> Spread:
        return Spread(value, value - 0.1, value + 0.1, 2)

    def head(layer: int, head: int) -> HeadTrace:
        back = (layer, head) == (0, 1)
        known = {
            "rho": 0.5 + 0.2 * head, "toeplitz": 0.3, "position": 0.25 * (head + 1), "distance": 2.0, "entropy": 1.0,
            "on_previous": 0.2 + 0.6 * back, "on_first": 0.1,
        }  # fmt: skip
        named = {
            name: part(known[name]) if name in known else None for name in (*METRICS, *map("on_{}".format, WORDS))
        }
        return HeadTrace(
            layer=layer, head=head, tokens=16, names=("previous",) if back else (), route="factors", peak_offset=1,
            peak_agreement=0.9, kernel=(0.1 * head, 0.5, 0.2, 0.1), uniform={"previous": 0.06, "first": 0.2}, **named,
        )  # fmt: skip

    return TraceResult(
        text="two stretches", sequences=2, tokens=16, encoding=None, rebuilt=1e-7, thresholds=dict(THRESHOLDS),
        patterns={name: ("0.1",) if name == "previous" else () for name in THRESHOLDS}, agreement=None,
        null_share=0.1, gaps=(), heads=tuple(head(layer, each) for layer in range(2) for each in range(2)),
    )  # fmt: skip


def ablated() -> AblateResult:
    """Two layers of three heads, of which the last of each matters most."""
    heads = tuple(
        HeadDamage(
            layer, head, losses={"text": (2.0 + 0.1 * head, 2.2 + 0.1 * head)},
            damage={"text": 0.1 * head, "shuffled": 0.02}, error={"text": 0.01, "shuffled": None},
            half_width=from_error(0.01, 2), position=0.1 * head - 0.02,
        )
        for layer in range(2)
        for head in range(3)
    )  # fmt: skip
    deposit = Deposit(d_max=0.2, d_rel=0.2, share=0.66, gini=0.4, di=0.1, head=2, second=1)
    spread = DepositBootstrap(deposit, None, None, None, Interval(0.05, 0.2, 1.0), 0.9, 100, 0.95)
    return AblateResult(
        text="c", predicts="next token", unit="nats", method="zero", mode="exact", heads=heads,
        texts=(TextLoss("text", "c", (2.0, 2.2), None), TextLoss("shuffled", "c", (4.0, 4.2), None)),
        layers=tuple(LayerDeposit(layer, deposit, spread) for layer in range(2)),
    )  # fmt: skip


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


def followed(model: Path) -> dict[str, Any]:
    """A trace with its tokens through depth, and its verdicts."""
    words = ("--text", str(model / "text.txt"), "--tokens", "12", "--sequences", "1", "--jobs", "1")
    return command("trace", str(model), *words, "--depth", "--verify", out=model / "depth.json")


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


def module_checked() -> dict[str, Any]:
    """The check of an attention module without position that should be rotary."""
    import torch

    import toposcope

    attention = torch.nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, batch_first=True)
    return toposcope.check_module(attention, width=16, expects="rope").as_dict()
