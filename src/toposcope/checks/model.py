"""Check a checkpoint: is its positional encoding really there, in force, and of one kind?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.checkpoints.lone_config import lone_configuration
from toposcope.checkpoints.opened import ModelLike, opened, said, subject
from toposcope.checkpoints.view import Model
from toposcope.checks.bias import biases
from toposcope.checks.configuration import check_configuration, refuse_with_configuration, what_weights_tell
from toposcope.checks.context import context
from toposcope.checks.expected import Expectation, expectations, expected
from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.checks.fresh import initial_values, norm_gains
from toposcope.checks.mechanisms import mechanisms
from toposcope.checks.rotary import mla_width, rotation
from toposcope.checks.settings import settings
from toposcope.checks.sharing import dead_heads, sharing, walk
from toposcope.checks.tables import position_tables
from toposcope.checks.trained import trained_rotation
from toposcope.core.progress import Progress
from toposcope.core.result import Provenance


def check_files(
    model: ModelLike,
    *,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    weights: bool = True,
    expect: str | Iterable[str] | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Test what a model's configuration and its stored weights say of position; nothing is run.

    A config.json without weights will do ("-": standard input). `expect` are encodings that the layers should have.
    """
    started, wanted = time.perf_counter(), expectations(expect)
    lone = lone_configuration(model)
    if lone is not None:
        refuse_with_configuration(num_heads, adapter)
        result = check_configuration(*lone, family=family, expect=wanted)
        about = {"family": family, "weights": False, "expect": [each.written for each in wanted]}
        done = replace(result.provenance, options=about, seconds=time.perf_counter() - started)
        return replace(result, provenance=done)
    with opened(model, family=family, num_heads=num_heads, adapter=adapter) as found:
        result = check_model(found, weights=weights, expect=wanted, progress=progress)
        asked: dict[str, Any] = {
            "family": family, "num_heads": num_heads, "adapter": said(adapter), "weights": weights,
            "expect": [each.written for each in wanted],
        }  # fmt: skip
        return replace(
            result,
            provenance=Provenance((subject(found, model),), asked, time.perf_counter() - started),
            skipped=found.skipped,
        )


def check_model(
    model: Model,
    *,
    weights: bool = True,
    expect: Sequence[Expectation] = (),
    progress: Progress | None = None,
) -> CheckResult:
    """Run every check that applies to an open model.

    With `weights` the layers are read once, one at a time. `expect` are encodings that the layers should have.
    """
    findings: list[Finding] = [
        *expected(model, expect),
        *mechanisms(model),
        *rotation(model),
        *settings(model),
        *position_tables(model, weights=weights),
        *context(model),
        *biases(model),
        *mla_width(model, model.layers),
        *_left_out(model),
        *what_weights_tell(model),
    ]
    if weights:
        walked = walk(model, progress)
        findings += [
            *trained_rotation(model, walked.overlaps, walked.single),
            *initial_values(model, walked.fresh),
            *norm_gains(model, walked.fresh),
            *sharing(model, walked),
            *dead_heads(model, walked),
        ]
    return CheckResult(layers=len(model.layers), **outcome(findings, _encoding(model, findings)))


def _encoding(model: Model, findings: list[Finding]) -> str:
    """How position is encoded, in words; a sinusoid that is stored as a table is called one."""
    sinusoid = {number for finding in findings if "sinusoid" in finding.evidence for number in finding.layers or ()}
    titles = dict.fromkeys(
        f"sinusoidal vectors stored as a table ({layer.encoding.title})"
        if layer.number in sinusoid and layer.encoding.name != "sinusoidal"
        else layer.encoding.title
        for layer in model.layers
        if layer.spec.kind == "self"
    )
    return "; ".join(titles)


def _left_out(model: Model) -> list[Finding]:
    """What the adapter could not read, or leaves out of the view."""
    found = []
    for note in dict.fromkeys(warning for layer in model.layers for warning in layer.spec.warnings):
        numbers = tuple(layer.number for layer in model.layers if note in layer.spec.warnings)
        words = f"{note[:1].upper()}{note[1:].rstrip('.')}."
        found.append(Finding("left-out", "ok", "something is left out of this view", words, layers=numbers))
    return found
