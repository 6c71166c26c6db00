"""Black-box tests of a torch attention module: is its positional encoding there, in force, and of one kind?

    result = toposcope.check_module(my_attention)
    result.position    # "none", "relative", "absolute", "absolute+relative" or "unclear"
    result.findings    # what was found, the gravest first

The module maps (batch, tokens, width) to the same shape. It is run in evaluation mode, without gradients, and left as
it was. Most probes look at outputs: samples trade places, tokens trade places, one token is repeated, positions grow.
Others look at the queries, keys and logits formed on the way, which are watched while it runs (see `runner.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.core.errors import BadValue
from toposcope.core.result import Provenance
from toposcope.encodings.record import Pairing
from toposcope.live.module import against
from toposcope.live.module.diagnose import Diagnosis, Position, diagnose
from toposcope.live.module.probes import Observation, OutputChanges, probe_inside, probe_outputs
from toposcope.live.module.runner import Runner, at_rest

Expected = Literal["relative", "absolute", "none", "absolute+relative"]


@dataclass(frozen=True)
class Probe:
    """A probe, and why it ran or could not."""

    name: str
    ran: bool
    detail: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleCheckResult(CheckResult):
    """What was found about a torch module, the gravest first."""

    kind = "check-module"

    module: str
    position: Position
    causal: bool
    probes: tuple[Probe, ...]


def check_module(
    module: Any,
    *,
    width: int | None = None,
    length: int = 17,
    batch: int = 3,
    causal: bool | None = None,
    call: Callable[..., Any] | None = None,
    expects: Expected | None = None,
    qk: Callable[[Any, Any], Any] | None = None,
    logits: Callable[[Any, Any], Any] | None = None,
    reference: Any = None,
    pairing: Pairing | None = None,
    seed: int = 0,
    tolerance: float = 1e-4,
) -> ModuleCheckResult:
    """Test any torch attention module for its positional encoding and the mistakes commonly made with it.

    * `width`: the last axis of the input; found from the module where possible.
    * `length`, `batch`: size of the probes; a prime length keeps other axes from having it by accident.
    * `causal`: what the module should be; None takes what is found.
    * `call(module, x)` or `call(module, x, positions)`: how to run it, where `module(x)` is not the way. With
      `positions` (a tensor of N integers) the whole text can be shifted, the strictest test of a relative encoding.
    * `expects`: the kind the module should be; anything else is a fault.
    * `qk(module, x)`: returns queries and keys as they enter the product, (B, H, N, R) each; `logits(module, x)`
      returns (B, H, N, N). Only needed where a fused kernel hides them.
    * `reference`: another module called the same way, a function from x to the output, or a layer of a checkpoint
      (`toposcope.load(...).layers[i]`): outputs must agree.
    * `pairing`: the pairs, 'half' or 'interleaved', for which the weights were trained.
    * `tolerance`: differences below this share of the output's size count as none.
    """
    started = time.perf_counter()
    _valid(length, batch, tolerance)
    run = Runner(module, call, width)
    rng = np.random.default_rng(seed)
    tolerance = max(tolerance, 100 * run.rounding)
    with at_rest(run.module):
        x_BND = rng.standard_normal((batch, length, run.width))
        out = probe_outputs(run, x_BND, rng, causal=causal)
        observed = probe_inside(run, x_BND, qk=qk, logits=logits, rng=rng)
        found = diagnose(out, observed, tolerance)
        findings = [
            *found.findings,
            *_shift(out, found, tolerance),
            *_mask(out, causal),
            *_expected(found, expects),
            *against.pairing(run, observed, pairing, length),
            *against.reference(run, observed, x_BND, reference, tolerance),
        ]
    if expects == "absolute+relative":
        findings = [finding for finding in findings if finding.id != "absolute-beside-relative"]
    asked = {
        "width": run.width, "length": length, "batch": batch, "causal": causal, "expects": expects,
        "pairing": pairing, "seed": seed, "tolerance": tolerance,
    }  # fmt: skip
    words = f"{'no' if found.position == 'none' else found.position} position{', causal' if out.causal else ''}"
    return ModuleCheckResult(
        provenance=Provenance(options=asked, seconds=time.perf_counter() - started),
        module=type(module).__name__,
        position=found.position,
        causal=out.causal,
        layers=1,
        probes=(*_probes(out, observed, reference is not None), *_precision(run)),
        **outcome(findings, words),
    )


def _valid(length: int, batch: int, tolerance: float) -> None:
    if length < 4:
        raise BadValue(f"length={length} is too short to tell offsets apart; give at least 4 tokens.")
    if batch < 2:
        raise BadValue(f"batch={batch}: at least 2 samples are needed to see whether they act on one another.")
    if not 0 < tolerance < 1:
        raise BadValue(f"tolerance={tolerance} is not between 0 and 1.")


def _shift(out: OutputChanges, found: Diagnosis, tolerance: float) -> list[Finding]:
    """The exact test of a relative encoding, where positions (or a window) allow it."""
    if out.shifted is None or found.position not in ("relative", "none"):
        return []
    allowed = 20 * tolerance  # sines of large angles are less exact
    if out.shifted <= allowed:
        return [
            Finding(
                "shift",
                "ok",
                "nothing changes when the text is shifted",
                f"Tested by {out.shifted_by}: the output changes by {out.shifted:.1e} of its size at most.",
                evidence={"difference": out.shifted},
            )
        ]
    return [
        Finding(
            "shift",
            "fault",
            "the output changes when the text is shifted",
            f"Tested by {out.shifted_by}: the output changes by {out.shifted:.1e} of its size, though the logits "
            "looked relative. The positions given to the module are not used alike everywhere.",
            "Check that the same positions reach queries, keys, bias and mask.",
            evidence={"difference": out.shifted},
        )
    ]


def _mask(out: OutputChanges, causal: bool | None) -> list[Finding]:
    if causal is None or causal == out.causal:
        return []
    if causal:
        return [
            Finding(
                "mask",
                "fault",
                "later tokens act on earlier ones",
                "The module should be causal, but changing a token changes outputs before it.",
                "Check that the mask is passed and added before the softmax, with rows for queries.",
            )
        ]
    return [
        Finding(
            "mask",
            "fault",
            "no token sees a later one",
            "The module should see both directions, but changing a token changes no output before it.",
            "Check whether a causal mask is applied by default.",
        )
    ]


def _expected(found: Diagnosis, expects: Expected | None) -> list[Finding]:
    if expects is None or expects == found.position or found.position == "unclear":
        return []
    return [
        Finding(
            "expected",
            "fault",
            f"the encoding should be {expects} and is {found.position}",
            f"The module was said to be {expects}; the probes find {found.position}.",
            "See the other findings for what acts and what does not.",
        )
    ]


def _precision(run: Runner) -> tuple[Probe, ...]:
    return (Probe("precision", True, "half precision: a copy in float32 was tested"),) if run.copied else ()


def _probes(out: OutputChanges, observed: Observation, compared: bool) -> tuple[Probe, ...]:
    inside = observed.source != "nothing"
    hidden = "the module hides its softmax; give qk= or logits="
    many = f"; {observed.attentions} attentions met, the first one looked at" if observed.attentions > 1 else ""
    no_qk = "queries and keys were not seen; give qk="
    ends = observed.q_start is not None and observed.k_start is not None
    return (
        Probe("trade samples of the batch", True, "outputs"),
        Probe("change one token at a time", True, f"{'causal' if out.causal else 'not causal'}; reach {out.reach}"),
        Probe(
            "trade tokens", True, "outputs" if not out.causal else "output of the last token, which sees all others"
        ),
        Probe("one token everywhere, outputs", True, "outputs"),
        Probe("shift the text", out.shifted is not None, out.shifted_by),
        Probe("one token everywhere, logits", inside, f"{observed.source}{many}" if inside else hidden),
        Probe(
            "queries and keys turn",
            observed.q_turning is not None,
            observed.source if observed.q_turning is not None else no_qk,
        ),
        Probe(
            "where rotation starts",
            ends,
            "first query and key found before rotation"
            if ends
            else "no rotation, or queries and keys before it were not recognised",
        ),
        Probe(
            "against a reference",
            compared,
            "outputs"
            if compared
            else "none given; weights for the other pairing look right without one, unless trained",
        ),
    )
