"""The dynamics of one head of a model, from its weights alone: the row of `toposcope scan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Layer
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.products import Products
from toposcope.dynamics.reduction import EPS, reduce_head
from toposcope.dynamics.regime import Regime, Setting, decide, positive_share
from toposcope.dynamics.rotation import Turns, offsets_to_sample, rotary_facts, turned
from toposcope.encodings import Rotary

Array = NDArray[np.float64]
DISPLAY_CONTEXT = 4096  # offsets are sampled up to the model's context, or this


@dataclass(frozen=True, eq=False)
class HeadDynamics:
    """All that the weights say about one head; the fields are those of the theory notes, section 5."""

    layer: int
    head: int
    kv_group: int
    causal: bool
    pe: str
    regime: Regime
    robust: bool
    pair_index: float | None
    symU: dict[str, Any]
    symW: dict[str, Any]
    cond_VO: float | None
    self_logit_min: float | None
    metastable: bool | None
    rope: dict[str, Any] | None

    @property
    def ov_positivity(self) -> float | None:
        """The sum of the eigenvalues of O V over the sum of their sizes, in [-1, 1]: 1 where the head only copies."""
        sizes = float(np.abs(self.regime.eigenvalues).sum())
        return float(self.regime.eigenvalues.sum().real) / sizes if sizes > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """One flat record, in the order of the theory notes."""
        g = self.regime
        return {
            "layer": self.layer,
            "head": self.head,
            "kv_group": self.kv_group,
            "causal": self.causal,
            "pe": self.pe,
            **g.record(self.robust),
            "ov_positivity": self.ov_positivity,
            "w_min": g.w_min,
            "w_max": g.w_max,
            "a_min": g.a_min,
            "a_max": g.a_max,
            "spread_index": g.spread_index,
            "asym_A": g.asym_A,
            "asym_W": g.asym_W,
            "pair_index": self.pair_index,
            "symU": self.symU,
            "symW": self.symW,
            "cond_VO": self.cond_VO,
            "self_logit_min": self.self_logit_min,
            "metastable": self.metastable,
            "rope": self.rope,
            "eigenvalues": upper_half(g.eigenvalues),
            "certificate": None if g.certificate is None else g.certificate.as_dict(),
            "warnings": list(g.warnings),
        }


def head_dynamics(layer: Layer, index: int, *, storage_error: float, context: int | None = None) -> HeadDynamics:
    """Fold, reduce and decide one self-attention head of a model."""
    head = fold(layer, layer.heads[index])
    return describe_head(layer, head, storage_error=storage_error, context=context)


def layer_turns(layer: Layer, context: int | None = None) -> Turns | None:
    """The rotations at the offsets that are looked at; None where nothing turns."""
    rotary = layer.encoding.rotary if layer.encoding.exact_tables else None
    if rotary is None:
        return None
    return Turns.at(rotary, offsets_to_sample(context or DISPLAY_CONTEXT, causal=layer.spec.causal))


def describe_head(
    layer: Layer,
    head: Head,
    *,
    storage_error: float,
    context: int | None = None,
    rotary: bool = True,
    turns: Turns | None = None,
    products: Products | None = None,
) -> HeadDynamics:
    """Reduce and decide a head whose norms are folded in; `rotary` False leaves out the facts about offsets.

    What is known beforehand need not be computed: `turns`, the same for all heads (`layer_turns`), and the `products`
    of the head at offset 0 (`at_start`).
    """
    turn = rotary_of(layer, head) if rotary else None
    if turn is not None and turns is None:
        turns = layer_turns(layer, context)
    p = Products(at_start(layer, head)) if products is None else products
    norm = layer.weights.input_norm
    centred = norm is not None and norm.kind == "layer"
    # where a theorem asks whether a matrix is symmetric to the last bit, it is formed for itself
    system = reduce_head(p.head, centred=centred, products=p if layer.spec.causal else None)
    found = decide(system, head_setting(layer, head))
    rope = None
    if turn is not None and turns is not None:
        facts = rotary_facts(p, turn, turns)
        rope = {"rho": facts.rho, "tau_uniform": facts.tau_uniform, "lmin_by_offset": facts.lmin_by_offset}
    return HeadDynamics(
        layer=layer.number,
        head=head.head,
        kv_group=head.kv_group,
        causal=layer.spec.causal,
        pe=layer.encoding.name,
        regime=found,
        robust=found.rule in ("T5", "T6") and found.margin is not None and found.margin > storage_error,
        pair_index=p.pair_index(),
        symU=_spectrum(p.values_eigenvalues, len(head.o), np.trace(p.oo) * np.trace(p.vv)),
        symW=_spectrum(
            head.scale * p.logits_eigenvalues, len(head.o), head.scale**2 * np.trace(p.qq) * np.trace(p.kk)
        ),
        cond_VO=found.condition,
        self_logit_min=found.w_min,
        metastable=None if found.w_min is None else found.w_min < 0,
        rope=rope,
    )


def at_start(layer: Layer, head: Head) -> Head:
    """The head at offset 0: of a rotation only the attention factor is left."""
    turn = rotary_of(layer, head)
    if turn is None:
        return head
    return replace(head, q=turned(turn, head.q, 0, "query"), k=turned(turn, head.k, 0, "key"))


def rotary_of(layer: Layer, head: Head) -> Rotary | None:
    """The rotation of this head's queries and keys, if it turns at all."""
    rotary = layer.encoding.rotary if layer.encoding.exact_tables else None
    if rotary is not None and rotary.turning_heads is not None and head.head >= rotary.turning_heads:
        return None
    return rotary


def head_setting(layer: Layer, head: Head) -> Setting:
    """Which theorems may be used for this head: see `Setting`."""
    spec, encoding = layer.spec, layer.encoding
    bilinear = (
        spec.q_norm is None
        and spec.k_norm is None
        and spec.softcap is None
        and spec.kv_latent is None
        and spec.q_latent is None
        and encoding.exact_tables
    )
    rotary = rotary_of(layer, head)
    return Setting(
        causal=spec.causal,
        # At every offset |W_k - W_0| <= 2 scale |Q O||K O|, and that is never below lambda_min(sym W~): from weights
        # alone T8 is silent on a rotary head. It speaks where a diagonal term is added (flow).
        rotary_excess=0.0 if rotary is None else float("inf"),
        query_bias=_present(head.q_bias),
        linear_terms=rotary is not None and _present(head.k_bias),
        relative_bias=encoding.bias is not None or spec.reach is not None,
        bilinear=bilinear,
        norm=spec.input_norm is not None,
        value_bias=_present(head.v_bias),
        outside=outside_theorems(layer),
    )


def outside_theorems(layer: Layer) -> tuple[str, ...]:
    """Why no theorem speaks of this layer exactly, if so.

    `left_out`: the adapter warns that its view leaves something out (clipped values, a mask that had to be assumed).
    """
    spec = layer.spec
    found = {
        "post_norm": spec.residual_norm,
        "output_norm": spec.output_norm,
        "left_out": spec.warnings or None,
        "attention_sinks": spec.sinks,
    }
    return (*(name for name, cause in found.items() if cause is not None), *spec.value_path, *spec.logit_path())


def pair_index(head: Head) -> float | None:
    """tr(U W^T) over its nuclear norm, in [-1, 1]: do small differences between tokens grow or shrink (index only)?

    U W^T = scale O (V K^T) Q; its trace is scale tr[(Q O)(V K^T)].
    """
    return Products(head).pair_index()


def upper_half(eigenvalues: NDArray[np.complex128]) -> list[list[float]]:
    """The spectrum of a real matrix as [real, imaginary] pairs to five digits; of conjugates the upper one stands."""
    upper = eigenvalues[eigenvalues.imag >= 0]
    return [[float(f"{value.real:.5g}"), float(f"{value.imag:.5g}")] for value in upper]


def _present(bias: Array | None) -> bool:
    return bias is not None and bool(np.any(bias != 0))


def spectrum(matrix: Factored) -> dict[str, Any]:
    """Least, greatest and positive share of the symmetric part's eigenvalues, and how many are +, -, 0."""
    sizes = float(np.linalg.norm(matrix.left) * np.linalg.norm(matrix.right))
    return _spectrum(matrix.sym_eigenvalues(), len(matrix.left), sizes**2)


def _spectrum(values: Array, d: int, sizes: float) -> dict[str, Any]:
    """The same of known eigenvalues; `sizes` is the square of the product of both factors' Frobenius norms."""
    doubt = 8 * d * EPS * float(np.sqrt(sizes))
    positive, negative = int(np.sum(values > doubt)), int(np.sum(values < -doubt))
    return {
        "min": float(min(values[0], 0.0)) if len(values) < d else float(values[0]),
        "max": float(max(values[-1], 0.0)) if len(values) < d else float(values[-1]),
        "pos_mass": positive_share(values),
        "inertia": [positive, negative, d - positive - negative],
    }
