"""Biases added to the logits: ALiBi's slopes against the published ones, T5's table against a fresh one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.encodings import alibi_slopes, t5_bucket
from toposcope.encodings.record import Array, Encoding, LogitBias

CLOSE = 0.02  # slopes rounded to bfloat16 (Falcon) are within 0.4%
FEWEST = 64  # entries of a T5 table below which its order cannot be judged


def biases(model: Model) -> Iterator[Finding]:
    """Look at each bias once."""
    seen: dict[int, tuple[Encoding, LogitBias, list[int]]] = {}
    for layer in model.layers:
        if layer.encoding.bias is not None:
            seen.setdefault(id(layer.encoding.bias), (layer.encoding, layer.encoding.bias, []))[2].append(
                layer.number
            )
    for encoding, bias, numbers in seen.values():
        where = say_layers(numbers, len(model.layers))
        if "slopes" in encoding.parameters:
            yield _slopes(encoding, bias, where, tuple(numbers))
        elif "buckets" in encoding.parameters:
            yield _buckets(encoding, bias, model.spec.context, where, tuple(numbers))


def _slopes(encoding: Encoding, bias: LogitBias, where: str, layers: tuple[int, ...]) -> Finding:
    ours = np.asarray(encoding.parameters["slopes"], dtype=np.float64)
    # as felt one token back, the encoding's own scale taken out
    felt = -bias.table([1], [0])[:, 0, 0] / float(encoding.parameters.get("scale", 1.0))
    most = float(encoding.parameters.get("max_bias", 8.0))
    theirs = alibi_slopes(len(ours), 8.0)
    numbers = {"slopes": ours, "published": theirs}
    if (felt <= 0).any():
        return Finding(
            "alibi-slopes",
            "fault",
            "ALiBi favours distant tokens",
            f"In {where}, {int((felt <= 0).sum())} heads have a slope that is zero or rewards distance.",
            "Slopes are positive and are subtracted: b = -m |i - j|.",
            layers=layers,
            evidence=numbers,
        )
    ratio = felt / theirs
    if np.abs(ratio - 1).max() <= CLOSE:
        return Finding(
            "alibi-slopes",
            "ok",
            "ALiBi's slopes are the published ones",
            f"In {where}: {len(ours)} heads from {felt.max():.4g} to {felt.min():.4g}.",
            layers=layers,
            evidence=numbers,
        )
    stated = f" The configuration asks for it: a largest exponent of {most:g} instead of 8." if most != 8 else ""
    return Finding(
        "alibi-slopes",
        "warning",
        "ALiBi's slopes are not the published ones",
        f"In {where}: {len(ours)} heads from {felt.max():.4g} to {felt.min():.4g}; published are {theirs.max():.4g} "
        f"to {theirs.min():.4g} (ratios {ratio.min():.3g} to {ratio.max():.3g}).{stated}",
        "Slopes are 2^(-8 h / H) for heads h = 1..H. Steeper ones see a few tokens only.",
        layers=layers,
        evidence=numbers,
    )


def _buckets(
    encoding: Encoding, bias: LogitBias, context: int | None, where: str, layers: tuple[int, ...]
) -> Finding:
    table_HB, directions = _table(encoding, bias)
    distance = int(encoding.parameters["max_distance"])
    if not table_HB.any():
        return Finding(
            "t5-bias",
            "fault",
            "the relative bias is all zero",
            f"In {where} no distance is favoured: the encoding does nothing.",
            "The table was not saved or not trained.",
            layers=layers,
        )
    ratio, spread = _unevenness(table_HB, directions)
    numbers = {"unevenness": ratio, "spread": spread, "max_distance": distance}
    far = (
        f" All tokens farther than {distance} share a bucket (context {context})."
        if context is not None and context > distance
        else ""
    )
    if table_HB.size >= FEWEST and abs(ratio - 1) < 4 * spread:
        return Finding(
            "t5-bias",
            "warning",
            "the relative bias looks untrained",
            f"In {where}, neighbouring buckets differ as much as unrelated numbers do ({ratio:.2f} of it, 1 +- "
            f"{spread:.2f} expected by chance).{far}",
            "Expected of an untrained model. Otherwise the table was re-initialised on loading.",
            layers=layers,
            evidence=numbers,
        )
    return Finding(
        "t5-bias",
        "ok",
        "the relative bias is in force",
        f"In {where}: {table_HB.shape[1]} buckets; neighbouring ones differ by {ratio:.2f} of what unrelated "
        f"numbers would.{far}",
        layers=layers,
        evidence=numbers,
    )


def _table(encoding: Encoding, bias: LogitBias) -> tuple[Array, list[slice]]:
    """The bias of each bucket that occurs (H, B), in order of distance, and one slice for each direction."""
    p = encoding.parameters
    both, distance = bool(p["bidirectional"]), int(p["max_distance"])
    sides: list[Array] = []
    for sign in (1, -1) if both else (1,):
        offsets = sign * np.arange(1, 2 * distance)
        buckets = t5_bucket(-offsets, bidirectional=both, buckets=int(p["buckets"]), max_distance=distance)
        _, first = np.unique(buckets, return_index=True)
        sides.append(bias.by_offset(offsets[np.sort(first)]))
    cuts = np.cumsum([0, *(side.shape[1] for side in sides)])
    return np.concatenate(sides, axis=1), [slice(a, b) for a, b in pairwise(cuts)]


def _unevenness(table_HB: Array, directions: list[slice]) -> tuple[float, float]:
    """Mean squared step between neighbouring buckets over twice the variance, and the spread of chance."""
    steps = [np.diff(table_HB[:, part], axis=1) for part in directions]
    centred = [table_HB[:, part] - table_HB[:, part].mean(axis=1, keepdims=True) for part in directions]
    count = sum(step.size for step in steps)
    variance = sum(float((part**2).sum()) for part in centred) / max(
        sum(part.size - part.shape[0] for part in centred), 1
    )
    ratio = sum(float((step**2).sum()) for step in steps) / count / (2 * variance) if variance > 0 else 0.0
    return ratio, 1 / float(np.sqrt(count))
