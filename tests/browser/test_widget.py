"""The widget of a notebook in a real browser, with a model that behaves as anywidget's does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.browser import NARROW, WIDE, Visit
from tests.unit.report.test_attention import HOSTILE, attended, with_attention

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("browser")
MODEL = """(state) => {
  const heard = {};
  return { state, saved: [], get: (name) => state[name],
    set(name, value) { state[name] = value; (heard["change:" + name] || []).forEach((each) => each()); },
    save_changes() { this.saved.push(state.head); }, on: (name, each) => (heard[name] ||= []).push(each) };
}"""


def test_the_map_and_the_text_follow_each_other_and_python(browser: Browser) -> None:
    pytest.importorskip("anywidget", reason="widgets need anywidget: pip install 'toposcope[notebook]'")
    tokens = (*HOSTILE, " looks", " at", " a", " token")
    made: Any = with_attention(attended(tokens, [(0, 1), (1, 0)])).widget()
    context = browser.new_context(viewport={"width": WIDE, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    headings = "<h1>x</h1><h2>y</h2>"  # a notebook's own
    page.set_content(f"<!doctype html><html lang='en'><title>z</title><body><main>{headings}<div id='cell'>")
    page.evaluate(
        f"""async ([esm, state]) => {{
          const module = await import(URL.createObjectURL(new Blob([esm], {{ type: "text/javascript" }})));
          window.model = ({MODEL})(state);
          const el = document.createElement("div");
          module.default.render({{ model: window.model, el }}); // before it is on the page, as in a notebook
          document.getElementById("cell").append(el);
        }}""",
        [str(made._esm), {"sheet": made.sheet, "data": made.data, "head": made.head}],
    )
    text = page.get_by_role("listbox")
    text.wait_for()
    assert text.locator("span").all_text_contents() == list(made.data["attention"]["windows"][0]["tokens"])
    assert page.evaluate("model.saved.length") == 1
    page.get_by_label("Layer and head").select_option(label="1.0")
    assert page.evaluate("model.state.head") == "1.0"
    page.evaluate("model.set('head', '0.1')")  # from Python
    assert page.locator(".attention").get_attribute("data-head") == "0.1"
    canvas = page.locator("canvas[role=application]").first
    canvas.focus()
    for key in ("Home", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("model.state.head") == "1.0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("p[role=status]").is_visible()  # 1.1 is not kept, and it says so
    text.locator("span").nth(7).hover()
    assert page.locator(".attention").get_attribute("data-query") == "7"
    seen = Visit(page)
    paper = (
        "getComputedStyle(document.querySelector('#cell div div').shadowRoot.querySelector('.card')).backgroundColor"
    )
    light = page.evaluate(paper)
    assert seen.violations() == []
    seen.picture(f"widget-light-{WIDE}")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_timeout(100)
    assert page.evaluate(paper) != light
    seen.resize(NARROW)
    assert not seen.too_wide()
    seen.picture(f"widget-dark-{NARROW}")
    context.close()
    assert said == []
