"""The command line as a user meets it: help, tables, JSON, and errors without tracebacks."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tiny import write_llama
from toposcope.cli import COMMANDS, main

# Loaded in a child before toposcope: makes the heavy libraries impossible to import, as in the core install.
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "ray", "starlette", "matplotlib"):
    sys.modules[name] = None
from toposcope.cli import main
main(sys.argv[1:])
"""


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "", "LANG": "C.UTF-8"},
        input=stdin,
        check=False,
    )


def test_help_lists_every_command_with_its_sentence() -> None:
    out = run("--help")
    assert out.returncode == 0
    for name, sentence in COMMANDS.items():
        assert f"{name}  " in out.stdout
        assert sentence in out.stdout, "the sentence is cut at 80 columns"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    out = run(name, "--help")
    assert out.returncode == 0
    assert "Usage: toposcope" in out.stdout
    assert "--json" in out.stdout or name == "schema", "what it prints is JSON"


def test_inspect_prints_and_writes_the_same_heads(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "m")
    printed = run("inspect", str(model), "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    assert printed.returncode == 0, printed.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["schema"] == "toposcope/inspect/1"
    assert result["family"] == "llama"
    assert [(row["layer"], row["head"]) for row in result["heads"]] == [(i, j) for i in range(3) for j in range(4)]
    assert [row["kv_group"] for row in result["heads"][:4]] == [0, 0, 1, 1]
    assert len(result["subject"]["sha256"]) == 64
    assert "RoPE" in printed.stdout
    assert max(len(line) for line in printed.stdout.splitlines()[1:]) <= 80
    page = (tmp_path / "r.html").read_text()
    assert "http://" not in page
    assert "https://" not in page


def test_json_on_standard_output_is_nothing_but_json(tmp_path: Path) -> None:
    out = run("inspect", str(write_llama(tmp_path / "m")), "--json", "-", "--layers", "1")
    assert {row["layer"] for row in json.loads(out.stdout)["heads"]} == {1}


def test_csv_has_a_row_per_head(tmp_path: Path) -> None:
    out = run("inspect", str(write_llama(tmp_path / "m")), "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out.stdout)))
    assert len(rows) == 12
    assert float(rows[0]["logit_strength"]) > 0


def test_check_of_a_sound_model_succeeds_and_of_a_faulty_one_fails(tmp_path: Path) -> None:
    sound = run("check", str(write_llama(tmp_path / "sound")))
    assert sound.returncode == 0, sound.stdout + sound.stderr
    contradicting = write_llama(
        tmp_path / "faulty",
        rope_scaling={"type": "linear", "factor": 4.0},
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    faulty = run("check", str(contradicting), "--json", "-")
    assert faulty.returncode == 1
    assert json.loads(faulty.stdout)["worst"] == "fault"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "smolm2"), "smollm2"),
        (("inspect", "{tmp}/nowhere"), "nowhere"),
        (("inspect", "{tmp}/empty"), "weights"),
        (("inspect", "{tmp}/m", "--family", "lama"), "llama"),
        (("inspect", "{tmp}/m", "--layers", "2-9"), "there are 3"),
        (("inspect", "{tmp}/m", "--json", "{tmp}/no/such/place.json"), "place.json"),
        (("check", "{tmp}/nan"), "model.layers.1.self_attn.k_proj.weight"),
    ],
)
def test_a_mistake_gets_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    write_llama(tmp_path / "m")
    (tmp_path / "empty").mkdir()
    broken = write_llama(tmp_path / "nan")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"][0, 0] = np.nan
    save_file(tensors, broken / "model.safetensors")
    out = run(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert out.returncode == 2, out.stdout + out.stderr
    assert words in out.stderr
    assert "Traceback" not in out.stderr
    assert out.stdout == ""


def test_an_unknown_command_or_option_is_exit_code_2() -> None:
    for arguments in (("inspct", "x"), ("inspect", "x", "--jsn", "-")):
        out = run(*arguments)
        assert out.returncode == 2
        assert "Traceback" not in out.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("toposcope 0.")
