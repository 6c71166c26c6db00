"""Rotary encodings: a rotation, by offset only, with the pairs the weights were trained for; MLA's rotary part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.checks.pairing import PairingEvidence
from toposcope.encodings.record import Encoding, Rotary

EXACT = 1e-6  # float64 tables leave about 1e-9, also at positions of a million
SHIFTS = (1, 17, 1000, 100_003)
ONE_LAYER = 10.0  # z-score at which a single layer's pairing is taken as shown; 5.8 is the highest false one measured


def groups(model: Model) -> Iterator[tuple[Encoding, Rotary, tuple[int, ...]]]:
    """Each distinct rotary encoding with the layers that use it."""
    found: dict[int, tuple[Encoding, Rotary, list[int]]] = {}
    for layer in model.layers:
        if layer.encoding.rotary is not None:
            entry = found.setdefault(id(layer.encoding), (layer.encoding, layer.encoding.rotary, []))
            entry[2].append(layer.number)
    for encoding, rotary, layers in found.values():
        yield encoding, rotary, tuple(layers)


def rotation(model: Model) -> Iterator[Finding]:
    """Turn random vectors with each encoding's own tables: lengths must stay, logits must see i - j only."""
    for encoding, rotary, layers in groups(model):
        where = say_layers(layers, len(model.layers))
        length, drift = _lengths(rotary), _drift(rotary, model.spec.context)
        if max(length, drift) <= EXACT:
            factor = (
                "" if rotary.attention_factor == 1 else f" up to the attention factor {rotary.attention_factor:.4g}"
            )
            yield Finding(
                "rotation",
                "ok",
                "the rotation keeps lengths and depends on the offset only",
                f"In {where}: lengths change by {length:.0e}{factor}, logits by {drift:.0e} when both positions are "
                f"shifted by up to {max(SHIFTS)}.",
                layers=layers,
                evidence={"length_change": length, "shift_change": drift},
            )
            continue
        what = f"lengths change by {length:.1e}" if length > EXACT else "lengths stay"
        yield Finding(
            "rotation",
            "fault",
            "the rotation is not one",
            f"In {where}: {what}, and logits change by {drift:.1e} when both positions are shifted alike "
            f"({encoding.title}).",
            "Channel pairs may overlap, or a frequency may be wrong: see 'toposcope inspect' for the tables in "
            "force.",
            layers=layers,
            evidence={"length_change": length, "shift_change": drift},
        )


def _lengths(rotary: Rotary) -> float:
    """How much the length of random vectors changes, attention factor and decay taken out."""
    if rotary.decay_F is not None:
        return 0.0  # xPos changes lengths; the product of query and key is what counts
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((6, rotary.head_dim))
    turning = np.zeros(rotary.head_dim, dtype=bool)
    turning[rotary.pairs_F2.reshape(-1)] = True
    turned = rotary.rotate(vectors, rng.integers(0, 10**6, 6), side="query")
    before, after = (np.linalg.norm(v[:, turning], axis=1) for v in (vectors, turned))
    return float(np.max(np.abs(after / (before * rotary.attention_factor) - 1)))


def _drift(rotary: Rotary, context: int | None) -> float:
    """How much logits change when query and key move on together."""
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 8, rotary.head_dim))
    at = rng.integers(0, 512, (2, 8))
    scale = float(np.mean(np.linalg.norm(q, axis=1) * np.linalg.norm(k, axis=1)))

    def logit(shift: int) -> np.ndarray:
        turned_q = rotary.rotate(q, at[0] + shift, side="query", context=context)
        turned_k = rotary.rotate(k, at[1] + shift, side="key", context=context)
        product: np.ndarray = (turned_q * turned_k).sum(axis=1)
        return product

    shifts = SHIFTS if rotary.decay_F is None else SHIFTS[:2]  # beyond, e^{g i} alone overflows
    return max(float(np.abs(logit(shift) - logit(0)).max()) / scale for shift in shifts)


def pairs_fit_weights(
    model: Model, pooled: Mapping[int, PairingEvidence | None], single: Mapping[int, PairingEvidence | None]
) -> Iterator[Finding]:
    """The declared pairs against those the weights were trained with.

    `pooled` holds the evidence of all layers of an encoding together, by its id; `single` that of each layer.
    """
    for encoding, rotary, layers in groups(model):
        evidence = pooled.get(id(encoding))
        declared = "half-split" if rotary.pairing == "half" else "interleaved"
        other = "interleaved" if rotary.pairing == "half" else "half-split"
        if evidence is None or evidence.verdict == "open":
            yield Finding(
                "pairing",
                "ok",
                f"pairs are taken as {declared}; these weights cannot tell",
                _figures(evidence) + " Weights that were hardly trained, or are few, show no pairing.",
                layers=layers,
                evidence=_numbers(evidence, declared, None),
            )
            continue
        odd = tuple(n for n in layers if _clearly_other(single.get(n)))
        if evidence.verdict == "other" or odd:
            wrong = layers if evidence.verdict == "other" else odd
            shown = evidence if evidence.verdict == "other" else single[odd[0]]
            yield Finding(
                "pairing",
                "fault",
                f"{other} weights with {declared} rotation",
                f"In {say_layers(wrong, len(model.layers))} the weights were trained with {other} pairs. "
                + _figures(shown),
                "Query and key rows are in the wrong order for this family. Convert them (interleaved rows 2m, "
                "2m+1 of a head belong at m, m + width/2), or use the code that rotates neighbouring channels.",
                layers=wrong,
                evidence=_numbers(shown, declared, other),
            )
            continue
        yield Finding(
            "pairing",
            "ok",
            f"the weights were trained with {declared} pairs, as declared",
            _figures(evidence),
            layers=layers,
            evidence=_numbers(evidence, declared, declared),
        )


def _clearly_other(evidence: PairingEvidence | None) -> bool:
    return evidence is not None and evidence.verdict == "other" and evidence.other >= ONE_LAYER


def _figures(evidence: PairingEvidence | None) -> str:
    if evidence is None:
        return "There are too few channel pairs for a test."
    return (
        f"The declared pairs stand out from random pairs by {evidence.declared:.1f} standard deviations, the other "
        f"pairing's by {evidence.other:.1f}."
    )


def _numbers(evidence: PairingEvidence | None, rotation: str, weights: str | None) -> dict[str, Any]:
    """The pairs that turn, those that the weights were trained with (None where they cannot tell), and z-scores."""
    scores = {} if evidence is None else {"z_declared": evidence.declared, "z_other": evidence.other}
    return {"rotation": rotation, "weights": weights, **scores}


def mla_width(model: Model, layers: Sequence[Layer]) -> Iterator[Finding]:
    """MLA's rotary part: the channels that turn must be the shared key, as wide as the configuration says."""
    latent = [layer for layer in layers if layer.spec.kv_latent is not None and layer.spec.shared_key]
    if not latent:
        return
    stated = model.config.get("qk_rope_head_dim")
    wrong = []
    for layer in latent:
        rotary, shared, head = layer.encoding.rotary, layer.spec.shared_key, layer.spec.head_dim
        turning = set() if rotary is None else {int(c) for c in rotary.pairs_F2.reshape(-1)}
        fits = turning == set(range(head - shared, head)) and stated in (None, shared)
        if not fits:
            wrong.append((layer.number, len(turning), shared))
    spec = latent[0].spec
    if wrong:
        number, turning_count, shared = wrong[0]
        yield Finding(
            "mla-width",
            "fault",
            "MLA's rotary part does not have the width of its shared key",
            f"Layer {number} turns {turning_count} channels of each head; its shared rotary key has {shared}, and "
            f"the configuration says qk_rope_head_dim = {stated}.",
            "Content channels must not turn and all rotary channels must: correct qk_rope_head_dim and the encoding.",
            layers=tuple(number for number, _, _ in wrong),
        )
        return
    yield Finding(
        "mla-width",
        "ok",
        "MLA's rotary part is as wide as its shared key",
        f"{spec.shared_key} of {spec.head_dim} channels turn ({spec.shared_key / spec.head_dim:.0%}); the others "
        "carry content only.",
        layers=tuple(layer.number for layer in latent),
        evidence={"turning": spec.shared_key, "head_dim": spec.head_dim},
    )
