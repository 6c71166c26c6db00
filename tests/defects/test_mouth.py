"""Defects 7 to 10: words from elsewhere, numbers that imply too much, tracebacks, formulas in tables."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.unit.checkpoints.making import gguf_bytes, gguf_pair, gguf_string
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core.result import csv_text
from toposcope.dynamics.flow import flow
from toposcope.encodings import Sizes, kinds, parse
from toposcope.encodings.registry import _brought
from toposcope.report import render
from toposcope.runs.directory import Job
from toposcope.runs.store import Store
from toposcope.spectra.encoding_spectrum import spectrum_of as spectrum

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.[/bold][link=x]"
Told = tuple[int, str, str]
Command = Callable[..., Told]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command here; whatever it raises but its exit code is a failure of the test."""
    monkeypatch.setenv("TOPOSCOPE_TRACEBACK", "1")

    def call(*words: object) -> Told:
        capsys.readouterr()
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def unseen(text: str) -> list[str]:
    """The characters of a text that a terminal or a browser obeys, or does not show."""
    return [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Cs")]


def with_config(place: Path, **changes: Any) -> Path:
    """A sound model whose configuration claims something else."""
    model = write_llama(place)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    return model


def with_weights(place: Path, size: float, kind: type) -> Path:
    """A model all of whose projections hold numbers of one size."""
    model = write_llama(place)
    held = load_file(model / "model.safetensors")
    made = {name: np.where(value > 0, size, -size).astype(kind) for name, value in held.items() if "proj" in name}
    save_file({**held, **made}, model / "model.safetensors")
    return model


# ------------------------------------------------------------------ 7: words
@pytest.mark.parametrize("model_type", [NASTY, "ll\u202eama", "ama\nok: all is well"])
def test_7_escapes_of_a_model_type(command: Command, tmp_path: Path, model_type: str) -> None:
    code, out, err = command("check", with_config(tmp_path / "model", model_type=model_type))
    assert code == 2
    assert "model_type" in err
    assert unseen(out + err) == []
    assert not any(line.startswith("ok:") for line in err.splitlines()), "a name adds no lines of its own"


def test_7_escapes_of_a_gguf_architecture(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes([gguf_pair("general.architecture", 8, gguf_string(NASTY))]))
    code, out, err = command("inspect", path)
    assert code == 2
    assert unseen(out + err) == []


def test_7_keys_of_a_torch_dict(command: Command, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({NASTY: 1.0, "inner": {NASTY: [torch.ones(1)]}}, tmp_path / "model.pt")
    code, out, err = command("inspect", tmp_path / "model.pt")
    assert code == 2
    assert unseen(out + err) == []


@pytest.mark.parametrize("name", ["a[/bold]b", "a[bold]b", "[link=x]", NASTY.replace("/", "|")])
@pytest.mark.parametrize("verb", ["check", "inspect", "scan"])
def test_7_names_of_directories(command: Command, tmp_path: Path, name: str, verb: str) -> None:
    code, out, err = command(verb, write_llama(tmp_path / name))
    assert code == 0
    assert unseen(out + err) == []
    last = Path(name).name
    shown = last if last.isprintable() else last.encode("unicode_escape").decode()
    assert shown in out.splitlines()[0], "what is not seen is shown, and markup is text"


def test_7_a_flow_from_a_file_with_markup_for_a_name(command: Command, tmp_path: Path) -> None:
    where = tmp_path / "w[" / "bold]\x1b[2J.npy"
    where.parent.mkdir()
    np.save(where, -np.eye(2))
    code, out, err = command("flow", "--W", where, "--V", where, "--horizon", "1")
    assert code == 0
    assert unseen(out + err) == []


def test_7_a_model_type_of_a_megabyte_is_not_printed_whole(command: Command, tmp_path: Path) -> None:
    code, out, err = command("check", with_config(tmp_path / "model", model_type="x" * 1_000_000))
    assert code == 2
    assert len(out + err) < 10_000


@pytest.mark.parametrize("verb", [["ls"], ["show", "00aa"], ["export", "-"]])
def test_7_fields_of_a_store(command: Command, tmp_path: Path, verb: list[str]) -> None:
    store = Store(tmp_path / "store")
    store.add([Job("00aa", "train", {"task": NASTY, "encoding": NASTY, "seed": 0, NASTY: "x" * 100_000})])
    store.close()
    code, out, err = command("runs", *verb, "--store", tmp_path / "store")
    assert code in (0, 2)
    assert unseen(out + err) == []
    assert verb[0] == "export" or len(out + err) < 20_000


def test_7_options_that_are_no_options(command: Command) -> None:
    code, out, err = command("scan", "model", f"--{NASTY}", "x" * 100_000)
    assert code == 2
    assert unseen(out + err) == []
    assert len(out + err) < 10_000


def test_7_a_page_shows_what_is_not_seen(command: Command, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    assert command("inspect", model, "--json", tmp_path / "x.json")[0] == 0
    result = json.loads((tmp_path / "x.json").read_text())
    result["provenance"]["subjects"][0] |= {"path": f"/m/{NASTY}".replace("[/", "["), "family": NASTY, "name": NASTY}
    result["skipped"] = [{"what": NASTY, "why": "x" * 100_000, "tensors": []}]
    page = render([result])
    assert unseen(page) == []
    assert "x" * 1000 not in page.partition('id="data"')[0]


def test_7_json_on_a_terminal_is_the_same_json(command: Command, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "a\x9b31m\u202eb")
    code, out, _ = command("inspect", model, "--json", "-")
    assert code == 0
    assert unseen(out) == []
    assert json.loads(out)["provenance"]["subjects"][0]["path"] == str(model)


@pytest.mark.sample(3, of="long commands")
def test_7_a_movie_of_a_name_with_dollars(tmp_path: Path) -> None:
    """matplotlib would take what stands between two dollar signs for a formula."""
    pytest.importorskip("matplotlib")
    found = flow(preset="collapse", tokens=2, horizon=0.1)
    named = replace(found, flows=(replace(found.flows[0], title=r"w$\frac$"),))
    assert named.movie(tmp_path / "flow.gif").read_bytes().startswith(b"GIF")


# ------------------------------------------------------------------ 8: memory and time
MEMORY = 3 << 30
ABSURD: Mapping[str, tuple[str, ...]] = {
    "head_dim of a configuration": ("check", "{model}"),
    "head of 10^7": ("spectrum", "rope", "--head-dim", str(10**7)),
    "learned table of 10^9": ("spectrum", "learned:length=1000000000", "--context", "64"),
    "sinusoid of width 10^8": ("spectrum", "sinusoidal", "--width", str(10**8), "--context", "64"),
    "10^9 buckets": ("spectrum", "t5:buckets=1000000000", "--context", "64"),
    "10^10 hidden units": ("spectrum", "fire:hidden=10000000000", "--context", "64"),
    "10^8 heads": ("spectrum", "alibi", "--heads", str(10**8), "--context", "64"),
    "10^7 tokens": ("flow", "--preset", "collapse", "--n", str(10**7)),
}


@pytest.mark.parametrize("name", ABSURD)
def test_8_what_numbers_imply_is_foreseen(tmp_path: Path, name: str) -> None:
    model = with_config(tmp_path / "model", head_dim=2**24)
    words = [word.format(model=model) for word in ABSURD[name]]
    environment = {key: value for key, value in os.environ.items() if key != "TOPOSCOPE_TRACEBACK"}
    ended = subprocess.run(
        [sys.executable, "-c", "from toposcope.cli import main; main()", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env={**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        check=False,
    )
    assert ended.returncode == 2, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["kerple", "t5", "xpos"])
def test_8_a_context_that_would_take_hours_is_left_out(name: str) -> None:
    found = spectrum(parse(name).build(Sizes(512, 8, 64, 10**12)), [64, 10**12])
    assert [point.context for point in found.points] == [64]
    assert len(found.skipped) == 1


# ------------------------------------------------------------------ 9: tracebacks
def test_9_more_layers_claimed_than_stored(command: Command, tmp_path: Path) -> None:
    model = with_config(tmp_path / "model", num_hidden_layers=7)
    for verb in ("scan", "inspect", "check"):
        code, _, err = command(verb, model)
        assert code == 2
        assert "layers.3." in err


@pytest.mark.parametrize(("size", "kind"), [(3e38, np.float32), (1e200, np.float64)])
@pytest.mark.parametrize("words", [("scan",), ("inspect",), ("flow", "--head", "0.0"), ("flow", "--stack")])
def test_9_weights_whose_products_overflow(
    command: Command, tmp_path: Path, size: float, kind: type, words: tuple[str, ...]
) -> None:
    code, _, err = command(words[0], with_weights(tmp_path / "model", size, kind), *words[1:])
    assert code == 2
    assert "proj" in err


@pytest.mark.parametrize("verb", ["check", "inspect", "scan"])
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "dynamic", "factor": 1e300}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1e308, "beta_slow": 1e-320}},
        {"rope_theta": 10**400},
        {"rms_norm_eps": -1.0},
    ],
)
def test_9_numbers_of_a_configuration(command: Command, tmp_path: Path, verb: str, changes: dict[str, Any]) -> None:
    code, _, err = command(verb, with_config(tmp_path / "model", **changes))
    assert code == 2
    assert "BadConfig" in err or "BadFile" in err


@pytest.mark.parametrize(
    "words",
    [
        ("--preset", "collapse", "--seed", "-1"),
        ("--preset", "collapse", "--add-diagonal", "1e308"),
        ("--preset", "collapse", "--n", "9" * 30),
        ("--preset", "collapse", "--encoding", "learned:std=1e308"),
        ("--preset", "collapse", "--encoding", "kerple:r1=1e308"),
        ("--W", "{one}", "--V", "{huge}"),
        ("--W", "{huge}", "--V", "{one}"),
        ("--W", "{one}", "--V", "{tiny}"),
    ],
)
def test_9_numbers_of_a_flow(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    places = {"one": 1.0, "huge": 1e300, "tiny": 1e-300}
    for name, size in places.items():
        np.save(tmp_path / f"{name}.npy", size * np.array([[-1.0, 0.5], [0.25, -2.0]]))
    files = {name: tmp_path / f"{name}.npy" for name in places}
    assert command("flow", *(word.format(**files) for word in words))[0] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("rope:scaling=dynamic,factor=1e300",),
        ("alibi", "--context", "9" * 30),
        ("rope", "--context", "9" * 400),
        ("sinusoidal:denominator=1e-320",),
        ("xpos:scale_base=1e-320",),
    ],
)
def test_9_numbers_of_a_spectrum(command: Command, words: tuple[str, ...]) -> None:
    assert command("spectrum", *words)[0] == 2


def test_9_a_context_of_400_digits(command: Command, tmp_path: Path) -> None:
    assert command("scan", write_llama(tmp_path / "model"), "--context", "9" * 400)[0] == 2


def test_9_an_accuracy_of_400_digits(command: Command, tmp_path: Path) -> None:
    """A store that somebody else wrote: its rows are shown without the number, or refused in a sentence."""
    number = "9" * 400
    store = Store(tmp_path / "store")
    claim = store.claim(Job("00aa", "train", {"task": "distance", "encoding": "rope", "seed": 0}))
    result = claim.directory / "result.json"  # type: ignore[union-attr]
    result.write_text(f'{{"accuracy": {number}, "seconds": 1.0, "steps": 3}}')
    store.release(claim)  # type: ignore[arg-type]
    store.close()
    (tmp_path / "store/index.sqlite").unlink(missing_ok=True)
    for words in (["ls"], ["show", "00aa"], ["export", str(tmp_path / "x.csv")]):
        code, out, _ = command("runs", *words, "--store", tmp_path / "store")
        assert code in (0, 2)
        assert number not in out


PLUGIN = """
from toposcope.encodings import Encoding, Kind, LogitBias

def fail(*_):
    raise {error}

def build(sizes, given):
    {body}

BROKEN = Kind("broken", "fails when it is used", "bias", build)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    site = tmp_path / "site"
    info = site / "bad_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[toposcope.encodings]\nbroken = bad_plugin_module:BROKEN\n")
    monkeypatch.syspath_prepend(str(site))
    for cached in (kinds, _brought):
        cached.cache_clear()
    yield lambda error, body: (site / "bad_plugin_module.py").write_text(PLUGIN.format(error=error, body=body))
    sys.modules.pop("bad_plugin_module", None)
    for cached in (kinds, _brought):
        cached.cache_clear()


@pytest.mark.parametrize("error", ["ValueError('it broke \\x1b[2J')", "OverflowError()", "RecursionError()"])
@pytest.mark.parametrize(
    "body", ["fail()", "return Encoding('broken', '', {}, bias=LogitBias(sizes.heads, fail, toeplitz=True))"]
)
def test_9_a_plugin_that_fails_when_called(
    command: Command, monkeypatch: pytest.MonkeyPatch, plugin: Callable[[str, str], None], error: str, body: str
) -> None:
    plugin(error, body)
    monkeypatch.delenv("TOPOSCOPE_TRACEBACK", raising=False)
    code, out, err = command("spectrum", "broken", "--context", "64")
    assert code == 2
    assert "bad-plugin" in err, "the package that is to be mended is named"
    assert "1.0" in err
    assert unseen(out + err) == []


@pytest.mark.parametrize(
    "body",
    ["return None", "return Encoding('broken', '', {}, bias=LogitBias(sizes.heads, lambda q, k: q, toeplitz=True))"],
)
def test_9_a_plugin_that_gives_something_else(
    command: Command, plugin: Callable[[str, str], None], body: str
) -> None:
    plugin("ValueError", body)
    code, _, err = command("spectrum", "broken", "--context", "64")
    assert code == 2
    assert "BadEncoding" in err


def test_9_what_nobody_foresaw_is_still_a_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise FloatingPointError("overflow")

    monkeypatch.setattr("toposcope.spectra.spectrum.spectrum_of", fail)
    monkeypatch.delenv("TOPOSCOPE_TRACEBACK", raising=False)
    code, _, err = command("spectrum", "rope", "--context", "64")
    assert code == 3, "a bug is told from a mistake by its exit code"
    assert "Traceback" not in err
    assert "FloatingPointError" in err


# ------------------------------------------------------------------ 10: tables that are opened in a spreadsheet
def test_10_cells_are_no_formulas(tmp_path: Path) -> None:
    formulas = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1+1", "=cmd|' /C calc'!A0"]
    numbers = [-0.5, 0.25, -3, "-0.5", "+1e-3", "-inf", None, True]
    rows = [{"text": text, "=name": number} for text, number in zip(formulas, numbers, strict=True)]
    (tmp_path / "x.csv").write_text(csv_text(rows, list(rows[0])))
    head, *cells = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert not any(re.match(r"\s*[=+@-]", cell) for cell in [*head, *(row[0] for row in cells)])
    assert [row[1] for row in cells] == ["-0.5", "0.25", "-3", "-0.5", "+1e-3", "-inf", "", "True"]


def test_10_exported_runs_are_no_formulas(command: Command, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.add([Job("00aa", "train", {"task": "=HYPERLINK(1)", "encoding": "+x", "seed": -1})])
    store.close()
    assert command("runs", "export", tmp_path / "x.csv", "--store", tmp_path / "store")[0] == 0
    head, row = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert not any(re.match(r"[=+@]", cell) for cell in row)
    assert "'=HYPERLINK(1)" in row
    assert "-1" in row, "numbers stay numbers"
    assert head
