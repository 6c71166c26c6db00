"""Test a rotation by itself: any function from queries, keys and positions to turned queries and keys.

def rotate(q, k, positions): ...   # q, k: (batch, heads, tokens, head_dim); positions: (tokens,)
result = toposcope.check_rotation(rotate, head_dim=64, encoding="rope:base=500000")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.core.errors import BadValue
from toposcope.core.result import Provenance
from toposcope.encodings import Encoding, Sizes, parse
from toposcope.encodings.record import Array
from toposcope.live import fit
from toposcope.live.doubts import Doubt, Verified, findings, what_is_right
from toposcope.live.hypotheses import Asked
from toposcope.live.judge import explained, note_right
from toposcope.live.precision import FAR
from toposcope.live.recover import CONTENTS, ROUNDING, RecoveredSide, spread_positions
from toposcope.live.verify import ANGLE, Comparison

Rotation = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class RotationCheckResult(CheckResult):
    """What was found about a rotation, the gravest first; frequencies as measured, in radians per token."""

    kind = "check-rotation"

    pairs: tuple[tuple[int, int], ...]  # channels of the queries that turn together
    frequencies: tuple[float, ...]
    errors: tuple[float, ...]  # their error bars


def check_rotation(
    rotation: Rotation,
    *,
    head_dim: int,
    encoding: Encoding | str | None = None,
    heads: int = 4,
    context: int = FAR,
    dtype: str = "float32",
    seed: int = 0,
) -> RotationCheckResult:
    """Recover what a function f(q, k, positions) does to queries and keys, and compare it with an encoding.

    It is called once, with tensors (batch, heads, tokens, head_dim) of `dtype` and the positions of the tokens, which
    are spread up to `context`; it returns both, turned. `encoding` is what it should be, as 'rope:base=500000' or an
    `Encoding`; without one, what was found is only described.
    """
    started = time.perf_counter()
    if dtype not in ROUNDING:
        raise BadValue(f"dtype='{dtype}' is not a precision; give one of {', '.join(ROUNDING)}.")
    if head_dim < 2 or heads < 1:
        raise BadValue(f"head_dim={head_dim}, heads={heads}: a rotation needs at least 2 channels and 1 head.")
    asked_for = _encoding(encoding, head_dim, heads, context)
    at_P = spread_positions(context)
    sides = _called(rotation, head_dim, heads, at_P, dtype, seed)
    right, doubts = Verified(context, dtype, "positions"), list[Doubt]()
    for name, side in sides.items():
        doubts += _judged(asked_for, name, side, right, dtype, context)
    found = [*findings(doubts, "fit", 1), *what_is_right(right, "fit")]
    queries = sides["queries"]
    if asked_for is None:
        found.append(_described(queries))
    pairs = queries.pairs_F2 if queries.finite else np.zeros((0, 2), dtype=np.intp)
    return RotationCheckResult(
        provenance=Provenance(
            options={"head_dim": head_dim, "heads": heads, "context": context, "dtype": dtype, "seed": seed},
            seconds=time.perf_counter() - started,
        ),
        layers=1,
        pairs=tuple((int(a), int(b)) for a, b in pairs),
        frequencies=tuple(float(w) for w in (queries.frequency_F if len(pairs) else ())),
        errors=tuple(float(w) for w in (queries.error_F if len(pairs) else ())),
        **outcome(found, "a rotation" if asked_for is None else asked_for.title),
    )


def _encoding(given: Encoding | str | None, head_dim: int, heads: int, context: int) -> Encoding | None:
    if isinstance(given, str):
        given = parse(given).build(Sizes(head_dim * heads, heads, head_dim, context, True))
    if given is not None and given.rotary is None:
        raise BadValue(f"'{given.name}' turns no channels; give a rotary encoding, such as 'rope:base=10000'.")
    if given is not None and given.rotary is not None and given.rotary.head_dim != head_dim:
        raise BadValue(f"the encoding is for heads of {given.rotary.head_dim} channels, head_dim is {head_dim}.")
    return given


def _called(
    rotation: Rotation, head_dim: int, heads: int, at_P: Array, dtype: str, seed: int
) -> dict[str, RecoveredSide]:
    import torch

    draw = torch.Generator().manual_seed(seed)
    shape = (CONTENTS, heads, 1, head_dim)
    precise = getattr(torch, dtype)
    q, k = (
        torch.randn(shape, generator=draw).to(precise).expand(-1, -1, len(at_P), -1).contiguous() for _ in range(2)
    )
    before_q, before_k = q.clone(), k.clone()  # which the function may write into
    with torch.no_grad():
        out = rotation(q, k, torch.from_numpy(at_P.astype(np.int64)))
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise BadValue(f"the function returned {type(out).__name__}; expected the turned queries and keys.")
    found = {}
    for name, turned, before in zip(("queries", "keys"), out, (before_q, before_k), strict=True):
        if tuple(turned.shape) != tuple(before.shape):
            raise BadValue(f"{name} came back as {tuple(turned.shape)}; expected {tuple(before.shape)}.")
        x_TPHR = turned.detach().cpu().to(torch.float64).numpy().swapaxes(1, 2)
        start_TR = before[:, 0, 0].double().numpy()
        source = fit.sources(x_TPHR[:, 0, 0], [start_TR], ROUNDING[dtype])
        found[name] = RecoveredSide(x_TPHR, at_P, ROUNDING[dtype], source.gain_R, source.row_R)
    return found


def _judged(
    encoding: Encoding | None, name: str, side: RecoveredSide, right: Verified, dtype: str, context: int
) -> Iterator[Doubt]:
    if encoding is None:
        return
    sign = -1.0 if name == "queries" else 1.0
    at_P = side.positions_P
    asked = Asked(encoding, at_P, context, side.vectors_TPHR.shape[-1], np.ones(len(at_P)), sign)
    if not side.finite:
        yield Doubt("not-finite", 0, name, "frequencies-uninitialised", encoding.title, "not a number", np.inf)
        return
    beside = Comparison(side, asked, dtype)
    if not beside.expected.fits:
        yield explained(beside, 0, name, side)
        return
    note_right(right, beside, 0, side)
    rotary = encoding.rotary
    told = side.gain_R[np.isfinite(side.gain_R)]
    if rotary is not None and len(told):
        factor, meant = float(np.median(side.gain_R[np.unique(rotary.pairs_F2)])), rotary.attention_factor
        allowed = 4 * ANGLE[dtype] + 1e-4
        if abs(factor / meant - 1) > allowed:
            bug = "attention-factor-dropped" if abs(factor - 1) <= allowed else None
            bug = "attention-factor-twice" if abs(factor / meant**2 - 1) <= allowed else bug
            what = f"turned vectors are {factor:.5g} times as long"
            yield Doubt("scale", 0, name, bug, f"{meant:.5g} times", what, abs(factor / meant - 1))


def _described(side: RecoveredSide) -> Finding:
    if not side.finite:
        return Finding("live-fit", "fault", "queries are not numbers once they are turned", "NaN or infinity.")
    few = ", ".join(f"{w:.4g}" for w in side.frequency_F[:4])
    return Finding(
        "live-fit",
        "ok",
        f"{len(side.pairs_F2)} pairs of channels turn" if len(side.pairs_F2) else "nothing turns",
        f"Frequencies {few}, ... radians per token." if len(side.pairs_F2) else "No channel moves with position.",
        evidence={"probe": "fit", "bug": None, "pairs": len(side.pairs_F2)},
    )
