"""The commands of the walk at a size of well under a second, and the directory that each begins in.

Every option that writes a file is in some case (`test_cases.py` sees to it). Left out are `bench`, whose files are
written by the programs of the repository that it starts; `serve`, which only reads; and work on a Ray cluster, whose
processes the hooks do not reach: what its driver writes, a local one writes too.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.models.making import TEXT, write_llama_lm

STEPS, SAVED_EVERY, LAYERS = 5, 2, 2
SETTINGS = (f"steps={STEPS}", "width=8", "layers=1", "heads=2", "ff=8", "batch=2", "probes=false")
TINY = tuple(word for setting in SETTINGS for word in ("--set", setting))
FLOW = ("flow", "--preset", "collapse", "--horizon", "1", "--tokens", "3")
TRAIN = ("train", "--task", "count", "--encoding", "rope", *TINY)
SWEEP = ("sweep", "--tasks", "count", "--encodings", "none,rope", "--seeds", "1", "--jobs", "1", *TINY)
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
    runs: int = 0  # models that are trained in directories below kept/

    def run(self) -> None:
        from toposcope import cli
        from toposcope.core.errors import ToposcopeError

        if self.call is not None:
            try:
                with cli._gentle_end():
                    self.call()
            except ToposcopeError as error:
                sys.stderr.write(f"toposcope: {error}\n")
                raise SystemExit(2) from None
            except KeyboardInterrupt:
                raise SystemExit(130) from None
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


def _keep_the_addresses() -> None:
    """What `python -m toposcope.studies.language.sotu ARCHIVE` leaves in the cache."""
    from toposcope.studies.language import sotu

    os.environ["TOPOSCOPE_CACHE"] = "cache"
    sotu.fetch(Path("sotu.tgz"))
    raise SystemExit(0)


def _train_a_probe() -> None:
    from toposcope.runs.store import said_plainly
    from toposcope.studies.language import probe

    config = make_probe("slice", "bytes", "rope", 2, 0, length=8, batch=2, steps=STEPS)
    place = Path("kept/run")
    with said_plainly(place):
        probe.work(config.as_dict(), place, lambda _: None)
    raise SystemExit(0)


def make_probe(*given: Any, **named: Any) -> Any:
    """A configuration of the language-model probe, tiny and of a text that is at hand."""
    from toposcope.studies.language.config import ProbeConfig

    small = {"text": "lm/text.txt", "other": "lm/text.txt", "width": 8, "layers": 1, "ff": 8, "windows": 4}
    return ProbeConfig(*given, **{**named, **small})


def make_reproductions_tiny() -> None:
    """One model in place of the probe's, one run in place of the grid; and facts are found once."""
    from toposcope.runs.grid import grid, read_changes
    from toposcope.studies.language import groups
    from toposcope.studies.reproduce import coupling, dynamics

    facts = dynamics.checked()
    dynamics.checked = lambda: facts
    groups.ProbeConfig = make_probe  # type: ignore[assignment,misc]
    groups.SIZES["demo"] = groups.ProbeSize("demo", 1, 0, STEPS, 1.0)
    groups.GROUPS = (groups.CellGroup("heads", "", "bytes", "rope", 2, ("slice",), 8, 2),)
    coupling.grid = lambda size, seeds: grid(["count"], ["rope"], [0], changes=read_changes(SETTINGS))


def _files(*names: str) -> tuple[str, ...]:
    """--json out.json and so on, by the ending."""
    return tuple(word for name in names for word in (f"--{Path(name).suffix[1:]}", name))


def _case(name: str, *arguments: str, out: tuple[str, ...], old: tuple[str, ...] | None = None) -> Case:
    return Case(name, (*arguments, *_files(*out)), out if old is None else old)


TABLES, DRAWN = _files("o.json", "o.csv", "o.html"), ("--figure", "o.svg")
CASES = (
    _case("scan", "scan", "lm", out=("o.json", "o.csv", "o.html")),
    Case("scan, figure", ("scan", "lm", "--figure", "o.svg"), ("o.svg",)),
    Case("scan, kept", ("scan", "lm", "--random-baseline", "--out", "kept", *_files("o.json"))),
    _case("check", "check", "lm", out=("o.json", "o.csv", "o.html")),
    _case("check, for machines", "check", "lm", out=("o.sarif", "o.junit"), old=()),
    _case("inspect", "inspect", "lm", out=("o.json", "o.csv", "o.html"), old=()),
    _case("ls", "ls", "encodings", out=("o.json", "o.csv")),
    _case("cite", "cite", out=("o.json",), old=()),
    Case(
        "spectrum",
        ("spectrum", "rope", "--context", "64", *TABLES, *DRAWN),
        ("o.json", "o.csv", "o.html", "o.svg"),
    ),
    Case("flow", (*FLOW, *TABLES, "--save", "o.npz"), ("o.json", "o.html", "o.npz")),
    Case("flow, pictures", (*FLOW, *DRAWN), ("o.svg",)),
    Case("flow, movie", (*FLOW, "--movie", "o.gif"), ("o.gif",)),
    Case("trace", ("trace", "lm", *TEXTS, *TABLES, *DRAWN), ("o.json", "o.csv", "o.html")),
    Case("loss", ("loss", "lm", *TEXTS, "--encoding", "none", *TABLES, *DRAWN), ("o.json", "o.csv")),
    Case(
        "trace, depth", ("trace", "lm", *TEXTS, "--depth", "--verify", "--jobs", "1", *TABLES), ("o.json", "o.html")
    ),
    Case("compare", ("compare", "lm", "other", *TABLES, *DRAWN), ("o.json", "o.html", "o.svg")),
    Case("report", ("report", "scan.json", *_files("o.html", "o.json"), *DRAWN), ("o.html",)),
    Case(
        "ablate",
        ("ablate", "lm", *TEXTS, "--heads", "0.0,1.1", "--out", "kept", *TABLES, *DRAWN),
        ("o.json",),
    ),
    Case("ablate, laboratory", ("ablate", "store/REMOVED/model", *TABLES), ("o.json", "o.html")),
    Case(
        "refine",
        (
            *("refine", "lm", "--out", "kept", "--text", "lm/text.txt", "--tokens", "8", "--steps", str(STEPS)),
            *("--held-out", "2", *TABLES, *DRAWN),
        ),
    ),
    Case("train", (*TRAIN, "--store", "kept", *_files("o.json")), runs=1),
    Case("train, again", (*TRAIN, "--store", "store", *_files("o.html", "o.csv"), *DRAWN), ("o.html",)),
    Case("train, no store", (*TRAIN, "--out", "kept/run", *_files("o.json")), runs=1),
    Case(
        "sweep",
        (
            *SWEEP,
            *("--store", "kept", *_files("o.json", "o.csv")),
        ),
        roles=("command", "worker"),
        runs=2,
    ),
    Case("sweep, again", (*SWEEP, "--store", "store", *TABLES, *DRAWN), ("o.csv",)),
    Case(
        "reproduce coupling",
        ("reproduce", "coupling", "--jobs", "1", "--store", "store", *TABLES, *DRAWN),
        ("o.json",),
    ),
    Case(
        "reproduce dynamics",
        ("reproduce", "dynamics", "--jobs", "1", "--store", "kept", "--markdown", "o.md", *_files("o.json")),
        ("o.md",),
        roles=("command", "worker"),
        runs=1,
    ),
    Case("language-model probe", call=_train_a_probe, runs=1),
    Case("runs export", ("runs", "export", "o.csv", "--store", "store"), ("o.csv",)),
    Case("runs ls, repair", ("runs", "ls", "--store", "damaged", *TABLES)),
    Case("runs rm", ("runs", "rm", "--yes", "--store", "store", "REMOVED")),
    Case("copy of a GGUF file", call=_keep_a_copy),
    Case("addresses", call=_keep_the_addresses),
)


def prepare(template: Path, run: Callable[[Case], Any]) -> None:
    """What the commands need: two models, a text, a result, and a store with two runs; `run` does a command there."""
    for name, seed in (("lm", 5), ("other", 6)):
        write_llama_lm(template / name, num_hidden_layers=LAYERS)
        if seed == 6:
            _nudge(template / name)
    (template / "lm" / "text.txt").write_text(TEXT * 12)
    write_addresses(template / "sotu.tgz")
    run(Case("", ("scan", "lm", "--json", "scan.json")))
    for encoding in ("rope", "none"):
        words = [encoding if word == "rope" else word for word in TRAIN]
        run(Case("", (*words, "--store", "store")))
    run(Case("", (*TRAIN, "--store", "damaged")))
    (template / "damaged" / "index.sqlite").unlink()


def write_addresses(path: Path) -> None:
    """An archive as npm makes it."""
    with tarfile.open(path, "w:gz") as archive:
        for year in (1906, 1907):
            said = json.dumps({"year": year, "text": TEXT}).encode()
            member = tarfile.TarInfo(f"package/data/{year}.json")
            member.size = len(said)
            archive.addfile(member, io.BytesIO(said))


def removed_key(template: Path) -> str:
    return sorted(path.name for path in (template / "store").iterdir() if path.is_dir())[0]


def _nudge(directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = directory / "model.safetensors"
    moved = {name: array * (1.5 if "q_proj" in name else 1.0) for name, array in load_file(path).items()}
    os.unlink(path)  # noqa: PTH108
    save_file({name: array.astype("float32") for name, array in moved.items()}, path, metadata={"format": "pt"})
