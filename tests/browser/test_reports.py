"""Reports in a real browser, from the file system and the server: they draw, answer, hand out data, ask nobody."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.browser.browser import NARROW, WIDE, Visit, visit
from tests.unit.report import making
from tests.unit.tiny import write_llama
from tests.unit.web.running import Visitor, running
from toposcope.core.result import Result
from toposcope.models.tracing.result import TraceResult
from toposcope.report import render
from toposcope.report.kinds import read_results

if TYPE_CHECKING:
    from playwright.sync_api import Browser


STUDIES = sorted((Path(__file__).parents[2] / "docs" / "studies").glob("*.json"))
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    place = tmp_path_factory.mktemp("results")
    scan = making.scanned(place)
    other = str(write_llama(place / "other", seed=1))
    lm = making.language_model(place / "lm")
    runs = [making.trained(name, seed, 0.5 + 0.1 * seed) for name in ("rope", "none") for seed in range(2)]
    return {
        "scan": [making.command("check", str(place / "model"), out=place / "k.json"), scan],
        "big": [_big(scan)],
        "empty": [{**scan, "heads": [], "model": {**scan["model"], "counts": {}}}],
        "module": [making.module_checked()],
        "inspect": [making.command("inspect", str(place / "model"), out=place / "i.json")],
        "flow": [making.flowed(place)],
        "spectrum": [
            making.command(
                "spectrum", "rope", "rope:scaling=yarn,factor=16", "--context", "256", out=place / "s.json"
            )
        ],
        "compare": [making.command("compare", str(place / "model"), other, out=place / "c.json")],
        "loss": [making.loss()],
        "trace": [making.really_traced(lm)],
        "depth": [making.followed(lm)],
        "refine": [making.refined(lm)],
        "proof": [making.proved(lm)],
        "ablate": [making.ablated()],
        "train": [making.really_trained(place)],
        "lab": [making.lab_ablated(place)],
        "sweep": [making.swept(), *runs],
        "reproduce": [making.coupled()],
        "dynamics": [making.reproduced(place)],
    }


def _big(scan: dict[str, Any]) -> dict[str, Any]:
    """32 layers of 32 heads of width 64, drawn at random."""
    random = np.random.default_rng(0)
    verdicts = ["converges", "diverges", "not_convergent", "indeterminate"]
    big = {**scan, "heads": [], "spectra": {**scan["spectra"], "first_layer": []}}
    for layer in range(32):
        for head in range(32):
            own = {
                "layer": layer,
                "head": head,
                "verdict": verdicts[random.integers(4)],
                "growth_index": random.random(),
            }
            values = np.abs(random.standard_normal((36, 2))).round(4).tolist()
            kernel, energy = random.standard_normal(64).round(4).tolist(), random.dirichlet(np.ones(32)).tolist()
            row = {**scan["heads"][0], **own, "eigenvalues": values, "kernel": kernel}
            big["heads"].append({**row, "query_energy": energy, "key_energy": energy})
    return big


@pytest.fixture(scope="module")
def address(
    results: dict[str, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    place = tmp_path_factory.mktemp("pages")

    def written(name: str) -> str:
        file = place / f"{name}.html"
        if not file.exists():
            file.write_text(render(results[name], title=f"A report of {name}"))
        return file.as_uri()

    return written


NAMES = (
    "ablate", "big", "compare", "depth", "dynamics", "empty", "flow", "inspect", "lab", "loss", "module", "proof",
    "refine", "reproduce", "scan", "spectrum", "sweep", "trace", "train",
)  # fmt: skip


def drawn(seen: Visit) -> None:
    """Every block of the page has its picture."""
    blocks = seen.page.evaluate("Object.values(toposcope.page.data.blocks).map(block => block.kind)")
    charts = seen.page.locator("figure[data-block=chart] svg.marks")
    assert charts.count() == blocks.count("chart")
    heights = charts.evaluate_all("nodes => nodes.map(node => node.getBoundingClientRect().height)")
    assert all(height > 30 for height in heights)
    maps = seen.page.locator("figure[data-block] canvas[role=application]")
    assert maps.count() == sum({"headmap": 1, "matrix": 1, "attention": 3}.get(kind, 0) for kind in blocks)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
def test_draws_without_complaint_and_is_there_for_everybody(
    browser: Browser, address: Callable[[str], str], name: str
) -> None:
    """Wide and light, narrow and dark: axe finds nothing, and the Tab key comes to all that can be clicked."""
    with visit(browser, address(name)) as seen:
        drawn(seen)
        assert not seen.too_wide()
        seen.picture(f"report-{name}-light-{WIDE}")
        if name == "big":  # made like "scan", and axe takes half a minute for its 1024 rows
            return
        assert seen.violations() == []
        assert seen.unreached() == []
        seen.page.get_by_role("button", name="Switch between light and dark").click()
        seen.resize(NARROW)
        assert not seen.too_wide()
        seen.picture(f"report-{name}-dark-{NARROW}")
        assert seen.violations() == []


def test_a_long_name_does_not_widen_a_narrow_page(browser: Browser, tmp_path: Path) -> None:
    """In a summary and in the sentence of a picture."""
    file = tmp_path / "long.html"
    file.write_text(render([replace(making.traced(), text="2 stretches of 24 tokens of " + "x" * 90)]))
    with visit(browser, file.as_uri(), width=NARROW) as seen:
        assert seen.page.locator(".says", has_text="x" * 90).count() == 1
        assert seen.page.locator("figcaption p", has_text="x" * 90).count() > 0
        assert not seen.too_wide()


@pytest.mark.parametrize(
    ("name", "tables"), [("module", ["probes"]), ("inspect", ["encoding-by-layer", "all-heads"])]
)
def test_a_table_of_few_columns_fits_a_narrow_page(
    browser: Browser, address: Callable[[str], str], name: str, tables: list[str]
) -> None:
    with visit(browser, address(name), width=NARROW) as seen:
        for each in tables:
            table = seen.page.locator(f"#chart-{each} .scroll")
            assert table.evaluate("node => node.scrollWidth <= node.clientWidth"), each


@pytest.mark.sample(2)
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_tables_of_a_study_fit_a_wide_and_a_narrow_page(browser: Browser, file: Path, tmp_path: Path) -> None:
    page = tmp_path / "study.html"
    page.write_text(render(read_results([file])))
    with visit(browser, page.as_uri()) as seen:
        for width in (WIDE, NARROW):
            seen.resize(width)
            tables = seen.page.locator(".scroll").filter(visible=True)
            assert tables.count() > 4
            wide = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).map(node => node.ariaLabel)"
            assert tables.evaluate_all(wide) == []


def test_a_long_title_stays_within_the_contents(browser: Browser, address: Callable[[str], str]) -> None:
    with visit(browser, address("spectrum")) as seen:
        assert seen.page.locator("nav.toc").evaluate("node => node.scrollWidth <= node.clientWidth")


def plain_data(result: Any) -> Any:
    return result.as_dict() if isinstance(result, Result) else result


def test_every_report_opens_from_the_server(browser: Browser, results: dict[str, Any], tmp_path: Path) -> None:
    """Under the server's own policy, in its sandbox, each draws all it has."""
    files = []
    for name in NAMES:
        if name != "big":
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(json.dumps(plain_data(results[name][-1])))
    with running(tmp_path, *map(str, files), "--port", "0") as (_, url):
        server = Visitor(url)
        for number, file in enumerate(files):
            with visit(browser, f"{server.place}/results/r{number}/report?token={server.token}") as seen:
                drawn(seen)
                assert seen.page.locator("h1").inner_text(), file.name
                assert seen.page.evaluate("window.origin") == "null"


@pytest.fixture(scope="module")
def scan_page(browser: Browser, address: Callable[[str], str]) -> Iterator[Visit]:
    """The page of the scan, opened once for the tests that leave it as readable as they found it."""
    with visit(browser, address("scan")) as seen:
        yield seen


def test_a_click_and_the_arrow_keys_open_the_page_of_a_head(
    browser: Browser, address: Callable[[str], str], results: dict[str, Any]
) -> None:
    heads = {(head["layer"], head["head"]): head for head in results["scan"][1]["heads"]}
    with visit(browser, address("scan")) as seen:
        page = seen.page
        (name,) = page.evaluate(
            "Object.keys(toposcope.page.data.blocks).filter(n => toposcope.page.data.blocks[n].kind == 'headmap')"
        )
        canvas = page.locator(f"#{name} canvas[role=application]")
        canvas.scroll_into_view_if_needed()
        page.mouse.click(*page.evaluate(f"toposcope.page.maps['{name}'].centre([1, 2])"))
        panel = page.locator(".head-page")
        panel.get_by_text("Layer 1, head 2").wait_for()
        assert heads[1, 2]["verdict"].replace("_", " ") in panel.inner_text()
        assert page.url.endswith("#head-1.2")
        canvas.focus()
        for key in ("ArrowDown", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        panel.get_by_text("Layer 2, head 1").wait_for()
        assert f"{heads[2, 1]['margin']:.2%}" in panel.inner_text()
        panel.get_by_role("button", name="Next").click()
        panel.get_by_text("Layer 2, head 2").wait_for()
        panel.get_by_text("Certificate and numbers").wait_for()
        with page.expect_download() as caught:
            panel.get_by_role("button", name="Download Eigenvalues of V O 2.2 as JSON").click()
        values = json.loads(Path(caught.value.path()).read_text())
        both = sorted(complex(row["real"], row["imaginary"]).real for row in values)
        theirs = [complex(*pair) for pair in heads[2, 2]["eigenvalues"]]
        assert both == pytest.approx(
            sorted(v.real for v in [*theirs, *(u.conjugate() for u in theirs if u.imag > 0)]), rel=1e-3
        )
        page.goto(address("scan") + "#head-0.3")
        page.reload()
        page.wait_for_selector("html[data-ready]")
        page.locator(".head-page").get_by_text("Layer 0, head 3").wait_for()


def test_the_switch_of_a_map_changes_its_colours_and_its_words(scan_page: Visit) -> None:
    seen = scan_page
    figure = seen.page.locator("figure[data-block=headmap]")
    paint = "node => node.toDataURL()"
    before = figure.locator("canvas[role=application]").evaluate(paint)
    figure.get_by_text("Growth", exact=True).click()
    assert figure.locator("canvas[role=application]").evaluate(paint) != before
    assert "prevail" in figure.inner_text()
    figure.get_by_role("radio", name="Growth").press("ArrowRight")
    assert figure.get_by_role("radio", name="Peak offset").is_checked()


def test_keys_are_told_what_a_pointer_is_told(scan_page: Visit, results: dict[str, Any]) -> None:
    page = scan_page.page
    figure = page.locator("#regimes-by-depth figure").nth(1)  # a dot for each head
    page.locator("#save-all").focus()  # from there by keys: a focus that is seen
    page.keyboard.press("Tab")
    figure.locator(".chart").focus()
    heads = [head for head in results["scan"][1]["heads"] if head["layer"] == 0]
    told = set()
    for _ in heads:
        told.add(figure.locator(".reading").inner_text())
        page.keyboard.press("ArrowRight")
    assert len(told) == len(heads)
    assert all(words.startswith("layer 0, head") for words in told)
    page.keyboard.press("End")
    last = results["scan"][1]["heads"][-1]["layer"]
    assert figure.locator(".reading").inner_text().startswith(f"layer {last}, head")
    page.keyboard.press("Tab")
    assert not figure.locator(".reading").is_visible()


def test_downloads_hold_the_numbers_of_the_result(scan_page: Visit, results: dict[str, Any]) -> None:
    scan = results["scan"][1]
    seen = scan_page
    every = seen.page.locator("#every-head")
    rows = list(csv.DictReader(io.StringIO(seen.saved(every.locator("[data-save=csv]")))))
    assert len(rows) == len(scan["heads"])
    for row, head in zip(rows, scan["heads"], strict=True):
        assert (int(row["layer"]), int(row["head"]), row["verdict"]) == (
            head["layer"],
            head["head"],
            head["verdict"],
        )
        assert float(row["alpha"]) == pytest.approx(head["alpha"], rel=1e-4)
    shown = json.loads(seen.saved(seen.page.locator("#regimes-by-depth figure [data-save=json]").first))
    assert sum(row["heads"] for row in shown) == len(scan["heads"])
    whole = json.loads(seen.saved(seen.page.locator("#save-all")))
    assert whole["results"][1]["subjects"] == scan["provenance"]["subjects"]
    buttons = seen.page.locator("figure[data-block], .save-here")
    assert all(each.locator("[data-save=csv]").count() == 1 for each in buttons.all())


def test_a_picture_is_handed_out_with_its_address_and_its_python(scan_page: Visit, results: dict[str, Any]) -> None:
    page = scan_page.page
    names = page.locator("figure[id]").evaluate_all("nodes => nodes.map(node => node.id)")
    assert len(names) == len(set(names)) > 5
    assert all(name.startswith("chart-") for name in names)
    chart = page.locator("figure[data-block=chart]").first
    assert chart.locator("a.address").get_attribute("href") == f"#{chart.get_attribute('id')}"
    for figure in (chart, page.locator("figure[data-block=headmap]")):
        with page.expect_download() as caught:
            figure.locator("[data-save=image]").first.click()
        assert Path(caught.value.path()).read_bytes().startswith(b"\x89PNG")
    lines = page.evaluate("toposcope.page.data.python")
    assert [line.partition("(")[0] for line in lines] == ["result = toposcope.check", "result = toposcope.scan"]
    passed = [each for each in results["scan"][0]["findings"] if each["status"] == "ok"]
    assert page.locator(".finding.ok .finding.ok").count() == len(passed) > 1
    assert page.locator("main .finding.ok:visible").count() == 1


def test_a_table_sorts_by_its_headings(scan_page: Visit, results: dict[str, Any]) -> None:
    alphas = sorted((head["alpha"] for head in results["scan"][1]["heads"]), reverse=True)
    seen = scan_page
    table = seen.page.locator("#every-head table")
    heading = table.get_by_role("button", name="max Re")
    column = "rows => rows.map(row => Number(row.cells[8].dataset.value))"
    for order, expected in (("descending", alphas), ("ascending", alphas[::-1])):
        heading.press("Enter")
        assert table.locator("tbody tr").evaluate_all(column) == pytest.approx(expected, rel=1e-4)
        assert table.locator(f"th[aria-sort={order}]").count() == 1


def test_logits_stand_beside_their_toeplitz_part(
    browser: Browser, address: Callable[[str], str], results: dict[str, Any]
) -> None:
    first = results["trace"][0]["logits"][0]
    with visit(browser, address("trace")) as seen:
        pair = seen.page.locator("#logits-and-their-toeplitz-part figure")
        assert pair.count() == 2 * len(results["trace"][0]["logits"])
        for at, key in enumerate(("logits", "toeplitz")):
            rows = json.loads(seen.saved(pair.nth(at).locator("[data-save=json]")))
            for row in rows:
                shown = first[key][int(row["query"])][int(row["key"])]
                assert row[key] is None if shown is None else row[key] == pytest.approx(shown, rel=1e-4)
        pair.first.locator("canvas[role=application]").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            seen.page.keyboard.press(key)
        assert f"{first['logits'][2][1]:.3g}" in pair.first.inner_text()


def test_dragging_the_clock_moves_the_tokens(
    browser: Browser, address: Callable[[str], str], results: dict[str, Any]
) -> None:
    flow = results["flow"][0]["flows"][0]
    with visit(browser, address("flow")) as seen:
        figure = seen.page.locator("figure[data-block=particles]")
        canvas, slider = figure.locator("canvas"), figure.get_by_role("slider")
        before = canvas.evaluate("node => node.toDataURL()")
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        seen.page.mouse.move(box["x"] + 8, y)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + box["width"] - 1, y, steps=5)
        seen.page.mouse.up()
        assert canvas.evaluate("node => node.toDataURL()") != before
        last = float(figure.locator("output").inner_text().removeprefix("t = "))
        assert last == pytest.approx(flow["end"], rel=0.01)
        slider.press("Home")
        assert figure.locator("output").inner_text() == "t = 0"
        assert canvas.evaluate("node => node.toDataURL()") == before
        figure.get_by_role("button", name="Play").click()
        figure.locator("output", has_text=re.compile("[1-9]")).wait_for()
        figure.get_by_role("button", name="Pause").click()
        rows = json.loads(seen.saved(figure.locator("[data-save=json]")))
        assert {row["token"] for row in rows} == set(range(flow["tokens"]))


def test_tokens_move_once_by_themselves_when_they_come_into_view(
    browser: Browser, address: Callable[[str], str], results: dict[str, Any]
) -> None:
    end = results["flow"][0]["flows"][0]["end"]
    with visit(browser, address("flow"), motion="no-preference") as seen:
        figure = seen.page.locator("figure[data-block=particles]")
        figure.scroll_into_view_if_needed()
        figure.get_by_role("button", name="Pause").wait_for()
        figure.get_by_role("button", name="Play").wait_for()  # it has come to the end, and can be asked for again
        assert float(figure.locator("output").inner_text().removeprefix("t = ")) == pytest.approx(end, rel=0.01)
        figure.get_by_role("slider").press("Home")
        seen.page.mouse.wheel(0, 4000)
        figure.scroll_into_view_if_needed()
        seen.page.wait_for_timeout(400)
        assert figure.locator("output").inner_text() == "t = 0"
    with visit(browser, address("flow")) as calm:
        figure = calm.page.locator("figure[data-block=particles]")
        figure.scroll_into_view_if_needed()
        calm.page.wait_for_timeout(400)
        assert figure.locator("output").inner_text() == "t = 0"
        assert figure.get_by_role("button", name="Play").is_visible()


def test_a_clock_that_is_touched_is_not_started(browser: Browser, address: Callable[[str], str]) -> None:
    with visit(browser, address("flow"), width=NARROW, motion="no-preference") as seen:
        figure = seen.page.locator("figure[data-block=particles]")
        figure.get_by_role("slider").press("End")
        figure.get_by_role("slider").press("Home")
        figure.locator("canvas").scroll_into_view_if_needed()
        seen.page.wait_for_timeout(400)
        assert figure.locator("output").inner_text() == "t = 0"


def test_the_theme_switches_and_is_remembered(browser: Browser, address: Callable[[str], str]) -> None:
    with visit(browser, address("scan")) as seen:
        colour = "getComputedStyle(document.body).backgroundColor"
        light = seen.page.evaluate(colour)
        map_before = seen.page.locator("canvas[role=application]").first.evaluate("node => node.toDataURL()")
        seen.page.get_by_role("button", name="Switch between light and dark").click()
        dark = seen.page.evaluate(colour)
        assert dark != light
        assert seen.page.locator("canvas[role=application]").first.evaluate("node => node.toDataURL()") != map_before
        seen.page.reload()
        seen.page.wait_for_selector("html[data-ready]")
        assert seen.page.evaluate(colour) == dark


def test_on_paper_there_are_no_buttons_and_all_is_light(browser: Browser, address: Callable[[str], str]) -> None:
    with visit(browser, address("scan"), scheme="dark") as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not seen.page.locator("#theme").is_visible()
        assert not seen.page.locator("[data-save=csv]").first.is_visible()
        assert seen.page.locator("#every-head tbody tr").last.is_visible()
        headings = seen.page.locator("#every-head thead th").evaluate_all(
            "nodes => nodes.map(node => { const words = document.createRange(); words.selectNodeContents(node); "
            "return words.getBoundingClientRect().width; })"
        )
        assert min(headings) > 0  # they are buttons on a screen, and words on paper
        closed = seen.page.locator("details:not([open])").count()
        seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert closed > 0 == seen.page.locator("details:not([open])").count()
        seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert seen.page.locator("details:not([open])").count() == closed
        seen.page.set_viewport_size({"width": 688, "height": 1000})  # what the margins leave of A4
        assert not seen.too_wide()
        content = seen.page.pdf()
        assert content.startswith(b"%PDF")


def test_markup_in_names_is_shown_and_does_not_run(browser: Browser, results: dict[str, Any], tmp_path: Path) -> None:
    nasty = "<script>window.hit=1</script><img src=x onerror=window.hit=2>"
    scan = json.loads(json.dumps(results["scan"][1]))
    scan["provenance"]["subjects"][0] |= {"name": nasty, "path": f"/m/{nasty}"}
    scan["heads"][0]["warnings"] = [nasty]
    scan["heads"][0]["looks"] = nasty
    scan["skipped"] = [{"what": nasty, "why": nasty, "tensors": []}]
    file = tmp_path / "nasty.html"
    file.write_text(render([scan]))
    with visit(browser, file.as_uri() + "#head-0.0") as seen:
        assert nasty in seen.page.locator("h1").inner_text() or "img src" in seen.page.locator("h1").inner_text()
        assert "onerror" in seen.page.locator(".head-page").inner_text()
        assert seen.page.evaluate("window.hit === undefined")
        assert seen.page.locator("img").count() == 0


def test_attention_shows_where_a_token_looks(
    browser: Browser, address: Callable[[str], str], results: dict[str, Any]
) -> None:
    """By mouse and by keys alone: the row of a token, held and let go, of the head that the map chose."""
    (window,) = TraceResult.from_dict(results["trace"][0]).attention
    with visit(browser, address("trace")) as seen:
        page = seen.page
        place = page.locator("figure[data-block=attention] .picture")
        text = place.get_by_role("listbox")
        assert text.locator("span").all_text_contents() == list(window.tokens)
        last = window.heads[-1]
        place.get_by_label("Layer and head").select_option(last.name)
        assert place.get_attribute("data-head") == page.locator(".head-page").get_attribute("data-head") == last.name
        state = "Object.values(toposcope.page.maps).find((map) => map.state).state()"
        for key, table in (("probability", last.probabilities_BM), ("position", last.position_BM)):
            shown = page.evaluate(f"{state}.tables.{key}.map((row) => [...row].map((value) => value ?? null))")
            np.testing.assert_allclose(np.array(shown, dtype=float)[last.seen], table[last.seen], atol=1e-5)
        text.locator("span").nth(9).hover()
        assert place.get_attribute("data-query") == "9"
        best = int(np.nanargmax(last.probabilities_BM[9]))
        first = place.locator("tbody tr").first.locator("td").all_text_contents()
        assert first[0].endswith(f"({best})")
        assert float(first[1].rstrip("%")) == pytest.approx(100 * last.probabilities_BM[9, best], abs=0.06)
        text.locator("span").nth(9).click()
        text.locator("span").nth(3).hover()
        assert place.get_attribute("data-query") == "9"  # it is held
        text.focus()
        for pressed, query in (("Home", "0"), ("ArrowRight", "1"), ("Escape", "1"), ("End", "23"), ("Enter", "23")):
            page.keyboard.press(pressed)
            assert place.get_attribute("data-query") == query
        assert text.locator("[aria-selected=true]").count() == 1
        assert seen.violations() == []
        page.evaluate("location.hash = '#head-0.1'")
        page.wait_for_function("document.querySelector('.attention').dataset.head === '0.1'")
        seen.picture(f"report-attention-light-{WIDE}")
        seen.resize(NARROW)
        assert not seen.too_wide()
        page.get_by_role("button", name="Switch between light and dark").click()
        assert seen.violations() == []
        seen.picture(f"report-attention-dark-{NARROW}")
