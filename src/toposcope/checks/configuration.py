"""Check a config.json without weights: all that it says, and plainly what it cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.checkpoints.config_only import ConfigSource, without_weights
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.lone_config import NotToldByConfiguration, open_configuration
from toposcope.checkpoints.opened import subject
from toposcope.checkpoints.view import Model
from toposcope.checks.expected import ID, Expectation
from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.printable import printable
from toposcope.core.result import Provenance, Subject

ALONE = "configuration-alone"


def check_configuration(
    path: Path, values: Mapping[str, Any], *, family: str | None = None, expect: Sequence[Expectation] = ()
) -> CheckResult:
    """Test what a lone configuration says of position; it is called by its path, as that was given."""
    from toposcope.checks.model import check_model

    try:
        model = open_configuration(path, values, family)
    except NotToldByConfiguration as error:
        why = f": {error}" if isinstance(error.__cause__, ToposcopeError) else ""
        return _not_told(path, values, why, expect)
    result = check_model(model, weights=False, expect=expect)
    about = replace(subject(model), name=printable(path))
    return replace(result, provenance=Provenance((about,)), skipped=model.skipped)


def refuse_with_configuration(num_heads: int | None, adapter: str | Path | None) -> None:
    """Complain of options that speak of weights."""
    if num_heads is not None or adapter is not None:
        raise BadValue("num_heads and adapter say how weights are read, and a configuration alone has none.")


def what_weights_tell(model: Model) -> Iterator[Finding]:
    """What stays open where there is a configuration and no weights."""
    if not without_weights(model.source):
        return
    encodings = [layer.encoding for layer in model.layers]
    tables = any(each.input is not None and each.name == "learned" for each in encodings)
    unchecked = [
        *(["the learned position table"] if tables else []),
        *(["channel pairing"] if any(each.rotary is not None for each in encodings) else []),
        "dead heads",
        "identical layers",
    ]
    yield Finding(
        ALONE,
        "cannot_tell",
        f"not checked, as there are no weights here: {', '.join(unchecked)}",
        f"{printable(model.path)} is a configuration without weights.",
        "Run 'toposcope check DIR' on the full model; with --live it also runs the model, and tells whether these "
        "settings are applied.",
        evidence={"unchecked": unchecked},
    )


def _not_told(path: Path, values: Mapping[str, Any], why: str, expect: Sequence[Expectation]) -> CheckResult:
    kind = printable(Config(dict(values), str(path)).get("model_type") or "none", 60)
    open_question = Finding(
        ALONE,
        "cannot_tell",
        "the configuration alone does not tell how position is encoded",
        f"Models of type '{kind}' are described by their tensors{printable(why, 300).rstrip('.')}.",
        "Give the directory with the weights.",
    )
    missed = [
        Finding(
            ID, "cannot_tell", "whether the expectation holds is not told",
            f"Expected {printable(each.written)}.", "Give the directory with the weights.",
            evidence={"expected": each.written},
        )
        for each in expect
    ]  # fmt: skip
    source = ConfigSource(path, values)
    about = Subject(printable(path), str(path), source.format, kind, source.digest())
    words = outcome([open_question, *missed], "not told by the configuration alone")
    return CheckResult(layers=0, provenance=Provenance((about,)), **words)
