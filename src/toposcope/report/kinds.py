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
from toposcope.core.printable import printable
from toposcope.core.result import Result
from toposcope.core.untrusted import read_saved
from toposcope.report.blocks import Page

# In the order in which a report shows them: first what is wrong, then what is there, then what it does.
KINDS = {
    "check": "toposcope.checks.findings:CheckResult",
    "check-module": "toposcope.checks.module:ModuleCheckResult",
    "inspect": "toposcope.checkpoints.inspect:InspectResult",
    "loss": "toposcope.models.loss:LossResult",
    "flow": "toposcope.dynamics.flow:FlowResult",
    "spectrum": "toposcope.spectra.spectrum:SpectrumResult",
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
    """The result that a verb has saved, or that a command wrote with --json."""
    return from_dict(read_saved(path), printable(path))


def from_dict(data: Any, where: str = "the result") -> Result:
    """The result of which these are the plain data."""
    if not isinstance(data, Mapping):
        raise BadFile(f"{where} holds {type(data).__name__}, expected a result that --json wrote.")
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
