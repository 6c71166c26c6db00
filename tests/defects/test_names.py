"""Names of things that mislead: lines J, K, L, M, N, P and Q of the table of wrong answers, and their siblings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.models.making import TEXT, write_llama_lm
from tests.unit.models.planting import write_planted
from tests.unit.report import making
from tests.unit.report.reading import Reader, table
from tests.unit.spectra.test_of_model import planted
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core.result import Result
from toposcope.core.statistics import from_error
from toposcope.models.ablation.result import AblateResult, HeadDamage
from toposcope.models.tracing.result import Spread
from toposcope.report import render
from toposcope.spectra import toeplitz_points

STRANGE = "zug hub vor mit ost wie gut " * 40  # of words that no tokenizer here knows


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and all that a command printed."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out + told.err


def told(*arguments: str) -> dict[str, Any]:
    """The JSON of a command."""
    return making.command(*arguments, out=Path("told.json"))


def summary(result: dict[str, Any] | Result) -> str:
    """What the page of a result says, in its words."""
    return " ".join(Reader(render([result])).words.split())


# ------------------------------------------------------------------ J
def test_J_scan_names_no_previous_token_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its kernel peaks at 1, which on real models says little: no list of names, on the terminal or on the page."""
    model = planted(tmp_path / "m", 1)
    code, printed = said(capsys, "scan", str(model), "--json", "scan.json", "--html", "scan.html")
    assert code == 0
    assert not re.search(r"previous token\)?: \d", printed)
    assert not re.search(r"\d of \d+ heads look at the previous token", Reader(Path("scan.html").read_text()).words)


def test_J_scan_ranks_heads_by_their_share_of_fast_pairs(tmp_path: Path) -> None:
    """Head 1 has no queries, so it has no share; head 0 spreads evenly, so its share is that of fast pairs."""
    found = told("scan", str(planted(tmp_path / "m", 1)))
    shares = [row["fast_share"] for row in found["heads"]]
    assert shares[0] == pytest.approx(sum(10000 ** (-i / 16) * 8 >= 1 for i in range(16)) / 16, abs=1e-5)
    assert shares[1] is None
    ranked = table(Reader(render([found])), "heads-by-fast-pairs")
    assert [row["name"] for row in ranked] == ["0.0"]


def test_J_trace_without_a_text_finds_the_planted_head(tmp_path: Path) -> None:
    model = write_planted(tmp_path / "planted", (2,))
    words = ("trace", str(model), "--text", "random", "--tokens", "16", "--sequences", "3")
    found, again, other = told(*words), told(*words), told(*words, "--seed", "1")
    assert found["patterns"]["previous"] == ["0.2"]
    assert found["provenance"]["options"]["text"] == "random"
    assert found["heads"] == again["heads"]
    assert found["heads"] != other["heads"]


# ------------------------------------------------------------------ K
def test_K_a_head_may_follow_two_patterns() -> None:
    """An induction head that rests on the first token is shown as both, in its cell, its legend and its table."""
    result = making.traced()
    both = replace(
        result.heads[3], names=("first", "induction"), on_first=Spread(0.9, 0.8, 1.0, 2),
        on_induction=Spread(0.5, 0.4, 0.6, 2), uniform={**result.heads[3].uniform, "induction": 0.1},
    )  # fmt: skip
    patterns = {**result.patterns, "first": ("1.1",), "induction": ("1.1",)}
    result = replace(result, heads=(*result.heads[:3], both), patterns=patterns)
    page = Reader(render([result]))
    (row,) = [each for each in table(page, "traced-heads") if (each["layer"], each["head"]) == (1, 1)]
    assert "induction" in row["pattern"]
    assert "first" in row["pattern"]
    (block,) = [each for each in page.data["blocks"].values() if each["kind"] == "headmap"]
    assert block["measures"][0]["words"][row["pattern"]] == "I"  # one character a cell: a map has no separators


# ------------------------------------------------------------------ L
def noisy(damage: float, error: float | None, sequences: int) -> AblateResult:
    """An ablation in which head 1.2 is the worst."""
    made = making.ablated()

    def head(each: HeadDamage) -> HeadDamage:
        value = damage if each.name == "1.2" else 0.0
        return replace(
            each, damage={**each.damage, "text": value}, error={**each.error, "text": error},
            losses={"text": (2.0 + value,) * sequences}, half_width=from_error(error, sequences),
        )  # fmt: skip

    texts = (replace(made.texts[0], base=(2.0,) * sequences), made.texts[1])
    return replace(made, heads=tuple(map(head, made.heads)), texts=texts)


@pytest.mark.parametrize(("error", "interval"), [(0.36, "+0.3 ± 1.1"), (0.01, "0.321 ± 0.032")])
def test_L_the_worst_head_carries_its_interval(error: float, interval: str) -> None:
    """t(0.975, 3) = 3.182; where 0 lies inside, the sentence does not say that the loss rises."""
    words = summary(noisy(0.321, error, 4))
    assert interval in words
    assert ("does not clearly rise" in words) == (error > 0.1)
    assert ("rises by 0.321" in words) == (error < 0.1)
    bars = table(Reader(render([noisy(0.321, error, 4)])), "worst-heads")
    assert bars[0]["low"] == pytest.approx(0.321 - 3.182446 * error, abs=1e-4)


def test_L_one_sequence_has_no_interval() -> None:
    assert "no interval" in summary(noisy(0.321, None, 1))


def test_L_ablate_says_it_on_the_terminal_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_planted(tmp_path / "planted", (2,))
    words = ("--text", str(model / "text.txt"), "--lines", "--sequences", "4", "--only", "text", "--out", "kept")
    code, printed = said(capsys, "ablate", str(model), *words)
    assert code == 0
    (worst,) = re.findall(r"heads, (0\.2) matters .*? by ([\d.]+) ± ([\d.]+)", " ".join(printed.split()))
    assert 0 < float(worst[2]) < float(worst[1])


def test_L_the_best_of_one_seed_is_no_order() -> None:
    result = making.swept()
    with_interval = summary(result)
    assert "2.0%" in with_interval
    for cell in result["cells"]:
        cell["half"], cell["n"] = None, 1
    assert "no interval" in summary(result)


def test_L_a_head_of_the_laboratory_that_does_nothing_is_not_the_one_that_matters() -> None:
    """90% right with all heads and 89.7% without one, of 200 sentences: that is noise."""
    deposit = {"d_max": 0.003, "d_rel": 0.0, "share": 1.0, "gini": 0.5, "di": 0.0, "head": 0, "second": None}
    layer = {"layer": 0, "accuracy": [0.897, 0.9], **deposit, "same_head": 0.5, "interval": None}
    found = {
        "sentences": 200,
        "base": 0.9,
        "floor": 0.1,
        "zero": [layer],
        "mean": [layer],
        "joint": None,
        "pairs": [],
    }
    provenance = {"subjects": [], "options": {}, "seconds": 1.0, "toposcope": "0", "ran": None}
    body = {"task": "copy", "ablation": {**found, "draws": 100, "level": 0.95}, "heads": []}
    result = {"schema": "toposcope/lab-ablate/2", "provenance": provenance, "skipped": [], **body}
    noise = 1.96 * sum((right * (1 - right) / 200) ** 0.5 for right in (0.9, 0.897))
    assert f"{100 * noise:.1f} points" in summary(result)
    assert "cannot tell" in summary(result)


# ------------------------------------------------------------------ M
def test_M_compare_says_how_encodings_differ_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    plain = write_llama(tmp_path / "plain")
    scaled = write_llama(tmp_path / "yarn", rope_scaling=yarn, rope_theta=5e5, max_position_embeddings=256)
    code, printed = said(capsys, "compare", str(plain), str(scaled), "--json", "told.json", "--html", "page.html")
    assert code == 0
    before = printed[: printed.index("layer ")]
    for value in ("yarn", "500000", "factor", "64"):
        assert value in before
    rows = {row["what"]: (row["a"], row["b"]) for row in json.loads(Path("told.json").read_text())["encodings"]}
    assert rows["base"] == ("10000", "500000")
    assert rows["scaling"] == ("default", "yarn")
    assert rows["factor"] == (None, "4")
    assert rows["original_context"] == (None, "64")
    words = summary(json.loads(Path("told.json").read_text()))
    assert words.index("yarn", words.index("Summary")) < words.index("is the same in every head")
    assert told("compare", str(plain), str(plain))["encodings"] == []


def test_M_two_stored_results_of_other_encodings_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, base in (("a", 1e4), ("b", 5e5)):
        making.command("scan", str(write_llama(tmp_path / name, rope_theta=base)), out=Path(f"{name}.json"))
    code, printed = said(capsys, "compare", "a.json", "b.json", "--json", "told.json")
    assert code == 0
    assert "base 500,000" in " ".join(printed.split())
    (row,) = json.loads(Path("told.json").read_text())["encodings"]
    assert "10,000" in row["a"]
    assert "500,000" in row["b"]


# ------------------------------------------------------------------ N
def test_N_ranks_that_are_called_exact_are_true() -> None:
    """-m |i-j| is regular at every n (S4): its rank does not fall to 50,100 at a million positions."""
    (found,) = told("spectrum", "alibi", "--context", "1048576")["encodings"]
    points = (*found["points"], *found["logit_points"])
    assert [point["rank"] for point in points] == [point["context"] for point in points]
    assert {point["rank_statement"] for point in points} == {"theorem"}
    conditions = [point["condition"] for point in found["logit_points"]]
    assert conditions == sorted(conditions)


def test_N_numerical_ranks_and_lower_bounds_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = said(capsys, "spectrum", "rope", "learned", "--context", "32", "--json", "told.json", "--full")
    assert code == 0
    rope, learned = json.loads(Path("told.json").read_text())["encodings"]
    assert rope["points"][0]["rank"] == 32  # the slowest pairs can be told apart, though not in float64
    assert rope["points"][0]["rank_statement"] == "theorem"
    assert rope["points"][0]["condition_statement"] == "at least"
    assert learned["points"][0]["rank_statement"] == "numerical"
    assert learned["points"][0]["tolerance"] == 32 * 2.0**-52
    assert re.search(r"^ +32 .* 32 +≥ \d", printed, re.MULTILINE)
    assert re.search(r"^ +32 .* 32\* ", printed, re.MULTILINE)


def test_N_a_bound_is_not_printed_as_a_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond Lanczos only bounds are known: 262,144 positions for a user, 4,096 here."""
    monkeypatch.setattr(toeplitz_points, "LANCZOS_LIMIT", 2048)
    code, printed = said(capsys, "spectrum", "t5", "rope", "--context", "4096", "--json", "told.json", "--full")
    assert code == 0
    result = json.loads(Path("told.json").read_text())
    last = result["encodings"][0]["points"][-1]
    assert last["statement"] == "bound"
    assert result["encodings"][0]["decay"][-1] is None  # no slope from a value to a bound
    lines = [line for line in printed.splitlines() if line.strip().startswith("4,096")]
    assert [lines[at].count("≥") for at in range(4)] == [0, 1, 1, 1]  # the longest; side by side, kernel, summand
    page = Reader(render([result]))
    assert table(page, "t5-by-context")[-1]["norm"].startswith("≥")
    assert f"{last['upper']:.4f}" in summary(result)


# ------------------------------------------------------------------ P
def test_P_loss_counts_positions_from_0_everywhere() -> None:
    page = Reader(render([making.loss()]))
    rows = table(page, "loss-by-position")
    assert {(row["first"], row["last"], row["position"]) for row in rows} == {(0, 0, 0), (1, 7, 4)}
    (chart,) = [each for each in page.data["blocks"].values() if each.get("table") == "loss-by-position"]
    assert '"symlog"' in json.dumps(chart["spec"])  # 0 has a place on the axis
    assert [row["positions"] for row in table(page, "loss-by-range-of-positions")] == ["0", "1-7"]


# ------------------------------------------------------------------ Q
@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="running a model needs transformers: pip install transformers")
    directory = tmp_path_factory.mktemp("llama")
    write_llama_lm(directory)
    (directory / "strange.txt").write_text(STRANGE)
    (directory / "mixed.txt").write_text(f"{TEXT}zug hub vor mit ost ")
    (directory / "latin.txt").write_bytes("ÄÖÜ ".encode("latin-1") * 200)
    return directory


@pytest.mark.parametrize("command", ["trace", "loss", "ablate", "flow"])
def test_Q_a_text_of_unknown_tokens_is_refused(llama: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    more = ["--head", "0.0"] if command == "flow" else ["--tokens", "12"]
    code, printed = said(capsys, command, str(llama), "--text", str(llama / "strange.txt"), *more)
    assert code == 2
    assert "100%" in printed
    assert "Traceback" not in printed


def test_Q_a_smaller_share_is_said(llama: Path) -> None:
    words = ("--text", str(llama / "mixed.txt"), "--tokens", "25", "--sequences", "1")
    assert "20%" in told("trace", str(llama), *words)["text"]
    assert "20%" in told("loss", str(llama), *words)["text"]


def test_Q_a_file_that_is_no_utf8_is_refused(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = said(capsys, "trace", str(llama), "--text", str(llama / "latin.txt"))
    assert code == 2
    assert "100%" in printed
