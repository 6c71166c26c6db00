"""Rotary encodings: a rotation, by offset only; MLA's rotary part."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.encodings.record import NONE, Encoding, Rotary

EXACT = 1e-6  # float64 tables leave about 1e-9, also at positions of a million
SHIFTS = (1, 17, 1000, 100_003)


def groups(model: Model) -> Iterator[tuple[Encoding, Rotary, tuple[int, ...]]]:
    """Each distinct rotary encoding with the layers that use it."""
    found: dict[Hashable, tuple[Encoding, Rotary, list[int]]] = {}
    for layer in model.layers:
        if layer.encoding.rotary is not None:
            entry = found.setdefault(same_rotation(layer), (layer.encoding, layer.encoding.rotary, []))
            entry[2].append(layer.number)
    for encoding, rotary, layers in found.values():
        yield encoding, rotary, tuple(layers)


def same_rotation(layer: Layer) -> Hashable:
    """A key that layers share whose queries and keys turn alike, and see alike."""
    encoding, rotary = layer.encoding, layer.encoding.rotary
    if rotary is None:
        return None
    frequencies = rotary.frequencies(None).tobytes()
    how = (encoding.title, rotary.pairs_F2.tobytes(), frequencies, rotary.attention_factor, rotary.turning_heads)
    return (*how, layer.spec.stack, layer.spec.head_dim)


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
                f"shifted by up to {max(SHIFTS):,}.",
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


def mla_width(model: Model, layers: Sequence[Layer]) -> Iterator[Finding]:
    """MLA's rotary part: the channels that turn must be the shared key, as wide as the configuration says."""
    latent = [
        layer
        for layer in layers
        if layer.spec.kv_latent is not None and layer.spec.shared_key and layer.encoding.name != NONE.name
    ]  # without any position (Kimi Linear) the shared key is content
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
