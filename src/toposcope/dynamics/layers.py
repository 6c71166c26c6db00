"""The dynamics of a whole attention layer, and of the stack, from the weights alone.

U = sum_h O_h V_h = O' V', with V' the stacked value heads and O' the outputs summed over each key-value group. The
first token of a causal layer, and any consensus of an unmasked one, follows dx/dt = U x. No theorem says that several
heads together converge as a whole: such a verdict is never printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold_output, fold_values
from toposcope.checkpoints.view import Layer
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import outside_theorems, spectrum
from toposcope.dynamics.reduction import factor_size, numerical_rank, reduce_values
from toposcope.dynamics.regime import BIAS_DRIFT, Regime, Setting, decide

Array = NDArray[np.float64]
TERMS = 15  # the last power in the series of phi: 2^-15/16! is far below rounding
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


def layer_dynamics(layer: Layer, *, storage_error: float, causal: bool | None = None) -> LayerDynamics:
    """Sum the heads of one self-attention layer and decide what its first token (or consensus) does.

    `causal` puts another mask in the place of the layer's own.
    """
    masked = layer.spec.causal if causal is None else causal
    parts = _summed(layer)
    factors = parts.factors
    norm = layer.weights.input_norm
    system = reduce_values(
        factors.right, factors.left, o_size=parts.output_size, centred=norm is not None and norm.kind == "layer"
    )
    drift = parts.drift(system.rank)
    setting = Setting(
        causal=masked,
        norm=layer.spec.input_norm is not None,
        value_bias=bool(parts.constant.any()),
        outside=(*outside_theorems(layer), *((drift,) if drift else ())),
    )
    found = decide(system, setting, several_heads=True)
    spectra = found.eigenvalues
    return LayerDynamics(
        layer=layer.number,
        stack=layer.spec.stack,
        causal=masked,
        pe=layer.encoding.name,
        regime=found,
        robust=found.rule is not None and found.margin is not None and found.margin > storage_error,
        rank_U=numerical_rank(factors.right, factors.left) if "rank_deficient" in found.warnings else system.rank,
        rho_euler=float(np.abs(1 + spectra).max()) if len(spectra) else None,
        symU=spectrum(factors),
        drift=drift == BIAS_DRIFT,
        factors=factors,
    )


@dataclass(frozen=True, eq=False)
class _Summed:
    """U = O' V' with norms folded in, the size of all outputs side by side, and what biases add."""

    factors: Factored
    output_size: tuple[float, float]
    value_constant: Array
    output_constant: Array

    @property
    def constant(self) -> Array:
        return self.value_constant + self.output_constant

    def drift(self, rank: int) -> str | None:
        """The warning that the constant may have a part outside range(U): then the first token drifts away for ever.

        It has none by structure where U is invertible, or where it comes through O' alone and no row of V' was left
        out. Where it has none up to rounding, as `refine` makes it, the verdict stands and is not exact.
        """
        invertible = rank == len(self.factors.left)
        through_outputs = not self.output_constant.any() and rank == len(self.factors.right)
        if not self.constant.any() or invertible or through_outputs:
            return None
        outputs, values = self.factors.left, self.factors.right
        if len(values) >= len(outputs):
            whole = outputs @ values
        else:  # range(O' V') = range(O' R^T) with V'^T = Q R: less than range(O') where the rows of V' are dependent
            whole = outputs @ scipy.linalg.qr(values.T, mode="r", check_finite=False)[0][: len(values)].T
        rest = self.constant - whole @ np.linalg.lstsq(whole, self.constant, rcond=1e-10)[0]
        far = np.linalg.norm(rest) > 1e-8 * np.linalg.norm(self.constant)
        return BIAS_DRIFT if far else "bias_in_range_up_to_rounding"


def _summed(layer: Layer) -> _Summed:
    """The layer's value heads stacked, its outputs summed over each key-value group.

    An error of the outputs, side by side of norm |O|, meets a value head in each of the g heads that share it: what
    it does to O' is at most sqrt(g) |O| times its relative size.
    """
    spec = layer.spec
    per_group, wide = spec.heads // spec.kv_heads, spec.value_width
    outputs = np.concatenate([fold_output(layer, layer.output(head)) for head in range(spec.heads)], axis=1)
    groups = [fold_values(layer, group) for group in range(spec.kv_heads)]
    values = np.concatenate([v for v, _ in groups])
    size = factor_size(outputs)
    if per_group > 1:
        outputs = outputs.reshape(spec.width, spec.kv_heads, per_group, wide).sum(axis=2).reshape(spec.width, -1)
    constant = np.zeros(spec.width)
    for group, (_, bias) in enumerate(groups):
        if bias is not None:
            constant += outputs[:, group * wide : (group + 1) * wide] @ bias
    root = float(np.sqrt(per_group))
    return _Summed(Factored(outputs, values), (root * size[0], root * size[1]), constant, _output_constant(layer))


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
    with np.errstate(over="ignore", invalid="ignore"):
        steps = [(part.left @ _phi(part.core()), part.right) for part in factors]
    if not all(np.isfinite(left).all() for left, _ in steps):  # e^U is beyond any number
        return None
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
    return _summed(layer).factors


def _phi(matrix: Array) -> Array:
    """(e^G - 1)/G without dividing: its series for a small share of G, doubled with phi(2 G) = phi(G) (1 + e^G)/2."""
    doublings = max(0, int(np.ceil(np.log2(max(float(np.linalg.norm(matrix, 1)), 1e-300)))) + 1)
    small = matrix / 2.0**doublings  # of norm 1/2 at most
    square = small @ small
    powers, fourth = (np.eye(len(matrix)), small, square, square @ small), square @ square
    found = np.zeros_like(small)
    for first in range(TERMS - 3, -1, -4):  # four terms at a time
        found = found @ fourth + sum(power / factorial(first + k + 1) for k, power in enumerate(powers))
    for _ in range(doublings):
        found = found + found @ (small @ found) / 2  # e^G = 1 + G phi(G)
        small = 2 * small
    return found
