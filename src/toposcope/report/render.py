"""From results to what people look at: text for a terminal, one HTML file, a fragment for a notebook, a figure."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, BadValue
from toposcope.core.files import write_text
from toposcope.core.printable import printable
from toposcope.core.result import Result
from toposcope.core.untrusted import read_saved
from toposcope.report.blocks import Page
from toposcope.report.drawing import origin, page_of
from toposcope.report.kinds import KINDS, add_view, from_dict
from toposcope.report.page import page_html

# In the order in which a report shows them: first what is wrong, then what is there, then what it does.
SCHEMAS = (
    "scan", "compare", "trace", "ablate", "lab-ablate", "ablate-check", "refine",
    "beside", "reproduce", "sweep", "train",
)  # fmt: skip


def render(results: Sequence[Mapping[str, Any] | Result], *, title: str | None = None) -> str:
    """The HTML text of a report on one or more results."""
    if not results:
        raise BadValue("a report needs at least one result.")
    new = [each for each in map(_typed, results) if isinstance(each, Result)]
    old = [_complete(each) for each in map(_typed, results) if not isinstance(each, Result)]
    if not old:
        return page_html(page_of(new, title), [{**each.as_dict(), **origin(each)} for each in new])
    page = Page(title=title or _title(old))
    subject = next((result["subject"] for result in old if result.get("subject")), None)
    if subject:
        page.line = _line(subject)
    shown: list[Mapping[str, Any]] = []
    for name in dict.fromkeys(("check", "check-module", *SCHEMAS, *KINDS)):
        mine = [result for result in old if schema_of(result) == name]
        typed = [result for result in new if result.kind == name]
        if typed:
            add_view(typed, page)
        if mine:
            renderer = importlib.import_module(f"toposcope.report.of_{name.replace('-', '_')}")
            if hasattr(renderer, "build_several"):
                renderer.build_several(mine, page)
            else:
                for result in mine:
                    renderer.build(result, page)
        shown += [*({**each.as_dict(), **origin(each)} for each in typed), *mine]
    return page_html(page, shown)


def _typed(data: Mapping[str, Any] | Result) -> Mapping[str, Any] | Result:
    if isinstance(data, Result):
        return data
    kind = str(data.get("schema", "")).removeprefix("toposcope/").partition("/")[0]
    return from_dict(data) if kind in KINDS else data


def _line(subject: Mapping[str, Any]) -> str:
    """What was analysed, in a line."""
    if "encodings" not in subject:
        return str(subject.get("architecture", ""))
    encodings = "; ".join(subject["encodings"]) or "no attention layer read"
    return f"{subject['family']} ({subject['format']}): {encodings}"


def _complete(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with everything that an envelope holds; a training run is stored without some of it."""
    options = result.get("config") or {}
    return {"subject": None, "options": options, "seconds": 0.0, "skipped": [], "toposcope": "", **result}


def write_report(
    where: str | Path, results: Sequence[Mapping[str, Any] | Result], *, title: str | None = None
) -> Path:
    """Write the report into the file `where`."""
    return write_text(where, render(results, title=title))


def schema_of(result: Mapping[str, Any]) -> str:
    """The command that made a result, from its schema `toposcope/<command>/1`."""
    parts = str(result.get("schema", "")).split("/")
    if len(parts) == 3 and parts[1] in KINDS:
        return parts[1]
    if len(parts) != 3 or parts[0] != "toposcope" or parts[1] not in SCHEMAS:
        raise BadFile(
            f"a result with schema '{result.get('schema')}' is not one that Toposcope can show; "
            f"expected toposcope/<command>/1 with a command of {', '.join(SCHEMAS)}."
        )
    if parts[2] != "1":
        raise BadFile(f"a result with schema '{result['schema']}' is of another version; make it again.")
    return parts[1]


def read_results(places: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Results from files, or from run directories that hold result.json."""
    found: list[dict[str, Any]] = []
    for place in map(Path, places):
        path = place / "result.json" if place.is_dir() else place
        content = _of_run(place) if place.is_dir() else None
        if content is None:
            content = read_saved(path, inside=place if place.is_dir() else None)
        several = content if isinstance(content, list) else [content]
        for each in several:
            if not isinstance(each, dict):
                raise BadFile(f"{path} holds {type(each).__name__}, expected a result that --json wrote.")
            schema_of(each)
            found.append(each)
    return found


def stored_results(places: Sequence[str | Path]) -> list[dict[str, Any] | Result]:
    """The same, those of kinds that have a dataclass as such."""
    kinds = f"toposcope/({'|'.join(KINDS)})/"
    found = [(place, each) for place in places for each in read_results([place])]
    return [from_dict(each, printable(place)) if re.match(kinds, each["schema"]) else each for place, each in found]


def _of_run(place: Path) -> dict[str, Any] | None:
    """The result of a run's directory, which must be its own; None where the directory says of no run."""
    from toposcope.runs.directory import read_job, read_result

    job = read_job(place)
    return None if job is None else read_result(place, job)


def _title(results: Sequence[Mapping[str, Any]]) -> str:
    """The model's name where there is one, else what was done to what."""
    first, kinds = results[0], list(dict.fromkeys(schema_of(result) for result in results))
    if kinds == ["compare"]:
        return f"{Path(str(first['a'])).name} and {Path(str(first['b'])).name}"
    for result in results:
        subject = result.get("subject")
        if subject and subject.get("path"):
            path = Path(str(subject["path"]))
            if schema_of(result) == "lab-ablate":  # a run's directory has its key for a name, and holds model/
                return f"{result['task']}: {path.parent.name or path.name}"
            return str(subject.get("name") or path.name)
    if kinds == ["train"]:
        tasks = list(dict.fromkeys(str(result["config"]["task"]) for result in results))
        if len(results) > 1:
            return f"{len(results)} training runs: {', '.join(tasks)}"
        return f"{tasks[0]}: {first['config']['encoding']}, seed {first['config']['seed']}"
    if "sweep" in kinds:
        return "A sweep of encodings and tasks"
    return f"Toposcope: {'reproduce ' + first['what'] if kinds == ['reproduce'] else ', '.join(kinds)}"
