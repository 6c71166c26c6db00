"""The commands of the walk at a size of well under a second, and the directory that each begins in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.models.making import TEXT, write_llama_lm

STEPS, SAVED_EVERY = 5, 2
SETTINGS = (f"steps={STEPS}", "width=8", "layers=1", "heads=2", "ff=8", "batch=2", "probes=false")
TINY = tuple(word for setting in SETTINGS for word in ("--set", setting))
TRAIN = ("train", "--task", "count", "--encoding", "rope", *TINY)
TEXTS = ("--text", "lm/text.txt", "--tokens", "10", "--sequences", "2")
OLD = b"what stood here before\n"


@dataclass(frozen=True)
class Case:
    """One command: its arguments (or a function in place of them), and files that are there before it begins."""

    name: str
    arguments: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    call: Callable[[], None] | None = None
    roles: tuple[str, ...] = ("command",)

    def run(self) -> None:
        from toposcope import cli

        if self.call is not None:
            with cli._gentle_end():
                self.call()
        else:
            cli.main(list(self.arguments))


def _keep_a_copy() -> None:
    """What loading a GGUF file leaves in the cache."""
    import torch
    from safetensors.torch import save_file

    from toposcope.models import gguf_cache

    def save(to: Path) -> None:
        (to / "tokenizer.json").write_text("{}")
        save_file({"w": torch.arange(4000.0)}, to / "model.safetensors")
        (to / "config.json").write_text(json.dumps({"model_type": "llama"}))

    directory = Path("cache/gguf/copy")
    if gguf_cache.find(directory) is None:
        gguf_cache.keep(directory, save)
    raise SystemExit(0)


def _files(*names: str) -> tuple[str, ...]:
    """--json out.json and so on, by the ending."""
    return tuple(word for name in names for word in (f"--{Path(name).suffix[1:]}", name))


def _case(name: str, *arguments: str, out: tuple[str, ...], old: tuple[str, ...] | None = None) -> Case:
    return Case(name, (*arguments, *_files(*out)), out if old is None else old)


CASES = (
    _case("scan", "scan", "lm", out=("o.json", "o.csv", "o.html")),
    Case("scan, figure", ("scan", "lm", "--figure", "o.svg"), ("o.svg",)),
    _case("check", "check", "lm", out=("o.json", "o.html")),
    _case("inspect", "inspect", "lm", out=("o.json", "o.html"), old=()),
    _case("spectrum", "spectrum", "rope", "--context", "64", out=("o.json", "o.html")),
    Case(
        "flow",
        (
            "flow",
            "--preset",
            "collapse",
            "--horizon",
            "1",
            "--tokens",
            "3",
            *_files("o.json", "o.html"),
            "--out",
            "o.npz",
        ),
        ("o.json", "o.html", "o.npz"),
    ),
    _case("trace", "trace", "lm", *TEXTS, out=("o.json", "o.csv", "o.html")),
    _case("loss", "loss", "lm", *TEXTS, "--encoding", "none", out=("o.json", "o.csv")),
    _case("compare", "compare", "lm", "other", out=("o.json", "o.html")),
    Case("report", ("report", "scan.json", "--html", "o.html"), ("o.html",)),
    Case(
        "ablate",
        ("ablate", "lm", *TEXTS, "--heads", "0.0,1.1", "--out", "kept", *_files("o.json", "o.csv")),
        ("o.json",),
    ),
    Case(
        "refine",
        (
            *("refine", "lm", "--out", "kept", "--text", "lm/text.txt", "--tokens", "8", "--steps", str(STEPS)),
            *("--held-out", "2", *_files("o.json")),
        ),
    ),
    Case("train", (*TRAIN, "--store", "kept", *_files("o.json"))),
    Case("train, no store", (*TRAIN, "--out", "kept/run", *_files("o.json"))),
    Case(
        "sweep",
        (
            *("sweep", "--tasks", "count", "--encodings", "none,rope", "--seeds", "1", "--workers", "1", *TINY),
            *("--store", "kept", *_files("o.json", "o.csv")),
        ),
        roles=("command", "worker"),
    ),
    Case("runs export", ("runs", "export", "o.csv", "--store", "store"), ("o.csv",)),
    Case("runs ls, repair", ("runs", "ls", "--store", "damaged", *_files("o.json"))),
    Case("runs rm", ("runs", "rm", "--yes", "--store", "store", "REMOVED")),
    Case("copy of a GGUF file", call=_keep_a_copy),
)


def prepare(template: Path, run: Callable[[Case], Any]) -> None:
    """What the commands need: two models, a text, a result, and a store with two runs; `run` does a command there."""
    for name, seed in (("lm", 5), ("other", 6)):
        write_llama_lm(template / name, num_hidden_layers=2)
        if seed == 6:
            _nudge(template / name)
    (template / "lm" / "text.txt").write_text(TEXT * 12)
    run(Case("", ("scan", "lm", "--json", "scan.json")))
    for encoding in ("rope", "none"):
        words = [encoding if word == "rope" else word for word in TRAIN]
        run(Case("", (*words, "--store", "store")))
    run(Case("", (*TRAIN, "--store", "damaged")))
    (template / "damaged" / "index.sqlite").unlink()


def removed_key(template: Path) -> str:
    return sorted(path.name for path in (template / "store").iterdir() if path.is_dir())[0]


def _nudge(directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = directory / "model.safetensors"
    moved = {name: array * (1.5 if "q_proj" in name else 1.0) for name, array in load_file(path).items()}
    os.unlink(path)  # noqa: PTH108
    save_file({name: array.astype("float32") for name, array in moved.items()}, path, metadata={"format": "pt"})
