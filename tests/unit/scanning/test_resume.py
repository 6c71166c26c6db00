"""A scan that is kept goes on where it stopped, repeats nothing, and ends with the result of an undisturbed one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit import tiny
from toposcope.cli import main
from toposcope.scanning import layer as scan_of_layer

OPTIONS = ("--random-baseline", "--encoding", "alibi")


def call(*words: str | Path) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def scan(model: Path, json_file: Path, *more: str) -> str:
    """The JSON of a scan, without its time."""
    assert call("scan", model, "--json", json_file, *OPTIONS, *more) == 0
    return timeless(json_file)


def timeless(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.startswith('    "seconds"'))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "model", num_hidden_layers=4)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers whose records were made."""
    seen: list[int] = []
    whole = scan_of_layer.layer_record

    def watched(model: Any, number: int, *rest: Any) -> Any:
        seen.append(number)
        return whole(model, number, *rest)

    monkeypatch.setattr(scan_of_layer, "layer_record", watched)
    return seen


@pytest.mark.parametrize(("kept", "half"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_stopped_scan_goes_on(model: Path, tmp_path: Path, looked_at: list[int], kept: int, half: bool) -> None:
    undisturbed = scan(model, tmp_path / "a.json")
    whole = scan(model, tmp_path / "b.json", "--out", str(tmp_path / "out"))
    assert whole == undisturbed == timeless(tmp_path / "out" / "result.json")
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    cut = lines[kept + 1][:50] if half else b""
    journal.write_bytes(b"".join(lines[: kept + 1]) + cut)
    looked_at.clear()
    assert scan(model, tmp_path / "c.json", "--out", str(tmp_path / "out")) == undisturbed
    assert looked_at == list(range(kept, 4))


def test_layers_are_kept_for_other_choices_of_layers(model: Path, tmp_path: Path, looked_at: list[int]) -> None:
    out = ("--out", str(tmp_path / "out"))
    scan(model, tmp_path / "a.json", "--layers", "1,3", *out)
    looked_at.clear()
    found = scan(model, tmp_path / "b.json", "--layers", "0-3", *out)
    assert looked_at == [0, 2]
    assert found == scan(model, tmp_path / "c.json", "--layers", "0-3")


def change_weights(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    save_file(tiny.tensors(config, seed=7), model / "model.safetensors")


def change_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "rope_theta": 5000.0}))


@pytest.mark.parametrize(
    ("change", "option", "word"),
    [
        (change_config, (), "config"),
        (None, ("--seed", "4"), "seed"),
        (None, ("--context", "32"), "context"),
        (None, ("--no-layer-sums",), "layer_sums"),
        (None, ("--encoding", "rope"), "encoding"),
    ],
)
def test_a_journal_of_something_else_is_not_continued(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Any,
    option: tuple[str, ...],
    word: str,
) -> None:
    scan(model, tmp_path / "a.json", "--layers", "0", "--out", str(tmp_path / "out"))
    if change:
        change(model)
    assert call("scan", model, "--out", tmp_path / "out", *OPTIONS, *option) == 2
    said = capsys.readouterr().err
    assert "journal.jsonl" in said
    assert f"{word}: " in said


def test_layers_of_other_weights_are_not_taken_over(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan(model, tmp_path / "a.json", "--layers", "0", "--out", str(tmp_path / "out"))
    change_weights(model)
    assert call("scan", model, "--out", tmp_path / "out", *OPTIONS) == 2
    assert "layer 0" in capsys.readouterr().err


def test_a_copy_of_the_checkpoint_goes_on(model: Path, tmp_path: Path, looked_at: list[int]) -> None:
    scan(model, tmp_path / "a.json", "--layers", "0", "--out", str(tmp_path / "out"))
    shutil.copytree(model, tmp_path / "copy")
    looked_at.clear()
    scan(tmp_path / "copy", tmp_path / "b.json", "--out", str(tmp_path / "out"))
    assert looked_at == [1, 2, 3]


def test_threads_change_nothing(model: Path, tmp_path: Path) -> None:
    one, three = (scan(model, tmp_path / f"{n}.json", "--jobs", str(n)) for n in (1, 3))
    assert one == three


def test_a_sample_says_that_it_is_an_estimate(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    sample = ("--layers", "sample:3", "--seed", "1")
    assert call("scan", model, *sample, "--html", page, "--out", tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    estimate = found["estimate"]
    assert estimate["drawn"] == sorted({row["layer"] for row in found["heads"]})
    assert (len(estimate["drawn"]), estimate["layers"], estimate["heads"]) == (3, 4, 16)
    assert {word: row["seen"] for word, row in estimate["counts"].items()} == found["model"]["counts"]
    assert sum(row["estimate"] for row in estimate["counts"].values()) == pytest.approx(16)
    assert found["model"]["verdict"] is None
    assert page.stat().st_size > 0
    whole = json.loads(_json(model, tmp_path / "all.json"))
    truth = whole["model"]["counts"]
    for word, row in estimate["counts"].items():
        assert row["at_least"] <= truth[word] <= row["at_most"]
    assert whole["estimate"] is None


def _json(model: Path, where: Path) -> str:
    assert call("scan", model, "--json", where) == 0
    return where.read_text()


def test_of_a_large_vocabulary_some_tokens_are_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens drawn: the same numbers as from the whole table, and another digest that says what was read."""
    whole = json.loads(_json(model, tmp_path / "a.json"))
    monkeypatch.setattr("toposcope.spectra.of_heads.LARGEST_TABLE", 0)
    drawn = json.loads(_json(model, tmp_path / "b.json"))
    assert whole["spectra"]["tokens"] == "embedding"
    assert drawn["spectra"]["tokens"] == "embedding, 32 of 32 tokens"
    assert whole["provenance"]["subjects"][0]["sha256"] != drawn["provenance"]["subjects"][0]["sha256"]
    assert whole["spectra"]["first_layer"] == drawn["spectra"]["first_layer"]
    for ours, theirs in zip(drawn["heads"], whole["heads"], strict=True):
        assert ours["peak_offset"] == theirs["peak_offset"]
        for name in ("peak_share", "lambda_max_over_n", "query_energy", "key_energy"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5)  # the moments are formed in float32
