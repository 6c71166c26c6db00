"""Colours that stand side by side are told apart by every kind of eye, or something else tells them apart."""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import pytest

from toposcope.report import charts, paint
from toposcope.report.vision import NEAR, apart, contrast

WORDS = ("converges", "diverges", "not_convergent", "bounded", "diverges_above", "indeterminate", "inactive")


def theme(name: str) -> dict[str, str]:
    """The colours of a theme; the dark one stands twice in the stylesheet."""
    text = resources.files("toposcope.report").joinpath("assets/toposcope.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{]*\{[^}]*color-scheme: (light|dark);([^}]*)\}", text)
    light, dark, again = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for _, block in blocks)
    assert [scheme for scheme, _ in blocks] == ["light", "dark", "dark"]
    assert dark == again
    return light if name == "light" else light | dark


def test_simulation_agrees_with_the_published_matrices() -> None:
    """Red and green of equal lightness meet for two kinds of eye; black and white never do."""
    assert apart("#000000", "#ffffff") == pytest.approx(1.0, abs=1e-3)
    assert apart("#aa4400", "#557700") < 0.05 < apart("#aa4400", "#0044aa")
    assert apart("#123456", "#123456") == 0.0
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_verdicts_are_told_apart(name: str) -> None:
    """On maps they carry a letter besides; in bars there is only the colour."""
    found = theme(name)
    assert {pair: far for pair in combinations(WORDS, 2) if (far := apart(*map(found.get, pair))) < NEAR} == {}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_ramps_grow_and_the_two_sides_of_a_signed_one_differ(name: str) -> None:
    found = theme(name)
    card = found["card"]
    ramp = [contrast(found[f"ramp-{i}"], card) for i in range(5)]
    assert ramp == sorted(ramp)
    assert all(apart(found[f"ramp-{i}"], found[f"ramp-{i + 1}"]) >= NEAR for i in range(4))
    signed = ("low-2", "low-1", "mid", "high-1", "high-2")
    assert all(apart(found[one], found[other]) >= NEAR for one, other in combinations(signed, 2))


@pytest.mark.parametrize("name", ["light", "dark"])
def test_colours_of_curves_are_seen_on_the_card(name: str) -> None:
    """Three to one, as WCAG asks of graphics; shades for variants two to one, with a dash of their own."""
    found = theme(name)
    curves = {key: value for key, value in found.items() if key.startswith(("palette-", "enc-"))}
    assert {key: value for key, value in curves.items() if contrast(value, found["card"]) < 3} == {}
    encodings = [key.removeprefix("enc-") for key in curves if key.startswith("enc-")]
    for encoding in encodings:
        variants = paint.encoding_colours([f"{encoding}:base={base}" for base in range(1, 6)])
        assert min(contrast(value, found["card"]) for value in variants.values()) >= 2


def test_parts_of_a_bar_differ_in_colour_alone() -> None:
    """No bar has more than four parts from the palette."""
    assert min(apart(*pair) for pair in combinations(paint.palette()[:4], 2)) >= NEAR
    assert min(apart(*pair) for pair in combinations(paint.palette(), 2)) > 0.02


@pytest.mark.parametrize("names", [
    tuple(key.removeprefix("enc-") for key in theme("light") if key.startswith("enc-")),
    ("own", "none", "rope:base=500", "rope:base=1000", "rope:base=10000", "alibi", "t5"),
    tuple(f"rope:base={base}" for base in range(1, 6)),
], ids=("encodings", "conditions", "variants"))  # fmt: skip
def test_no_two_curves_are_alike_in_colour_and_dash(names: tuple[str, ...]) -> None:
    colours = list(paint.encoding_colours(names).values())
    for found in (colours, list(paint.palette())):
        looks = list(zip(found, paint.dashes(found), strict=True))
        alike = [
            pair
            for pair in combinations(looks, 2)
            if pair[0][1] == pair[1][1] and apart(pair[0][0], pair[1][0]) < NEAR
        ]
        assert alike == []


def test_a_chart_of_categories_has_the_second_cue() -> None:
    spec = charts.in_colours_of_encodings(charts.line("x", "y", colour="encoding"), "encoding", ["rope", "alibi"])
    channels = spec["layer"][-1]["encoding"]
    assert channels["color"]["scale"]["domain"] == channels["strokeDash"]["scale"]["domain"] == ["rope", "alibi"]
    first, second = channels["strokeDash"]["scale"]["range"]
    assert first != second
    banded = charts.band("x", "y", "low", "high", colour="encoding")["layer"][-1]["encoding"]
    assert banded["strokeDash"]["field"] == banded["color"]["field"] == "encoding"
    both = charts.line("x", "y", colour="encoding", dash={"curve": ("kernel", "law")})["layer"]
    assert both[0]["encoding"]["strokeDash"]["field"] == "curve"
    assert both[1]["encoding"]["shape"]["field"] == "encoding"
