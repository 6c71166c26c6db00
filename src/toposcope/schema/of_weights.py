"""The results made of weights alone, or of an encoding alone: scan, compare, flow, spectrum."""

from __future__ import annotations

from collections.abc import Mapping
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


def flow(schema: str) -> Shape:
    from toposcope.dynamics.agreement import Agreement
    from toposcope.dynamics.record import FlowResult
    from toposcope.dynamics.regime import Regime

    verdict = Shape(
        "Verdict",
        "What a theorem says of the same system.",
        {**fields(Regime, "verdict", "rule", "scope", "exact", "margin", "statement", "alpha", "omega", "warnings")},
    )
    picture = Shape(
        "Trajectory",
        "The moving picture: points in the plane of the main directions, which hold `share` of the spread.",
        {"times": list[float], "xy": list[list[tuple[float, float]]], "share": float, "relative": bool},
    )
    told = fields(
        FlowResult, "title", "status", "evaluations", "log_growth", "growth_rate", "speed", "events", "notes"
    )
    one = {
        **told,
        "meaning": str,
        "end": float,
        "tokens": int,
        "accepted_steps": int,
        "rejected_steps": int,
        "token_log_growth": list[float],
        "observables": Mapping[str, list[float]],
        "settings": Mapping[str, Any],
        "verdict": Maybe(verdict),
        "agreement": fields(Agreement)["word"],
        "observed": str,
        "trajectory": picture,
    }
    texts = dict.fromkeys(("head", "W", "V", "preset", "text", "token_ids", "cloud", "start"), str | None)
    more = dict.fromkeys(("encoding", "absolute", "add_diagonal", "norms", "compare"), str | None)
    asked = options(
        **texts,
        **more,
        layer=int | None,
        stack=bool,
        tokens=int | None,
        causal=bool | None,
        horizon=float | None,
        growth_cap=float,
        max_evaluations=int,
        rtol=float,
        seed=int,
    )
    body = {"flows": many(Shape("Flow", "One flow: how it ended, what was measured along it, what it means.", one))}
    return envelope(schema, Maybe(MODEL), asked, body, "Tokens in motion, one flow per encoding that was asked for.")


def spectrum(schema: str) -> Shape:
    from toposcope.spectra.encoding_spectrum import EncodingSpectrum

    one = {
        "spec": str,
        **fields(EncodingSpectrum),
        "decay": list[float],
        "offsets": list[int] | None,
        "kernel_at": list[float] | None,
        "symbol_range": tuple[float, float] | None,
        "parameters": Mapping[str, Any],
    }
    body = {
        "contexts": list[int],
        "encodings": many(Shape("EncodingSpectrum", "The kernel of an encoding, context by context.", one)),
    }
    asked = options(context=int, head_dim=int, heads=int, width=int, head=int)
    return envelope(schema, type(None), asked, body, "Spectra of positional kernels.")
