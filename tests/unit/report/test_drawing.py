"""One page of blocks, drawn four ways: terminal, notebook, HTML, figure."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from toposcope.core.errors import BadValue
from toposcope.report import figure, notebook, terminal
from toposcope.report.blocks import (
    Attention,
    Chart,
    Column,
    Findings,
    HeadMap,
    Listing,
    Measure,
    Page,
    Pairs,
    Paragraphs,
    Row,
    StillAttention,
    Summary,
)
from toposcope.report.console import IndentedConsole
from toposcope.report.page import MOST_ROWS, page_html
from toposcope.report.paint import colour, encoding_colours, painted, palette

HOSTILE = "<script>alert(1)</script> [bold]\x1b[31m name"
VERDICT = Measure("verdict", "Verdict", "category", "What holds.", words={"converges": "c", "diverges": "D"})
CHART, FINE_PRINT, REST = "Growth by head", "only for pages", "not on terminals"
GROWTH = Measure("growth", "Growth", "sequential", "How much grows.", low=0.0, high=1.0)


def page(measure: Measure = VERDICT) -> Page:
    made = Page(title=f"A model {HOSTILE}", line="llama")
    made.facts.append(("270", "heads"))
    heads = [
        {"layer": layer, "head": head, "verdict": ("converges", "diverges")[(layer + head) % 2], "growth": head / 2}
        for layer in range(2)
        for head in range(3)
    ]
    table = made.rows("heads", heads)
    made.add("Summary", Summary((f"Most heads grow {HOSTILE}. " + "words " * 30,)))
    made.add("Map", HeadMap("Heads", "Each cell is a head.", table, (measure,), in_figure=True))
    columns = (Column("layer", "layer"), Column("verdict", "verdict", "text"), Column("growth", "growth", "+.3f"))
    made.add("Table", Listing("Heads", "All of them.", table, columns, top=4))
    spec = {"mark": "line", "encoding": {"x": {"field": "head", "type": "quantitative"}}}
    made.add("Chart", Chart(CHART, "A line.", table, spec, in_figure=True))
    pairs = Pairs("A card", (("base", "10000"), ("lines", ("one", "two"))))
    made.add("Row", Row((Paragraphs(("A paragraph.",)), pairs)))
    found = {"status": "warning", "title": "Odd", "explanation": "Because.", "what_to_do": "Mend."}
    made.add("Findings", Findings((found, {**found, "status": "ok", "title": "Fine"})))
    made.add("Fine print", Paragraphs((FINE_PRINT,)), detail=True)
    made.add("The rest", Paragraphs((REST,)), full=True)
    return made


def test_a_terminal_has_80_columns_and_no_escapes() -> None:
    text = terminal.text(page())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in text
    assert "[bold]" in text  # a name's own, shown and not obeyed
    assert any(line.split() == ["0", "cDc"] for line in lines)
    assert any(line.split() == ["0", "converges", "+0.000"] for line in lines)
    assert "2 more" in text
    assert FINE_PRINT not in text
    assert REST not in text
    assert "Chart" not in lines  # a section of pictures alone is left out


@pytest.mark.parametrize("full", [False, True])
def test_a_terminal_names_what_full_would_add(full: bool) -> None:
    out = io.StringIO()
    terminal.show(page(), IndentedConsole(file=out, width=80), full=full, offer=not full)
    text = out.getvalue()
    assert [REST in text, FINE_PRINT in text, "--full" in text] == [full, full, not full]
    assert "The rest" in text


def test_numbers_become_digits_on_the_map() -> None:
    lines = terminal.text(page(GROWTH)).splitlines()
    assert any(line.split() == ["0", "059"] for line in lines)


def test_a_listing_that_is_too_wide_shows_its_brief_columns() -> None:
    made = Page(title="wide")
    names = [f"column number {i}" for i in range(8)]
    table = made.rows("wide", [dict.fromkeys(names, 0.5)])
    columns = tuple(Column(name, name) for name in names)
    made.add("Wide", Listing("Wide", "", table, columns, brief=(names[0], names[7])))
    text = terminal.text(made)
    assert names[0] in text
    assert names[7] in text
    assert names[3] not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_notebook_shows_no_script_and_escapes_words() -> None:
    text = notebook.fragment(page())
    assert "<script" not in text
    assert html.escape("<script>") in text
    assert text.count(colour("converges")) == 3 + 1  # the map, and what its colours stand for
    assert FINE_PRINT not in text
    assert REST in text
    assert len(re.findall("<tr>", text)) == 2 + 5 + 2  # the map, four rows under a heading, the card


def test_a_notebook_says_what_the_colours_of_a_map_stand_for() -> None:
    made = page()
    (block,) = [each for section in made.sections for each in section.blocks if isinstance(each, HeadMap)]
    colours = dict(notebook.map_legend(block, made))
    assert colours == {colour("converges"): "converges", colour("diverges"): "diverges"}
    made = page(GROWTH)
    (block,) = [each for section in made.sections for each in section.blocks if isinstance(each, HeadMap)]
    ends = notebook.map_legend(block, made)
    assert [words for _, words in ends] == ["0", "1"]
    assert [paint for paint, _ in ends] == painted(GROWTH, [0.0, 1.0])


def test_a_page_shows_everything_and_escapes_words() -> None:
    text = page_html(page(), [])
    assert FINE_PRINT in text
    assert REST in text
    assert "<script>alert" not in text


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_a_figure_is_drawn_from_the_same_blocks(kind: str, begins: bytes, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="figures need vl-convert: pip install 'toposcope[plot]'")
    path = figure.draw(page(), tmp_path / f"figure.{kind}")
    assert path.read_bytes().startswith(begins)
    if kind == "svg":
        text = path.read_text()
        assert CHART in text
        assert colour("converges") in text
        assert "<script" not in text


def test_thousands_of_series_are_packed_and_few_are_not() -> None:
    random = np.random.default_rng(0)
    for rows in (3, MOST_ROWS + 1):
        series = [(random.standard_normal(12) * 10.0**power).tolist() for power in random.integers(-9, 9, rows)]
        drawn = Page(title="many")
        table = drawn.table("heads", {"head": list(range(rows)), "kernel": series, "pair": [[1.0, 2.0]] * rows})
        drawn.add("All", Listing("All", "", table, (Column("head", "head"),)))
        (data,) = re.findall(r'id="data">(.*?)</script>', page_html(drawn, []))
        found = json.loads(data)
        assert found["packed"] == ({table: ["kernel"]} if rows > MOST_ROWS else {})
        for cell, values in zip(found["tables"][table]["kernel"], series, strict=True):
            if rows <= MOST_ROWS:
                assert cell == pytest.approx(values, rel=1e-4)
                continue
            content = base64.b64decode(cell)
            largest = np.frombuffer(content[:4], "<f4")[0]
            assert largest == pytest.approx(max(map(abs, values)), rel=1e-4)
            shares = np.frombuffer(content[4:], "<i2") / 32767
            np.testing.assert_allclose(shares * largest, values, atol=3e-5 * largest, rtol=1e-4)


def test_a_figure_ends_in_attention_with_its_tokens(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="figures need vl-convert: pip install 'toposcope[plot]'")
    still = StillAttention(
        "3.2", ("The", "<b>cat</b>", "The"), ((1.0, None, None), (0.25, 0.75, None), (0, 0, 1)), ()
    )
    for made in (Page(title="alone"), page()):
        made.add("Attention", Attention("Who looks", "", (), "", still))
        text = figure.draw(made, tmp_path / "figure.svg").read_text()
        for words in ("head 3.2", "The 0", "The 2", "&lt;b&gt;cat&lt;/b&gt; 1"):
            assert words in text
        assert text.count(f"{colour('ramp-4')}") or "rgb" in text
        assert (CHART in text) == (made.title != "alone")


def test_figures_need_a_name_and_something_to_draw(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="figures need vl-convert: pip install 'toposcope[plot]'")
    with pytest.raises(BadValue, match=r"\.pdf"):
        figure.draw(page(), tmp_path / "figure.docx")
    with pytest.raises(BadValue):
        figure.draw(Page(title="empty"), tmp_path / "figure.pdf")


def test_an_encoding_has_one_colour_everywhere() -> None:
    alone = encoding_colours(["rope:base=500000"])["rope:base=500000"]
    among = encoding_colours(["rope", "alibi", "rope:base=500000", "t5"])
    assert among["rope:base=500000"] == alone
    assert among["rope"] == encoding_colours(["rope"])["rope"] == colour("enc-rope")
    assert len(set(among.values())) == len(among)
    many = encoding_colours([f"rope:base={base}" for base in range(1, 6)])
    assert len(set(many.values())) == len(many)


def test_cells_are_painted_as_their_measure_says() -> None:
    assert painted(VERDICT, ["converges", "none", "other"]) == [colour("converges"), colour("wash"), colour("faint")]
    assert painted(GROWTH, [0.0, 1.0, None]) == [colour("ramp-0"), colour("ramp-4"), colour("wash")]
    both = Measure("x", "X", "diverging", "", harm=True)
    assert painted(both, [-1.0, 0.0, 2.0])[1:] == [colour("mid"), colour("low-2")]
    share = Measure("x", "X", "diverging", "", low=0.0, high=1.0, harm=True, middle=0.5)
    assert painted(share, [0.0, 0.5, 1.0]) == [colour("high-2"), colour("mid"), colour("low-2")]
    far = Measure("x", "X", "logarithmic", "")
    assert painted(far, [1, 4, 16])[1] == colour("ramp-2")
    assert len(palette()) == 12
