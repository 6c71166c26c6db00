"""From results to what people look at: text for a terminal, one HTML file, a fragment for a notebook, a figure."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadValue
from toposcope.core.fields import plain
from toposcope.core.result import Result, Subject
from toposcope.report import figure, notebook, terminal
from toposcope.report.blocks import Page, Paragraphs
from toposcope.report.kinds import KINDS, add_view, from_dict
from toposcope.report.page import page_html
from toposcope.report.titles import title_of


def text(result: Result) -> str:
    """A result as a terminal shows it, at 80 columns."""
    return terminal.text(page_of([result]))


def page(results: Sequence[Result | Mapping[str, Any]], title: str | None = None) -> str:
    """The HTML text of a report on one or more results, or on the plain data of some."""
    if not results:
        raise BadValue("a report needs at least one result.")
    known = in_order([each if isinstance(each, Result) else from_dict(each) for each in results])
    return page_html(page_of(known, title), [{**each.as_dict(), **origin(each)} for each in known])


def title(result: Result) -> str:
    """What a result's report is called."""
    return title_of([result]) or page_of([result]).title


def fragment(result: Result) -> str:
    """A result as a notebook shows it."""
    return notebook.fragment(page_of([result]))


def draw(result: Result, path: str | Path) -> Path:
    """The figure of a result, in a file."""
    return figure.draw(page_of([result]), path)


def widget(result: Result) -> Any:
    """The head map and the attention of a result, as a widget for a notebook."""
    from toposcope.report import widget as living

    return living.widget(page_of([result]))


def movie(result: Result, path: str | Path) -> Path:
    """The moving picture of a flow, in a file."""
    from toposcope.report import movie as animated

    return animated.movie(typing.cast(Any, result), path)


def page_of(results: Sequence[Result], title: str | None = None) -> Page:
    """The blocks of one or more results, in the order in which a report shows them."""
    page = Page(title=title or title_of(results) or "")
    for kind in dict.fromkeys(each.kind for each in in_order(results)):
        add_view([each for each in results if each.kind == kind], page)
    # the same model may stand there with other hashes, where other parts of it were read
    every = [each for result in results for each in result.provenance.subjects]
    subjects = list({(each.path, each.adapter): each for each in every}.values())
    remarks = dict.fromkeys(f"{each.name}: {remark}" for each in subjects for remark in each.remarks)
    remarks |= dict.fromkeys(words for each in results if (words := ran_words(each)))
    if remarks:
        page.add("Remarks", Paragraphs(tuple(remarks), soft=True))
    kind = results[0].kind.replace("-", " ")
    page.title = page.title or " and ".join(each.name for each in subjects) or f"Toposcope: {kind}"
    if len(subjects) == 1 and not page.line:
        page.line = about(subjects[0])
    return page


def in_order(results: Sequence[Result]) -> list[Result]:
    """As a report shows them: what is wrong, what is there, what it does; at the end that nothing was wrong."""
    fine = {
        each.kind: all(getattr(other, "worst", "") == "ok" for other in results if other.kind == each.kind)
        for each in results
    }
    return sorted(results, key=lambda each: (fine[each.kind], list(KINDS).index(each.kind)))


def about(subject: Subject) -> str:
    """What was analysed, in a line."""
    encodings = "; ".join(subject.encodings) or "no attention layer read"
    told = subject.family.startswith(subject.format)  # gguf-llama
    return f"{subject.family}{'' if told else f' ({subject.format})'}: {encodings}"


def ran_words(result: Result) -> str | None:
    """Where a model was run, where that is not the plain case: the CPU, in float32."""
    ran = result.provenance.ran
    if ran is None or (ran.device, ran.dtype) == ("cpu", "float32"):
        return None
    said = f"Run on {ran.device} in {ran.dtype}{f', attention {ran.attention}' if ran.attention else ''}."
    if ran.rounding is not None:
        said += f" Against float32, one sequence differs by {ran.rounding:.2g} ({ran.rounding_of})."
    elif ran.why_unknown is not None:
        said += f" What rounding costs is not known: {ran.why_unknown}."
    return said if ran.repeatable else f"{said} Another run may differ in the last digits: {ran.why_not}."


def origin(result: Result) -> dict[str, Any]:
    """What a page says of a result's provenance."""
    found = result.provenance
    rest = {"options": found.options, "seconds": found.seconds, "toposcope": found.toposcope}
    if found.ran is not None:
        rest["ran"] = plain(found.ran)
    return {
        "schema": result.schema_name(),
        "subjects": plain(found.subjects),
        "skipped": plain(result.skipped),
        **rest,
    }
