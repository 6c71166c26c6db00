"""`toposcope trace` as a user meets it: 80 columns, JSON, CSV, selections, and mistakes with a sentence."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.unit.models.making import TEXT, write_bert, write_llama
from toposcope.cli import main
from toposcope.cli.trace import parse_heads
from toposcope.core.errors import BadValue
from toposcope.models.sites import Site

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


def test_a_table_of_80_columns(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, str(llama), "--text", str(llama / "hills.txt"), "--tokens", "24", "--sequences", "2")
    assert code == 0, err
    lines = out.splitlines()
    assert max(len(line) for line in lines[1:] if str(llama) not in line) <= 80
    assert "8 heads of 2 layers" in " ".join(out.split())
    for title in ("What heads attend to", "What position does to the logits", "Most positional heads"):
        assert title in out
    assert "Would the weights have told?" in out
    assert "precision" in out
    assert "All heads" not in out


def test_json_and_csv_hold_every_head(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--text", str(llama / "hills.txt"), "--tokens", "20", "--sequences", "2")
    code, out, err = run(capsys, str(llama), *where, "--json", "-", "--csv", str(tmp_path / "heads.csv"))
    assert code == 0, err
    found = json.loads(out)
    assert found["schema"] == "toposcope/trace/1"
    assert found["options"]["tokens"] == 20
    assert found["sequences"] == 2
    assert len(found["subject"]["sha256"]) == 64
    assert found["subject"]["path"] == str(llama)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text())))
    assert len(rows) == len(found["heads"]) == 8
    for row, head in zip(rows, found["heads"], strict=True):
        assert (int(row["layer"]), int(row["head"])) == (head["layer"], head["head"])
        assert float(row["rho"]) == head["metrics"]["rho"]["median"]
        assert float(row["previous_high"]) == head["scores"]["previous"]["high"]
    agreed = found["agreement"]
    assert agreed["precision"] == (len(agreed["hits"]) / len(agreed["listed"]) if agreed["listed"] else None)


def test_chosen_heads_and_their_table(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--text", str(llama / "hills.txt"), "--tokens", "16", "--sequences", "1")
    code, out, err = run(capsys, str(llama), *where, "--heads", "0.1,1.2-3", "--head-table")
    assert code == 0, err
    table = out.split("All heads")[1].splitlines()[2:]
    assert [line.split()[0] for line in table if line.strip()] == ["0.1", "1.2", "1.3"]


def test_every_line_is_a_sequence_and_an_encoder_shows_gram_shares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bert(tmp_path)
    (tmp_path / "lines.txt").write_text(
        "the disc is at a viewpoint\n\nthe hills and rivers tells you\nwhere is a disc\n"
    )
    code, out, err = run(capsys, str(tmp_path), "--text", str(tmp_path / "lines.txt"), "--lines", "--layers", "0")
    assert code == 0, err
    assert "3 lines of 4 to 6 tokens" in out
    assert "G pp" in out
    assert "Would the weights" not in out
    assert "no kernel over" in out


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


def test_heads_by_layer() -> None:
    sites = [Site(number, 0, None, "", 4, 2, 8, 8, False, "interface") for number in range(3)]
    assert parse_heads(None, sites, [0, 1]) is None
    assert parse_heads("all", sites, [0, 1]) is None
    assert parse_heads("0-1", sites, [0, 2]) == {0: (0, 1), 2: (0, 1)}
    assert parse_heads("1.3, 1.0, 2.1-2", sites, [0, 1, 2]) == {1: (0, 3), 2: (1, 2)}
    with pytest.raises(BadValue, match="not a selection of heads"):
        parse_heads("1.x", sites, [0, 1])
