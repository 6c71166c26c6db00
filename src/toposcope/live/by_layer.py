"""Every layer's position in three columns: what the configuration says, what the files hold, what the model does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, scaling_fault
from toposcope.encodings.record import short
from toposcope.live.hypotheses import free_base
from toposcope.live.judge import asked_of
from toposcope.live.matching import matched
from toposcope.live.recover import RecoveredLayer, RecoveredSide, Recovery
from toposcope.live.result import LayerPosition
from toposcope.live.verify import Comparison, Held, undone_norm

_IN_FILES = ("pairing", "stored-frequencies", "position-table")  # findings of what was stored, not of what was said

_NOT_TURNING = ("parity", "lengths", "axes")  # probes of where tokens stand, not of how queries and keys turn


CONFIGURED = "as configured"
AS_READ = "as transformers reads this configuration"  # where that holds a scaling that is not read


def by_layer(
    recovery: Recovery, model: Model, from_files: Sequence[Finding], live: Sequence[Finding], *, weights: bool = True
) -> Iterator[LayerPosition]:
    """A row for every self-attention of the description; `live` says which of them are at fault.

    `weights`: whether those in the files were looked at.
    """
    said = CONFIGURED if scaling_fault(from_files) is None else AS_READ
    faults = {
        layer.number: [each for each in live if each.status == "fault" and layer.number in (each.layers or ())]
        for layer in model.layers
    }
    modules = [each.module for each in recovery.layers]
    running = {layer.number: recovery.layers[i] for i, layer in matched(modules, model.layers)}
    for layer in model.layers:
        if layer.spec.kind == "cross":
            continue
        seen = running.get(layer.number)
        held = [] if seen is None else list(_held(recovery, seen, layer, model.layers))
        turning = [each for each in held if len(each.hypothesis.pairs_F2)]
        logits = None if seen is None else seen.logits
        turns_right = all(each.evidence.get("probe") in _NOT_TURNING for each in faults[layer.number])
        yield LayerPosition(
            layer=layer.number,
            module="" if seen is None else seen.module,
            configuration=layer.encoding.title,
            files=_stored(layer, from_files, weights),
            running="not seen" if seen is None else _words(recovery, seen, layer, right=turns_right, said=said),
            agrees=None if seen is None else not faults[layer.number],
            differs="" if seen is None else "; ".join(dict.fromkeys(map(_otherwise, faults[layer.number]))),
            angle_error=max((each.worst for each in turning), default=None),
            frequency_error=max((_frequency_error(each, recovery) for each in turning), default=None),
            scale=None if logits is None else logits.scale,
            scale_configured=layer.spec.scale,
        )


def _held(recovery: Recovery, seen: RecoveredLayer, layer: Layer, layers: Sequence[Layer]) -> Iterator[Held]:
    rotary = layer.encoding.rotary
    for name, side in seen.sides:
        if side is None or not side.finite or rotary is None or side.vectors_TPHR.shape[-1] != layer.spec.head_dim:
            continue
        asked = asked_of(recovery, layer, layers, name)
        yield Comparison(undone_norm(side, layer, name), asked, seen.dtype).expected


def _frequency_error(held: Held, recovery: Recovery) -> float:
    """Relative, from the last position, over pairs that turn by 3 radians or more up to there."""
    w_F, top = held.hypothesis.frequency_F, float(np.ptp(recovery.positions_P))
    if w_F is None:
        return 0.0
    fast = np.abs(w_F) * top > 3
    last = int(recovery.positions_P.argmax())
    return float((held.error_PF[last, fast] / (np.abs(w_F[fast]) * top)).max(initial=0.0))


def _otherwise(fault: Finding) -> str:
    """What a fault says that differs, in a few words."""
    ways = fault.evidence.get("ways")
    if fault.evidence.get("probe") != "parity" or not ways:
        return fault.title
    return f"positions in: {ways[0]}" + (f", and {len(ways) - 1} more" if len(ways) > 1 else "")


def _stored(layer: Layer, found: Sequence[Finding], weights: bool) -> str:
    said = [each.title for each in found if each.id in _IN_FILES and layer.number in (each.layers or (layer.number,))]
    return "; ".join(dict.fromkeys(said)) or ("nothing about position" if weights else "not read (--no-weights)")


def as_read(live: Sequence[Finding], from_files: Sequence[Finding]) -> list[Finding]:
    """What was found as the model ran, so said that it is no opposite of a scaling that is written and not read."""
    if scaling_fault(from_files) is None:
        return list(live)
    return [replace(each, title=each.title.replace(CONFIGURED, AS_READ)) for each in live]


def _words(recovery: Recovery, seen: RecoveredLayer, layer: Layer, *, right: bool, said: str) -> str:
    """What the layer does, in words: as configured, or as it was found."""
    parts = [] if right and layer.encoding.rotary is not None else list(_turning(seen))
    if right and layer.encoding.rotary is not None:
        parts.append(f"{len(layer.encoding.rotary.pairs_F2)} channel pairs turn {said}")
    bias = None if seen.logits is None else seen.logits.by_offset()
    if layer.encoding.bias is not None and bias is not None and right:
        parts.append("the configured bias is added to the logits")
    if layer.encoding.input is not None and recovery.inputs and right:
        parts.append("the configured vectors enter with the input")
    return "; ".join(parts)


def _turning(seen: RecoveredLayer) -> Iterator[str]:
    words = [_side(side) for _, side in seen.sides if side is not None]
    if len(set(words)) == 1:
        yield f"queries and keys: {words[0]}" if words[0] != "nothing turns" else words[0]
    else:
        yield from (f"{name}: {each}" for (name, _), each in zip(seen.sides, words, strict=False))


def _side(side: RecoveredSide) -> str:
    if not side.finite:
        return "not a number"
    if side.still:
        return "nothing turns"
    w_F = side.frequency_F
    if not len(w_F):
        return "channels move without partners"
    base = free_base(w_F, 2 * len(w_F))
    plain = (
        f", base {short(round(base, 3))}" if base is not None else f", {w_F.max():.4g} to {w_F.min():.4g} rad a token"
    )
    odd = f"; {side.remainder:.2g} of the movement is no turning" if side.remainder > 0.05 else ""
    return f"{len(w_F)} channel pairs turn{plain}{odd}"
