"""Figures for papers: every kind that has one is drawn, as vectors with real text, and the same every time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report import making
from toposcope.core.errors import BadValue
from toposcope.report.figure_old import draw


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    place = tmp_path_factory.mktemp("figures")
    return {
        "scan": making.scanned(place),
        "flow": making.flowed(place),
        "spectrum": making.command("spectrum", "rope", "--context", "64", out=place / "s.json"),
        "loss": making.loss(),
        "trace": making.traced(),
        "ablate": making.ablated(),
        "compare": making.command("compare", str(place / "model"), str(place / "model"), out=place / "c.json"),
    }


WORDS = {
    "scan": ["growth index", "layer", "offset t"],
    "flow": ["clusters", "mean cosine"],
    "spectrum": ["effective rank", "context n", "rope"],
    "loss": ["loss by position", "rope:base=500"],
    "trace": ["Toeplitz share", "named patterns", "previous"],
    "ablate": ["deposit index", "damage, nats"],
    "compare": ["change of kernel", "head"],
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_words_stay_words_in_svg(results: dict[str, dict[str, Any]], name: str, tmp_path: Path) -> None:
    text = draw(results[name], tmp_path / "f.svg").read_text()
    shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    for word in WORDS[name]:
        assert word in shown
    sizes = {float(size) for size in re.findall(r"font: (?:bold )?([\d.]+)px", text)}
    assert sizes <= {7.0, 8.0}


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_result_gives_the_same_file(results: dict[str, dict[str, Any]], kind: str, tmp_path: Path) -> None:
    first, second = (draw(results["scan"], tmp_path / f"{number}.{kind}").read_bytes() for number in range(2))
    assert first == second


def test_pdf_embeds_its_fonts_and_has_the_width_of_a_page(results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    content = draw(results["loss"], tmp_path / "f.pdf").read_bytes()
    assert b"/FontFile2" in content  # TrueType outlines: text can be searched and edited
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
    assert float(box[0]) == pytest.approx(7 * 72)
    assert content == draw(results["loss"], tmp_path / "g.pdf").read_bytes()


def test_a_bad_name_and_a_result_without_a_figure_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"must end in \.pdf, \.svg or \.png"):
        draw(making.loss(), tmp_path / "f.jpg")
    with pytest.raises(BadValue, match="no figure for a result of 'check'"):
        draw({"schema": "toposcope/check/1"}, tmp_path / "f.pdf")
