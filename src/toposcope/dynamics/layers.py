"""The dynamics of a whole attention layer, and of the stack, from the weights alone.

U = sum_h O_h V_h = O' V', with V' the stacked value heads and O' the outputs summed over each key-value group. The
first token of a causal layer, and any consensus of an unmasked one, follows dx/dt = U x. No theorem says that several
heads together converge as a whole: such a verdict is never printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Layer
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import outside_theorems, spectrum
from toposcope.dynamics.reduction import Reduced, reduce_values
from toposcope.dynamics.regime import Regime, Setting, decide

Array = NDArray[np.float64]
MOST_PRODUCT_BYTES = 2_000_000_000  # the product over layers is formed only while its factors fit here


@dataclass(frozen=True, eq=False)
class LayerDynamics:
    """What the weights say about one layer as a whole; `radial_rate` and `dispersion_rate` need real activations."""

    layer: int
    stack: str
    causal: bool
    pe: str
    regime: Regime
    robust: bool
    rank_U: int
    rho_euler: float | None
    symU: dict[str, Any]
    drift: bool
    factors: Factored | None  # None where they were let go

    def as_dict(self) -> dict[str, Any]:
        g = self.regime
        return {
            "layer": self.layer,
            "stack": self.stack,
            "causal": self.causal,
            "pe": self.pe,
            **g.record(self.robust),
            "rank_U": self.rank_U,
            "rho_euler": self.rho_euler,
            "symU": self.symU,
            "radial_rate": None,
            "dispersion_rate": None,
            "warnings": list(g.warnings),
        }


def layer_dynamics(layer: Layer, *, storage_error: float) -> LayerDynamics:
    """Sum the heads of one self-attention layer and decide what its first token (or consensus) does."""
    outputs, values, bias = _summed(layer)
    factors = Factored(outputs, values)
    system = _system(layer, outputs, values)
    drift = _drifts(outputs, values, bias)
    setting = Setting(
        causal=layer.spec.causal,
        norm=layer.spec.input_norm is not None,
        value_bias=bool(np.any(bias != 0)),
        outside=(*outside_theorems(layer), *(("bias_drift",) if drift else ())),
    )
    found = decide(system, setting, several_heads=True)
    spectra = found.eigenvalues
    return LayerDynamics(
        layer=layer.number,
        stack=layer.spec.stack,
        causal=layer.spec.causal,
        pe=layer.encoding.name,
        regime=found,
        robust=found.rule is not None and found.margin is not None and found.margin > storage_error,
        rank_U=system.rank,
        rho_euler=float(np.abs(1 + spectra).max()) if len(spectra) else None,
        symU=spectrum(factors),
        drift=drift,
        factors=factors,
    )


def _summed(layer: Layer) -> tuple[Array, Array, Array]:
    """O' (d, R), V' (R, d) and the constant that values and output projection add, norms folded in."""
    spec = layer.spec
    per_group = spec.heads // spec.kv_heads
    wide = spec.value_width
    outputs, values = np.empty((spec.width, spec.kv_heads * wide)), np.empty((spec.kv_heads * wide, spec.width))
    constant = np.zeros(spec.width)
    for group in range(spec.kv_heads):
        here = slice(group * wide, (group + 1) * wide)
        first = fold(layer, layer.heads[group * per_group])
        outputs[:, here], values[here] = first.o, first.v
        for i in range(1, per_group):
            outputs[:, here] += fold(layer, layer.heads[group * per_group + i]).o
        if first.v_bias is not None:
            constant += outputs[:, here] @ first.v_bias
    return outputs, values, constant + _output_constant(layer)


def _output_constant(layer: Layer) -> Array:
    """What the output projection's bias adds, through the norm and the gain that `fold` gives to O."""
    w = layer.weights
    constant = np.zeros(layer.spec.width) if w.o_bias_D is None else w.o_bias_D.astype(np.float64)
    if w.output_norm is not None:
        if w.output_norm.kind == "layer":
            constant = constant - constant.mean()
        if w.output_norm.gain is not None:
            constant = constant * w.output_norm.gain
        if w.output_norm.bias is not None:
            constant = constant + w.output_norm.bias
    return constant if w.output_gain is None else constant * w.output_gain


def _system(layer: Layer, outputs: Array, values: Array) -> Reduced:
    """V~ on the smaller of the head side and the model side; LayerNorm's dead direction is taken out first."""
    d, rows = outputs.shape
    norm = layer.weights.input_norm
    if norm is not None and norm.kind == "layer":
        ones = np.ones((d, 1)) / np.sqrt(d)
        basis = scipy.linalg.null_space(ones.T)
        outputs, values = basis.T @ outputs, values @ basis
        d -= 1
    if rows >= d:
        return reduce_values(outputs @ values, np.eye(d))
    return reduce_values(values, outputs)


def _drifts(outputs: Array, values: Array, bias: Array) -> bool:
    """Whether the constant term has a part outside range(U): then the first token drifts away for ever."""
    if not np.any(bias != 0):
        return False
    if outputs.shape[1] >= len(outputs):
        whole = outputs @ values
    else:  # range(O' V') = range(O' R^T) with V'^T = Q R: smaller than range(O') where the rows of V' are dependent
        whole = outputs @ scipy.linalg.qr(values.T, mode="r", check_finite=False)[0][: len(values)].T
    rest = bias - whole @ np.linalg.lstsq(whole, bias, rcond=1e-10)[0]
    return bool(np.linalg.norm(rest) > 1e-8 * np.linalg.norm(bias))


def stack_growth(layers: Sequence[LayerDynamics]) -> float | None:
    """`growth_of` the layers' factors, where they were kept."""
    factors = [layer.factors for layer in layers if layer.factors is not None]
    return growth_of(factors) if len(factors) == len(layers) else None


def growth_of(factors: Sequence[Factored]) -> float | None:
    """rho(prod_l exp U_l), the growth of the first token through the looped stack; None where it is not known.

    exp(O' V') = I + O' phi(V' O') V' with phi(G) = (e^G - 1)/G, so each factor is applied at the cost of its rank.
    """
    if not factors:
        return None
    steps = [(part.left @ _phi(part.core()), part.right) for part in factors]
    d = len(steps[0][0])

    def apply(x: Array) -> Array:
        for left, right in steps:
            x = x + left @ (right @ x)
        return x

    if d < 16:
        return float(np.abs(np.linalg.eigvals(apply(np.eye(d)))).max())
    operator = scipy.sparse.linalg.LinearOperator((d, d), matvec=apply, dtype=np.float64)
    try:
        top = scipy.sparse.linalg.eigs(operator, k=1, return_eigenvectors=False, v0=np.ones(d), maxiter=500, tol=1e-8)
    except scipy.sparse.linalg.ArpackError:  # no convergence, or a search that found nothing to go on with
        return None
    return float(np.abs(top[0])) if len(top) else None


def product_fits(layers: Iterable[Layer]) -> bool:
    """Whether the factors O', V' of all these layers fit in memory together, as `growth_of` needs them."""
    specs = [layer.spec for layer in layers]
    return sum(2 * 8 * spec.width * spec.kv_heads * spec.value_width for spec in specs) <= MOST_PRODUCT_BYTES


def layer_factors(layer: Layer) -> Factored:
    """O' and V' of one layer, norms folded in."""
    outputs, values, _ = _summed(layer)
    return Factored(outputs, values)


def _phi(matrix: Array) -> Array:
    """(e^G - 1)/G without dividing: the upper right block of exp([[G, I], [0, 0]])."""
    r = len(matrix)
    block = np.zeros((2 * r, 2 * r))
    block[:r, :r], block[:r, r:] = matrix, np.eye(r)
    return scipy.linalg.expm(block)[:r, r:]
