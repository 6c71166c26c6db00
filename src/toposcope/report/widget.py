"""A head map and attention with its tokens as a widget for Jupyter, marimo and what else takes anywidget.

The scripts and the stylesheet are those of a page. They live in a shadow tree of the widget's own, so that neither
the notebook's styles nor ours reach the other; `head` is the chosen head, in Python as on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.report.blocks import Attention, HeadMap, Page, Row
from toposcope.report.page import STYLE, asset, for_scripts

SCRIPTS = ("core.js", "heatmap.js", "attention.js", "widget.js")


def widget(page: Page) -> Any:
    """The widget of a page's head map and attention, as far as it has them."""
    blocks = list(_flat([block for section in page.sections for block in section.blocks]))
    data = {
        "map": _map(page, next((each for each in blocks if isinstance(each, HeadMap)), None)),
        "attention": _attention(next((each for each in blocks if isinstance(each, Attention)), None)),
    }
    if data["map"] is None and data["attention"] is None:
        raise BadValue("this result has no head map and no attention to play with; .html(path) shows all it has.")
    return _widget_class()(data=data)


@cache
def module() -> str:
    """The widget's module of JavaScript: the scripts of a page, in a function that is given where they live."""
    scripts = "\n".join(asset(name) for name in SCRIPTS)
    return f"const make = (toposcopeRoot) => {{\n{scripts}\nreturn toposcope;\n}};\n{_RENDER}"


@cache
def style() -> str:
    """The stylesheet of a page, for a shadow tree: what was said of the page is said of the widget."""
    text = asset(STYLE)
    text = re.sub(r":root((?:\[[^\]]*\]|:not\([^)]*\))+)", r":host(\1)", text)
    return text.replace(":root", ":host").replace("body {", ":host {", 1)


_RENDER = """
const dark = () => document.body.dataset.jpThemeLight === "false" || document.body.classList.contains("vscode-dark")
  || document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
const render = ({ model, el }) => {
  const host = document.createElement("div");
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = document.createElement("style");
  sheet.textContent = model.get("sheet");
  shadow.append(sheet);
  host.dataset.theme = dark() ? "dark" : "light";
  let toposcope = null;
  const theme = new MutationObserver(() => {
    const wanted = dark() ? "dark" : "light";
    if (host.dataset.theme !== wanted) { host.dataset.theme = wanted; toposcope?.theme.changed(); }
  });
  for (const each of [document.body, document.documentElement]) theme.observe(each, { attributes: true });
  const there = new ResizeObserver(() => { // colours can be read once it is on the page, and not before
    if (toposcope || !host.isConnected) return;
    toposcope = make(host);
    toposcope.widget(shadow, model);
    there.disconnect();
  });
  there.observe(host);
  el.append(host);
  return () => { theme.disconnect(); there.disconnect(); };
};
export default { render };
"""


def _flat(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        if isinstance(block, Row):
            yield from _flat(block.blocks)
        else:
            yield block


def _map(page: Page, block: HeadMap | None) -> dict[str, Any] | None:
    if block is None:
        return None
    columns = page.tables[block.table]
    keys = ("layer", "head", *(measure.key for measure in block.measures), "says", "shown_first")
    kept = {key: columns[key] for key in dict.fromkeys(keys) if key in columns}
    measures = [asdict(measure) for measure in block.measures]
    found = {"title": block.title, "sentence": block.sentence, "measures": measures, "columns": kept}
    return dict(for_scripts(found))


def _attention(block: Attention | None) -> dict[str, Any] | None:
    return None if block is None else dict(for_scripts({"windows": block.windows}))


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingExtra("a widget needs one more package: pip install 'toposcope[notebook]'") from error

    class HeadsWidget(anywidget.AnyWidget):  # type: ignore[misc]  # no types without the package
        """Heads of a result: choose one on the map, or by `head`."""

        _esm = module()
        sheet = traitlets.Unicode(style()).tag(sync=True)  # `style` is a name of ipywidgets, for a widget of its own
        data = traitlets.Dict().tag(sync=True)
        head = traitlets.Unicode("").tag(sync=True)

    return HeadsWidget
