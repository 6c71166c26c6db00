"""`toposcope spectrum` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toposcope.cli import COMMANDS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toposcope", "spectrum", *arguments],
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )


def test_the_sentence_fits_the_list() -> None:
    assert len(COMMANDS["spectrum"]) < 58


def test_rope_to_a_million_positions() -> None:
    out = run("rope", "--context", "1048576", "--head-dim", "128", "--json", "-")
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert result["schema"] == "toposcope/spectrum/1"
    points = {point["context"]: point for point in result["encodings"][0]["points"]}
    assert max(points) == 1048576
    assert round(points[2048]["lambda_max_over_n"], 3) == 0.267
    assert points[2048]["law"] == pytest.approx(points[2048]["lambda_max_over_n"], abs=0.005)
    assert 1 < points[1048576]["effective_rank"] <= 128
    assert {point["statement"] for point in points.values()} == {"theorem"}


def test_several_encodings_side_by_side_in_80_columns(tmp_path: Path) -> None:
    where = tmp_path / "s.json"
    names = ("rope", "alibi", "t5", "rope:base=500000", "rope:scaling=yarn,factor=8", "learned", "none")
    out = run(*names, "--context", "20000", "--json", str(where))
    assert out.returncode == 0, out.stderr
    assert max(map(len, out.stdout.splitlines())) <= 80
    for word in ("side by side", "exact: ", "measured: ", "S5g law", "the table holds 8192"):
        assert word in out.stdout.replace("\n", " ")
    result = json.loads(where.read_text())
    assert [each["spec"] for each in result["encodings"]] == list(names)
    by_name = {each["spec"]: each for each in result["encodings"]}
    assert by_name["rope:base=500000"]["parameters"]["base"] == 500000
    at_512 = {name: next(p for p in each["points"] if p["context"] == 512) for name, each in by_name.items()}
    assert at_512["rope"]["lambda_max_over_n"] < at_512["rope:base=500000"]["lambda_max_over_n"]
    assert f"{at_512['rope']['lambda_max_over_n']:.4f}" in out.stdout
    assert len(by_name["alibi"]["logit_points"]) == len(by_name["alibi"]["points"]) == len(result["contexts"])
    assert at_512["none"]["effective_rank"] == 1


def test_sizes_and_heads_reach_the_encoding() -> None:
    out = json.loads(
        run("alibi", "--heads", "4", "--head", "3", "--context", "64", "--head-dim", "32", "--json", "-").stdout
    )
    assert out["encodings"][0]["parameters"]["slopes"] == [2**-2, 2**-4, 2**-6, 2**-8]
    assert out["options"]["width"] == 128
    top = out["encodings"][0]["logit_points"][-1]["lambda_max_over_n"] * 64
    assert top == pytest.approx(0.3474 * 2**-8 * 64**2, rel=1e-3)
    wide = json.loads(run("sinusoidal", "--width", "48", "--context", "9", "--json", "-").stdout)
    assert wide["encodings"][0]["parameters"]["width"] == 48


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cope",), "not given by tables"),
        (("rope", "pope"), "not given by tables"),
        (("rpe",), "Did you mean"),
        (("rope", "--head-dim", "5"), "cannot form pairs"),
        (("alibi", "--heads", "2", "--head", "2"), "heads 0 to 1"),
        (("rope", "--plot", "x.bmp"), "must end in"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    out = run(*arguments, "--context", "64")
    assert out.returncode == 2
    assert words in out.stderr
    assert "Traceback" not in out.stderr
    assert out.stdout == ""


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    where = tmp_path / "s.svg"
    out = run("rope", "alibi", "--context", "4096", "--plot", str(where))
    assert out.returncode == 0, out.stderr
    picture = where.read_text()
    assert "<svg" in picture
    assert str(where) in out.stdout.replace("\n", "")
