"""The results made of weights alone: scan, compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toposcope.schema.parts import MODEL, envelope, options
from toposcope.schema.types import Maybe, Shape, fields, many

SYMMETRIC = Shape(
    "SymmetricPart",
    "Least and greatest eigenvalue of a symmetric part, the share of positive ones, and how many are +, -, 0.",
    {"min": float, "max": float, "pos_mass": float, "inertia": tuple[int, int, int]},
)


def _regime(*more: str) -> dict[str, Any]:
    """What heads and layers say alike (`Regime.record`)."""
    from toposcope.dynamics.regime import Regime

    decided = fields(Regime, "verdict", "rule", "scope", "exact", "margin")
    spectrum = fields(Regime, "alpha", "omega", "n_pos", "n_neg", "n_zero", "growth_index", *more)
    return {**decided, "robust": bool, **spectrum, "warnings": list[str]}


def _head() -> Shape:
    from toposcope.dynamics.heads import HeadDynamics

    matrix = list[list[float]]
    rope = Shape(
        "Rotation",
        "How far W_k is from W_0, the diagonal that makes all of them positive, and lambda_min(sym W_k) by offset.",
        {"rho": float, "tau_uniform": float, "lmin_by_offset": Mapping[str, float]},
    )
    certificate = Shape(
        "Certificate", "The matrices of T8.", {"S": matrix, "N": matrix, "w_prime": float, "bound": float}
    )
    own = fields(HeadDynamics, "layer", "head", "kv_group", "causal", "pe", "pair_index", "cond_VO")
    more = {
        **fields(HeadDynamics, "self_logit_min", "metastable"),
        "ov_positivity": float,
        "symU": SYMMETRIC,
        "symW": SYMMETRIC,
        "rope": Maybe(rope),
        "eigenvalues": list[tuple[float, float]],
        "certificate": Maybe(certificate),
    }
    said = _regime("w_min", "w_max", "a_min", "a_max", "spread_index", "asym_A", "asym_W")
    return Shape("Head", "All that the weights say about one head.", {**own, **said, **more})


def _layer() -> Shape:
    from toposcope.dynamics.layers import LayerDynamics

    own = fields(LayerDynamics, "layer", "stack", "causal", "pe", "rank_U", "rho_euler")
    more = {"symU": SYMMETRIC, "radial_rate": type(None), "dispersion_rate": type(None)}
    return Shape("Layer", "All heads of a layer together.", {**own, **_regime(), **more})


SUMMARY = {
    "heads": int,
    "counts": Mapping[str, int],
    "robust": int,
    "metastable": int,
    "growth_index": float,
    "spread_index": float,
    "pair_index": float,
    "ov_positivity": float,
}


def scan(schema: str) -> Shape:
    from toposcope.scanning.sample import Count
    from toposcope.spectra.of_model import ModelSpectra

    estimate = Shape(
        "Estimate",
        "Verdict counts of the whole model from layers that were drawn: an estimate, not a verdict.",
        {"what": str, "method": str, "level": float, "heads": int, "layers": int, "drawn": list[int]}
        | {"strata": list[tuple[int, int]], "counts": Mapping[str, Count], "unseen_verdict_in_at_most_layers": int},
    )
    more = {
        "layer_counts": Mapping[str, int],
        "verdict": str | None,
        "rule": str | None,
        "exact": bool,
        "log_growth": float,
    }
    body = {
        "heads": many(_head()),
        "layers": many(_layer()),
        "model": Shape("Model", "Counts of verdicts, means of indices, and the looped stack.", {**SUMMARY, **more}),
        "null": Shape("Twin", "The same of a twin with random orientation.", SUMMARY),
        "spectra": ModelSpectra,
        "what_if": many(ModelSpectra),
        "estimate": estimate,
    }
    asked = options(
        layers=str | None,
        layer_sums=bool | None,
        null=bool,
        seed=int,
        family=str | None,
        heads=int | None,
    )
    return envelope(schema, MODEL, asked, body, "Where weights drive the tokens, head by head.", "null", "estimate")


def compare(schema: str) -> Shape:
    from toposcope.scanning.compare import Comparison, HeadChange

    mean = {"change_W": float, "change_V": float, "change_kernel": float}
    layer = Shape("LayerChange", "Means over a layer's heads.", {"layer": int, "heads": int, **mean, "moved": int})
    about = Shape(
        "Subject", "The first model, and the second.", {**MODEL.fields, "path of B": str, "sha256 of B": str}
    )
    stored = {"heads": list[Mapping[str, Any]], "of": str, "mean_absolute_change": Mapping[str, float]}
    body = {**fields(Comparison), "layers": many(layer), **stored, "a": str, "b": str}
    asked = options(layers=str | None, family=str | None, heads=int | None)
    lacks = ("of", "mean_absolute_change")
    words = "Two checkpoints, or two stored results, head by head; heads of results have the keys of those results."
    whole = envelope(schema, Maybe(about), asked, body, words, *lacks)
    return replace(whole, without=("of", {"heads": list[HeadChange]}))
