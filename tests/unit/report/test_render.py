"""Reports as files: complete, self-contained, harmless, and true to the results they were made of."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.unit.report import making
from tests.unit.report.reading import Reader, table
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.printable import visible
from toposcope.report import read_results, render
from toposcope.report.blocks import rounded, without_series
from toposcope.report.page import embeddable

HAND_MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "ablate": making.ablated,
    "loss": making.loss,
    "reproduce": making.coupled,
    "sweep": making.swept,
    "trace": making.traced,
}


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return making.scanned(tmp_path_factory.mktemp("scan"))


def test_the_page_holds_the_numbers_of_the_scan(scan: dict[str, Any]) -> None:
    page = Reader(render([scan]))
    rows = {(row["layer"], row["head"]): row for row in table(page, "heads")}
    assert set(rows) == {(i, j) for i in range(3) for j in range(4)}
    for head in scan["heads"]:
        row = rows[head["layer"], head["head"]]
        assert row["verdict"] == head["verdict"]
        assert row["growth_index"] == pytest.approx(head["growth_index"], rel=1e-4)
        assert row["eig_re"] == pytest.approx([pair[0] for pair in head["eigenvalues"]], rel=1e-4)
        assert row["peak_offset"] == head["peak_offset"]
        assert row["kernel"] == pytest.approx(head["kernel"], rel=1e-3)
    counted = sum(row["heads"] for row in table(page, "regimes-by-layer"))
    assert counted == len(scan["heads"])
    binned = sum(row["eigenvalues"] for row in table(page, "eigenvalue-cloud"))
    assert binned == sum(head["n_pos"] + head["n_neg"] + head["n_zero"] for head in scan["heads"])


def test_only_what_stands_in_the_page_may_run(scan: dict[str, Any]) -> None:
    """Each inline script and style is named by its SHA-256; eval, handlers and sources from elsewhere are not."""
    page = Reader(render([scan]))
    scripts = [text for kind, text in page.scripts if kind is None]
    assert len(scripts) == 8
    for part, texts in (("script-src", scripts), ("style-src", page.styles)):
        (allowed,) = re.findall(rf"{part} ([^;]*)", page.policy)
        digests = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts}
        assert set(allowed.split()) == digests
    assert re.findall(r"default-src ([^;]*)", page.policy) == ["'none'"]
    assert "unsafe" not in page.policy
    assert page.handlers == []
    assert all(source.startswith("#") for source in page.sources), page.sources
    assert len(page.ids) == len(set(page.ids))
    assert sum("Redistribution" in text for text in scripts) == 3


@pytest.mark.parametrize("name", sorted(HAND_MADE))
def test_each_kind_of_result_has_its_report(name: str) -> None:
    page = Reader(render([HAND_MADE[name]()]))
    assert page.data["blocks"] or name == "reproduce", "no picture"
    assert page.data["tables"]
    for block in page.data["blocks"].values():
        assert block["title"]
        assert block["sentence"].endswith((".", ".)")), block["sentence"]
        assert "table" not in block or page.data["tables"][block["table"]]
    assert page.words.count("–") < 40


def test_loss_says_what_an_interval_allows() -> None:
    words = Reader(render([making.loss()])).words
    assert "1.50 ± 0.25 nats" in words
    assert "(+0.01 ± 0.20)" in words


def test_ablation_names_the_head_that_matters_and_its_share() -> None:
    page = Reader(render([making.ablated()]))
    (first, *_) = table(page, "heads-by-damage")
    assert (first["name"], first["told_text"]) == ("0.2", "+0.20 ± 0.13")
    rows = table(page, "damages")
    assert rows[2]["position"] == pytest.approx(0.18)
    assert rows[2]["by_sequence"] == pytest.approx([0.2, 0.2])


def test_curves_of_seeds_are_joined_into_a_band() -> None:
    runs = [making.trained("rope", 0, 0.9), making.trained("rope", 1, 0.7), making.trained("none", 0, 0.3)]
    rows = table(Reader(render(runs)), "copy-accuracy")
    (last,) = [row for row in rows if (row["encoding"], row["step"]) == ("rope", 20)]
    assert (last["accuracy"], last["least"], last["most"], last["seeds"]) == (pytest.approx(0.8), 0.7, 0.9, 2)


def test_flow_moves_as_it_was_integrated(tmp_path: Path) -> None:
    result = making.flowed(tmp_path)
    page = Reader(render([result]))
    (moving,) = [block for block in page.data["blocks"].values() if block["kind"] == "particles"]
    first, flow = np.array(moving["xy"][0]), result["flows"][0]
    assert first.shape == (6, 2)
    assert moving["times"][-1] == pytest.approx(flow["end"], rel=1e-4)
    largest = flow["observables"]["norm_max"]
    assert moving["norms"][0] == 1
    assert moving["norms"][-1] == pytest.approx(largest[-1] / largest[0], rel=1e-3)
    assert len(moving["norms"]) == len(moving["times"])
    sizes = np.linalg.norm(np.array(moving["xy"][-1]), axis=1)  # relative to the largest at each moment
    assert sizes.max() == pytest.approx(1.0, abs=1e-3)
    norms = flow["observables"]
    assert sizes.min() == pytest.approx(norms["norm_min"][-1] / norms["norm_max"][-1], abs=2e-3)


# ------------------------------------------------------------------ harm
NASTY = "<script>alert(1)</script>&\u2028</textarea><img src=x onerror=alert(2)>"


def test_a_model_with_markup_for_a_name_is_harmless(tmp_path: Path, scan: dict[str, Any]) -> None:
    """Names come from strangers: of the model, of its tensors, of what was skipped, of a text."""
    plain = Reader(render([scan]))
    hostile = json.loads(json.dumps(scan))
    about = hostile["provenance"]["subjects"][0]
    about["path"] = f"/models/{NASTY}"
    about["encodings"] = [NASTY]
    hostile["skipped"] = [{"what": NASTY, "why": NASTY, "tensors": [NASTY]}]
    hostile["provenance"]["options"]["layers"] = NASTY
    hostile["heads"][0]["warnings"] = [NASTY]
    hostile["heads"][0]["looks"] = NASTY
    page = Reader(render([hostile]))
    assert [tag for tag in page.tags if tag in ("script", "img")] == [t for t in plain.tags if t in ("script", "img")]
    assert page.handlers == []
    assert page.data["results"][0]["subjects"][0]["path"] == f"/models/{NASTY}", "the data lost something on the way"
    assert visible(NASTY) in page.words.replace("\n", ""), "characters that are not seen are shown"


def test_a_checkpoint_with_hostile_tensor_names_renders(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m")
    tensors = load_file(source / "model.safetensors")
    name = "attn.<script>alert(x)</script>.weight"
    tensors[name] = np.zeros((2, 2), np.float32)
    evil = tmp_path / "<script>alert(3)<!--"
    shutil.copytree(source, evil)
    save_file(tensors, evil / "model.safetensors")
    main_quietly("inspect", str(evil), "--html", str(tmp_path / "r.html"))
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert "<script>alert(" not in text
    assert "<!--" not in text.replace("<!doctype", "")
    assert name in page.words
    assert [kind for kind, _ in page.scripts].count("application/json") == 1


def test_embedded_json_has_no_character_that_ends_its_element() -> None:
    value = {"k": "</script><!--\u2028\u2029&amp;", "n": [1.5, None]}
    text = embeddable(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


# ------------------------------------------------------------------ sizes and edges
def test_a_model_without_heads_to_analyse_still_gets_a_page(scan: dict[str, Any]) -> None:
    empty = {**scan, "heads": [], "layers": [], "spectra": {**scan["spectra"], "first_layer": []}}
    empty["model"] = {**scan["model"], "counts": {}}
    empty["skipped"] = [{"what": "layer 0 (decoder 0)", "why": "cross-attention", "tensors": []}]
    page = Reader(render([empty]))
    assert "analysed" in page.words
    assert "cross-attention" in page.words


def test_thirty_two_layers_of_thirty_two_heads_stay_small(scan: dict[str, Any]) -> None:
    """Rows of a real head of width 64, over and over."""
    big = json.loads(json.dumps(scan))
    random = np.random.default_rng(0)
    big["heads"] = []
    for layer in range(32):
        for head in range(32):
            values = random.standard_normal((36, 2)).round(5).tolist()
            kernel, energy = random.standard_normal(64).round(4).tolist(), random.random(32).tolist()
            row = {**scan["heads"][0], "layer": layer, "head": head, "eigenvalues": values, "kernel": kernel}
            big["heads"].append({**row, "query_energy": energy, "key_energy": energy})
    text = render([big])
    assert len(table(Reader(text), "heads")) == 1024
    assert len(text.encode()) < 6e6


def test_long_series_stand_in_the_file_once(scan: dict[str, Any]) -> None:
    kept = without_series({"a": list(range(100)), "b": [1, 2], "c": {"d": [[1, 2]] * 40}, "e": [{"x": 1}] * 40})
    assert kept["a"] == "100 entries: see the tables"
    assert kept["b"] == [1, 2]
    assert kept["c"]["d"] == "40 entries: see the tables"
    assert len(kept["e"]) == 40
    assert rounded({"x": [1.23456789, 3, None, "t", True]}) == {"x": [1.2346, 3, None, "t", True]}


# ------------------------------------------------------------------ the command
def main_quietly(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code in (0, None)


def test_a_stored_result_gives_the_same_file(tmp_path: Path) -> None:
    made = ("spectrum", "rope", "alibi", "--context", "64")
    first, stored, again = (str(tmp_path / name) for name in ("a.html", "r.json", "b.html"))
    main_quietly(*made, "--html", first, "--json", stored)
    main_quietly("report", stored, "--html", again, "--title", "Positional encodings: rope, alibi")
    assert Path(first).read_text() == Path(again).read_text()


def test_a_run_directory_is_read_by_its_result(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(json.dumps(making.trained("rope", 0, 0.9)))
    main_quietly("report", str(tmp_path / "run"), "--html", str(tmp_path / "r.html"))
    page = Reader((tmp_path / "r.html").read_text())
    assert [row["step"] for row in table(page, "copy-accuracy")] == [0, 10, 20]


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, NotFound, "does not exist"),
        ("{not json", BadFile, "not JSON"),
        ("[1, 2]", BadFile, "expected a result"),
        ('{"schema": "someone/else/1"}', BadFile, "someone/else/1"),
    ],
)
def test_what_is_no_result_is_refused(
    tmp_path: Path, content: str | None, error: type[Exception], words: str
) -> None:
    place = tmp_path / "r.json"
    if content is not None:
        place.write_text(content)
    with pytest.raises(error, match=words):
        read_results([place])


def test_a_directory_without_a_result_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"result\.json"):
        read_results([tmp_path])
    with pytest.raises(BadValue, match="result"):
        render([])
