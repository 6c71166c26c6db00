"""For tests of your own: assert that a model, or an attention module, encodes position as it should.

from toposcope.testing import assert_positions_equal

def test_positions():
    assert_positions_equal(model, expect="rope:base=500000")
    assert_positions_equal(module, reference=other_module)
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toposcope.checks.findings import CheckResult, Finding
from toposcope.core.errors import BadValue


def assert_positions_equal(
    model_or_module: Any,
    reference: Any = None,
    *,
    expect: str | Iterable[str] | None = None,
    live: bool = True,
    warnings: bool = False,
    **options: Any,
) -> CheckResult:
    """Raise an AssertionError with the findings unless position is encoded as it should be; else give the result.

    A model is what `toposcope.check` takes. It is run, unless `live` is False (its files alone), and held against its
    own configuration and against `expect` ("rope:scaling=yarn,factor=4"). With a `reference`, another model or a
    .jsonl file of log-probabilities, the two must also say the same of the same tokens (`toposcope.against`).

    A torch attention module goes to `toposcope.check_module`: `reference` is a module or function that must give the
    same outputs, `expect` is the kind of position ("relative", "absolute", "none"). `options` go to the verb that is
    called. With `warnings` these fail too. What cannot be told does not fail, except an expectation.
    """
    from toposcope.checks.expected import ID
    from toposcope.live.check import check, is_attention
    from toposcope.live.module.check import Expected, check_module

    if is_attention(model_or_module):
        if expect is not None and expect not in typing.get_args(Expected):
            kinds = ", ".join(typing.get_args(Expected))
            raise BadValue(f"of a module a kind of position can be expected ({kinds}), got {expect!r}.")
        kind = typing.cast("Expected | None", expect)
        result: CheckResult = check_module(model_or_module, reference=reference, expects=kind, **options)
    else:
        result = check(model_or_module, live=live, expect=expect, **options)
    wrong = [
        finding
        for finding in result.findings
        if finding.status == "fault"
        or (warnings and finding.status == "warning")
        or (finding.id == ID and finding.status != "ok")
    ]
    words = [_line(finding) for finding in wrong]
    if reference is not None and not is_attention(model_or_module):
        words += _parted(model_or_module, reference)
    if words:
        raise AssertionError("\n".join([result.verdict, *words]))
    return result


def _line(finding: Finding) -> str:
    where = "" if finding.layers is None else f" (layers {', '.join(map(str, finding.layers))})"
    said = " ".join(filter(None, (f"{finding.title}.", finding.explanation, finding.what_to_do)))
    return f"{finding.status} {finding.id}{where}: {said}"


def _parted(model: Any, reference: Any) -> list[str]:
    from toposcope.live.engines.against import against
    from toposcope.live.engines.logprobs import SUFFIX
    from toposcope.models.corpus import RANDOM

    by_name = isinstance(model, str | Path) and isinstance(reference, str | Path)
    text = "wiki" if by_name else RANDOM  # a loaded model may have no tokenizer here
    pair = (model, reference) if str(reference).endswith(SUFFIX) else (reference, model)
    found = against(*pair, text=text)
    if found.outcome == "equal":
        return []
    cause = ", ".join(found.causes) or "none of the known bugs"
    where = f"from position {found.first_apart} on"
    return [f"against the reference: apart {where}, {found.rms:.3g} nats (rms); {cause}."]
