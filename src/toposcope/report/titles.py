"""What a report is called: what was done, to which model, and what sets it apart from other reports on that model.

Views name what has no model, or several of them: training runs, sweeps, comparisons, flows of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from toposcope.core.printable import printable
from toposcope.core.result import Result
from toposcope.report.blocks import count

NOUNS = {
    "check": "check",
    "check-live": "live check",
    "inspect": "inspection",
    "scan": "scan",
    "trace": "trace",
    "ablate": "ablation",
    "ablate-check": "check of the ablation",
    "lab-ablate": "ablation",
    "loss": "loss",
    "refine": "refinement",
}
LONGEST, LONGEST_PART = 110, 40  # characters of a title, and of an option in it
MOST_MODELS = 3  # that are named


def title_of(results: Sequence[Result]) -> str | None:
    """'Trace of smollm2 on wiki, layers 0-3'; of several results 'smollm2: scan; trace on wiki'.

    None where the views have to say it.
    """
    if len(results) == 1:
        result = results[0]
        noun, subjects = NOUNS.get(result.kind), result.provenance.subjects
        if noun is None or len(subjects) != 1:
            return None
        return f"{noun[:1].upper()}{noun[1:]} of {subjects[0].name}{_apart(result.provenance.options)}"
    if not all(result.provenance.subjects for result in results):
        return None
    models = list(dict.fromkeys(each.name for result in results for each in result.provenance.subjects))
    named = " and ".join(models) if len(models) <= MOST_MODELS else count(len(models), "model")
    parts = [f"{NOUNS.get(each.kind, each.kind)}{_apart(each.provenance.options)}" for each in results]
    title = f"{named}: {'; '.join(dict.fromkeys(parts))}"
    return title if len(title) <= LONGEST else f"{named}: {count(len(results), 'result')}"


def _apart(options: Mapping[str, Any]) -> str:
    """What was asked for: the text, the heads and layers, another encoding."""
    text, encodings = options.get("text"), _listed(options.get("encoding")) + _listed(options.get("depth_encoding"))
    named = "random tokens" if text == "random" else PurePath(str(text)).name
    parts = [f" on {printable(named, LONGEST_PART)}"] if text else []
    if options.get("mode") == "screen":
        parts.append(", screened")
    parts += [f", {_places(name, str(options[name]))}" for name in ("layers", "heads") if options.get(name)]
    if encodings:
        parts.append(f", with {printable(', '.join(encodings), LONGEST_PART)}")
    return "".join(parts)


def _listed(value: Any) -> list[str]:
    return [] if not value else [value] if isinstance(value, str) else [str(each) for each in value]


def _places(name: str, asked: str) -> str:
    """layer 3, heads 2.1,3.0, or the heads that a word stands for: positional heads."""
    said = printable(asked, LONGEST_PART)
    if not asked[:1].isdigit():
        return f"{said} {name}"
    return f"{name if any(each in asked for each in ',-') else name.removesuffix('s')} {said}"
