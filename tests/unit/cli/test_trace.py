"""`toposcope trace` as a user meets it: 80 columns, JSON, CSV, selections, and mistakes with a sentence."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

import toposcope
from tests.unit.models.making import TEXT, write_bert, write_llama
from toposcope.cli import main
from toposcope.core.errors import BadValue
from toposcope.models.sites import Site
from toposcope.models.tracing.trace import heads_by_layer

pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
pytest.importorskip("transformers", reason="running a model needs transformers: pip install transformers")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *arguments])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    write_llama(directory, num_hidden_layers=2)
    (directory / "hills.txt").write_text(TEXT * 8)
    return directory


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_function_and_all_it_can_become(llama: Path, tmp_path: Path) -> None:
    found = toposcope.trace(
        llama, llama / "hills.txt", tokens=24, sequences=2, depth=True, verify=True, jobs=1, layers="0-1"
    )
    assert (len(found.heads), found.sequences, found.tokens) == (8, 2, 24)
    assert [each.layer for each in found.depth] == [0, 1]
    assert found.verdicts is not None
    assert len(found.verified) + found.verdicts.undecided == 8
    assert len(found.provenance.subjects[0].sha256) == 64
    assert found.provenance.subjects[0].path == str(llama)
    assert max(len(line) for line in str(found).splitlines() if str(llama) not in line) <= 80
    most = sorted(found.heads, key=lambda each: -(each.median("position") or 0))[:5]
    asked = next(line.split() for line in str(found).splitlines() if "toposcope ablate" in line)
    heads = ",".join(each.name for each in most)
    assert asked == [
        "toposcope",
        "ablate",
        str(llama),
        "--text",
        str(llama / "hills.txt"),
        "--heads",
        heads,
        "--sequences",
        "16",
    ]
    assert " ".join(asked) in re.sub("</?span[^>]*>", "", found.html())
    assert toposcope.read(found.save(tmp_path / "trace.json")) == found
    assert len(found.frame()) == 8
    assert list(found.frame("depth")["layer"]) == [0, 1]
    assert "<script" not in found._repr_html_()
    assert "</html>" in found.html()
    assert found.figure(tmp_path / "trace.svg").stat().st_size > 1000


def test_a_loaded_model_is_traced_as_its_files_are(llama: Path) -> None:
    from transformers import AutoModel

    options = {"tokens": 16, "sequences": 1, "layers": "1", "depth": True}
    ours = toposcope.trace(llama, llama / "hills.txt", **options)
    theirs = toposcope.trace(AutoModel.from_pretrained(llama), llama / "hills.txt", **options)
    assert theirs.provenance.subjects[0].sha256 == ours.provenance.subjects[0].sha256
    for one, other in zip(ours.heads, theirs.heads, strict=True):
        assert one.median("rho") == pytest.approx(other.median("rho"), rel=1e-5)
    assert theirs.depth[0].norm == pytest.approx(ours.depth[0].norm, rel=1e-6)


def test_another_encoding_is_not_followed_through_depth(llama: Path) -> None:
    with pytest.raises(BadValue):
        toposcope.trace(llama, llama / "hills.txt", encoding="none", depth=True)


def test_json_and_csv_hold_every_head(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--text", str(llama / "hills.txt"), "--tokens", "20", "--sequences", "2")
    code, out, err = run(capsys, str(llama), *where, "--json", "-", "--csv", str(tmp_path / "heads.csv"))
    assert code == 0, err
    found = json.loads(out)
    assert found["schema"] == "toposcope/trace/2"
    assert found["provenance"]["options"]["tokens"] == 20
    assert found["sequences"] == 2
    rows = list(csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text())))
    assert len(rows) == len(found["heads"]) == 8
    for row, head in zip(rows, found["heads"], strict=True):
        assert (int(row["layer"]), int(row["head"])) == (head["layer"], head["head"])
        assert float(row["rho.median"]) == head["rho"]["median"]
        assert float(row["on_previous.high"]) == head["on_previous"]["high"]
    agreed = found["agreement"]
    assert agreed["precision"] == (len(agreed["hits"]) / len(agreed["listed"]) if agreed["listed"] else None)


def test_every_head_can_be_printed(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--text", str(llama / "hills.txt"), "--tokens", "16", "--sequences", "2")
    code, out, err = run(capsys, str(llama), *where, "--head-table")
    assert code == 0, err
    first = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert set(first) >= {f"{layer}.{head}" for layer in range(2) for head in range(4)}
    assert max(len(line) for line in out.splitlines() if str(llama) not in line) <= 80


def test_chosen_heads(llama: Path) -> None:
    found = toposcope.trace(llama, llama / "hills.txt", tokens=16, sequences=1, heads="0.1,1.2-3")
    assert [each.name for each in found.heads] == ["0.1", "1.2", "1.3"]


def test_every_line_is_a_sequence_and_an_encoder_has_gram_shares(tmp_path: Path) -> None:
    write_bert(tmp_path)
    (tmp_path / "lines.txt").write_text(
        "the disc is at a viewpoint\n\nthe hills and rivers tells you\nwhere is a disc\n"
    )
    found = toposcope.trace(tmp_path, tmp_path / "lines.txt", lines=True, layers="0")
    assert (found.sequences, found.tokens) == (3, 6)
    assert all(each.gram_position is not None and each.position is None for each in found.heads)
    assert found.agreement is None
    assert "kernel_rho" in {gap.metric for gap in found.gaps}
    assert "G pp" in str(found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layers", "5"), "there are 2"),
        (("--heads", "1.7"), "no head 1.7"),
        (("--heads", "7.0"), "no layer 7"),
        (("--heads", "x.1"), "layer.head"),
        (("--heads", "0.1", "--layers", "1"), "--layers leaves out"),
        (("--text", "{tmp}/empty.txt"), "holds 0 tokens"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
    ],
)
def test_a_mistake_gets_a_sentence(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "empty.txt").write_text("")
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    text = [] if "--text" in given else ["--text", str(llama / "hills.txt")]
    code, _, err = run(capsys, str(llama), *text, "--tokens", "8", *given)
    assert code == 2
    assert words in err
    assert "Traceback" not in err


def test_the_command_that_was_folded_in_says_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["beside", "minilm"])
    assert ended.value.code == 2
    assert "--depth" in capsys.readouterr().err


def test_heads_by_layer() -> None:
    sites = [Site(number, 0, None, "", 4, 2, 8, 8, False, "interface") for number in range(3)]
    assert heads_by_layer(None, sites, [0, 1]) is None
    assert heads_by_layer("all", sites, [0, 1]) is None
    assert heads_by_layer("0-1", sites, [0, 2]) == {0: (0, 1), 2: (0, 1)}
    assert heads_by_layer("1.3, 1.0, 2.1-2", sites, [0, 1, 2]) == {1: (0, 3), 2: (1, 2)}
    with pytest.raises(BadValue, match="'x'"):
        heads_by_layer("1.x", sites, [0, 1])
