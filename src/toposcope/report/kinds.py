"""Every kind of result there is: the class behind a file's schema, and the view that shows it.

A new kind of result is a line here, a frozen dataclass where its verb lives, and `report/views/<kind>.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, BadValue, MissingExtra, did_you_mean
from toposcope.core.fields import schema
from toposcope.core.files import present
from toposcope.core.printable import printable
from toposcope.core.result import Result
from toposcope.core.sealed import SUM, unsealed
from toposcope.core.untrusted import read_saved
from toposcope.report.blocks import Page

# In the order in which a report shows them: first what is wrong, then what is there, then what it does (`in_order`).
KINDS = {
    "check": "toposcope.checks.findings:CheckResult",
    "check-live": "toposcope.live.result:LiveCheckResult",
    "check-rotation": "toposcope.live.callable:RotationCheckResult",
    "check-module": "toposcope.live.module.check:ModuleCheckResult",
    "check-against": "toposcope.live.engines.against:AgainstResult",
    "scan": "toposcope.scanning.result:ScanResult",
    "inspect": "toposcope.checkpoints.inspect:InspectResult",
    "compare": "toposcope.scanning.compare:CompareResult",
    "trace": "toposcope.models.tracing.result:TraceResult",
    "ablate": "toposcope.models.ablation.result:AblateResult",
    "lab-ablate": "toposcope.lab.result:LabAblateResult",
    "ablate-check": "toposcope.models.ablation.check:AblateCheckResult",
    "loss": "toposcope.models.loss:LossResult",
    "refine": "toposcope.studies.refine:RefineResult",
    "flow": "toposcope.dynamics.flow:FlowResult",
    "spectrum": "toposcope.spectra.spectrum:SpectrumResult",
    "reproduce": "toposcope.studies.reproduce.result:ReproduceResult",
    "sweep": "toposcope.runs.sweep:SweepResult",
    "train": "toposcope.lab.result:TrainResult",
    "runs": "toposcope.runs.listing:RunsResult",
    "run": "toposcope.runs.listing:RunResult",
    "ls": "toposcope.lab.known:LsResult",
    "cite": "toposcope.core.citation:CiteResult",
}


def result_class(kind: str) -> type[Result]:
    """The dataclass of a kind of result."""
    module, _, name = KINDS[kind].partition(":")
    try:
        found: type[Result] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"results of '{kind}' are made by code that needs {error.name}: pip install 'toposcope[torch,hf]'."
        ) from error
    return found


def read(path: str | Path) -> Result:
    """The result that a verb has saved, that a command wrote with --json, or that a run's directory holds."""
    found = read_results([path])
    if len(found) != 1:
        raise BadFile(f"{printable(path)} holds {len(found)} results, expected one.")
    return found[0]


def read_results(places: Sequence[str | Path]) -> list[Result]:
    """Results from files, each with one or a list of them, and from directories of runs."""
    found: list[Result] = []
    for place in map(Path, places):
        content = _of_directory(place) if present(place) and place.is_dir() else read_saved(place)
        several = content if isinstance(content, list) else [content]
        found += [from_dict(each, printable(place)) for each in several]
    return found


def _of_directory(place: Path) -> Any:
    """What a run's directory holds, which must be that run's own; what any other holds as result.json."""
    from toposcope.runs.directory import read_job, read_result

    job = read_job(place)
    return read_saved(place / "result.json", inside=place) if job is None else read_result(place, job)


def from_dict(data: Any, where: str = "the result") -> Result:
    """The result of which these are the plain data."""
    if not isinstance(data, Mapping):
        raise BadFile(f"{where} holds {type(data).__name__}, expected a result that --json wrote.")
    if SUM in data:  # of a run's directory
        data = unsealed(data, where)
    said = str(data.get("schema", ""))
    kind, version = said.removeprefix("toposcope/").rpartition("/")[::2]
    if not said.startswith("toposcope/") or kind not in KINDS:
        raise BadFile(f"{where} has the schema '{printable(said, 60)}', which is no result of this version.")
    expected = result_class(kind)
    if version != str(expected.version):
        raise BadFile(
            f"{where} is a result of '{kind}' in format {printable(version, 20)}, and this version reads "
            f"{expected.version}. Make it again."
        )
    return expected.from_dict(data, where)


def add_view(results: Sequence[Result], page: Page) -> None:
    """Add the one view of these results, all of one kind, to a page."""
    kind = results[0].kind
    module = importlib.import_module(f"toposcope.report.views.{kind.replace('-', '_')}")
    if hasattr(module, "view_several") and len(results) > 1:
        module.view_several(results, page)
    else:
        for result in results:
            module.view(result, page)


def document(name: str) -> dict[str, Any]:
    """The JSON Schema of one kind of result; `name` may be given as scan or as toposcope/scan/2."""
    kind = name.removeprefix("toposcope/").partition("/")[0]
    if kind not in KINDS:
        raise BadValue(f"'{name}' is not the schema of a result. {did_you_mean(kind, KINDS)}")
    found = result_class(kind)
    return schema(found, name=found.schema_name(), title=f"A result of toposcope {kind}")
