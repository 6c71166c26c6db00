"""The examples run, and say what they promise."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.tiny import write_llama

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_heads_of_a_model(tmp_path: Path) -> None:
    lines = run("heads_of_a_model.py", str(write_llama(tmp_path / "m"))).splitlines()
    assert len(lines) == 3
    assert all("RoPE" in line for line in lines)


def test_check_my_attention_finds_the_planted_mistake() -> None:
    sound, faulty = run("check_my_attention.py").split("--- rotation ")[1:]
    assert "fault" not in sound
    assert "fault" in faulty
    assert "batch" in faulty.split("\n", 1)[1]


def told(name: str) -> tuple[str, dict[str, Any]]:
    """What the cells of a notebook print, run one after the other in this directory, and the names they leave."""
    names: dict[str, Any] = {}
    said = io.StringIO()
    for number, cell in enumerate(json.loads((EXAMPLES / name).read_text())["cells"]):
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(said):
                exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    return said.getvalue(), names


@pytest.fixture
def supplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory where a tiny model and a text lie under the names that the notebooks use."""
    pytest.importorskip("transformers", reason="running a model needs transformers")
    from tests.unit.models.making import WORDS, write_llama_lm

    write_llama_lm(tmp_path / "smollm2", max_position_embeddings=64)
    (tmp_path / "wiki").write_text(" ".join(np.random.default_rng(0).choice(WORDS, 2000)))
    monkeypatch.chdir(tmp_path)


def test_heads_from_weights(supplied: None) -> None:
    said, names = told("heads_from_weights.ipynb")
    model = names["model"]
    assert (model.family, len(model.layers), model.layers[0].encoding.name) == ("llama", 3, "rope")
    assert len(names["found"].heads) == 8
    assert said.count("margin") == 8


def test_one_head_removed(supplied: None) -> None:
    said, names = told("one_head_removed.ipynb")
    assert said.count("shuffled") == 4
    assert names["found"].layers[0].layer == 0
    assert not names["torch"].equal(names["whole"], names["without"])


def test_encoding_designer() -> None:
    said, names = told("encoding_designer.ipynb")
    share = names["share"]["rope, base 10,000"]
    assert share == sorted(share, reverse=True), "it contracts with length"
    assert "effective rank" in said
    dense = np.cos(
        np.subtract.outer(np.arange(512), np.arange(512))[..., None] * names["designs"]["rope, base 10,000"]
    )
    assert share[0] == pytest.approx(np.linalg.eigvalsh(dense.mean(axis=-1))[-1] / 512, rel=1e-9)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    notebook = json.loads((EXAMPLES / name).read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_every_notebook_has_its_test() -> None:
    mine = Path(__file__).read_text()
    assert NOTEBOOKS
    for name in NOTEBOOKS:
        assert f'told("{name}")' in mine
