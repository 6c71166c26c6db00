"""What to cite: the command, and CITATION.cff beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from toposcope import __version__
from toposcope.cli import main
from toposcope.core.citation import PAPERS, TOPOSCOPE, WORKS
from toposcope.report.kinds import document

ROOT = Path(__file__).parents[3]
CFF = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["cite", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_file_and_the_command_say_the_same() -> None:
    assert (CFF["title"], CFF["version"]) == (TOPOSCOPE.title, __version__)
    assert CFF["date-released"].year == TOPOSCOPE.year
    assert [author["name"] for author in CFF["authors"]] == list(TOPOSCOPE.authors)
    for told, paper in zip(CFF["references"], PAPERS, strict=True):
        names = [f"{author['family-names']}, {author['given-names']}" for author in told["authors"]]
        assert (told["title"], tuple(names), told["year"]) == (paper.title, paper.authors, paper.year)
        assert (told["url"], told.get("notes")) == (paper.url, paper.note)
        assert told.get("conference", {}).get("name") == paper.where


def test_the_file_has_what_its_format_asks_for() -> None:
    assert {"cff-version", "message", "title", "authors"} <= CFF.keys()
    assert CFF["cff-version"] == "1.2.0"
    assert all({"type", "title", "authors"} <= reference.keys() for reference in CFF["references"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", CFF["version"])


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    first, *papers = said(capsys).strip().split("\n\n")
    assert first.startswith("The Toposcope developers (2026). Toposcope: ")
    assert first.endswith(f"Version {__version__}.")
    assert papers[0].startswith("Duy-Tung Pham, An The Nguyen, ")
    assert papers[0].endswith("NeurIPS 2025. arXiv:2512.03058.")
    assert "2505.13027" in papers[1]


def test_as_bibtex(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "--bibtex")
    entries = re.findall(r"^@(\w+)\{(\w+),\n(.*?)\n\}$", out, re.M | re.S)
    assert [(kind, key) for kind, key, _ in entries] == [
        ("software", "toposcope"),
        ("inproceedings", "pham2025dynamical"),
        ("misc", "gu2025unpacking"),
    ]
    assert out.count("{") == out.count("}")
    for (*_, body), work in zip(entries, WORKS, strict=True):
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", body, re.M))
        assert len(fields) == len(body.splitlines())
        assert fields["title"] == f"{{{work.title}}}"
        assert len(fields["author"].split(" and ")) == len(work.authors)
        assert work.authors[0] in fields["author"]
        assert fields["author"].startswith("{") == (", " not in work.authors[0])  # a group is no first and last name


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(said(capsys, "--json", "-"))
    jsonschema.validate(result, document("cite"))
    assert [work["key"] for work in result["works"]] == [work.key for work in WORKS]
