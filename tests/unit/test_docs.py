"""The documentation's promises that can be kept by a machine."""

from __future__ import annotations

import re
from pathlib import Path

import toposcope.errors

ROOT = Path(__file__).parents[2]


def test_every_error_has_its_page_and_every_page_its_error() -> None:
    errors = {
        name
        for name, value in vars(toposcope.errors).items()
        if isinstance(value, type) and issubclass(value, toposcope.errors.ToposcopeError)
    } - {"ToposcopeError"}
    pages = {page.stem for page in (ROOT / "docs/errors").glob("*.md")} - {"README"}
    assert errors == pages
    index = (ROOT / "docs/errors/README.md").read_text()
    assert errors == set(re.findall(r"\((\w+)\.md\)", index))


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
