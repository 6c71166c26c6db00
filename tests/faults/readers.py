"""Every reader of the package, with sound files to begin from and a function that reads all there is to read."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults import mutations as m
from tests.faults.cases import LAYERS, SETTINGS, STEPS, TINY, TRAIN
from tests.unit.checkpoints.making import gguf_bytes, gguf_pair, gguf_string, gguf_tensor
from tests.unit.checkpoints.test_fuzz import gguf_seeds, read_all, safetensors_seeds
from tests.unit.tiny import CONFIG, write_llama

Tree = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """`seeds` makes directories of sound files; one that `damage` names is damaged, and `read` reads it all."""

    name: str
    seeds: Callable[[Path], list[Tree]]
    read: Callable[[Path], Any]
    damage: tuple[str, ...]
    mutations: tuple[m.Mutation, ...]
    share: float = 1.0


def _tree(directory: Path) -> Tree:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def _named(name: str, contents: list[bytes]) -> Callable[[Path], list[Tree]]:
    return lambda _: [{name: content} for content in contents]


# ------------------------------------------------------------- checkpoints


def _safetensors(place: Path) -> None:
    from toposcope.checkpoints.safetensors_file import SafetensorsFile

    _whole_and_rows(place / "m.safetensors", SafetensorsFile)


def _gguf(place: Path) -> None:
    from toposcope.checkpoints.gguf_file import GgufFile

    _whole_and_rows(place / "m.gguf", GgufFile)


def _torch(place: Path) -> None:
    from toposcope.checkpoints.torch_file import TorchFile

    _whole_and_rows(place / "m.bin", TorchFile)


def _whole_and_rows(path: Path, opener: Callable[[Path], Any]) -> None:
    """Every tensor as a whole, and some rows of every table, which are to be the same."""
    read_all(path, opener)
    source = opener(path)
    for name in source.names():
        shape = source.info(name).shape
        if len(shape) == 2 and shape[0]:
            rows = np.array([shape[0] - 1, 0])
            assert np.array_equal(source.read_rows(name, rows), source.read(name)[rows], equal_nan=True)
    source.close()


def _torch_seeds(zipped: bool) -> Callable[[Path], list[Tree]]:
    def make(_: Path) -> list[Tree]:
        import torch

        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(6, 5, generator=generator)
        values: list[Any] = [
            {"w": weight, "half": weight.half(), "turned": weight.T, "n": torch.arange(4)},
            {"state_dict": {"module.a": weight.bfloat16()}, "epoch": 3, "args": {"lr": 0.1, "names": ["a", "b"]}},
            {f"layers.{i}.w": weight[i] for i in range(6)},
        ]
        return [{"m.bin": _saved(value, zipped)} for value in values]

    return make


def _saved(value: Any, zipped: bool = True) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def _whole_model(place: Path) -> None:
    """Open the model, read every layer's heads, and check it, as `toposcope check` does."""
    from toposcope.checkpoints import load
    from toposcope.checks.model import check_model

    target = next(place.glob("*.gguf"), place)
    model = load(target)
    for layer in model.layers:
        list(layer.heads)
    check_model(model).as_dict()
    model.token_embedding()


def _sharded_seeds(scratch: Path) -> list[Tree]:
    from safetensors.numpy import load_file, save

    tree = _tree(write_llama(scratch / "sharded"))
    tensors = load_file(scratch / "sharded" / "model.safetensors")
    names = sorted(tensors)
    parts = {f"model-0000{n + 1}-of-00002.safetensors": names[n::2] for n in range(2)}
    del tree["model.safetensors"]
    for file, mine in parts.items():
        tree[file] = save({name: tensors[name] for name in mine})
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {name: file for file, mine in parts.items() for name in mine},
    }
    tree["model.safetensors.index.json"] = json.dumps(index).encode()
    return [tree]


def _config_seeds(scratch: Path) -> list[Tree]:
    scalings: list[dict[str, Any]] = [
        {},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        {
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0, 2.0],
                "long_factor": [1.5, 3.0],
                "original_max_position_embeddings": 32,
            }
        },
        {"model_type": "mistral", "sliding_window": 16},
        {"model_type": "granite", "attention_multiplier": 0.5},
        {"architectures": ["LlamaForCausalLM"], "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"model_type": "stablelm", "partial_rotary_factor": 0.5},
        {
            "model_type": "qwen2",
            "use_sliding_window": True,
            "max_window_layers": 1,
            "layer_types": ["full_attention"] * 3,
        },
    ]
    return [_tree(write_llama(scratch / f"config{i}", **change)) for i, change in enumerate(scalings)]


def _gguf_model_seeds(_: Path) -> list[Tree]:
    """A Llama in GGUF, whose settings are what is damaged."""
    import struct

    width, heads, groups, layers = CONFIG["hidden_size"], 4, 2, 2
    rng = np.random.default_rng(3)

    def number(key: str, value: int) -> bytes:
        return gguf_pair(f"llama.{key}", 4, struct.pack("<I", value))

    pairs = [
        gguf_pair("general.architecture", 8, gguf_string("llama")),
        gguf_pair("general.name", 8, gguf_string("<b>../tiny</b>")),
        number("block_count", layers),
        number("context_length", 64),
        number("embedding_length", width),
        number("attention.head_count", heads),
        number("attention.head_count_kv", groups),
        number("rope.dimension_count", width // heads),
        gguf_pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        gguf_pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        gguf_pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + b"".join(map(gguf_string, ("a", "b", "")))),
    ]
    shapes: dict[str, tuple[int, int]] = {"token_embd.weight": (width, 32)}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_q.weight": (width, width),
            f"blk.{i}.attn_k.weight": (width, width // heads * groups),
            f"blk.{i}.attn_v.weight": (width, width // heads * groups),
            f"blk.{i}.attn_output.weight": (width, width),
            f"blk.{i}.attn_norm.weight": (width, 1),
        }
    tensors, data = [], b""
    for name, (wide, high) in shapes.items():
        tensors.append(gguf_tensor(name, [wide] if high == 1 else [wide, high], 0, len(data)))
        stored = rng.standard_normal(wide * high).astype("<f4").tobytes()
        data += stored + b"\0" * (-len(stored) % 32)
    return [{"m.gguf": gguf_bytes(pairs, tensors, data)}]


# ------------------------------------------------------------- what the package writes


def _lab_config() -> Any:
    from toposcope.runs.grid import grid, read_changes

    return grid(["count"], ["rope@heads:0,none"], [0], changes=read_changes(SETTINGS))[0]


def _lab_run(scratch: Path, *, finished: bool) -> Path:
    from toposcope.lab import train

    train.fixed_sentences.__defaults__ = (16,)
    train.GLANCE = 8
    place = scratch / f"lab{finished}"
    if not place.exists():
        place.mkdir(parents=True)
        train.train(_lab_config(), place, stop_after=None if finished else 2)
    return place


def _lab_model_seeds(scratch: Path) -> list[Tree]:
    return [_tree(_lab_run(scratch, finished=True) / "model")]


def _lab_model(place: Path) -> None:
    from toposcope.checkpoints import load
    from toposcope.core.errors import ToposcopeError
    from toposcope.lab.load import load_model
    from toposcope.lab.running import own_task

    with contextlib.suppress(ToposcopeError):
        for layer in load(place).layers:
            list(layer.heads)
    own_task(place, load_model(place))


def _lab_result_seeds(scratch: Path) -> list[Tree]:
    from toposcope.runs.directory import Job, write_job

    place = _lab_run(scratch, finished=True)
    config = _lab_config()
    write_job(place, Job(config.key(), "train", config.as_dict()))
    return [{name: content for name, content in _tree(place).items() if name in ("run.json", "result.json")}]


def _forge(place: Path) -> None:
    """Give damaged results a sum of their own, as who means harm would: what lies behind the sum is to be tried."""
    from toposcope.core.sealed import write_sealed

    for path in place.rglob("result.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            content = json.loads(path.read_text())
            write_sealed(path, content["key"], content)


def _lab_result(place: Path) -> None:
    from toposcope.core.errors import ToposcopeError
    from toposcope.lab.config import RunConfig
    from toposcope.lab.result import TrainResult
    from toposcope.runs.directory import read_job, read_result, summary

    _forge(place)
    job = read_job(place)
    if job is not None:
        with contextlib.suppress(ToposcopeError):
            json.dumps(summary(read_result(place, job) or {}), allow_nan=False)
        with contextlib.suppress(ToposcopeError):
            RunConfig.from_dict(job.config)
    TrainResult.stored(place)


def _lab_checkpoint_seeds(scratch: Path) -> list[Tree]:
    return [{"checkpoint.pt": (_lab_run(scratch, finished=False) / "checkpoint.pt").read_bytes()}]


def _lab_checkpoint(place: Path) -> None:
    """Go on from the checkpoint, for no step."""
    from toposcope.lab import train

    train.train(_lab_config(), place, stop_after=1)


def _probe_config(cell: str = "slice") -> Any:
    """A run of the language-model probe, tiny; its text is written beside the fuzz's files."""
    from toposcope.studies.language.config import ProbeConfig

    text = str(_stays("text.txt"))
    sizes = {"width": 8, "layers": 1, "ff": 8, "windows": 4, "length": 8, "batch": 2, "steps": STEPS}
    return ProbeConfig(cell, "bytes", "rope", 2, text=text, other=text, **sizes)


_SOUND: list[Path] = []


def settle(place: Path) -> None:
    """Where files lie that no case damages and that stay at one place, since runs and journals depend on them."""
    from tests.unit.models.making import TEXT

    place.mkdir()
    (place / "text.txt").write_text(TEXT * 12)
    write_llama(place / "scanned")
    _SOUND[:] = [place]


def _stays(name: str) -> Path:
    return _SOUND[0] / name


def _probe_seeds(scratch: Path) -> list[Tree]:
    from toposcope.studies.language import probe

    probe.run(_probe_config(), scratch / "probe", stop_after=2)
    return [{"checkpoint.pt": (scratch / "probe" / "checkpoint.pt").read_bytes()}]


def _probe(place: Path) -> None:
    """Go on from the checkpoint, for no step."""
    from toposcope.studies.language import probe

    probe.run(_probe_config(), place, stop_after=1)


def _reproduced_seeds(scratch: Path) -> list[Tree]:
    """A store with a finished run of both reproductions."""
    from toposcope.runs.directory import Job
    from toposcope.runs.jobs import PROBE as KIND
    from toposcope.runs.jobs import work
    from toposcope.runs.store import Claim, Store

    with Store(scratch / "kept") as store:
        for kind, config in (("train", _lab_config()), (KIND, _probe_config())):
            claim = store.claim(Job(config.key(), kind, config.as_dict()))
            assert isinstance(claim, Claim)
            work(kind)(config.as_dict(), claim.directory, lambda _: None)
            store.finish(claim)
    files = {f"kept/{name}": content for name, content in _tree(scratch / "kept").items() if "model/" not in name}
    kept = {name: content for name, content in files.items() if name.endswith(".json")}
    return [kept, {**kept, "kept/index.sqlite": files["kept/index.sqlite"]}]


def _reproduced(place: Path) -> None:
    """Judge the claims, make the sweep's table and show the runs; nothing is trained, whatever is missing."""
    from toposcope.cli import reproduce, runs, sweep
    from toposcope.core.errors import ToposcopeError
    from toposcope.runs import local
    from toposcope.studies.language import groups
    from toposcope.studies.reproduce import coupling, dynamics

    _forge(place / "kept")
    store = str(place / "kept")
    probe = _probe_config()
    changed: list[tuple[Any, str, Any]] = [
        (local, "run", lambda queue, **_: None),
        (coupling, "grid", lambda size, seeds: [_lab_config()]),
        (dynamics, "checked", list),
        (groups, "grid", lambda size, seeds: {"heads": [probe]}),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    refused, settings = None, [*SETTINGS]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for read in (
                lambda: reproduce.run("coupling", store=store, json=str(place / "c.json")),
                lambda: reproduce.run("dynamics", store=store, json=str(place / "d.json")),
                lambda: sweep.run(
                    ["count"], ["rope@heads:0,none"], seeds="1", settings=settings, store=store, html=str(place / "s")
                ),
                lambda: runs.run("ls", store=store, json=str(place / "l.json")),
                lambda: runs.run("show", [_lab_config().key()], store=store),
                lambda: runs.run("show", [probe.key()], store=store),
                lambda: _web_runs(place / "kept"),
            ):
                try:
                    read()
                except ToposcopeError as error:
                    refused = error
    finally:
        for module, name, value in before:
            setattr(module, name, value)
    if refused is not None:
        raise refused


def _web_runs(store: Path) -> None:
    from toposcope.web.library import Library
    from toposcope.web.reports import report_of

    library = Library(store)
    for row in library.runs():
        found = library.run(row["key"])["result"]
        if found is not None and row["kind"] == "train":
            report_of(found)


def _refine_seeds(scratch: Path) -> list[Tree]:
    import torch

    parameter = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    arm = {
        "step": 2,
        "training": [1.0, 0.5],
        "seconds": 0.1,
        "parameters": [parameter.detach()],
        "optimizer": optimizer.state_dict(),
    }
    from toposcope._version import __version__

    state = {"key": "k", "losses": {"before": [1.0, 2.0]}, "arms": {"diagonal": arm}, "toposcope": __version__}
    return [{"checkpoint.pt": _saved(state)}]


def _refine(place: Path) -> None:
    import torch

    from toposcope.studies.tuning import State

    parameter = torch.nn.Parameter(torch.ones(2, 3))
    state = State(place, "k")
    state.kept("before", lambda: [0.0])
    state.resume("diagonal", [parameter], torch.optim.Adam([parameter]))
    state.training("diagonal")
    state.seconds("diagonal")


def _refined_seeds(scratch: Path) -> list[Tree]:
    """A finished refinement, as the next call of the same command finds it."""
    words = ("--text", str(_stays("text.txt")), "--tokens", "8", "--steps", str(STEPS), "--held-out", "2")
    found = _written("refine", str(_language_model()), *words, "--out", str(scratch / "refined"))
    return [{"result.json": json.dumps({**json.loads(found), "key": "k"}).encode()}]


def _refined(place: Path) -> None:
    from toposcope.studies import refine

    _forge(place)
    found = refine._finished(place, "k")
    if found is not None:
        str(found)
        found.html(place / "r.html")


def _diagonal_seeds(scratch: Path) -> list[Tree]:
    import torch

    from toposcope.refinements.diagonal import save

    path = save(scratch / "d.safetensors", {0: torch.full((2, 4), 0.1)}, "slice")
    return [{"d.safetensors": path.read_bytes()}]


def _diagonal(place: Path) -> None:
    from toposcope.lab.model import Transformer
    from toposcope.refinements import diagonal

    model = Transformer(_lab_config().model())
    diagonal.load(model, place / "d.safetensors").remove()


def _flow_seeds(scratch: Path) -> list[Tree]:
    from toposcope.cli import main

    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(["flow", "--preset", "collapse", "--horizon", "1", "--tokens", "3", "--save", str(scratch / "f.npz")])
    return [{"f.npz": (scratch / "f.npz").read_bytes()}]


def _flow(place: Path) -> None:
    from toposcope.core.fields import plain
    from toposcope.dynamics.trajectory import Trajectory

    json.dumps(plain(Trajectory.load(place / "f.npz")))


def _npy_seeds(_: Path) -> list[Tree]:
    found = []
    for array in (np.eye(3), np.arange(6, dtype=np.int32).reshape(2, 3), np.float16([1, 2])):
        buffer = io.BytesIO()
        np.save(buffer, array)
        found.append({"w.npy": buffer.getvalue()})
    return found


def _npy(place: Path) -> None:
    from toposcope.dynamics.tokens import read_array

    read_array(str(place / "w.npy"), "W")


ABOUT = {"work": "ablate", "seed": 0, "options": {"a": [1, 2]}}


def _journal_seeds(scratch: Path) -> list[Tree]:
    from toposcope.core.journal import Journal

    with Journal(scratch / "j.jsonl", ABOUT) as journal:
        for number in range(5):
            journal.add({"what": f"0.{number}", "value": [number / 7, None]})
    return [{"j.jsonl": (scratch / "j.jsonl").read_bytes()}]


def _journal(place: Path) -> None:
    from toposcope.core.journal import Journal

    with Journal(place / "j.jsonl", ABOUT) as journal:
        journal.add({"what": "new"})


def _scan_journal_seeds(scratch: Path) -> list[Tree]:
    _scan(scratch)
    return [{"kept/journal.jsonl": (scratch / "kept" / "journal.jsonl").read_bytes()}]


def _scan(place: Path) -> None:
    """Scan, going on from what is kept."""
    from toposcope.cli import scan

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        scan.run(
            str(_stays("scanned")),
            random_baseline=True,
            layer_sums=False,
            context="32",
            out=str(place / "kept"),
            jobs=1,
        )


def _ablation_journal_seeds(scratch: Path) -> list[Tree]:
    _ablate(scratch)
    return [{"kept/journal.jsonl": (scratch / "kept" / "journal.jsonl").read_bytes()}]


def _ablate(place: Path) -> None:
    """Remove two heads, going on from what is kept."""
    from tests.unit.models.making import write_llama_lm
    from toposcope.cli import ablate

    model = _stays("ablated")
    if not model.exists():
        model.mkdir()
        write_llama_lm(model, num_hidden_layers=2)
    words = {"tokens": 10, "sequences": 2, "heads": "0.0,1.1", "only": "text", "sample": 0}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ablate.run(str(model), text=str(_stays("text.txt")), out=str(place / "kept"), **words)


def _store_seeds(scratch: Path) -> list[Tree]:
    from tests.unit.runs.making import trained
    from toposcope.runs.directory import Job, write_result
    from toposcope.runs.store import Claim, Store

    with Store(scratch / "store") as store:
        for number in range(4):
            config = {"task": "count", "encoding": "rope", "seed": number}
            claim = store.claim(Job(f"{number:016x}", "train", config))
            assert isinstance(claim, Claim)
            if number < 2:
                write_result(claim.directory, trained(seconds=1.0))
                store.finish(claim)
            else:
                store.fail(claim, "words") if number == 2 else store.release(claim)
    return [_tree(scratch / "store")]


def _store(place: Path) -> None:
    from toposcope.cli import main
    from toposcope.runs.store import Store

    with Store(place, create=False) as store:
        store.repair()
        rows = store.rows()
        for row in rows:
            store.get(row.key)
    with contextlib.redirect_stdout(io.StringIO()):
        for words in (["ls"], ["export", str(place / "out.csv")]):
            _command(main, ["runs", *words, "--store", str(place)])


def _command(main: Any, words: list[str]) -> None:
    """A command may end in a sentence (exit code 2) or well; any other exception is a crash."""
    with contextlib.suppress(SystemExit):
        main(words)


def _language_model() -> Path:
    """A tiny one that stays, made once."""
    from tests.unit.models.making import write_llama_lm

    model = _stays("lm")
    if not model.exists():
        model.mkdir()
        write_llama_lm(model, num_hidden_layers=LAYERS)
    return model


def _written(*words: str) -> bytes:
    """What a command writes with --json."""
    from toposcope.cli import main

    path = _stays("r.json")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        _command(main, [*words, "--json", str(path)])
    assert path.exists(), f"{words}: {said.getvalue()}"
    found = path.read_bytes()
    path.unlink()
    return found


@cache
def _results() -> tuple[bytes, ...]:
    """A result of every command that has one to read, as the command itself writes it."""
    model, store = str(_language_model()), str(_stays("store"))
    texts = ("--text", str(_stays("text.txt")), "--tokens", "10", "--sequences", "2")
    return (
        _written("scan", model),
        _written("check", model),
        _written("inspect", model),
        _written("compare", model, model),
        _written("flow", "--preset", "collapse", "--horizon", "1", "--tokens", "3"),
        _written("spectrum", "rope", "--context", "32"),
        _written("loss", model, *texts, "--encoding", "none"),
        _written("trace", model, *texts),
        _written("ablate", model, *texts, "--heads", "0.0,1.1"),
        _written(*TRAIN, "--store", store),
        _written("sweep", "--tasks", "count", "--encodings", "rope", "--seeds", "1", *TINY, "--store", store),
    )


def _result_seeds(_: Path) -> list[Tree]:
    return [{"r.json": each} for each in _results()]


def _report(place: Path) -> None:
    from toposcope.cli import report

    with contextlib.redirect_stdout(io.StringIO()):
        report.run([str(place / "r.json")], html=str(place / "r.html"))
    text = (place / "r.html").read_text()
    assert "<script>alert(1)" not in text, "a word of the result became code"


def _compare_seeds(_: Path) -> list[Tree]:
    """Two results of a kind."""
    kinds = {each: json.loads(each)["schema"].split("/")[1] for each in _results()}
    return [{"a.json": each, "b.json": each} for each, kind in kinds.items() if kind in ("scan", "trace", "ablate")]


def _compare(place: Path) -> None:
    from toposcope.cli import compare

    with contextlib.redirect_stdout(io.StringIO()):
        compare.run(str(place / "a.json"), str(place / "b.json"), csv=str(place / "c"), html=str(place / "c.html"))


def _frames(place: Path) -> None:
    from toposcope.report.kinds import read

    found = read(place / "r.json")
    for name in found.tables():
        found.frame(name)


def _speeches_seeds(_: Path) -> list[Tree]:
    return [{"sotu.json": json.dumps({"1906": "Gentlemen", "1907": "of the Senate", "2007": "é"}).encode()}]


def _speeches(place: Path) -> None:
    from toposcope.studies.language import sotu

    sotu.speeches.cache_clear()
    sotu.split(place / "sotu.json")


def _archive_seeds(scratch: Path) -> list[Tree]:
    from tests.faults.cases import write_addresses

    write_addresses(scratch / "sotu.tgz")
    inside = gzip.decompress((scratch / "sotu.tgz").read_bytes())  # damage past the checksum of gzip
    return [{"sotu.tgz": (scratch / "sotu.tgz").read_bytes()}, {"sotu.tgz": inside}]


def _archive(place: Path) -> None:
    from toposcope.studies.language import sotu

    os.environ["TOPOSCOPE_CACHE"] = str(place / "cache")
    try:
        sotu.split(sotu.fetch(place / "sotu.tgz"))
    finally:
        del os.environ["TOPOSCOPE_CACHE"]


def _reference_seeds(scratch: Path) -> list[Tree]:
    from tests.unit.models.making import write_llama_lm

    (scratch / "lm").mkdir()
    write_llama_lm(scratch / "lm", num_hidden_layers=1)
    return [_tree(scratch / "lm")]


def _reference(place: Path) -> None:
    """The files of a model as transformers reads them."""
    from toposcope.models.load import load_reference

    load_reference(place, head=True)


def _gguf_copy_seeds(scratch: Path) -> list[Tree]:
    """What the cache keeps of a GGUF file, and the file."""
    copy = _reference_seeds(scratch)[0]
    return [{"m.gguf": _gguf_model_seeds(scratch)[0]["m.gguf"], **{f"copy/{name}": copy[name] for name in copy}}]


def _gguf_copy(place: Path) -> None:
    from toposcope.models import gguf_cache
    from toposcope.models.load import load_reference

    os.environ[gguf_cache.SETTING] = str(place / "cache")
    try:
        where = gguf_cache.directory_for(place / "m.gguf")
        assert where is not None
        where.parent.mkdir(parents=True)
        (place / "copy").rename(where)
        load_reference(place / "m.gguf", head=True)
    finally:
        del os.environ[gguf_cache.SETTING]


def _smiles_seeds(_: Path) -> list[Tree]:
    from toposcope.models.smiles import TELLING

    return [{"vocab.txt": "\n".join([*sorted(TELLING), *(f"[C{n}]" for n in range(400))]).encode()}]


def _smiles(place: Path) -> None:
    from toposcope.core.errors import ToposcopeError
    from toposcope.models.smiles import is_smiles, smiles_tokenizer

    if not is_smiles(place / "vocab.txt"):
        raise ToposcopeError("no vocabulary of molecules: another tokenizer is tried")
    smiles_tokenizer(place / "vocab.txt")("[CLS]CC(=O)Br")


def _lock_seeds(_: Path) -> list[Tree]:
    from toposcope.runs.lock import NAME

    return [{NAME: json.dumps({"owner": "host:12", "since": "now"}).encode()}]


def _lock(place: Path) -> None:
    from toposcope.runs import lock

    lock.holder(place)
    held = lock.take(place, lock.here())
    assert held is not None
    held.close()


def _web(place: Path) -> None:
    from toposcope.web.library import Library
    from toposcope.web.reports import report_of

    library = Library(place / "none", [place / "r.json"])
    library.files()
    report_of(library.file("r0")[1])


def _words_seeds(_: Path) -> list[Tree]:
    words = [
        "rope:base=500,scaling=yarn,factor=8",
        "alibi",
        "t5:buckets=16",
        "rope@heads:0-1,none",
        "0-3,7",
        "3.2,5.0-4",
        "0-4,7",
        "steps=200",
        "task.between=10",
        "12,7,400",
        "mla:rank=4",
        "sinusoidal:length=64",
        "all",
    ]
    return [{"words.txt": word.encode()} for word in words]


def _words(place: Path) -> None:
    """What users type, and texts they give."""
    from toposcope.core.errors import ToposcopeError
    from toposcope.core.ranges import parse_heads, parse_range
    from toposcope.dynamics.tokens import read_ids
    from toposcope.encodings import parse
    from toposcope.lab.mix import parse_mix
    from toposcope.models.load import read_text
    from toposcope.runs.grid import read_changes, read_seeds, split_encodings
    from toposcope.web.query import Query

    text = read_text(place / "words.txt")
    for read in (
        parse,
        parse_mix,
        lambda given: parse_range(given, 12),
        parse_heads,
        read_seeds,
        lambda given: read_changes([given]),
        lambda given: split_encodings([given]),
        read_ids,
        lambda given: Query([("a", given)]).whole("a", 0, 0, 9),
        lambda given: Query([("a", given)]).number("a", 0.0, 0.0, 9.0),
        lambda given: Query([("a", given)]).text("a"),
    ):
        with contextlib.suppress(ToposcopeError):
            read(text)


OF_TRANSFORMERS = ("model.safetensors",)
SETTINGS_OF_TRANSFORMERS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
OF_A_COPY = tuple(f"copy/{name}" for name in (*OF_TRANSFORMERS, *SETTINGS_OF_TRANSFORMERS))
READERS = (
    Reader(
        "safetensors",
        _named("m.safetensors", safetensors_seeds()),
        _safetensors,
        ("m.safetensors",),
        m.SAFETENSORS,
        6,
    ),
    Reader("gguf", _named("m.gguf", gguf_seeds()), _gguf, ("m.gguf",), m.BYTES, 6),
    Reader("gguf model", _gguf_model_seeds, _whole_model, ("m.gguf",), m.BYTES, 2),
    Reader("torch, zip", _torch_seeds(True), _torch, ("m.bin",), m.ARCHIVE, 4),
    Reader("torch, old", _torch_seeds(False), _torch, ("m.bin",), m.BYTES, 4),
    Reader("shard index", _sharded_seeds, _whole_model, ("model.safetensors.index.json",), m.JSON, 2),
    Reader("config.json", _config_seeds, _whole_model, ("config.json",), m.JSON, 4),
    Reader("model of the lab", _lab_model_seeds, _lab_model, ("config.json", "model.safetensors"), m.JSON, 1),
    Reader("run.json, result.json", _lab_result_seeds, _lab_result, ("run.json", "result.json"), m.JSON, 3),
    Reader("checkpoint of train", _lab_checkpoint_seeds, _lab_checkpoint, ("checkpoint.pt",), m.ARCHIVE, 0.6),
    Reader("checkpoint of refine", _refine_seeds, _refine, ("checkpoint.pt",), m.ARCHIVE, 2),
    Reader("diagonal", _diagonal_seeds, _diagonal, ("d.safetensors",), m.SAFETENSORS, 1),
    Reader("flow.npz", _flow_seeds, _flow, ("f.npz",), m.ARCHIVE, 2),
    Reader("array.npy", _npy_seeds, _npy, ("w.npy",), m.BYTES, 4),
    Reader("journal", _journal_seeds, _journal, ("j.jsonl",), m.JOURNAL, 4),
    Reader("index.sqlite", _store_seeds, _store, ("index.sqlite",), m.DATABASE, 0.8),
    Reader("result, report", _result_seeds, _report, ("r.json",), m.JSON, 0.4),
    Reader("result, web", _result_seeds, _web, ("r.json",), m.JSON, 0.2),
    Reader("result, compare", _compare_seeds, _compare, ("a.json",), m.JSON, 0.3),
    Reader("result, frame", _result_seeds, _frames, ("r.json",), m.JSON, 0.6),
    Reader("journal of a scan", _scan_journal_seeds, _scan, ("kept/journal.jsonl",), m.JOURNAL, 0.3),
    Reader("journal of ablate", _ablation_journal_seeds, _ablate, ("kept/journal.jsonl",), m.JOURNAL, 0.3),
    Reader("result of refine", _refined_seeds, _refined, ("result.json",), m.JSON, 0.4),
    Reader("checkpoint of the probe", _probe_seeds, _probe, ("checkpoint.pt",), m.ARCHIVE, 0.5),
    Reader("runs, judged", _reproduced_seeds, _reproduced, ("kept/*/*.json",), m.JSON, 0.2),
    Reader("addresses", _speeches_seeds, _speeches, ("sotu.json",), m.JSON, 1),
    Reader("addresses, archive", _archive_seeds, _archive, ("sotu.tgz",), m.BYTES, 1),
    Reader("files of transformers", _reference_seeds, _reference, OF_TRANSFORMERS, m.SAFETENSORS, 0.15),
    Reader("settings of transformers", _reference_seeds, _reference, SETTINGS_OF_TRANSFORMERS, m.JSON, 0.15),
    Reader("copy of a GGUF file", _gguf_copy_seeds, _gguf_copy, OF_A_COPY, m.SAFETENSORS, 0.15),
    Reader("vocabulary of molecules", _smiles_seeds, _smiles, ("vocab.txt",), m.BYTES, 0.5),
    Reader("lock of a run", _lock_seeds, _lock, (".lock",), m.JSON, 0.5),
    Reader("words and texts", _words_seeds, _words, ("words.txt",), m.WORDS, 4),
)


def by_name() -> dict[str, Reader]:
    return {reader.name: reader for reader in READERS}


def quiet() -> None:
    """Colours and widths of a terminal play no part."""
    os.environ.setdefault("COLUMNS", "80")
