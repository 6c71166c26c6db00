"""Check a checkpoint: is its positional encoding really there, in force, and of one kind?"""

from __future__ import annotations

from toposcope.checkpoints.view import Model
from toposcope.checks.bias import biases
from toposcope.checks.context import context
from toposcope.checks.findings import CheckReport, Finding, ordered
from toposcope.checks.mechanisms import mechanisms
from toposcope.checks.rotary import mla_width, pairs_fit_weights, rotation
from toposcope.checks.settings import settings
from toposcope.checks.sharing import Progress, dead_heads, sharing, walk
from toposcope.checks.tables import position_tables


def check_model(model: Model, *, weights: bool = True, progress: Progress | None = None) -> CheckReport:
    """Run every check that applies to this model; the gravest findings come first.

    With `weights` the layers are read once, one at a time; without, only configuration and tables are looked at.
    `progress(done, all)` is called after each layer.
    """
    findings: list[Finding] = [
        *mechanisms(model),
        *rotation(model),
        *settings(model),
        *position_tables(model),
        *context(model),
        *biases(model),
        *mla_width(model, model.layers),
        *_left_out(model),
    ]
    if weights:
        walked = walk(model, progress)
        findings += [
            *pairs_fit_weights(model, walked.pooled, walked.single),
            *sharing(model, walked),
            *dead_heads(model, walked),
        ]
    sinusoid = {number for finding in findings if "sinusoid" in finding.evidence for number in finding.layers or ()}
    titles = dict.fromkeys(
        f"sinusoidal vectors stored as a table ({layer.encoding.title})"
        if layer.number in sinusoid
        else layer.encoding.title
        for layer in model.layers
        if layer.spec.kind == "self"
    )
    return CheckReport(
        target=str(model.path),
        family=model.family,
        layers=len(model.layers),
        encoding="; ".join(titles),
        findings=ordered(findings),
    )


def _left_out(model: Model) -> list[Finding]:
    """What the adapter could not read, or leaves out of the view."""
    found = []
    for note in dict.fromkeys(warning for layer in model.layers for warning in layer.spec.warnings):
        numbers = tuple(layer.number for layer in model.layers if note in layer.spec.warnings)
        found.append(
            Finding(
                "left-out",
                "ok",
                "something is left out of this view",
                f"{note[:1].upper()}{note[1:].rstrip('.')}.",
                layers=numbers,
            )
        )
    return found
