"""The local page in a real browser: sliders, maps, keys, themes, and that nothing leaves this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.browser import NARROW, WIDE, Visit, visit
from tests.unit.models.making import TEXT, write_llama_lm
from tests.unit.tiny import write_llama
from tests.unit.web.making import HOSTILE, write_spectrum, write_store
from tests.unit.web.running import Visitor, running
from toposcope.models.loss import loss

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")


# ---------------------------------------------------------------- what the tests share
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A visitor of a running server with a tiny model of a hostile name, a store and a result."""
    here = tmp_path_factory.mktemp("server")
    model = write_llama(here / f"tiny {HOSTILE}", num_hidden_layers=4)
    result = write_spectrum(here / "spectrum.json")
    store = write_store(here / "runs")
    with running(here, str(model), str(result), "--store", str(store), "--port", "0") as (_, url):
        yield Visitor(url)


@pytest.fixture
def opened(browser: Any, place: Visitor) -> Iterator[Callable[..., Any]]:
    """Opens pages, and complains at the end about console errors and requests to anywhere else."""
    wrong: list[str] = []
    contexts: list[Any] = []

    def complain(said: Any, refused: str) -> None:
        if said.type in ("error", "warning") and not (refused and refused in said.text):
            wrong.append(f"{said.type}: {said.text}")

    def open_page(
        path: str, *, width: int = 1280, height: int = 900, scheme: str = "light", refused: str = ""
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complain(said, refused))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((place.place, "blob:", "data:")) else wrong.append(asked.url),
        )
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.goto(f"{place.place}{path}{'&' if '?' in path else '?'}token={place.token}")
        assert "token" not in page.url
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def data(place: Visitor, path: str) -> Any:
    status, _, body = place.ask(path)
    assert status == 200
    return json.loads(body)


def settled(page: Any, act: Callable[[], Any], address: str) -> dict[str, str]:
    """Do something and wait for the full answer that follows; the parameters it was asked with."""
    with page.expect_response(lambda answer: address in answer.url and "settled=1" in answer.url) as caught:
        act()
    found = caught.value
    assert found.ok
    found.finished()
    return {name: value[0] for name, value in parse_qs(urlsplit(found.url).query).items()}


def query(parameters: dict[str, str]) -> str:
    from urllib.parse import urlencode

    return urlencode(parameters)


def drag(page: Any, selector: str, share: float) -> None:
    """Drag a slider's thumb with the mouse, in small steps."""
    box = page.locator(selector).bounding_box()
    y = box["y"] + box["height"] / 2
    value, low, high = page.locator(selector).evaluate("(e) => [Number(e.value), Number(e.min), Number(e.max)]")
    page.mouse.move(box["x"] + 8 + (box["width"] - 16) * (value - low) / (high - low), y)
    page.mouse.down()
    page.mouse.move(box["x"] + 8 + (box["width"] - 16) * share, y, steps=20)
    page.mouse.up()


def model_id(place: Visitor) -> str:
    return str(data(place, "/api/models")[0]["id"])


SAID = TEXT.strip()[:120].strip()


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that predicts words, with a text."""
    pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
    here = tmp_path_factory.mktemp("lm")
    write_llama_lm(here)
    (here / "said.txt").write_text(SAID)
    return here


PAGES = {
    "home": ("/", "main h1"),
    "encoding": ("/encoding", "body[data-settled=true]"),
    "flow": ("/flow", "body[data-settled=true]"),
    "space": ("/flow?source=preset&preset=explode", "body[data-settled=true]"),
    "text": ("/text", "#controls"),
    "models": ("/models", "main h1"),
    "model": ("/models/{model}", "body[data-head]"),
    "runs": ("/runs", "main table"),
    "run": ("/runs/aaaa1111", "svg.lines"),
    "result": ("/results/r0", "pre"),
    "missing": ("/nothing", "main h1"),
}


# ---------------------------------------------------------------- every page
@pytest.mark.parametrize("name", PAGES)
def test_pages_look_right_and_are_accessible(opened: Any, place: Visitor, name: str) -> None:
    path, ready = PAGES[name]
    page = opened(path.format(model=model_id(place)), refused="status of 404" if name == "missing" else "")
    page.wait_for_selector(ready)
    page.wait_for_timeout(150)
    seen = Visit(page)
    assert not seen.too_wide()
    seen.picture(f"web-{name}-light-{WIDE}")
    assert seen.violations() == []
    assert seen.unreached() == []
    page.click("#theme")
    seen.resize(NARROW)
    assert not seen.too_wide()
    seen.picture(f"web-{name}-dark-{NARROW}")
    assert seen.violations() == []


def test_the_theme_is_switched_and_remembered(opened: Any) -> None:
    page = opened("/encoding", scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    assert light != dark
    page.reload()
    assert page.evaluate(paper) == dark
    page.click("#theme")
    assert page.evaluate(paper) == light


# ---------------------------------------------------------------- encodings
def test_dragging_the_context_changes_what_is_shown(opened: Any, place: Visitor) -> None:
    page = opened("/encoding")
    page.wait_for_selector("body[data-settled=true]")
    before = page.inner_text("#rho")
    asked = []
    page.on("request", lambda each: asked.append(each.url) if "/api/encoding" in each.url else None)
    parameters = settled(page, lambda: drag(page, "#context", 0.9), "/api/encoding")
    there = data(place, "/api/encoding?" + query(parameters))
    assert int(parameters["context"]) > 100_000
    expect(page.locator("#rho")).to_have_text(shown(there["point"]["lambda_max_over_n"]))
    assert page.inner_text("#rho") != before
    assert len(asked) <= 24  # twenty moves and two answers at rest: questions never pile up
    expect(page.locator("output[for=context]")).to_have_text(f"{there['context']:,}")
    expect(page.locator("#sentence")).to_contain_text(f"{there['context']:,}")


def shown(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0995 else f"{float(f'{value:.3g}'):g}"


def test_every_control_by_keyboard(opened: Any, place: Visitor) -> None:
    page = opened("/encoding?encoding=rope:base=10000&context=1024")
    page.wait_for_selector("body[data-settled=true]")
    for selector, key in (("#base", "End"), ("#head_dim", "ArrowRight"), ("#context", "ArrowLeft")):
        page.focus(selector)
        parameters = settled(page, lambda key=key: page.keyboard.press(key), "/api/encoding")
    assert parameters["encoding"] == "rope:base=100000000"
    assert parameters["head_dim"] == "72"
    assert int(parameters["context"]) == round(1024 / 2**0.125)
    there = data(place, "/api/encoding?" + query(parameters))
    expect(page.locator("#rho")).to_have_text(shown(there["point"]["lambda_max_over_n"]))
    expect(page.locator("#law")).to_have_text(shown(there["point"]["law"]))
    assert "context=" in page.url
    page.reload()  # the address holds the state
    expect(page.locator("#rho")).to_have_text(shown(there["point"]["lambda_max_over_n"]))


@pytest.mark.parametrize("encoding", ["alibi", "t5", "xpos", "learned", "rope-partial"])
def test_every_encoding_can_be_chosen(opened: Any, place: Visitor, encoding: str) -> None:
    page = opened("/encoding?context=128")
    page.wait_for_selector("body[data-settled=true]")
    parameters = settled(page, lambda: page.select_option("#encoding", encoding), "/api/encoding")
    there = data(place, "/api/encoding?" + query(parameters))
    assert parameters["encoding"].split(":")[0] == encoding
    expect(page.locator("#title")).to_have_text(there["title"])
    expect(page.locator("#rho")).to_have_text(re.compile(re.escape(shown(there["point"]["lambda_max_over_n"])[:4])))
    expect(page.locator("#status")).to_be_hidden()


def test_scaling_and_comparison(opened: Any) -> None:
    page = opened("/encoding?context=65536")
    page.wait_for_selector("body[data-settled=true]")
    page.click("#keep")
    parameters = settled(page, lambda: page.select_option("#scaling", "yarn"), "/api/encoding")
    asked = set(re.split("[:,]", parameters["encoding"]))
    assert {"scaling=yarn", "factor=8", "original_context=4096"} <= asked
    expect(page.locator("#factor")).to_be_visible()
    expect(page.locator("#norm .keys")).to_contain_text("kept: rope:base=10000")
    page.click("#keep")
    expect(page.locator("#norm .keys")).not_to_contain_text("kept")


def test_the_data_can_be_saved(opened: Any, place: Visitor) -> None:
    page = opened("/encoding?context=512")
    page.wait_for_selector("body[data-settled=true]")
    with page.expect_download() as caught:
        page.click("#kernel [data-save=json]")
    rows = json.loads(Path(caught.value.path()).read_text())
    there = data(place, "/api/encoding?encoding=rope:base=10000&context=512")["kernel"]
    assert [row["g"] for row in rows] == there["values"]


# ---------------------------------------------------------------- token flow
def test_dragging_an_eigenvalue_changes_the_verdict(opened: Any, place: Visitor) -> None:
    page = opened("/flow")
    page.wait_for_selector("body[data-settled=true]")
    expect(page.locator("#verdict-word")).to_contain_text("(Thm 6)")
    parameters = settled(page, lambda: drag(page, "#v1", 0.95), "/api/flow")
    there = data(place, "/api/flow?" + query(parameters))
    assert float(parameters["v1"]) > 2
    assert there["verdict"]["verdict"] == "not_convergent"
    expect(page.locator("#verdict-word")).to_contain_text("(Thm 5)")
    expect(page.locator("#status-words")).to_contain_text(there["meaning"][1:])
    expect(page.locator("#agreement")).to_contain_text(there["observed"])
    expect(page.locator("#measured-words")).to_contain_text("largest norm")


def test_no_verdict_stays_when_something_else_flows(opened: Any) -> None:
    page = opened("/flow")
    page.wait_for_selector("body[data-settled=true]")
    expect(page.locator("#verdict-statement")).not_to_be_empty()
    held: list[Any] = []
    page.route("**/api/flow?source=preset*", lambda route: held.append(route))
    page.get_by_text("Preset", exact=True).first.click()
    expect(page.locator("#verdict-statement")).to_be_empty()
    expect(page.locator("#verdict-word")).not_to_contain_text("Thm")
    while held:
        held.pop(0).continue_()
    page.unroute("**/api/flow?source=preset*")
    expect(page.locator("#verdict-statement")).not_to_be_empty()


def test_tokens_move(opened: Any) -> None:
    page = opened("/flow?source=preset&preset=explode")
    page.wait_for_selector("body[data-settled=true]")
    if page.inner_text("#play") == "Pause":
        page.click("#play")
    picture = "document.querySelector('#moving canvas').toDataURL()"
    page.focus("#time")
    page.keyboard.press("Home")
    start = page.evaluate(picture)
    expect(page.locator("#reading")).to_have_text("t = 0")
    page.keyboard.press("End")
    assert page.evaluate(picture) != start
    expect(page.locator("#reading")).to_have_text(re.compile(r"t = 9\.2"))
    last = page.evaluate(picture)
    page.focus("#turn")
    page.keyboard.press("PageUp")
    assert page.evaluate(picture) != last
    page.focus("#time")
    page.keyboard.press("Home")
    page.click("#play")
    expect(page.locator("#play")).to_have_text("Pause")
    expect(page.locator("#reading")).not_to_have_text("t = 0")
    page.click("#play")
    expect(page.locator("#play")).to_have_text("Play")


def test_encoding_mask_and_diagonal(opened: Any, place: Visitor) -> None:
    page = opened("/flow")
    page.wait_for_selector("body[data-settled=true]")
    settled(page, lambda: page.select_option("#encoding", "rope"), "/api/flow")
    expect(page.locator("#turns")).to_be_visible()
    settled(page, lambda: page.select_option("#causal", "0"), "/api/flow")
    parameters = settled(page, lambda: page.check("#automatic"), "/api/flow")
    assert parameters["diagonal"] == "auto"
    there = data(place, "/api/flow?" + query(parameters))
    assert there["settings"]["diagonal"] > 0
    expect(page.locator("#verdict-word")).to_contain_text(there["verdict"]["verdict"].replace("_", " "))


def test_a_refusal_is_told_on_the_page_and_taken_back(opened: Any) -> None:
    page = opened("/flow", refused="status of 400")
    page.wait_for_selector("body[data-settled=true]")
    page.locator("#n").evaluate("(e) => { e.max = 500; e.value = 500; e.dispatchEvent(new Event('input')); }")
    expect(page.locator("#status")).to_contain_text("expected a whole number from 1 to 256")
    page.locator("#n").evaluate("(e) => { e.value = 10; e.dispatchEvent(new Event('input')); }")
    expect(page.locator("#status")).to_be_hidden()


# ---------------------------------------------------------------- heads
def test_choosing_heads(opened: Any, place: Visitor) -> None:
    name = model_id(place)
    page = opened(f"/models/{name}")
    page.wait_for_selector("body[data-head='0.0']")
    assert HOSTILE in page.inner_text("h1")
    x, y = page.evaluate("window.toposcopeMap.centre([2, 3])")
    page.mouse.click(x, y)
    page.wait_for_selector("body[data-head='2.3']")
    there = data(place, f"/api/models/{name}/heads/2.3")
    expect(page.locator("#head-name")).to_have_text("Layer 2, head 3")
    expect(page.locator("#verdict-word")).to_contain_text(there["verdict"].replace("_", " "))
    expect(page.locator("#verdict-statement")).to_contain_text(there["verdict_words"]["statement"][1:])
    assert page.locator("#plane circle").count() == len(there["verdict_words"]["eigenvalues"])
    page.focus("#map canvas")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-head='1.3']")
    page.fill("#go-layer", "3")
    page.fill("#go-head", "1")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-head='3.1']")
    page.click("#to-flow")
    page.wait_for_selector("body[data-settled=true]")
    assert "layer=3" in page.url
    flow = data(place, f"/api/flow?source=head&model={name}&layer=3&head=1&n=16&settled=1")
    expect(page.locator("#verdict-word")).to_contain_text(flow["verdict"]["verdict"].replace("_", " "))


def test_the_map_s_measures_and_data(opened: Any, place: Visitor) -> None:
    page = opened(f"/models/{model_id(place)}")
    page.wait_for_selector("body[data-head]")
    picture = "document.querySelector('#map canvas').toDataURL()"
    seen = {page.evaluate(picture)}
    for i in range(1, page.locator("#map input[type=radio]").count()):
        page.locator("#map input[type=radio]").nth(i).check()
        seen.add(page.evaluate(picture))
    assert len(seen) > 4
    with page.expect_download() as caught:
        page.click("#map > .save [data-save=json]")
    rows = json.loads(Path(caught.value.path()).read_text())
    assert rows == data(place, f"/api/models/{model_id(place)}/scan")["rows"]


# ---------------------------------------------------------------- reports
def test_a_report_opens_under_its_policy(opened: Any) -> None:
    page = opened("/results/r0")
    page.click("text=Open the report")
    page.wait_for_selector("main h1")
    page.wait_for_timeout(800)
    Visit(page).picture("web-report-light-1280")
    assert page.evaluate("window.origin") == "null"  # it cannot read anything else of this server


# ---------------------------------------------------------------- the token
def test_a_stranger_is_told_where_the_address_is(browser: Any, place: Visitor) -> None:
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(place.place)
    assert answer.status == 403
    assert "toposcope serve" in page.inner_text("body")
    context.close()


@pytest.mark.parametrize("path", ["/", "/encoding?context=128"])
def test_a_link_from_elsewhere_opens_the_page(browser: Any, place: Visitor, tmp_path: Path, path: str) -> None:
    """A file, or a page of another site, links to the address that was printed, and later to one without a token."""
    context = browser.new_context()
    page = context.new_page()
    elsewhere = tmp_path / "links.html"
    with_token = f"{place.place}{path}{'&' if '?' in path else '?'}token={place.token}"
    elsewhere.write_text(f"<a id=first href='{with_token}'>1</a><a id=later href='{place.place}{path}'>2</a>")
    for link in ("#first", "#later"):
        page.goto(elsewhere.as_uri())
        page.click(link)
        page.wait_for_selector("main h1")
        page.wait_for_url(f"{place.place}{path}**")
        assert "token" not in page.url
    context.close()


# ---------------------------------------------------------------- the policy
def test_no_injected_script_runs(browser: Any, place: Visitor) -> None:
    """Scripts put into our pages do not run, whether they stand there or come from an address of this server."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{place.place}/encoding?token={place.token}")
    page.wait_for_selector("body[data-settled=true]")
    ran = page.evaluate(
        """async () => {
            window.hit = 0;
            const add = (what) => new Promise((done) => {
                const script = document.createElement("script");
                what(script); script.onload = () => done("loaded"); script.onerror = () => done("refused");
                document.body.append(script); setTimeout(() => done(window.hit ? "ran" : "refused"), 500);
            });
            return [await add((s) => { s.textContent = "window.hit = 1"; }),
                    await add((s) => { s.src = "data:text/javascript,window.hit=1"; }),
                    await add((s) => { s.src = "/api/results/r0"; }),
                    await add((s) => { s.src = "/static/lines.js"; })];
        }"""
    )
    assert ran == ["refused", "refused", "refused", "loaded"]
    assert page.evaluate("window.hit") == 0
    context.close()


# ---------------------------------------------------------------- a text under a model
def test_a_text_shows_its_patterns_and_what_the_encoding_is_worth(browser: Any, speaking: Path) -> None:
    """Text in, pattern out, encoding off: the loss changes exactly as `toposcope.loss` says."""
    expected = loss(str(speaking), speaking / "said.txt", tokens=128, sequences=1, encoding="none")
    with (
        running(speaking, str(speaking), "--port", "0") as (_, url),
        visit(browser, url.replace("/?", "/text?"), ready="#controls") as seen,
    ):
        page = seen.page
        page.set_default_timeout(60_000)
        page.fill("#text", SAID)
        page.keyboard.press("Tab")
        page.press("#tokens", "Enter")  # as by the button
        page.wait_for_selector("body[data-head]")
        tokens = page.locator("#attention [role=option]")
        assert "".join(tokens.all_text_contents()).replace(" ", "") == SAID.replace(" ", "")
        assert page.evaluate("toposcopeMap !== undefined")
        tokens.nth(5).hover()
        assert page.locator("#attention").get_attribute("data-query") == "5"

        def losses() -> list[tuple[float, float]]:
            rows = page.locator("#losses tr")
            return rows.evaluate_all(
                "rows => rows.map(row => [Number(row.dataset.loss), Number(row.dataset.difference)])"
            )

        assert losses() == [[expected.conditions[0].loss, 0]]
        page.click("[data-off=all]")
        page.wait_for_selector("body[data-encoding=none]")
        assert losses() == [[each.loss, each.difference] for each in expected.conditions]
        page.click("[data-off=head]")
        page.wait_for_selector("#losses tr:nth-child(3)")
        head = page.locator("body").get_attribute("data-head")
        one = loss(str(speaking), speaking / "said.txt", tokens=128, sequences=1, encoding="none", heads=head)
        assert losses()[2] == [one.conditions[1].loss, one.conditions[1].difference]
        page.fill("#encoding", "nothing-like-it")
        assert not seen.too_wide()
        assert seen.violations() == []
        seen.picture(f"web-text-light-{WIDE}")
        page.click("#theme")
        seen.resize(NARROW)
        assert not seen.too_wide()
        assert seen.violations() == []
        seen.picture(f"web-text-dark-{NARROW}")
