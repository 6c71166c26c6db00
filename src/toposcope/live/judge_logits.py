"""The scale and the bias of logits, and what is added to the input, against what the configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toposcope.checkpoints.view import Layer
from toposcope.checks.findings import Status
from toposcope.live.inputs import AddedInput
from toposcope.live.recover import ROUNDING, RecoveredLayer, RecoveredSide, Recovery
from toposcope.live.verify import LENGTH

SCALE = {dtype: 4 * size + 2e-4 for dtype, size in LENGTH.items()}  # relative
BIAS = 20  # thresholds of length, of the largest entry


@dataclass(frozen=True)
class Doubt:
    """One thing of one layer that is not as expected, or cannot be told; those of one group share a finding."""

    kind: str
    layer: int
    side: str
    bug: str | None = None
    expected: str = ""
    seen: str = ""
    error: float = 0.0
    since: int | None = None
    pairs: tuple[int, ...] = ()
    says: str = ""
    status: Status = "fault"
    layers: tuple[int, ...] = ()

    @property
    def group(self) -> tuple[object, ...]:
        return self.kind, self.bug, self.status, self.says

    @property
    def in_radians(self) -> bool:
        return self.kind in ("frequencies", "still", "turns", "partners") and bool(self.pairs)

    def named(self, bug: str) -> Doubt:
        return replace(self, bug=bug)


def logit_doubts(recovery: Recovery, mine: Sequence[tuple[RecoveredLayer, Layer]]) -> Iterator[Doubt]:
    """What is wrong with scales and biases, and with the input."""
    for seen, layer in mine:
        yield from _scale(seen, layer)
        yield from _bias(seen, layer)
    yield from _inputs(recovery, [layer for _, layer in mine])


def _gain(side: RecoveredSide | None, layer: Layer) -> float | None:
    """By what the turning channels (all, where none turn) are larger than the map that gave them."""
    if side is None:
        return None
    rotary = layer.encoding.rotary
    row_R = side.row_R if (side.row_R >= 0).all() else np.arange(len(side.gain_R))
    turning = np.isin(row_R, rotary.pairs_F2) if rotary is not None else np.ones(len(row_R), dtype=bool)
    found = side.gain_R[turning & np.isfinite(side.gain_R)]
    return float(np.median(found)) if len(found) > 0.5 * turning.sum() else None


def _scale(seen: RecoveredLayer, layer: Layer) -> Iterator[Doubt]:
    gains = [_gain(side, layer) for _, side in seen.sides]
    logits = seen.logits
    if logits is None or logits.scale is None or gains[0] is None or gains[1] is None:
        return
    spec, rotary = layer.spec, layer.encoding.rotary
    factor = 1.0 if rotary is None else rotary.attention_factor
    expected = spec.scale * factor**2
    if layer.encoding.query_scale is not None:
        expected *= float(layer.encoding.query_scale.factors([0.0])[0])
    total = logits.scale * gains[0] * gains[1]
    ratio, allowed = total / expected, SCALE[seen.dtype]
    told = f"{expected:.5g}" + (f" ({spec.scale:.5g} times the factor {factor:.5g} squared)" if factor != 1 else "")
    if abs(ratio - 1) <= allowed:
        if factor != 1 and abs(factor**2 - 1) <= 2 * allowed:
            says = "attention factor"
            yield Doubt("small", layer.number, "", None, told, f"the factor {factor:.5g}", says=says, status="cannot_tell")
        return
    bug, why = _named_scale(ratio, factor, spec.scale, spec.head_dim, allowed)
    says = f"products of queries and keys are multiplied by {total:.5g} in all, {ratio:.5g} times what they should{why}"
    yield Doubt("scale", layer.number, "", bug, told, says, abs(ratio - 1), None, (), f"{ratio:.2g}")


def _named_scale(ratio: float, factor: float, scale: float, head_dim: int, allowed: float) -> tuple[str | None, str]:
    """Which known mistake multiplies the logits by this ratio: the nearest, if no other is near."""
    plain = head_dim**-0.5
    known: list[tuple[float, str, str]] = []
    if abs(factor - 1) > 1e-6:
        known += [
            (factor**-2, "attention-factor-dropped", ": the attention factor is missing"),
            (factor**-1, "attention-factor-dropped", ": the attention factor is missing on one side"),
            (factor**2, "attention-factor-twice", ": the attention factor acts twice"),
            (factor**1, "attention-factor-twice", ": the attention factor acts twice on one side"),
        ]
    if abs(scale / plain - 1) > 1e-6:
        known.append((plain / scale, "logit-scale-missing", f": the scale is plain 1/sqrt({head_dim})"))
    known.append((1 / scale, "logit-scale-missing", ": the logits are not scaled at all"))
    near = sorted(known, key=lambda each: abs(np.log(abs(ratio) / each[0])))
    off = [abs(float(np.log(max(abs(ratio), 1e-300) / each[0]))) for each in near]
    if off[0] > 2 * allowed:
        return None, ""
    rival = next((far for far, each in zip(off, near, strict=True) if each[1] != near[0][1]), np.inf)
    return (near[0][1], near[0][2]) if rival > max(3 * off[0], allowed) else (None, "")


def _bias(seen: RecoveredLayer, layer: Layer) -> Iterator[Doubt]:
    logits = seen.logits
    if logits is None or logits.bias_HNN is None or logits.scale is None:
        return
    b_HNN = logits.bias_HNN
    visible = np.isfinite(b_HNN).all(axis=0)
    if not visible.any() or not layer.encoding.exact_tables:
        return
    n = b_HNN.shape[-1]
    bias = layer.encoding.bias
    if bias is not None and bias.heads != len(b_HNN):
        return
    expected = np.zeros_like(b_HNN) if bias is None else bias.table(np.arange(n), np.arange(n))
    apart = np.where(visible, b_HNN - expected, np.nan)
    rows = visible.any(axis=1)
    apart = apart[:, rows] - np.nanmean(apart[:, rows], axis=-1, keepdims=True)  # a softmax does not see a constant
    error = float(np.nanmax(np.abs(apart)))
    size = float(np.abs(expected[:, visible]).max(initial=0.0))
    allowed = BIAS * LENGTH[seen.dtype] * size + 4 * logits.noise + 1e-6
    if error > allowed:
        told = layer.encoding.title if bias is not None else "no bias"
        what = f"off by {error:.2g}, {error / size:.2g} of its size" if size else f"a bias of up to {error:.2g}"
        yield Doubt("bias", layer.number, "", None, told, what, error)


def _inputs(recovery: Recovery, layers: Sequence[Layer]) -> Iterator[Doubt]:
    """What was added to the input of each stack against the table of its first layer."""
    for added in recovery.inputs:
        first = _first_layer(added, layers)
        if first is None or not first.encoding.exact_tables or first.spec.width != added.vectors_ND.shape[1]:
            continue
        table = first.encoding.input
        count = len(added.vectors_ND)
        if table is not None and table.length is not None:
            count = min(count, table.length)
        seen_ND = added.vectors_ND[:count]
        expected_ND = np.zeros_like(seen_ND)
        if table is not None:
            expected_ND = table.vectors(np.arange(count))
            expected_ND = expected_ND - expected_ND[:1]
        error = float(np.abs(seen_ND - expected_ND).max(initial=0.0))
        allowed = 16 * ROUNDING[recovery.dtype] * max(added.size, 1e-30) + 1e-7
        if error > allowed:
            told = "nothing" if table is None else first.encoding.title
            what = f"at {added.module} the input differs between positions by up to {np.abs(seen_ND).max():.2g}"
            yield Doubt("input", first.number, "", None, told, what, error)


def _first_layer(added: AddedInput, layers: Sequence[Layer]) -> Layer | None:
    own = [layer for layer in layers if not added.stack or layer.spec.stack == added.stack]
    return own[0] if own else None
