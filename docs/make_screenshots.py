"""Make the README's screenshot of the report and its moving flow: `python docs/make_screenshots.py`.

Needs a Chromium on this machine ($PLAYWRIGHT_CHROMIUM, or one on the path), playwright and the [plot] extra. The
report is the one that `make demo` writes; it is made first where it is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
REPORT = ROOT / "out" / "smollm2.html"
SHOWN = "6.8"  # the head whose page is open in the picture


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    flow = IMAGES / "flow.gif"
    toposcope("flow", "--preset", "clusters", "--movie", str(flow))
    print(flow.relative_to(ROOT))
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = os.environ.get("PLAYWRIGHT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        print("no Chromium on this machine: the report's screenshot is left as it is")
        return
    if not REPORT.exists():
        REPORT.parent.mkdir(exist_ok=True)
        toposcope("scan", "smollm2", "--html", str(REPORT))
    picture = IMAGES / "report.png"
    photograph(browser, picture)
    print(picture.relative_to(ROOT))


def toposcope(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "toposcope", *arguments], check=True, stdout=subprocess.DEVNULL)


def photograph(browser: str, picture: Path) -> None:
    """The map of the heads with one head's page beside it, as a reader sees them."""
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=sandbox)
        page = running.new_page(viewport={"width": 1280, "height": 1010}, color_scheme="light")
        page.goto(f"{REPORT.as_uri()}#head-{SHOWN}")
        page.wait_for_selector("html[data-ready]")
        page.evaluate(
            "document.querySelector('.map-and-head').previousElementSibling.scrollIntoView({behavior: 'instant'})"
        )
        page.wait_for_timeout(300)
        page.screenshot(path=picture)
        running.close()


if __name__ == "__main__":
    main()
