"""Do angles stay right far out, in the model's own precision? Positions beyond its context, as far as 128k.

Up to the context the fit has looked already, and names a rounding where one explains what it sees. Beyond it position
ids can be given where the frequencies do not depend on the length of the text and no table ends: what is lost there
is lost for whoever extends the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.record import Array
from toposcope.live.judge import judge
from toposcope.live.recover import Recovery, recover, spread_positions
from toposcope.live.running import Running

FAR = 131_072
CONTENTS = 3


def far_positions(context: int, far: int = FAR) -> Array:
    """The first few positions, and those from half the context on that the fit has not reached."""
    spread = spread_positions(far)
    return spread[(spread < 4) | (spread > context // 2)]


def precision(
    running: Running, recovery: Recovery, model_view: Model, *, found: Sequence[Finding] = (), far: int = FAR
) -> list[Finding]:
    """Findings about positions beyond the context, up to `far`; none where the model cannot be told positions.

    Where the fit (`found`) has already seen wrong frequencies, nothing new is to be learnt farther out.
    """
    if recovery.mode != "positions" or recovery.context >= far or not _plain(model_view):
        return []
    if any(each.status == "fault" for each in found):
        return []
    try:
        beyond = recover(running, positions=far_positions(recovery.context, far), contents=CONTENTS, logits=False)
    except ToposcopeError as error:  # of other people's code, at positions that it was not made for
        return [
            Finding(
                "live-precision-far",
                "cannot_tell",
                f"positions up to {far - 1} cannot be given",
                f"Beyond its context of {running.context} tokens the model fails: {error}",
                evidence={"probe": "precision", "bug": None, "positions": far},
            )
        ]
    told = judge(beyond, model_view, probe="precision", logits=False)
    return [_beyond(each, running.context, far) for each in told if each.status != "cannot_tell"]  # the fit said so


def _plain(model_view: Model) -> bool:
    """Whether the model turns, by frequencies that no length changes, and has no table that could end."""
    encodings = [layer.encoding for layer in model_view.layers if layer.spec.kind != "cross"]
    turning = [each.rotary for each in encodings if each.rotary is not None]
    ends = any(each.input is not None and each.input.length is not None for each in encodings)
    return bool(turning) and not ends and not any(np.any(rotary.by_length) for rotary in turning)


def _beyond(finding: Finding, context: int, far: int) -> Finding:
    """A fault that shows beyond the context only is a warning."""
    if finding.status == "ok":
        return replace(
            finding,
            title=f"the arithmetic of angles holds, to rounding, up to position {far - 1:,}",
            explanation=(f"{finding.explanation} Whether the model was trained for it: 'toposcope spectrum'."),
        )
    return replace(
        finding,
        id="live-precision-far",
        status="warning",
        explanation=f"Beyond the context of {context} tokens. {finding.explanation}",
    )
