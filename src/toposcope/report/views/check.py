"""The view of `check`: is the scaling in force, what is wrong, and in a terminal how many checks passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toposcope.checkpoints.config_only import FORMAT
from toposcope.checks.configuration import ALONE
from toposcope.checks.findings import ON_SCALING, STATUSES, CheckResult, Finding, say_layers, scaling_fault
from toposcope.models.load import runs_here
from toposcope.report.blocks import Command, Findings, Page, Paragraphs, Summary
from toposcope.report.commands import live_line, loss_line

# passed checks that are shown one by one: what is in force, what was asked for, what was not looked at
_OPEN = ("rotary-settings", "expected-encoding", "left-out", "windows")
_NO_SCALING = (None, "default", "proportional")
_NAMES = {
    "yarn": "YaRN", "longrope": "LongRoPE", "llama3": "Llama 3 scaling", "linear": "Linear scaling",
    "dynamic": "Dynamic NTK scaling", "ntk": "NTK scaling",
}  # fmt: skip


def view(result: CheckResult, page: Page, *more: str) -> None:
    """Add the section of a check; `more` are sentences for its summary."""
    files = result.kind in ("check", "check-live")
    items = _shown(result.findings)
    lone = _lone(result)
    unchecked = [each for each in items if lone and result.layers and each["id"] == ALONE]
    items = [each for each in items if each not in unchecked]  # what was not asked is no open question
    kept = None
    if files:
        rotates = any(each["id"] == "rotary-settings" for each in items)
        kept = (*_OPEN, *(() if rotates or scaling_fault(result.findings) else ("mechanisms",)))
        if _told_above(result):
            kept = tuple(each for each in kept if each != "rotary-settings")
    told = [*_scaling(result), *more, _outcome(result, items)]
    line = loss_line(result) if files and _stretching(result.findings) else None
    question = "Was the model tuned with this scaling? Its loss tells, without the scaling and with it:"
    running = live_line(result) if result.kind == "check" else None
    needs = "" if runs_here() else " (needs the [hf] extra; in a clone: make hf)"
    page.add(
        "What positional encoding does this configuration set?" if lone else "Is the positional encoding in force?",
        Summary(tuple(filter(None, told))),
        Findings(tuple(items), kept=kept),
        *(Paragraphs((f"{each['title'][:1].upper()}{each['title'][1:]}.", each["what_to_do"])) for each in unchecked),
        None if line is None else Command(question, line),
        None if running is None else Command(f"From the files alone. To check the running model{needs}:", running),
    )


# ------------------------------------------------------------------ the answer
def _scaling(result: CheckResult) -> list[str]:
    """Whether a scaling is in force, in one sentence; nothing of a model that does not rotate."""
    settings = [each for each in result.findings if each.id == "rotary-settings" and each.evidence]
    if not settings:
        return []
    scaled = [each for each in settings if each.evidence.get("scaling") not in _NO_SCALING]
    lone = _lone(result)
    if not scaled:
        fault = scaling_fault(result.findings)
        if fault is not None:
            though = f"though one is {'written' if fault.id != 'expected-encoding' else 'expected'}."
            return [
                f"{'As transformers reads it, no scaling is set' if lone else 'No scaling is in force'}, {though}"
            ]
        unread = any(each.id in ON_SCALING and each.status != "ok" for each in result.findings)
        if lone:
            return ["No scaling is set, as transformers reads it."]
        return ["No scaling is in force." if unread else "No scaling is set, and none is in force."]
    idle = any(each.id == "scaling-effect" and each.status == "warning" for each in result.findings)
    stand = "set, without any effect" if idle else "set, as transformers reads it" if lone else "in force"
    told = []
    for each in scaled:
        where = f" in {say_layers(each.layers or (), result.layers)}" if len(settings) > 1 else ""
        name, numbers = _said(each.evidence)
        told.append(f"{name} is {stand}{where}{f': {numbers}' if numbers else ''}.")
    rest = ["No scaling in the other layers."] if len(scaled) < len(settings) else []
    return [*dict.fromkeys(told), *rest]


def _said(evidence: Mapping[str, Any]) -> tuple[str, str]:
    """A scaling by its name, and its numbers: 'YaRN x4', 'from 2,048 to 8,192 tokens, attention factor 1.139'."""
    factor, original, attention = (evidence.get(key) for key in ("factor", "original_context", "attention_factor"))
    name = _NAMES.get(kind := str(evidence["scaling"]), kind)
    numbers = []
    if isinstance(factor, int | float):
        name += f" x{factor:g}"
    if isinstance(original, int | float):
        reach = f" to {factor * original:,.0f}" if isinstance(factor, int | float) else ""
        numbers.append(f"from {original:,}{reach} tokens")
    if attention not in (None, 1):
        numbers.append(f"attention factor {attention:.4g}")
    return name, ", ".join(numbers)


def _outcome(result: CheckResult, items: Sequence[Mapping[str, Any]]) -> str:
    """The outcome; the encoding is left out of it where the line on the model has it."""
    if _lone(result) and not result.layers:
        return "No layer could be read from the configuration alone."
    if not _in_header(result):
        return result.verdict
    counts = {str(status): sum(each["status"] == status for each in items) for status in STATUSES}
    words = [
        f"{counts[status]} {name}{'s' * (counts[status] > 1)}"
        for status, name in (("fault", "fault"), ("warning", "warning"), ("cannot_tell", "open question"))
        if counts[status]
    ]
    if result.worst in ("fault", "warning"):
        return f"{', '.join(words)}."
    return f"Nothing wrong was found{f'; {words[0]}' if words else ''}."


def _lone(result: CheckResult) -> bool:
    """Whether a configuration was read and nothing else: no weights, and no model that runs."""
    return any(about.format == FORMAT for about in result.provenance.subjects)


def _told_above(result: CheckResult) -> bool:
    """Whether the line on the model and the answer say all that the one passed finding on rotation does."""
    settings = [each for each in result.findings if each.id == "rotary-settings"]
    return len(settings) == 1 and settings[0].status == "ok" and _in_header(result)


def _in_header(result: CheckResult) -> bool:
    """Whether the line on the model names the encoding."""
    return {*result.encoding.split("; ")} <= {
        each for about in result.provenance.subjects for each in about.encodings
    }


def _stretching(findings: Sequence[Finding]) -> bool:
    """Whether a scaling is in force of which neither files nor a run tell if the model was tuned with it."""
    return any(each.evidence.get("scaling") not in _NO_SCALING for each in findings if each.id == "rotary-settings")


# ------------------------------------------------------------------ findings
def _shown(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as they are shown: none that reads as the opposite of a fault, one for one fact."""
    dropped: list[Finding] = []
    if scaling_fault(findings) is not None:
        dropped += [each for each in findings if each.id == "rotary-settings" and each.status == "ok"]
    items = {id(each): asdict(each) for each in findings}
    fresh = next((each for each in findings if each.id == "initial-values" and each.status == "cannot_tell"), None)
    untold = [each for each in findings if each.id == "pairing" and each.status == "cannot_tell"]
    if fresh is not None and untold:
        dropped += untold
        items[id(fresh)] |= {
            "title": "the weights are untrained, so pairing and base cannot be checked against them",
            "explanation": "Not saved or not loaded? Otherwise expected.",
            "what_to_do": "",
        }
    gone = {id(each) for each in dropped}
    return [items[id(each)] for each in findings if id(each) not in gone]
