"""What the fuzz and the walk have found, each as a case of its own."""

from __future__ import annotations

import errno
import gzip
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.faults import cases
from toposcope.core.errors import BadConfig, BadFile, BadValue, NotFound, ToposcopeError
from toposcope.runs import lock

for package in ("torch", "transformers", "matplotlib"):
    pytest.importorskip(package, reason="readers and writers of these are among them")


def command(*arguments: str) -> int:
    from toposcope.cli import main

    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


# ------------------------------------------------------------- journals


def test_a_sweep_measures_the_whole_model_again_where_its_line_was_removed(tmp_path: Path) -> None:
    from tests.unit.models.making import TEXT, write_llama_lm

    (tmp_path / "lm").mkdir()
    write_llama_lm(tmp_path / "lm", num_hidden_layers=2)
    (tmp_path / "text.txt").write_text(TEXT * 6)
    words = ("--text", str(tmp_path / "text.txt"), "--tokens", "10", "--sequences", "2", "--only", "text")
    call = ("ablate", str(tmp_path / "lm"), *words, "--heads", "0.0,1.1", "--out", str(tmp_path / "kept"))
    assert command(*call) == 0
    journal, result = tmp_path / "kept" / "journal.jsonl", tmp_path / "kept" / "result.json"
    lines, before = journal.read_text().splitlines(keepends=True), json.loads(result.read_text())
    left = [line for line in lines if '"what":"whole"' not in line or '"sequence":1' not in line]
    assert len(left) == len(lines) - 1
    journal.write_text("".join(left))
    assert command(*call) == 0
    assert json.loads(result.read_text())["heads"] == before["heads"]
    assert sorted(journal.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_a_changed_record_of_a_scan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.tiny import write_llama

    model = write_llama(tmp_path / "lm")
    call = ("scan", str(model), "--out", str(tmp_path / "kept"))
    assert command(*call) == 0
    journal = tmp_path / "kept" / "journal.jsonl"
    lines = journal.read_text().splitlines()
    entry = json.loads(lines[2])
    for change in ({"record": "{}"}, {"record": 7}, {"layer": "x"}, {"read": None}, {"layer": 99}):
        journal.write_text("\n".join([*lines[:2], json.dumps({**entry, **change}), *lines[3:]]) + "\n")
        capsys.readouterr()
        assert command(*call) == 2
        said = capsys.readouterr().err
        assert "line 3" in said
        assert journal.name in said


# ------------------------------------------------------------- stored results


def damage(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_store_with_a_damaged_result_is_told_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toposcope.runs.grid import grid, read_changes
    from toposcope.studies.reproduce import coupling

    configs = grid(["count"], ["rope"], [0], changes=read_changes(cases.SETTINGS))
    monkeypatch.setattr(coupling, "grid", lambda size, seeds: configs)
    monkeypatch.chdir(tmp_path)
    assert command(*cases.TRAIN, "--store", "kept") == 0
    result = Path("kept") / configs[0].key() / "result.json"
    sound = result.read_text()
    damage(result, ablation=[1])
    assert command("reproduce", "coupling", "--store", "kept") == 0
    assert result.name in capsys.readouterr().err
    assert json.loads(result.read_text())["ablation"] == json.loads(sound)["ablation"], "the work was done again"
    damage(result, accuracy="none")
    (Path("kept") / "index.sqlite").unlink()
    sweep = ("sweep", "--tasks", "count", "--encodings", "rope", "--seeds", "1", *cases.TINY)
    assert command(*sweep, "--store", "kept") == 0
    assert result.name in capsys.readouterr().err


def test_a_damaged_run_of_the_probe_is_shown_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from toposcope.runs.directory import Job, write_result
    from toposcope.runs.store import Claim, Store

    with Store(tmp_path / "kept") as store:
        claim = store.claim(Job("0" * 16, "probe", {}))
        assert isinstance(claim, Claim)
        write_result(claim.directory, {"bits_held": "few"})
        store.finish(claim)
    assert command("runs", "show", "0" * 16, "--store", str(tmp_path / "kept")) == 0
    assert "few" in capsys.readouterr().out


def test_steps_that_took_no_time_have_no_ratio() -> None:
    from toposcope.studies.language.outcome import Found

    runs = [{"config": {"cell": cell, "seed": 0}, "step_seconds": 0.0} for cell in ("free", "slice")]
    assert Found({"heads": runs}).slower("heads", "slice", "free") is None


def test_a_changed_result_of_refine_is_told_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.report import making

    model = making.language_model(tmp_path / "lm")
    making.refined(model)
    words = ("--text", str(model / "text.txt"), "--tokens", "16", "--steps", "4", "--held-out", "3")
    call = ("refine", str(model), *words, "--out", str(model / "refined"))
    assert command(*call) == 0
    for change in ({"moved": None}, {"provenance": None}, {"held_out": {"before": []}}):
        sound = (model / "refined" / "result.json").read_text()
        damage(model / "refined" / "result.json", **change)
        capsys.readouterr()
        assert command(*call) == 2
        assert "result.json" in capsys.readouterr().err
        (model / "refined" / "result.json").write_text(sound)


def test_changed_results_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.tiny import write_llama

    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert command("scan", str(write_llama(tmp_path / "lm")), "--json", str(a)) == 0
    heads = json.loads(a.read_text())["heads"]
    for change in ([{**heads[0], "layer": None}], [{**row, "verdict": ["?"], "kernel": "x"} for row in heads]):
        b.write_text(json.dumps({**json.loads(a.read_text()), "heads": change}))
        assert command("compare", str(a), str(b)) == 2
        assert "toposcope: " in capsys.readouterr().err


# ------------------------------------------------------------- other readers


def test_a_damaged_checkpoint_of_the_probe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toposcope.core.saved import restore, save
    from toposcope.studies.language import probe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "text.txt").write_text("the house of the people " * 40)
    config = cases.make_probe("free", length=8, batch=2, steps=4)
    probe.run(config, tmp_path / "run", stop_after=2)
    state = restore(tmp_path / "run", ())
    assert state is not None
    for change in ({"model": {}}, {"generator": None}, {"step": -1}, {"step": 2.5}, {"history": {}}):
        save(tmp_path / "run", {**state, **change})
        with pytest.raises(BadFile, match="damaged"):
            probe.run(config, tmp_path / "run")


@pytest.mark.parametrize("seed", [float("inf"), 2**63, -1, "7", None])
def test_a_model_of_the_laboratory_with_an_odd_seed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: Any
) -> None:
    from toposcope.lab.export import export
    from toposcope.lab.load import load_model
    from toposcope.lab.model import Transformer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "text.txt").write_text("the house of the people " * 40)
    model = Transformer(cases.make_probe("free", length=8).model())
    export(model, tmp_path / "model", task="bytes", run="0")
    assert load_model(tmp_path / "model").config == model.config
    path = tmp_path / "model" / "config.json"
    said = json.loads(path.read_text())
    damage(path, lab={**said["lab"], "seed": seed})
    with pytest.raises(BadConfig):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    "change", [{"layers": 10**30}, {"heads": 10**30, "width": 10**30}, {"head_dim": 2**31}, {"width": 2**31}]
)
def test_a_run_of_endless_sizes_is_refused_at_once(change: dict[str, int]) -> None:
    from toposcope.lab.config import RunConfig

    with pytest.raises(BadValue, match="at most"):
        RunConfig.from_dict({"task": "count", "encoding": "rope", "seed": 0, **change})


def test_addresses_that_cannot_be_had_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toposcope.studies.language import sotu

    cases.write_addresses(tmp_path / "sotu.tgz")
    whole = (tmp_path / "sotu.tgz").read_bytes()
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "directory.tgz").write_bytes(gzip.compress(_entry_without_content(gzip.decompress(whole))))
    for name in ("cut.tgz", "directory.tgz"):
        with pytest.raises(BadFile, match="archive"):
            sotu.fetch(tmp_path / name)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(NotFound, match="TOPOSCOPE_CACHE"):
        sotu.fetch(tmp_path / "sotu.tgz")


def _entry_without_content(archive: bytes) -> bytes:
    """The first member becomes a directory, and its checksum fits."""
    header = bytearray(archive[:512])
    header[156:157] = b"5"
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + archive[512:]


@pytest.mark.parametrize("content", ["{}", "[]", '"x"', "7", "[" * 60_000, "{"])
def test_a_lock_that_says_nothing_is_anothers(tmp_path: Path, content: str) -> None:
    (tmp_path / lock.NAME).write_text(content)
    assert lock.holder(tmp_path) == "another process"


def test_files_that_transformers_cannot_read_end_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.models.making import write_llama_lm
    from toposcope.models import gguf_cache
    from toposcope.models.load import load_reference

    monkeypatch.setenv(gguf_cache.SETTING, str(tmp_path / "cache"))
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF of which only the hash matters here")
    copy = gguf_cache.directory_for(gguf)
    assert copy is not None
    copy.mkdir(parents=True)
    write_llama_lm(copy, num_hidden_layers=1)
    assert load_reference(gguf).path == gguf
    sound = {name: (copy / name).read_bytes() for name in ("model.safetensors", "config.json", "tokenizer.json")}
    config = json.loads(sound["config.json"])
    for name, content in (
        ("model.safetensors", sound["model.safetensors"][:-40]),
        ("config.json", json.dumps({**config, "hidden_size": "x"}).encode()),
        ("tokenizer.json", sound["tokenizer.json"].replace(b'"model"', b'"mode"')),
    ):
        (copy / name).write_bytes(content)
        with pytest.raises(ToposcopeError):
            load_reference(copy)
        with pytest.raises(BadFile, match=re.escape(str(gguf))):
            load_reference(gguf)
        (copy / name).write_bytes(sound[name])


def test_a_vocabulary_of_molecules_with_odd_bytes_is_read(tmp_path: Path) -> None:
    from toposcope.models.smiles import TELLING, is_smiles, smiles_tokenizer

    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join(sorted(TELLING)).encode() + b"\n\xff\xfe\n")
    assert is_smiles(path)
    numbers = smiles_tokenizer(path)("CCBr")["input_ids"]
    assert numbers[1:-1] == [sorted(TELLING).index(word) for word in ("C", "C", "Br")]


# ------------------------------------------------------------- writers


@pytest.mark.parametrize("place", [("--store", "kept"), ("--out", "kept/run")])
def test_the_state_of_a_finished_run_goes_though_a_process_was_killed_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[str, str]
) -> None:
    from toposcope.core.saved import NAME as STATE

    monkeypatch.chdir(tmp_path)
    call = (*cases.TRAIN, *place)
    assert command(*call) == 0
    run = next(path for path in Path("kept").iterdir() if path.is_dir())
    for _ in range(2):
        (run / STATE).write_bytes(b"what a killed process left")
        (Path("kept") / "index.sqlite").unlink(missing_ok=True)
        assert command(*call) == 0
        assert not (run / STATE).exists()


def test_a_state_that_cannot_be_removed_spoils_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toposcope.core import saved

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", denied)
    saved.clear(tmp_path)


@pytest.mark.parametrize("call", ["mkdtemp", "read_bytes"])
def test_a_movie_that_finds_no_room_ends_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    from toposcope.report import movie

    def full(*_: Any, **__: Any) -> Sequence[Any]:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Moving:
        def save(self, target: Path, **_: Any) -> None:
            target.write_bytes(b"GIF89a")

    assert movie._as_gif(Moving(), None) == b"GIF89a"
    monkeypatch.setattr(tempfile if call == "mkdtemp" else Path, call, full)
    with pytest.raises(BadValue, match="space"):
        movie._as_gif(Moving(), None)


def test_rows_of_a_table_are_those_of_the_whole() -> None:
    """The fuzz compares them in every sound file; here it is seen to notice where they differ."""
    from tests.faults.readers import _whole_and_rows

    class Source:
        metadata: ClassVar[dict[str, Any]] = {}

        def names(self) -> list[str]:
            return ["w"]

        def info(self, _: str) -> Any:
            return np.zeros((3, 2))

        def read(self, _: str) -> Any:
            return np.arange(6.0).reshape(3, 2)

        def read_rows(self, _: str, rows: Any) -> Any:
            return np.arange(6.0).reshape(3, 2)[rows][::-1]

        def close(self) -> None:
            pass

    with pytest.raises(AssertionError):
        _whole_and_rows(Path("-"), lambda _: Source())


def test_series_of_a_flow_that_differ_in_length(tmp_path: Path) -> None:
    """Found by the fuzzer: a saved flow with a series cut short, or without its times, was read and not tabled."""
    import toposcope

    result = toposcope.flow(preset="collapse", horizon=0.5)
    saved = json.loads(Path(result.save(tmp_path / "flow.json")).read_text())
    series = saved["flows"][0]["observables"]
    for damaged in ({**series, "time": series["time"][:-1]}, {k: v for k, v in series.items() if k != "time"}):
        saved["flows"][0]["observables"] = damaged
        (tmp_path / "damaged.json").write_text(json.dumps(saved))
        with pytest.raises(BadFile):
            toposcope.read(tmp_path / "damaged.json")
