"""Compare a module with what its weights were made for: a reference, a stated pairing, or the weights themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.view import Layer
from toposcope.checks.findings import Finding
from toposcope.checks.pairing import PairingEvidence, cross_terms, weigh
from toposcope.encodings.record import Array, Pairing
from toposcope.live.module import inside
from toposcope.live.module.probes import Observation
from toposcope.live.module.runner import Runner, at_rest

MOST_DIRECTIONS = 1024
NAMES: Mapping[Pairing, str] = {"half": "half-split", "interleaved": "interleaved"}
_CURE = (
    "Reorder the rows of the query and key weights (interleaved rows 2m, 2m+1 belong at m, m + width/2), or rotate "
    "neighbouring channels instead; not both."
)


def pairing(run: Runner, observed: Observation, stated: Pairing | None, length: int) -> list[Finding]:
    """The pairs the module turns, against those stated, or those its weights were trained with."""
    turns = observed.q_turns
    if turns is None or turns.pairing is None:
        return []
    found = turns.pairing
    if stated is not None:
        return [_pairing_finding(found, stated, f"The weights were said to be made for {stated} pairs.", {})]
    evidence = _trained(run, turns.all_pairs(), found, length)
    if evidence is None or evidence.verdict == "open":
        return []
    other: Pairing = "half" if found == "interleaved" else "interleaved"
    trained_for = found if evidence.verdict == "declared" else other
    why = (
        f"In the weights, the pairs the module turns stand out from random pairs by {evidence.declared:.1f} "
        f"standard deviations, the other pairing's by {evidence.other:.1f}."
    )
    return [_pairing_finding(found, trained_for, why, {"turned": evidence.declared, "other": evidence.other})]


def _pairing_finding(found: Pairing, made_for: Pairing, why: str, scores: dict[str, float]) -> Finding:
    rotation, weights = NAMES[found], NAMES[made_for]
    numbers = {"rotation": rotation, "weights": weights, **scores}
    if found == made_for:
        return Finding(
            "pairing", "ok", f"the rotation turns {found} pairs, as the weights expect", why, evidence=numbers
        )
    return Finding(
        "pairing",
        "fault",
        f"{weights} weights with {rotation} rotation",
        f"The module turns {found} pairs of channels. {why}",
        _CURE,
        evidence=numbers,
    )


def reference(run: Runner, observed: Observation, x_BND: Array, other: Any, tolerance: float) -> list[Finding]:
    """The module's outputs against a reference's, and the pairing as the first suspect where they differ."""
    if other is None:
        return []
    ours_BND = run(x_BND)
    theirs_BND, theirs_q, theirs_pairing = _theirs(run, x_BND, other)
    scale = inside.size(theirs_BND) or 1.0
    worst = float(np.abs(ours_BND - theirs_BND).max()) / scale
    if worst <= 10 * tolerance:
        return [
            Finding(
                "reference",
                "ok",
                "the outputs equal the reference's",
                f"They differ by {worst:.1e} of their size at most.",
                evidence={"difference": worst},
            )
        ]
    named = _pairing_at_fault(run, observed, x_BND, theirs_q, theirs_pairing)
    apart = f"They differ by {worst:.1e} of their size."
    if named is None:
        title, cure = "the outputs differ from the reference's", "Compare weights, scale, mask and encoding in turn."
        return [Finding("reference", "fault", title, apart, cure, evidence={"difference": worst})]
    rotation, weights, why = named
    numbers = {"difference": worst, "rotation": rotation, "weights": weights}
    title = f"{weights} weights with {rotation} rotation"
    return [Finding("reference", "fault", title, f"{apart} {why}", _CURE, evidence=numbers)]


def _pairing_at_fault(
    run: Runner, observed: Observation, x_BND: Array, theirs_q: Array | None, theirs: Pairing | None
) -> tuple[str, str, str] | None:
    """The pairs that turn, those of the weights, and why they do not fit; None where that is not the difference."""
    ours = observed.q_turns.pairing if observed.q_turns is not None else None
    if ours is None or theirs is None or theirs_q is None:
        return None
    ours_q = run.watched(x_BND)[1].q_BHNR
    if ours_q is None or ours_q.shape[-1] != theirs_q.shape[-1]:
        return None
    # at the first position the rotation changes nothing (or turns pairs in place)
    first, other_first = ours_q[0, :, 0], theirs_q[0, :, 0]
    if ours != theirs and _alike(first, other_first):
        why = (
            f"The module has the reference's queries before rotation, but turns {ours} pairs of channels where the "
            f"reference turns {theirs} pairs."
        )
        return NAMES[ours], NAMES[theirs], why
    half = first.shape[-1] // 2
    spread = other_first.reshape(-1, 2, half).swapaxes(1, 2).reshape(first.shape)
    gathered = other_first.reshape(-1, half, 2).swapaxes(1, 2).reshape(first.shape)
    if ours == theirs and (_alike(first, spread) or _alike(first, gathered)):
        why = (
            f"Both turn {ours} pairs of channels, but the module's query rows are the reference's in the order of "
            "the other pairing."
        )
        return NAMES[ours], NAMES["interleaved" if ours == "half" else "half"], why
    return None


def _alike(a: Array, b: Array) -> bool:
    """The same up to a positive factor."""
    cosine = float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0))
    return cosine > 1 - 1e-5


def _theirs(run: Runner, x_BND: Array, other: Any) -> tuple[Array, Array | None, Pairing | None]:
    """A reference's output, its queries (rotated or not at position 0), and its pairing."""
    if isinstance(other, Layer):
        # a module of attention alone reads what the layer's norm has already normalised
        bare = Layer(other.number, other.spec, lambda _: replace(other.weights, input_norm=None))
        outputs, queries = [], []
        for x_ND in x_BND:
            q, _, v = project(bare, x_ND)
            outputs.append(output(bare, attention(bare, x_ND), v))
            queries.append(q)
        rotary = other.encoding.rotary
        return np.stack(outputs), np.stack(queries), None if rotary is None else rotary.pairing
    from torch import nn

    if isinstance(other, nn.Module):
        theirs = Runner(other, run.call, run.width)
        with at_rest(theirs.module):
            out, seen = theirs.watched(x_BND)
            same = np.broadcast_to(1e4 * x_BND[:, :1], x_BND.shape).copy()
            big = theirs.watched(same)[1].q_BHNR
        turns = None if big is None else inside.find_turns(big)
        return out, seen.q_BHNR, None if turns is None else turns.pairing
    return run._out(other(run.tensor(x_BND))), None, None


def _trained(run: Runner, pairs_F2: NDArray[np.intp], found: Pairing, length: int) -> PairingEvidence | None:
    """Read the query and key weights through the module, one input direction at a time, and weigh the pairings."""
    directions = np.eye(run.width)
    if run.width > MOST_DIRECTIONS:  # a random part of them serves as well, cosines being kept
        rng = np.random.default_rng(0)
        directions = np.linalg.qr(rng.standard_normal((run.width, MOST_DIRECTIONS)))[0].T
    zero = run.watched(np.zeros((1, length, run.width)))[1]
    if zero.q_BHNR is None or zero.k_BHNR is None:
        return None
    rows_q, rows_k = [], []
    for start in range(0, len(directions), 64):
        part_BD = directions[start : start + 64]
        seen = run.watched(np.repeat(part_BD[:, None, :], length, axis=1))[1]
        if seen.q_BHNR is None or seen.k_BHNR is None:
            return None
        rows_q.append(seen.q_BHNR[:, :, 0] - zero.q_BHNR[:, :, 0])
        rows_k.append(seen.k_BHNR[:, :, 0] - zero.k_BHNR[:, :, 0])
    q_HRD, k_HRD = (np.concatenate(rows).transpose(1, 2, 0) for rows in (rows_q, rows_k))
    if pairs_F2.max() >= q_HRD.shape[1]:
        return None
    return weigh(cross_terms(q_HRD, k_HRD), pairs_F2, found)
