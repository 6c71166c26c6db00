"""`toposcope ablate` as a user meets it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.models.making import write_bert
from tests.unit.models.planting import write_planted
from toposcope.cli import COMMANDS, main
from toposcope.core.errors import BadValue

torch = pytest.importorskip("torch", reason="ablation needs torch: pip install torch")
pytest.importorskip("transformers", reason="ablation needs transformers: pip install transformers")


def widest(printed: str) -> int:
    """The longest line but for commands, which are made to be pasted."""
    return max(len(line) for line in printed.splitlines() if not line.startswith("  toposcope "))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_planted(tmp_path_factory.mktemp("planted"), (2,))


def arguments(model: Path, *more: str) -> list[str]:
    text = str(model / "text.txt")
    return ["ablate", str(model), "--text", text, "--lines", "--tokens", "16", "--sequences", "6", *more]


def call(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out if code == 0 else out + err


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def test_the_sentence_fits_the_list() -> None:
    assert len(COMMANDS["ablate"]) < 58


def test_the_function_and_all_it_can_become(planted: Path, tmp_path: Path) -> None:
    told: list[str] = []
    found = toposcope.ablate(
        planted, planted / "text.txt", lines=True, tokens=16, sequences=6, pairs="layer0", out="kept/ablate-*",
        progress=lambda what, done, total: told.append(what),
    )  # fmt: skip
    assert set(told) == {"heads removed", "pairs removed", "layers"}  # layers: for the shares of position
    assert [text.name for text in found.texts] == ["text", "shuffled", "repeated"]
    assert found.ranked()[0].name == "0.2"
    assert (found.layers[0].deposit.di or 0.0) > 0.99
    assert len(found.pairs) == 6
    assert widest(str(found)) <= 80
    (place,) = (tmp_path / "kept").iterdir()
    assert place.name.startswith("ablate-")
    assert toposcope.read(place / "result.json") == found == toposcope.read(found.save(tmp_path / "all.json"))
    assert len(found.frame()) == 8
    assert len(found.frame("pairs")) == 6
    assert "<script" not in found._repr_html_()
    assert "</html>" in found.html()
    assert found.figure(tmp_path / "ablate.svg").stat().st_size > 1000


def test_the_function_keeps_nothing_unless_asked(planted: Path, tmp_path: Path) -> None:
    options = {"lines": True, "tokens": 16, "sequences": 2, "heads": "0.2", "only": "text"}
    found = toposcope.ablate(planted, planted / "text.txt", **options)
    assert [each.name for each in found.heads] == ["0.2"]
    assert list(tmp_path.iterdir()) == []
    for wrong in ({"method": "nothing"}, {"mode": "guess"}):
        with pytest.raises(BadValue):
            toposcope.ablate(planted, planted / "text.txt", **options, **wrong)


def test_the_command_and_what_it_keeps(planted: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = call(capsys, *arguments(planted, "--csv", "heads.csv", "--json", "all.json"))
    assert widest(out) <= 80
    (place,) = (tmp_path / "runs").iterdir()
    result = json.loads((tmp_path / "all.json").read_text())
    assert result["schema"] == "toposcope/ablate/2"
    assert json.loads((place / "result.json").read_text()) == result
    rows = list(csv.DictReader((tmp_path / "heads.csv").read_text().splitlines()))
    assert len(rows) == 8
    assert [float(row["damage.text"]) for row in rows] == [each["damage"]["text"] for each in result["heads"]]
    before = (place / "journal.jsonl").read_bytes()
    call(capsys, *arguments(planted))
    assert (place / "journal.jsonl").read_bytes() == before, "nothing is measured twice"


def test_json_on_standard_output_is_clean(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, *arguments(planted, "--heads", "0.2,1.0-1", "--only", "text", "--out", "here", "--json", "-"))
    result = json.loads(out)
    assert [(each["layer"], each["head"]) for each in result["heads"]] == [(0, 2), (1, 0), (1, 1)]
    assert result["layers"] == []  # no layer is complete
    assert Path("here/journal.jsonl").exists()


def test_screen_tells_how_much_it_may_have_missed(planted: Path) -> None:
    found = toposcope.ablate(
        planted, planted / "text.txt", lines=True, tokens=16, sequences=6, mode="screen", sample=3, only="text"
    )
    assert found.screen is not None
    assert len(found.screen.sampled) == 3
    assert found.screen.miss is not None
    assert f"{found.screen.miss.high:.0%}" in str(found)
    assert f"{found.screen.recall.least:.0%}" in str(found)
    assert {each.estimate for each in found.heads} <= set(found.screen.estimates.values())


def test_options_of_the_device_reach_the_model(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = ("--heads", "0.2", "--only", "text", "--out", "half", "--json", "-")
    ran = json.loads(call(capsys, *arguments(planted, *some, "--dtype", "bfloat16", "--batch", "2")))["provenance"]
    assert (ran["ran"]["device"], ran["ran"]["dtype"], ran["options"]["batch"]) == ("cpu", "bfloat16", 2)
    assert ran["ran"]["rounding"] > 0
    assert "cuda" in call(capsys, *arguments(planted, "--device", "cuda"), code=2)


def test_check_proves_all_heads(planted: Path, tmp_path: Path) -> None:
    options = {"lines": True, "tokens": 16, "sequences": 6}
    found = toposcope.ablate_check(planted, planted / "text.txt", **options, method="mean")
    assert found.holds
    assert len(found.heads) == 8
    assert all(each.holds for each in found.heads)
    assert found.weights_before == found.weights_after == found.provenance.subjects[0].sha256
    assert widest(str(found)) <= 80
    assert toposcope.read(found.save(tmp_path / "check.json")) == found
    assert len(found.frame()) == 8
    assert "<script" not in found._repr_html_()
    assert "</html>" in found.html()
    assert not Path("runs").exists()
    (one,) = toposcope.ablate_check(planted, planted / "text.txt", **options, heads="1.3").heads
    assert one.name == "1.3"


def test_a_proof_that_fails_is_exit_code_1(
    planted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import toposcope.models.ablation.check
    from toposcope.models.intervene import ablated

    def wrong(model: Any, layer: int, head: int, *, by: Any) -> Any:
        return ablated(model, layer, [head, (head + 1) % 4], by=by)

    monkeypatch.setattr(toposcope.models.ablation.check, "ablated", wrong)
    call(capsys, *arguments(planted, "--check", "--heads", "1.3", "--json", "check.json"), code=1)
    found = json.loads(Path("check.json").read_text())
    assert not found["holds"]
    (head,) = found["heads"]
    assert (head["replaced"], head["others_same"], head["undone"], head["holds"]) == (True, False, True, False)


def test_a_model_that_predicts_nothing_drifts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.unit.models.making import TEXT

    write_bert(tmp_path / "bert")
    (tmp_path / "text.txt").write_text(TEXT * 8)
    words = ["ablate", "bert", "--text", "text.txt", "--tokens", "12", "--sequences", "3", "--only", "text"]
    call(capsys, *words, "--json", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["predicts"] == "drift"
    assert found["texts"][0]["base"] == pytest.approx([0, 0, 0], abs=1e-6)
    assert all(each["damage"]["text"] > 0 for each in found["heads"])
    assert "--mode exact" in call(capsys, *words, "--mode", "screen", code=2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--heads", "0.9"), "0.9"),
        (("--heads", "x"), "layer.head"),
        (("--layers", "5"), "does not exist"),
        (("--pairs", "top"), "all-top"),
        (("--only", "shufled"), "'shuffled'"),
        (("--only", "repeated"), "'text'"),
        (("--text", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_answered(
    more: tuple[str, ...], words: str, planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in call(capsys, *arguments(planted), *more, code=2).replace("\n", " ")


def test_another_sweep_in_the_same_place_is_refused(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--heads", "0.1", "--only", "text", "--out", "place")
    call(capsys, *arguments(planted, *few))
    out = call(capsys, *arguments(planted, *few, "--method", "mean"), code=2)
    assert "method: zero" in out
    assert "another --out" in out


KILLED = """
import os, signal, sys
from toposcope.core.journal import Journal
from toposcope.cli import main
add, left = Journal.add, [int(sys.argv[1])]
def adding(self, entry):
    if not left[0]:
        self._file.write(b'{"what": "0.0", "on"')  # half a line, as a crash leaves it
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    add(self, entry)
Journal.add = adding
main(sys.argv[2:])
"""


@pytest.mark.sample(3, of="long commands")
def test_a_killed_sweep_continues_and_repeats_nothing(
    planted: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = arguments(planted, "--only", "text", "--out")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "20", *words, "killed"],
        check=False,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not Path("killed/result.json").exists()
    left = Path("killed/journal.jsonl").read_text().splitlines()
    assert len(left) == 1 + 20 + 1  # the header, what was measured, and half a line
    call(capsys, *words, "killed")
    call(capsys, *words, "whole")
    journals = [
        [json.loads(line) for line in (tmp_path / name / "journal.jsonl").read_text().splitlines()]
        for name in ("killed", "whole")
    ]
    for _, *entries in journals:
        measured = [(entry["what"], entry["on"], entry["sequence"]) for entry in entries]
        assert len(measured) == len(set(measured)) == (1 + 8 + 1) * 6 + 1  # whole, heads, positions off; shares
    assert sorted(journals[0][1:], key=str) == sorted(journals[1][1:], key=str)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("killed", "whole")]
    for result in results:
        del result["provenance"]["seconds"]
    assert results[0] == results[1]
