"""A Chromium of this machine for tests: it opens pages, keeps what they say and ask for, and takes pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"
AXE = Path(__file__).parent / "assets" / "axe.min.js"
WIDE, NARROW = 1280, 390
WALK = AXE.with_name("walk.js")


def executable() -> str | None:
    """The browser to use: $PLAYWRIGHT_CHROMIUM where it can be run, or one on the path (as in find_chromium.sh)."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    given = os.environ.get("PLAYWRIGHT_CHROMIUM") or ""
    return next((found for name in (given, *names) if name and (found := shutil.which(name))), None)


def missing() -> str:
    """Why there is no browser, and what to do about it."""
    may = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None
    why = "'make test' could not install Debian's" if may else "installing one takes root and apt-get"
    return f"no Chromium on this machine, and {why}; install one, or set PLAYWRIGHT_CHROMIUM"


@contextmanager
def launched() -> Iterator[Browser]:
    """A running browser; the test is skipped, with the reason, where there is none or it does not start."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = executable()
    if found is None:
        pytest.skip(missing())
    with sync.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        try:
            browser = playwright.chromium.launch(executable_path=found, args=arguments)
        except sync.Error as error:  # a stub that asks for a snap, or one whose libraries are missing
            pytest.skip(f"{found} does not start ({str(error).splitlines()[0]}); set PLAYWRIGHT_CHROMIUM to another")
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """An open page with everything it said and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def saved(self, button: Any) -> str:
        """What a click on a download button hands out."""
        with self.page.expect_download() as caught:
            button.click()
        return Path(caught.value.path()).read_text(encoding="utf-8")

    def violations(self) -> list[str]:
        """Every finding of axe-core, however small.

        It is run in the page by the debugger, which the page's own policy does not concern. Of a table's rows, which
        are all made alike, the first three are looked at; charts are pictures with a label, and their inside is not.
        """
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
        found = self.page.evaluate(
            "axe.run({exclude: [['tbody tr:nth-child(n+4)'], ['.chart svg']]}, {resultTypes: ['violations']})"
        )
        return [
            f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes'][:3]]}"
            for each in found["violations"]
        ]

    def unreached(self) -> list[str]:
        """What can be clicked but not reached by the Tab key, and what is reached unseen; once round the page."""
        self.page.evaluate(WALK.read_text(encoding="utf-8") + "walk.start()")
        for _ in range(40):
            for _ in range(16):
                self.page.keyboard.press("Tab")
            if self.page.evaluate("walk.round"):
                return list(self.page.evaluate("walk.missed()"))
        return ["the Tab key does not come round"]

    def too_wide(self) -> bool:
        """Whether the page must be moved sideways to be read."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))

    def resize(self, width: int) -> None:
        """Another window, with a moment for pictures to be drawn anew."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, name: str) -> None:
        """Keep a picture of the whole page, to be looked at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@contextmanager
def visit(
    browser: Browser,
    address: str,
    *,
    width: int = WIDE,
    scheme: str = "light",
    ready: str | None = "html[data-ready]",
    motion: Literal["reduce", "no-preference"] = "reduce",
) -> Iterator[Visit]:
    """Open an address; afterwards nothing may have been complained about, and nothing asked of another machine."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True, reduced_motion=motion
    )
    page = context.new_page()
    seen = Visit(page)
    page.on("console", lambda message: seen.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.said.append(f"error: {error}"))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.goto(address)
    if ready:
        page.wait_for_selector(ready)
    try:
        yield seen
        own = ("file:", "http://127.0.0.1:", "blob:", "data:")
        assert [url for url in seen.asked if not url.startswith(own)] == []
        assert seen.said == []
    finally:
        context.close()
