"""Findings for continuous integration: SARIF 2.1.0 for code scanning, JUnit XML for test reports.

A fault is an error or a failed test case, a warning a warning, "cannot tell" an open question or a skipped case.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree

from toposcope._version import __version__
from toposcope.checks.findings import CheckResult, Finding, Status
from toposcope.core.printable import visible
from toposcope.core.result import json_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# SARIF's level, and its kind: what has passed, or stays open, has the level "none"
LEVELS: dict[Status, tuple[str, str]] = {
    "fault": ("error", "fail"),
    "warning": ("warning", "fail"),
    "cannot_tell": ("none", "open"),
    "ok": ("none", "pass"),
}
# What XML 1.0 cannot hold, even as a reference.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def sarif(result: CheckResult) -> str:
    """The findings of a check as a SARIF log."""
    rules = {each.id: each for each in reversed(result.findings)}
    order = list(dict.fromkeys(each.id for each in result.findings))
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "toposcope",
                        "version": __version__,
                        "rules": [
                            {"id": id, "shortDescription": {"text": rules[id].title}, "name": _pascal(id)}
                            for id in order
                        ],
                    }
                },
                "results": [_sarif_result(each, order.index(each.id), _place(result)) for each in result.findings],
            }
        ],
    }
    return json_text(log, indent=2)


def _sarif_result(finding: Finding, rule: int, place: str) -> dict[str, Any]:
    level, kind = LEVELS[finding.status]
    found: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": rule,
        "level": level,
        "kind": kind,
        "message": {"text": _words(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": place}}}],
    }
    if finding.layers is not None:
        found["properties"] = {"layers": list(finding.layers)}
    return found


def _pascal(id: str) -> str:
    return "".join(part.capitalize() for part in id.split("-"))


def _words(finding: Finding) -> str:
    return " ".join(filter(None, (f"{finding.title}: {finding.explanation}", finding.what_to_do)))


def _place(result: CheckResult) -> str:
    """What was checked, as a relative address: absolute paths of a build machine mean nothing to a reader."""
    subjects = result.provenance.subjects
    path = PurePath(subjects[0].path if subjects else result.kind)
    parts = path.parts[-2:] if path.is_absolute() else path.parts
    return "/".join(re.sub(r"[^\w.@+-]", "_", part) for part in parts if part not in ("..", "/")) or "model"


def junit(result: CheckResult) -> str:
    """The findings of a check as JUnit XML: a test case each."""
    counts = result.counts
    name = result.provenance.subjects[0].name if result.provenance.subjects else result.kind
    suites = ElementTree.Element("testsuites", name="toposcope")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name=_text(f"toposcope {result.kind} {name}"),
        tests=str(len(result.findings)),
        failures=str(counts["fault"]),
        errors="0",
        skipped=str(counts["cannot_tell"]),
        time=f"{result.provenance.seconds:.3f}",
    )
    seen: dict[str, int] = {}
    for finding in result.findings:
        seen[finding.id] = seen.get(finding.id, 0) + 1
        number = f" ({seen[finding.id]})" if seen[finding.id] > 1 else ""
        case = ElementTree.SubElement(suite, "testcase", classname="toposcope", name=_text(finding.id + number))
        words = _text(_words(finding))
        if finding.status == "fault":
            ElementTree.SubElement(case, "failure", message=_text(finding.title), type="fault").text = words
        elif finding.status == "cannot_tell":
            ElementTree.SubElement(case, "skipped", message=words)
        else:
            ElementTree.SubElement(case, "system-out").text = f"{finding.status}: {words}"
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _text(words: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(words, keep="\n"))
