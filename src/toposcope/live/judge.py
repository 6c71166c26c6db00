"""Compare what was recovered from a running model with what its configuration says, and name what differs.

Verified first: with the configured pairs, do they turn as they should? Only where they do not are pairs searched for
and hypotheses tried. Layers with the same fault share one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding
from toposcope.encodings.record import Array, Encoding
from toposcope.live import fit
from toposcope.live.doubts import SLOW, Doubt, Verified, findings, what_is_right
from toposcope.live.hypotheses import Asked, free_base
from toposcope.live.judge_logits import logit_doubts
from toposcope.live.matching import matched
from toposcope.live.recover import RecoveredLayer, RecoveredSide, Recovery
from toposcope.live.verify import ANGLE, MATTERS, Comparison, Held, undone_norm


def judge(recovery: Recovery, model_view: Model, *, probe: str = "fit", logits: bool = True) -> list[Finding]:
    """Findings about every attention that its description speaks of; cross-attention is left out.

    `probe` is the name under which the findings are reported. Without `logits`, scale, bias and input are not judged.
    """
    layers = model_view.layers
    pairs = [(recovery.layers[i], layer) for i, layer in matched([each.module for each in recovery.layers], layers)]
    wanted = [layer for layer in layers if _of_one_stack(layer)]
    mine = [(seen, layer) for seen, layer in pairs if _of_one_stack(layer)]
    right, doubts = Verified(recovery.context, recovery.dtype, recovery.mode), list[Doubt]()
    for seen, layer in mine:
        doubts += _layer(recovery, seen, layer, layers, right)
    if recovery.ignored and _any_turn(layers):
        doubts = [each for each in doubts if each.kind not in ("still", "frequencies")]
        doubts.append(_ignored([layer.number for _, layer in mine if layer.encoding.rotary is not None]))
    doubts = [_whole_model(each, doubts, mine) for each in doubts]
    if logits:
        doubts += logit_doubts(recovery, mine, right, tuple(doubts))
    unseen = sorted({layer.number for layer in wanted} - {layer.number for _, layer in mine})
    if unseen:
        doubts += [Doubt("unseen", number, "", status="cannot_tell") for number in unseen]
    return [*findings(doubts, probe, len(layers)), *what_is_right(right, probe)]


def _of_one_stack(layer: Layer) -> bool:
    """Whether queries and keys stand on the same tokens, also where an earlier layer has made the keys."""
    return layer.spec.kind != "cross" or layer.spec.keys_of is not None


# ------------------------------------------------------------------ one layer
def _layer(
    recovery: Recovery, seen: RecoveredLayer, layer: Layer, layers: Sequence[Layer], right: Verified
) -> Iterator[Doubt]:
    encoding = layer.encoding
    in_plane = encoding.rotary is not None and bool(encoding.rotary.axes)
    if not encoding.exact_tables and not in_plane:
        yield Doubt("no-tables", layer.number, "", status="cannot_tell", expected=encoding.title)
        return
    for name, side in seen.sides:
        if side is None or side.vectors_TPHR.shape[-1] != layer.spec.head_dim:
            yield Doubt("unseen", layer.number, name, status="cannot_tell")
            continue
        yield from _side(recovery, seen, layer, layers, name, undone_norm(side, layer, name), right)


def _side(
    recovery: Recovery,
    seen: RecoveredLayer,
    layer: Layer,
    layers: Sequence[Layer],
    name: str,
    side: RecoveredSide,
    right: Verified,
) -> Iterator[Doubt]:
    asked = asked_of(recovery, layer, layers, name)
    rotary = asked.rotary
    expected = asked.encoding.title
    if not side.finite:
        bug = None if rotary is None else "frequencies-uninitialised"
        yield Doubt("not-finite", layer.number, name, bug, expected, "not a number", np.inf)
        return
    turning = None if rotary is None or rotary.turning_heads is None else rotary.turning_heads
    heads = None
    if turning is not None:
        share = side.vectors_TPHR.shape[2] / layer.spec.heads
        heads = slice(0, max(int(turning * share), 1))
    beside = Comparison(side, asked, seen.dtype, heads=heads)
    if not beside.expected.fits and (asked.growth_P != 1).any():  # Llama 4 counts by the order, not by position_ids
        unmoved = Comparison(side, replace(asked, growth_P=np.ones_like(asked.growth_P)), seen.dtype, heads=heads)
        beside = unmoved if unmoved.expected.fits else beside
    if not beside.expected.fits:
        yield explained(beside, layer.number, name, side)
        return
    note_right(right, beside, layer.number, side)
    if heads is not None and heads.stop < side.vectors_TPHR.shape[2]:
        rest = replace(side, vectors_TPHR=side.vectors_TPHR[:, :, heads.stop :])
        if rest.moves > beside.floor:
            yield Doubt("turns", layer.number, name, None, expected, "heads that should not turn do", rest.moves)


def asked_of(recovery: Recovery, layer: Layer, layers: Sequence[Layer], name: str) -> Asked:
    """What is expected of the queries or the keys of a layer."""
    encoding, at_P = layer.encoding, recovery.positions_P
    growth_P = np.ones(len(at_P))
    if encoding.query_scale is not None and name == "queries":
        growth_P = encoding.query_scale.factors(at_P)
        growth_P = growth_P / growth_P[0]
    turn = [each.encoding.rotary is not None for each in layers if each.spec.kind != "cross"]
    return Asked(
        encoding,
        at_P,
        recovery.context,
        layer.spec.head_dim,
        growth_P,
        -1.0 if name == "queries" else 1.0,
        layer.spec.reach is not None,
        tuple(_others(layer, layers, recovery.context)),
        any(turn) and not all(turn),
    )


def _others(layer: Layer, layers: Sequence[Layer], context: int) -> Iterator[tuple[str, Encoding]]:
    """The encodings of layers that turn otherwise, once each."""
    known: list[Array] = [] if layer.encoding.rotary is None else [layer.encoding.rotary.frequencies(context)]
    for each in layers:
        rotary = each.encoding.rotary
        if rotary is None or each.spec.kind == "cross" or each.spec.head_dim != layer.spec.head_dim:
            continue
        w_F = rotary.frequencies(context)
        if not any(len(w_F) == len(other) and np.allclose(w_F, other, rtol=1e-6) for other in known):
            known.append(w_F)
            yield f"layer {each.number}", each.encoding


def explained(beside: Comparison, number: int, name: str, side: RecoveredSide) -> Doubt:
    """What is wrong with a side that does not do what is expected, by the hypothesis that explains it."""
    expected, asked = beside.expected, beside.asked
    rotary, title = asked.rotary, asked.encoding.title
    best = beside.named()
    if best is not None:
        hypothesis = best.hypothesis
        kind = "still" if not len(hypothesis.pairs_F2) else "turns" if rotary is None else "frequencies"
        return Doubt(
            kind, number, name, hypothesis.bug, title, hypothesis.says, *_error(beside, best), hypothesis.says,
            factor=hypothesis.factor, rounds=hypothesis.rounds,
        )  # fmt: skip
    error, since, wrong = _error(beside, None)
    if rotary is None:
        seen = f"{len(side.pairs_F2)} pairs of channels turn" if len(side.pairs_F2) else "channels move"
        return Doubt("turns", number, name, None, title, seen, error, since, wrong)
    turns_badly = side.remainder > beside.noise or len(side.partners.alone)
    if not turns_badly and _same_frequencies(beside, side):
        return Doubt("partners", number, name, "partners-wrong", title, _layout(side), error, since, wrong)
    if turns_badly:
        seen = f"{max(side.remainder, beside.expected.remainder):.2g} of the movement is no turning of channel pairs"
        return Doubt("no-rotation", number, name, None, title, seen, error, since, wrong)
    seen, bug = _described(beside, side)
    if bug is None and expected.length_error > 3 * ANGLE[beside.dtype] and expected.share <= 1:
        seen = f"lengths change with position by {expected.length_error:.2g}"
        return Doubt("length", number, name, None, title, seen, expected.length_error, None, ())
    return Doubt("frequencies", number, name, bug, title, seen, error, since, wrong)


def _described(beside: Comparison, side: RecoveredSide) -> tuple[str, str | None]:
    """Frequencies that no hypothesis explains, in words, and whether they look as if nobody had set them."""
    w_F = side.frequency_F
    if not len(w_F):
        return "nothing turns", None
    rotary = beside.asked.rotary
    order = np.argsort(side.pairs_F2[:, 0])
    w_F, error_F = w_F[order], side.error_F[order]
    count = "" if rotary is None or len(w_F) == len(rotary.pairs_F2) else f"{2 * len(w_F)} channels turn, by "
    base = free_base(w_F, 2 * len(w_F))
    if base is not None:
        return f"{count}the plain frequencies of base {base:.6g}", None
    expected_F = None if rotary is None else rotary.frequencies(beside.asked.context)
    if expected_F is not None and len(expected_F) == len(w_F):
        ratio_F = w_F / expected_F
        told_F = error_F < 0.01 * np.abs(w_F)
        if told_F.sum() > 2 and np.ptp(ratio_F[told_F]) < 2e-3 * abs(float(np.median(ratio_F[told_F]))):
            return f"all frequencies times {float(np.median(ratio_F[told_F])):.5g}", None
        falls = bool((np.diff(expected_F) <= 0).all())
        rises = np.diff(np.abs(w_F)) > 3 * (error_F[1:] + error_F[:-1]) + 1e-3 * np.abs(w_F[:-1])
        if falls and rises.sum() >= 2:
            few = ", ".join(f"{w:.3g}" for w in w_F[:6])
            return f"frequencies in no order ({few}, ...)", "frequencies-uninitialised"
    few = ", ".join(f"{w:.4g}" for w in w_F[:6])
    return f"{count}frequencies {few}{', ...' if len(w_F) > 6 else ''}", None


def _same_frequencies(beside: Comparison, side: RecoveredSide) -> bool:
    """Whether the right frequencies turn other pairs of channels."""
    rotary = beside.asked.rotary
    if rotary is None:
        return False
    meant = {tuple(sorted(pair)) for pair in beside.expected.turning.pairs_F2.tolist()}
    if all(tuple(pair) in meant for pair in side.pairs_F2.tolist()):
        return False
    top = float(np.ptp(beside.asked.positions_P))
    least = SLOW * ANGLE[beside.dtype] / top
    mine = np.sort(np.abs(side.frequency_F))[::-1]
    theirs = np.sort(np.abs(rotary.frequencies(beside.asked.context)))[::-1]
    mine, theirs = mine[mine > least], theirs[theirs > least]
    count = min(len(mine), len(theirs))
    if count < 1 or abs(len(mine) - len(theirs)) > 1:
        return False
    mine, theirs = mine[:count], theirs[:count]
    return bool(np.all(np.abs(mine - theirs) <= 2 * ANGLE[beside.dtype] / top + 1e-5 * theirs))


def _layout(side: RecoveredSide) -> str:
    few = ", ".join(f"{a} with {b}" for a, b in side.pairs_F2[:4])
    return f"the frequencies are right, but channels turn in other pairs ({few}, ...)"


def _error(beside: Comparison, best: Held | None) -> tuple[float, int | None, tuple[int, ...]]:
    """The largest error of an angle, the position from which on it matters, and the pairs that are off."""
    expected = beside.expected
    at_P = beside.asked.positions_P
    if expected.remainder > 0.5 or not expected.error_PF.size:  # other pairs: angles say nothing
        size = max(expected.misfit, expected.elsewhere) if np.isfinite(expected.misfit) else np.inf
        return float(size), None if not np.isfinite(size) else 1, ()
    wrong = (expected.error_PF > expected.allowed_PF).any(axis=0)
    worst_F = expected.error_PF.max(axis=0)
    own_F = expected.hypothesis.frequency_F
    since: int | None = None
    seen_F = None if best is None else best.hypothesis.frequency_F
    if seen_F is not None and own_F is not None and seen_F.shape == own_F.shape and len(own_F):
        apart = float(np.abs(seen_F - own_F).max())
        since = int(np.ceil(MATTERS / apart)) if apart > 0 else None
    if since is None:
        late = np.flatnonzero((expected.error_PF > MATTERS).any(axis=1))
        since = int(at_P[late[0]] - at_P[0]) if len(late) else None
    return float(worst_F.max(initial=0.0)), since, tuple(int(f) for f in np.flatnonzero(wrong))


def note_right(right: Verified, beside: Comparison, number: int, side: RecoveredSide) -> None:
    """Count what was verified."""
    held = beside.expected
    right.layers.add(number)
    if not len(held.hypothesis.pairs_F2):
        right.still += 1
        return
    w_F = held.hypothesis.frequency_F
    if w_F is None:
        return
    top = float(np.ptp(beside.asked.positions_P))
    slow = np.abs(w_F) * top < SLOW * ANGLE[beside.dtype]
    right.slow += int(slow.sum())
    right.pairs += len(w_F)
    right.angle = max(right.angle, held.worst)
    right.share = max(right.share, held.share)
    right.length = max(right.length, held.length_error)
    right.remainder = max(right.remainder, held.remainder)
    fast = np.abs(w_F) * top > 3
    if fast.any():
        found_F, _ = fit.frequencies(held.turning, beside.asked.positions_P, side.rounding)
        right.frequency = max(right.frequency, float(np.abs(found_F[fast] / w_F[fast] - 1).max()))


# ------------------------------------------------------------------ all layers
def _any_turn(layers: Iterable[Layer]) -> bool:
    return any(layer.encoding.rotary is not None for layer in layers)


def _ignored(numbers: Sequence[int]) -> Doubt:
    seen = "position_ids that are given change nothing, yet tokens turn by their order"
    return Doubt("ignored", numbers[0], "", None, "positions as given", seen, 1.0, 1, (), layers=tuple(numbers))


def _whole_model(doubt: Doubt, doubts: Sequence[Doubt], mine: Sequence[tuple[RecoveredLayer, Layer]]) -> Doubt:
    """Nothing turns anywhere, queries or keys, though all layers should: nobody has set the frequencies."""
    if doubt.kind != "still" or doubt.bug is not None:
        return doubt
    wanted = {(layer.number, side) for _, layer in mine for side in ("queries", "keys") if layer.encoding.rotary}
    still = {(each.layer, each.side) for each in doubts if each.kind == "still"}
    return doubt.named("frequencies-uninitialised") if wanted == still else doubt
