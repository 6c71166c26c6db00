"""The examples run, and say what they promise."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.live.result import LiveCheckResult

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = ("tiny_yarn", "tiny_yarn_lost")
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


def test_check_my_attention() -> None:
    pytest.importorskip("torch", reason="modules are torch's")
    _, names = told("check_my_attention.ipynb")
    assert {finding.id for finding in names["batch"].findings if finding.status == "fault"} == {"batch-axis"}
    assert [finding.status for finding in names["keys"].findings].count("fault") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_jupyter_and_shows_what_is_stored(name: str, supplied: None) -> None:
    """On a tiny model: the same kinds of output in the same cells; the numbers are another model's."""
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient")
    kept = nbformat.read(EXAMPLES / name, as_version=4)
    book = nbformat.read(EXAMPLES / name, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": "."}}).execute()
    assert [kinds(cell) for cell in book.cells] == [kinds(cell) for cell in kept.cells]


def kinds(cell: Any) -> list[str]:
    """What a cell shows, by kind; progress is not stored."""
    shown = [each for each in cell.get("outputs", []) if each.get("name") != "stderr"]
    return ["page" if "text/html" in each.get("data", {}) else str(each["output_type"]) for each in shown]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_with_outputs_of_a_whole_run(name: str) -> None:
    """Run python examples/store_outputs.py after a change."""
    text = (EXAMPLES / name).read_text()
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert len(text) < 60_000, "too much to keep"
    assert not re.search(r"/(home|root|tmp|usr|work|Users)/|site-packages", text), "the path of a machine"


def test_every_notebook_has_its_test() -> None:
    mine = Path(__file__).read_text()
    assert NOTEBOOKS
    for name in NOTEBOOKS:
        assert f'told("{name}")' in mine


def test_the_tiny_checkpoints_are_what_their_script_makes(tmp_path: Path) -> None:
    run("make_tiny_yarn.py", str(tmp_path))
    for name in TINY:
        for file in ("config.json", "model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (EXAMPLES / name / file).read_bytes()
    first, second = ((EXAMPLES / name / "model.safetensors").read_bytes() for name in TINY)
    assert first == second
    assert len(first) < 40_000, "a few kB"


@pytest.mark.parametrize("live", [False, True])
def test_one_tiny_checkpoint_has_its_scaling_in_force_and_the_other_not(live: bool) -> None:
    if live:
        pytest.importorskip("transformers", reason="running a model needs transformers")
    sound, lost = (toposcope.check(EXAMPLES / name, live=live) for name in TINY)
    assert sound.worst == "ok", "its weights fit the scaling"
    settings = sound.find("rotary-settings")
    assert settings is not None
    assert {"scaling": "yarn", "factor": 4.0, "original_context": 2048}.items() <= settings.evidence.items()
    assert [(each.id, each.evidence["scaling"]) for each in lost.faults] == [("unknown-key", "yarn")]
    if isinstance(sound, LiveCheckResult) and isinstance(lost, LiveCheckResult):
        assert all(each.agrees for each in (*sound.by_layer, *lost.by_layer))
        assert sound.by_layer[0].configuration != lost.by_layer[0].configuration


@pytest.mark.parametrize(("name", "code"), [("tiny_yarn", 0), ("tiny_yarn_lost", 1)])
def test_the_exit_code_tells_them_apart(name: str, code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", str(EXAMPLES / name), "--json", os.devnull])
    assert (ended.value.code or 0) == code
