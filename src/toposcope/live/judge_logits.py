"""The scale and the bias of logits, and what is added to the input, against what the configuration says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.live.doubts import Doubt, Verified
from toposcope.live.inputs import AddedInput
from toposcope.live.recover import ROUNDING, RecoveredLayer, RecoveredSide, Recovery
from toposcope.live.verify import LENGTH

SCALE = {dtype: 4 * size + 2e-4 for dtype, size in LENGTH.items()}  # relative
BIAS = 20  # thresholds of length, of the largest entry


def logit_doubts(
    recovery: Recovery, mine: Sequence[tuple[RecoveredLayer, Layer]], right: Verified, known: Sequence[Doubt] = ()
) -> Iterator[Doubt]:
    """What is wrong with scales and biases, and with the input; what `known` faults explain is left out."""
    implied = {each.layer: each.factor for each in known if each.factor is not None}
    for seen, layer in mine:
        yield from _scale(seen, layer, right, implied.get(layer.number))
        yield from _bias(seen, layer, right)
    yield from _inputs(recovery, [layer for _, layer in mine], right)


def _gain(side: RecoveredSide | None, layer: Layer) -> float | None:
    """By what the turning channels (all, where none turn) are larger than the map that gave them."""
    if side is None:
        return None
    rotary = layer.encoding.rotary
    row_R = side.row_R if (side.row_R >= 0).all() else np.arange(len(side.gain_R))
    turning = np.isin(row_R, rotary.pairs_F2) if rotary is not None else np.ones(len(row_R), dtype=bool)
    found = side.gain_R[turning & np.isfinite(side.gain_R)]
    return float(np.median(found)) if len(found) > 0.5 * turning.sum() else None


def _scale(seen: RecoveredLayer, layer: Layer, right: Verified, implied: float | None) -> Iterator[Doubt]:
    if layer.spec.keys_of is not None:
        return  # the map that gave the keys ran in another layer
    gains = [_gain(side, layer) for _, side in seen.sides]
    logits = seen.logits
    if logits is None or logits.scale is None or gains[0] is None or gains[1] is None:
        yield Doubt("scale-unseen", layer.number, "", status="cannot_tell")
        return
    spec, rotary = layer.spec, layer.encoding.rotary
    factor = 1.0 if rotary is None else rotary.attention_factor
    expected = spec.scale * factor**2
    if layer.encoding.query_scale is not None:
        expected *= float(layer.encoding.query_scale.factors([0.0])[0])
    total = logits.scale * gains[0] * gains[1]
    allowed = SCALE[seen.dtype]
    ratio = min((total / expected / each for each in _multipliers(layer)), key=lambda each: abs(each - 1))
    told = f"{expected:.5g}" + (f" ({spec.scale:.5g} times the factor {factor:.5g} squared)" if factor != 1 else "")
    if abs(ratio - 1) <= allowed:
        right.scales, right.scale = right.scales + 1, max(right.scale, abs(ratio - 1))
        if factor != 1 and abs(factor**2 - 1) <= 2 * allowed:
            seen_factor = f"the attention factor {factor:.5g}"
            yield Doubt("small", layer.number, "", None, told, seen_factor, status="cannot_tell")
        return
    if implied is not None and abs(ratio * (factor / implied) ** 2 - 1) <= allowed:
        return  # the same mistake as in the frequencies
    bug, why = _named_scale(ratio, factor, spec.scale, spec.head_dim, allowed)
    what = f"products of queries and keys are multiplied by {total:.5g}, {ratio:.5g} times what they should{why}"
    yield Doubt("scale", layer.number, "", bug, told, what, abs(ratio - 1), None, (), f"{ratio:.2g}")


def _multipliers(layer: Layer) -> tuple[float, ...]:
    """What queries times keys may be multiplied by between their maps and the product.

    A factor of a map is in what it was seen to give if it stands before the map, and is not if it stands behind.
    """
    q, k = (1.0 if part is None else part.factor for part in (layer.spec.q, layer.spec.k))
    return (1.0,) if q == k == 1 else (1.0, q, k, q * k, q / k, k / q)


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


def _bias(seen: RecoveredLayer, layer: Layer, right: Verified) -> Iterator[Doubt]:
    logits = seen.logits
    if logits is None or logits.bias_HNN is None or logits.scale is None:
        return
    b_HNN = logits.bias_HNN
    visible: NDArray[np.bool_] = np.all(np.isfinite(b_HNN), axis=0)
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
    allowed = BIAS * LENGTH[seen.dtype] * size + 4 * logits.noise + 0.1 * LENGTH[seen.dtype]
    if error > allowed:
        told = layer.encoding.title if bias is not None else "no bias"
        what = f"off by {error:.2g}, {error / size:.2g} of its size" if size else f"a bias of up to {error:.2g}"
        yield Doubt("bias", layer.number, "", None, told, what, error)
    elif bias is not None and size:
        right.biases, right.bias = right.biases + 1, max(right.bias, error / size)


def _inputs(recovery: Recovery, layers: Sequence[Layer], right: Verified) -> Iterator[Doubt]:
    """What was added to the input of each stack against the table of its first layer."""
    for stack in dict.fromkeys(each.stack for each in recovery.inputs):
        first = next((layer for layer in layers if not stack or layer.spec.stack == stack), None)
        if first is None or not first.encoding.exact_tables:
            continue
        width = first.spec.width if first.encoding.input is None else first.encoding.input.width
        seen = [each for each in recovery.inputs if each.stack == stack and each.vectors_ND.shape[1] == width]
        errors = [_input_error(each, first, recovery.dtype) for each in seen]
        if not seen:
            continue
        best = min(range(len(seen)), key=lambda i: errors[i][0] / errors[i][1])
        if errors[best][0] <= errors[best][1]:
            if first.encoding.input is not None:
                right.inputs, right.input = right.inputs + 1, max(right.input, errors[best][0] / seen[best].size)
            continue
        told = "nothing" if first.encoding.input is None else first.encoding.title
        moves = float(np.abs(seen[best].vectors_ND).max())
        what = f"at {seen[best].module} the input differs between positions by up to {moves:.2g}"
        yield Doubt("input", first.number, "", None, told, what, errors[best][0])


def _input_error(added: AddedInput, layer: Layer, dtype: str) -> tuple[float, float]:
    """How far what was added is from the layer's table, and how far it may be."""
    table = layer.encoding.input
    count = len(added.vectors_ND)
    if table is not None and table.length is not None:
        count = min(count, table.length)
    expected_ND = np.zeros((count, added.vectors_ND.shape[1]))
    if table is not None:
        vectors_ND = table.vectors(np.arange(count))
        expected_ND = vectors_ND - vectors_ND[:1]
    error = float(np.abs(added.vectors_ND[:count] - expected_ND).max(initial=0.0))
    return error, 16 * ROUNDING[dtype] * max(added.size, 1e-30) + 1e-7
