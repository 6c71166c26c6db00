"""The command line as a user meets it: help, tables, JSON, and errors without tracebacks."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import toposcope
from tests.unit.tiny import write_llama
from toposcope.cli import _application, main
from toposcope.cli.overview import COMMANDS, EXAMPLES, GROUPS

# Loaded in a child before toposcope: makes the heavy libraries impossible to import, as in the core install.
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "ray", "starlette", "matplotlib"):
    sys.modules[name] = None
from toposcope.cli import main
main(sys.argv[1:])
"""


def code(*arguments: str) -> object:
    """The exit code of a command that runs in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code or 0


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "", "LANG": "C.UTF-8", "PYTHONPATH": str(Path(toposcope.__file__).parents[1])},
        input=stdin,
        check=False,
    )


def test_help_lists_the_commands_of_the_groups_with_their_sentences() -> None:
    out = run("--help")
    assert out.returncode == 0
    listed = {name for names in GROUPS.values() for name in names}
    for name in COMMANDS:
        assert (f"\n  {name}  " in out.stdout) == (name in listed)
        assert (COMMANDS[name] in out.stdout) == (name in listed), "the sentence is cut at 80 columns"
    for names in GROUPS.values():
        assert EXAMPLES[names[0]] in out.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code(name, "--help") == 0
    said = capsys.readouterr().out
    assert "Usage: toposcope" in said
    assert said.rstrip().endswith(EXAMPLES[name])
    assert "--json" in said or name in ("schema", "explain")
    assert not re.search(r"[{}<>](?!=)|\[\[|\.{4}", said), "braces and types are typer's, not a user's"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_can_be_parsed(name: str) -> None:
    for words in (shlex.split(part)[1:] for part in EXAMPLES[name].split("&&")):
        command = get_command(_application(words[0])).commands[words[0]]
        assert command.make_context(words[0], words[1:]).params is not None


def test_inspect_prints_and_writes_the_same_heads(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "m")
    printed = run("inspect", str(model), "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    assert printed.returncode == 0, printed.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["schema"] == "toposcope/inspect/2"
    assert result["family"] == "llama"
    assert [(row["layer"], row["head"]) for row in result["heads"]] == [(i, j) for i in range(3) for j in range(4)]
    assert [row["kv_group"] for row in result["heads"][:4]] == [0, 0, 1, 1]
    assert len(result["provenance"]["subjects"][0]["sha256"]) == 64
    assert "RoPE" in printed.stdout
    assert max(len(line) for line in printed.stdout.splitlines() if not line.startswith("Written")) <= 80
    page = (tmp_path / "r.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "toposcope/check" in page, "the findings stand in the page too"


def test_a_page_of_some_layers_is_about_one_model(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert code("inspect", str(write_llama(tmp_path / "m")), "--layers", "1", "--html", str(page)) == 0
    assert re.findall("<h1>(.*?)</h1>", page.read_text()) == ["Inspection of m, layer 1"]


def test_options_print_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_llama(tmp_path / "m", num_hidden_layers=13))  # 52 heads
    printed = []
    for words in (("inspect", model), ("inspect", model, "--head-table"), ("check", model), ("check", model, "-v")):
        assert code(*words) == 0
        printed.append(capsys.readouterr().out)
    assert len(printed[1].splitlines()) > len(printed[0].splitlines()) + 52
    assert len(printed[3].splitlines()) > len(printed[2].splitlines()) + 3  # a line or more for each finding


def test_the_number_of_heads_has_a_new_and_a_former_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    attention = torch.nn.MultiheadAttention(8, 2)
    torch.save({f"self_attn.{name}": value for name, value in attention.state_dict().items()}, tmp_path / "a.pt")
    found = tmp_path / "r.json"
    for option in (("--num-heads", "4"), ("--heads", "4"), ("--heads=4",)):
        assert code("inspect", str(tmp_path / "a.pt"), *option, "--json", str(found)) == 0
        assert json.loads(found.read_text())["layers"][0]["heads"] == 4
        found.unlink()


def test_a_report_of_results_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(write_llama(tmp_path / "m"))
    for name in ("check", "inspect", "scan"):
        assert code(name, model, "--json", f"{name}.json") == 0
    assert code("report", "scan.json", "inspect.json", "check.json", "--json", "all.json", "--title", "Of m") == 0
    page = Path("toposcope-report.html").read_text() if Path("toposcope-report.html").exists() else None
    assert page is None, "where --json is asked for, no page is"
    kinds = [each["schema"].split("/")[1] for each in json.loads(Path("all.json").read_text())]
    assert kinds == ["scan", "inspect", "check"]
    assert code("report", "all.json") == 0
    page = Path("toposcope-report.html").read_text()
    assert page.index("toposcope/check/") < page.index("toposcope/scan/") < page.index("toposcope/inspect/")
    Path("check.json").write_text(Path("check.json").read_text().replace('"worst"', '"wurst"'))
    assert code("report", "check.json") == 2


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
    for arguments, near in ((("inspct", "x"), "'inspect'"), (("inspect", "x", "--jsn", "-"), "--json")):
        out = run(*arguments)
        assert out.returncode == 2
        assert near in out.stderr
        assert "Traceback" not in out.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("toposcope 0.")


@pytest.mark.parametrize("terminal", [True, False])
def test_errors_fit_a_terminal_and_keep_commands_whole(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    out = Stream()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit):
        main(["check", "a-model", "--live"])
    said = [re.sub(r"\x1b\[[?0-9]*[a-zA-Z]|\r", "", line) for line in out.getvalue().splitlines()]
    assert (max(map(len, said)) <= 60) is terminal
    for command in ("pip install 'toposcope[hf]'", "'toposcope check a-model'"):
        assert any(command in line for line in said)


def test_usage_and_the_kinds_of_errors_are_plain_and_fit_80_columns() -> None:
    for name in ("check", "explain", "serve"):
        wrong = run(name, "--nope")
        assert wrong.returncode == 2
        assert not re.search(r"[{}]|\[\[|\]\]|\]\.\.\.\]", wrong.stderr)
    listed = run("explain")
    assert listed.returncode == 0
    assert all(len(line) <= 80 for line in listed.stdout.splitlines())
