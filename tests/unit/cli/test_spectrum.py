"""`toposcope spectrum` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.unit.checks.making import llama
from toposcope.cli import COMMANDS, main


class Ran(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: Any) -> Ran:
        with pytest.raises(SystemExit) as stop:
            main(["spectrum", *arguments])
        printed = capsys.readouterr()
        return Ran(int(stop.value.code or 0), printed.out, printed.err)

    return call


def test_the_sentence_fits_the_list() -> None:
    assert len(COMMANDS["spectrum"]) < 58


def test_rope_to_a_million_positions(run: Run) -> None:
    out = run("rope", "--context", "1M", "--head-dim", "128", "--json", "-")
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert result["schema"] == "toposcope/spectrum/2"
    points = {point["context"]: point for point in result["encodings"][0]["points"]}
    assert max(points) == 1048576
    assert round(points[2048]["lambda_max_over_n"], 3) == 0.267
    assert points[2048]["law"] == pytest.approx(points[2048]["lambda_max_over_n"], abs=0.005)
    assert 1 < points[1048576]["effective_rank"] <= 128
    assert {point["statement"] for point in points.values()} == {"theorem"}


def test_several_encodings_side_by_side_in_80_columns(run: Run, tmp_path: Path) -> None:
    where = tmp_path / "s.json"
    names = ("rope", "alibi", "t5", "rope:base=500000", "rope:scaling=yarn,factor=8", "learned", "none")
    out = run(*names, "--context", "20000", "--json", str(where), "--full")
    assert out.returncode == 0, out.stderr
    assert max(map(len, out.stdout.splitlines()[:-1])) <= 80  # the last names the file
    longest = [line for line in out.stdout.splitlines() if line.lstrip().startswith("20,000")]
    # the fact; side by side in two tables; every encoding but the learned one; two biases as summands
    assert len(longest) == 1 + 2 + 6 + 2
    result = json.loads(where.read_text())
    assert [each["spec"] for each in result["encodings"]] == list(names)
    by_name = {each["spec"]: each for each in result["encodings"]}
    assert by_name["rope:base=500000"]["parameters"]["base"] == 500000
    at_512 = {name: next(p for p in each["points"] if p["context"] == 512) for name, each in by_name.items()}
    assert at_512["rope"]["lambda_max_over_n"] < at_512["rope:base=500000"]["lambda_max_over_n"]
    assert f"{at_512['rope']['lambda_max_over_n']:.4f}" in out.stdout
    assert len(by_name["alibi"]["logit_points"]) == len(by_name["alibi"]["points"]) == len(result["contexts"])
    assert at_512["none"]["effective_rank"] == 1
    assert by_name["learned"]["skipped"]


def test_the_answer_comes_first_and_the_rest_only_when_asked(run: Run, tmp_path: Path) -> None:
    where = tmp_path / "s.json"
    asked = ("rope", "rope:scaling=yarn,factor=16", "pi:factor=4", "alibi", "--context", "128k", "--trained", "8k")
    short, full = run(*asked, "--json", str(where)), run(*asked, "--full")
    assert short.returncode == full.returncode == 0, short.stderr
    told = [each["beyond"] for each in json.loads(where.read_text())["encodings"]]
    assert [each["verdict"] for each in told] == ["bad", "good", "bad", "cannot tell"]
    assert {(each["trained"], each["assumed"]) for each in told} == {(8192, False)}
    head = [line for line in short.stdout.splitlines() if not line.startswith("Written:")][:24]  # a path may be long
    assert max(map(len, head)) <= 80
    assert any(line.split()[:2] == ["rope", "bad"] and "7 of 32" in line for line in head)
    assert len(short.stdout.splitlines()) < 30 < len(full.stdout.splitlines())


def test_what_is_bad_has_a_next_step_that_runs(run: Run, tmp_path: Path) -> None:
    directory = llama(tmp_path / "m", rope_theta=1e4, max_position_embeddings=1024)
    out = run("--model", str(directory), "--context", "4k", "--trained", "1k")
    lines = [line.strip() for line in out.stdout.splitlines()]
    (line,) = [line for line in lines if line.startswith("toposcope spectrum")]
    words = line.split()[2:]
    assert {"rope:scaling=yarn,factor=4", "--trained", "1024"} <= set(words)
    told = json.loads(run(*words, "--json", "-").stdout)["encodings"]
    assert [each["beyond"]["verdict"] for each in told] == ["bad", "good"]
    assert "toposcope spectrum" not in run("--model", str(directory), "--context", "1k").stdout  # within training


def test_sizes_and_heads_reach_the_encoding(run: Run) -> None:
    out = json.loads(
        run("alibi", "--num-heads", "4", "--head", "3", "--context", "64", "--head-dim", "32", "--json", "-").stdout
    )
    assert out["encodings"][0]["parameters"]["slopes"] == [2**-2, 2**-4, 2**-6, 2**-8]
    assert out["provenance"]["options"]["width"] == 128
    top = out["encodings"][0]["logit_points"][-1]["lambda_max_over_n"] * 64
    assert top == pytest.approx(0.3474 * 2**-8 * 64**2, rel=1e-3)
    wide = json.loads(run("sinusoidal", "--width", "48", "--context", "9", "--json", "-").stdout)
    assert wide["encodings"][0]["parameters"]["width"] == 48


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cope",), "tables"),
        (("rope", "pope"), "tables"),
        (("rpe",), "rpe"),
        (("rope", "--head-dim", "5"), "pairs"),
        (("alibi", "--heads", "2", "--head", "2"), "to 1"),
        (("rope", "--plot", "x.bmp"), ".png"),
        (("rope", "--context", "1G"), "128k"),
        (("rope", "--trained", "0"), "128k"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(run: Run, arguments: tuple[str, ...], words: str) -> None:
    out = run("--context", "64", *arguments)
    assert out.returncode == 2
    assert words in out.stderr
    assert "Traceback" not in out.stderr
    assert out.stdout == ""


def test_the_figure_is_drawn(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    where = tmp_path / "s.svg"
    out = run("rope", "alibi", "--context", "4k", "--figure", str(where))
    assert out.returncode == 0, out.stderr
    picture = where.read_text()
    assert "<svg" in picture
    assert str(where) in out.stdout.replace("\n", "")
