"""Where a system of tokens is driven, decided by a theorem or not at all.

The flow is dx_i/dt = V sum_j P_ij x_j with P = softmax of x_i^T W x_j. Names T1..T9 are those of the theory notes:

* T6: with a causal mask all tokens go to 0 from every start exactly when every eigenvalue of V has negative real
  part, whatever W and whatever position does to the logits.
* T5: the first token of a causal system, and any consensus of an unmasked one, follows dx/dt = V x.
* T3, T4: unmasked, sym(W) > 0 and W V^{-1} definite; W or W V^{-1} must be symmetric, exactly.
* T8: unmasked, a robust form with a margin w'; it gives an absorbing ball or growth beyond a threshold.

A verdict carries its rule, its scope, whether it speaks of the model exactly, and a margin. All else is an index.
`exact` also asks that what a theorem wants to be symmetric is so to the last bit, not merely up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.core.ranges import LARGEST
from toposcope.dynamics.pencil import Pencil
from toposcope.dynamics.reduction import EPS, Reduced, reduce_system, spectral_norm
from toposcope.dynamics.stability import LineDistance, best_line, distance_to_line

Array = NDArray[np.float64]
BIAS_DRIFT = "bias_drift"
BETWEEN_V_AND_O = frozenset({"output_gate", "value_norm", "norm_before_O"})  # then O V is not what moves a token


class Verdict(StrEnum):
    """What a theorem says about the tokens; the value is the word printed, `meaning` the sentence."""

    CONVERGES = "converges"
    DIVERGES = "diverges"
    NOT_CONVERGENT = "not_convergent"
    BOUNDED = "bounded"
    DIVERGES_ABOVE = "diverges_above"
    INDETERMINATE = "indeterminate"
    INACTIVE = "inactive"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Verdict.CONVERGES: "what the head can move of every token goes to one point, 0 without a value bias",
    Verdict.DIVERGES: "tokens go to infinity",
    Verdict.NOT_CONVERGENT: "some directions grow without bound",
    Verdict.BOUNDED: "all tokens end in a ball of known size",
    Verdict.DIVERGES_ABOVE: "once the largest token is beyond a known size it grows for ever",
    Verdict.INDETERMINATE: "no theorem decides",
    Verdict.INACTIVE: "the head writes nothing",
}


@dataclass(frozen=True)
class Setting:
    """What surrounds W and V and decides which theorems may be used.

    `rotary_excess` bounds sup_k |W_k - W_0| over visible offsets (0: no rotation; infinite: no bound that helps T8).
    `query_bias` is a key-side weight in the softmax (from b_q); `linear_terms` are logits linear in a token's own
    coordinates (b_k under rotation); `relative_bias` any b_ij, a window included. `bilinear` is False where logits
    are not x^T W x (q/k norm, soft-capping, MLA's latent norms). `norm` tells whether tokens are normalised on the
    way in, `value_bias` whether values have a bias, and `outside` lists reasons why no theorem speaks of this layer
    exactly (post-norm, a norm on the output).
    """

    causal: bool = True
    rotary_excess: float = 0.0
    query_bias: bool = False
    linear_terms: bool = False
    relative_bias: bool = False
    bilinear: bool = True
    norm: bool = False
    value_bias: bool = False
    outside: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Certificate:
    """The data of a T8 verdict: S and N = s S V with w' > 0; sizes scale with beta = log n (or the biases' own)."""

    S: Array
    N: Array
    w_prime: float
    bound: float  # |x|^2 of the ball, or the threshold of |x|_S^2, per unit of beta

    def as_dict(self) -> dict[str, object]:
        return {"S": self.S.tolist(), "N": self.N.tolist(), "w_prime": self.w_prime, "bound": self.bound}


@dataclass(frozen=True, eq=False)
class Regime:
    """A verdict with its rule, scope, margin and the numbers it rests on."""

    verdict: Verdict
    rule: str | None
    scope: str | None  # first_token | all_tokens | consensus | nu_zero
    exact: bool
    margin: float | None  # `statement` stays true below it; `not_convergent` may turn into `diverges`
    statement: str
    alpha: float | None  # largest and smallest real part of V's spectrum
    omega: float | None
    n_pos: int
    n_neg: int
    n_zero: int
    growth_index: float | None
    w_min: float | None  # spectrum of sym(W)
    w_max: float | None
    a_min: float | None  # spectrum of sym(V^T W), which has the signs of sym(W V^-1)
    a_max: float | None
    spread_index: float | None
    asym_A: float | None
    asym_W: float | None
    distance: LineDistance | None
    certificate: Certificate | None
    warnings: tuple[str, ...]
    eigenvalues: NDArray[np.complex128]
    condition: float | None = None  # of V

    def record(self, robust: bool) -> dict[str, Any]:
        """What heads and layers print alike, in the order of the theory notes."""
        return {
            "verdict": self.verdict.value,
            "rule": self.rule,
            "scope": self.scope,
            "exact": self.exact,
            "margin": self.margin,
            "robust": robust,
            "alpha": self.alpha,
            "omega": self.omega,
            "n_pos": self.n_pos,
            "n_neg": self.n_neg,
            "n_zero": self.n_zero,
            "growth_index": self.growth_index,
        }


def regime(W: ArrayLike, V: ArrayLike, *, causal: bool = True, **setting: object) -> Regime:
    """The regime of the full system dx_i/dt = V sum_j softmax(x_i^T W x_j) x_j in d dimensions."""
    w, v = _square(W, "W"), _square(V, "V")
    if w.shape != v.shape:
        raise BadValue(f"W has shape {w.shape} and V {v.shape}; expected the same square shape for both.")
    return decide(reduce_system(w, v), Setting(causal=causal, **setting))  # type: ignore[arg-type]


def decide(system: Reduced, setting: Setting, *, several_heads: bool = False) -> Regime:
    """The strongest verdict that a theorem certifies for the reduced system.

    With `several_heads` the system is a sum over heads: only what follows from dx/dt = U x for its first token
    or its consensus is said.
    """
    if system.rank == 0:
        return _inactive()
    facts = _Facts(system)
    warnings = list(setting.outside)
    if setting.norm and setting.value_bias:
        warnings.append("bias_with_norm")
    if system.compressed:
        warnings.append("rank_compressed")
    if BETWEEN_V_AND_O.intersection(setting.outside):
        found = _undecided("what stands between V and O decides as well")
    elif facts.singular:
        warnings.append("rank_deficient")
        found = _first_token_grows(facts, "first_token" if setting.causal else "consensus")
    elif several_heads:
        found = _layer(facts, setting)
    else:
        found = _causal(facts, setting) if setting.causal else _unmasked(facts, setting)
        if system.compressed and setting.value_bias and found[0] in (Verdict.CONVERGES, Verdict.BOUNDED):
            found = _undecided("the bias of a value that V leaves at zero may drive tokens away")
    verdict, rule, scope, margin, statement, certificate, distance = found
    # With norms, T5 and T6 survive as a change of each token's clock; a value bias breaks that (theory, section 2).
    exact = verdict is not Verdict.INDETERMINATE and not setting.outside and not (setting.norm and setting.value_bias)
    if rule not in ("T5", "T6"):
        exact = exact and not setting.norm
    if rule is not None and rule[:2] in ("T3", "T4") and not facts.symmetric_by_structure(rule[2]):
        warnings.append("symmetric_up_to_rounding")
        exact = False
    if system.compressed and margin is not None:
        margin = 0.0  # another eigenvalue of either sign can appear with the smallest change of V or O
    return facts.result(verdict, rule, scope, exact, margin, statement, warnings, certificate, distance)


_Found = tuple[Verdict, str | None, str | None, float | None, str, Certificate | None, LineDistance | None]


def _layer(facts: _Facts, setting: Setting) -> _Found:
    """A sum over heads: the first token follows dx/dt = U x + c, and so does any consensus of an unmasked layer."""
    if not setting.causal:
        return _first_token_grows(facts, "consensus")
    verdict, rule, scope, margin, words, certificate, distance = _causal(facts, setting)
    if verdict is Verdict.CONVERGES:
        if BIAS_DRIFT in setting.outside:
            return _undecided("a constant term outside range(U) lets the first token drift away", distance)
        return verdict, "T5", "first_token", margin, "the first token goes to a fixed point", certificate, distance
    return verdict, rule, scope, margin, words, certificate, distance


def _causal(facts: _Facts, setting: Setting) -> _Found:
    """T6 and T5: the spectrum of V decides alone."""
    if facts.alpha < 0 or facts.omega > 0:
        distance = distance_to_line(facts.pencil, 0.0)
        if distance.lower > facts.rounding:
            margin = facts.weight_margin(distance.lower)
            if facts.alpha < 0:
                who = "all that the head moves of any token goes" if facts.moved_by == "V O" else "all tokens go"
                words = f"every eigenvalue of {facts.moved_by} has negative real part, so {who} to {_limit(setting)}"
                return Verdict.CONVERGES, "T6", "all_tokens", margin, words, None, distance
            words = (
                f"every eigenvalue of {facts.moved_by} has positive real part, so the first token goes to infinity, "
                f"unless it starts at {_limit(setting)}"
            )
            return Verdict.DIVERGES, "T5", "first_token", margin, words, None, distance
        if facts.alpha < 0:
            return _undecided(f"the spectrum of {facts.moved_by} is too near the imaginary axis", distance)
    return _first_token_grows(facts, "first_token")


def _first_token_grows(facts: _Facts, scope: str) -> _Found:
    if facts.alpha > 0:
        distance = best_line(facts.pencil, 0.0, facts.alpha)
        if distance.lower > facts.rounding:
            alone = "the first token, which sees only itself, goes"
            who = alone if scope == "first_token" else "tokens that have come together go"
            moved = f"{facts.moved_by} has an eigenvalue with positive real part"
            words = f"{moved}, so {who} to infinity from almost every start"
            margin = facts.weight_margin(distance.lower)
            return Verdict.NOT_CONVERGENT, "T5", scope, margin, words, None, distance
        return _undecided(f"the spectrum of {facts.moved_by} is too near the imaginary axis", distance)
    return _undecided(f"{facts.moved_by} is singular" if facts.singular else "no theorem applies")


def _limit(setting: Setting) -> str:
    """The point that V drives tokens to or from."""
    return "-O (V O)^-1 b_v" if setting.value_bias else "0"


def _unmasked(facts: _Facts, setting: Setting) -> _Found:
    scope = "nu_zero" if facts.frozen else "all_tokens"
    # A value bias is a shift of the tokens, y = x + V^-1 b_v, after which W turns it into a key-side weight.
    key_weight = setting.query_bias or setting.value_bias
    plain = setting.bilinear and not setting.rotary_excess and not setting.relative_bias and not setting.linear_terms
    if plain:
        found = _definite(facts, scope, _limit(setting), key_weight=key_weight)
        if found is not None:
            return found
    if setting.bilinear and not key_weight and not setting.linear_terms:
        found = _robust(facts, setting, scope)
        if found is not None:
            return found
    return _first_token_grows(facts, "consensus")


def _definite(facts: _Facts, scope: str, limit_point: str, *, key_weight: bool) -> _Found | None:
    """T3 and T4: W positive, W V^-1 definite, and one of the two symmetric beyond doubt."""
    margin = min(facts.w_min / facts.w_norm, facts.a_least / (2 * facts.w_norm * facts.v_norm))
    if facts.w_min <= 0 or not facts.a_one_sign or margin <= 1e3 * facts.size * EPS:
        return None
    limit = min(1e3 * facts.size * EPS, 1e-3 * margin)
    a_symmetric, w_symmetric = facts.asym_A <= limit, facts.asym_W <= limit
    if key_weight:  # allowed in T3a only
        w_symmetric = False
        if facts.a_max > 0:
            return None
    if not (a_symmetric or w_symmetric):
        return None
    letter = "a" if a_symmetric else "b"
    who = _restricted("all tokens", scope)
    if facts.a_max < 0 and facts.alpha < 0:
        words = f"W is positive definite and W V^-1 negative definite, so {who} go to {limit_point}"
        return Verdict.CONVERGES, f"T3{letter}", scope, margin, words, None, None
    if facts.a_min > 0 and facts.omega > 0:
        words = (
            f"W and W V^-1 are positive definite, so {who} go to infinity, except at most one "
            "cluster of coinciding tokens"
            if a_symmetric
            else f"W and W V^-1 are positive definite, so of {who} the largest goes to infinity from "
            "every start but 0"
        )
        return Verdict.DIVERGES, f"T4{letter}", scope, margin, words, None, None
    return None


def _restricted(who: str, scope: str) -> str:
    """Who a statement about the unmasked flow speaks of: with a frozen part in the logits no theorem holds."""
    return f"{who} that lie wholly in range(O), where the head writes," if scope == "nu_zero" else who


def _robust(facts: _Facts, setting: Setting, scope: str) -> _Found | None:
    """T8: look for S > 0 and a sign with w' = lambda_min(sym W) - sqrt(cond S) sup |M_ij - s S V| > 0."""
    if facts.w_min <= 0:
        return None
    excess = setting.rotary_excess
    unit = "beta (max_i log sum_j exp(b_ij - b_ii))" if setting.relative_bias else "log n"
    best: tuple[float, int, Array, float] | None = None
    for sign in (-1, 1):
        for S in facts.scalings(sign):
            kappa = float(np.linalg.cond(S))
            N = sign * S @ facts.v
            c, gap = _nearest_multiple(facts.w, N)
            w_prime = facts.w_min - np.sqrt(kappa) * (gap + excess)
            if c > 0 and w_prime > 1e3 * facts.size * EPS * facts.w_norm and (best is None or w_prime > best[0]):
                best = (float(w_prime), sign, c * S, kappa)
    if best is None:
        return None
    w_prime, sign, S, kappa = best
    root = np.sqrt(kappa)
    margin = w_prime / ((1 + root) * (facts.w_norm + excess) + root * float(np.linalg.norm(S @ facts.v, 2)))
    if sign < 0:
        certificate = Certificate(S, -S @ facts.v, w_prime, kappa / w_prime)
        words = f"{_restricted('all tokens', scope)} end within |x|^2 <= {certificate.bound:.3g} {unit}"
        return Verdict.BOUNDED, "T8", scope, float(margin), words, certificate, None
    certificate = Certificate(S, S @ facts.v, w_prime, float(np.linalg.norm(S, 2)) / w_prime)
    words = (
        f"once max |x|_S^2 of {_restricted('all tokens', scope)} exceeds {certificate.bound:.3g} {unit} the largest "
        "grows exponentially"
    )
    return Verdict.DIVERGES_ABOVE, "T8", scope, float(margin), words, certificate, None


def _nearest_multiple(target: Array, direction: Array) -> tuple[float, float]:
    """The c > 0 for which |target - c direction|_2 is least, and that distance (convex in c)."""
    size = float(np.linalg.norm(direction, 2))
    if size == 0:
        return 0.0, float(np.linalg.norm(target, 2))
    from scipy.optimize import minimize_scalar

    end = 2 * float(np.linalg.norm(target, 2)) / size
    found = minimize_scalar(
        lambda c: float(np.linalg.svd(target - c * direction, compute_uv=False)[0]),
        bounds=(0.0, end),
        method="bounded",
    )
    return float(found.x), float(found.fun)


def _undecided(why: str, distance: LineDistance | None = None) -> _Found:
    return Verdict.INDETERMINATE, None, None, None, why, None, distance


class _Facts:
    """The numbers every rule looks at, computed once."""

    def __init__(self, system: Reduced) -> None:
        self.v, self.w, self.rounding, self.frozen = system.v, system.w, system.rounding, system.frozen
        self.moved_by = system.moved_by
        self._factors = system.v_norm * system.o_norm
        self.size = len(system.v)
        self.pencil = Pencil(system.v)
        self.eigenvalues = self.pencil.eigenvalues
        real = self.eigenvalues.real
        self.alpha, self.omega = float(real.max()), float(real.min())
        sizes = self.pencil.singular_values
        self.v_norm, self.singular = float(sizes[0]), bool(sizes[-1] <= system.rounding)
        self.condition = float(sizes[0] / sizes[-1]) if sizes[-1] > 0 else float("inf")
        self.w_norm = spectral_norm(system.w) or 1.0
        w = _sym_eigenvalues(system.w)
        self.w_min, self.w_max = float(w[0]), float(w[-1])
        self._mixed = mixed = system.v.T @ system.w
        self._a = _sym_eigenvalues(mixed)
        self.a_min, self.a_max = float(self._a[0]), float(self._a[-1])
        doubt = 1e3 * self.size * EPS * self.v_norm * self.w_norm
        self.a_one_sign = self.a_min > doubt or self.a_max < -doubt
        self.a_least = float(np.abs(self._a).min())
        self.asym_A, self.asym_W = _asymmetry(mixed), _asymmetry(system.w)

    def weight_margin(self, beta: float) -> float:
        """The relative error in both V and O that cannot move V~, known up to rounding, by beta."""
        return float(np.sqrt(1 + (beta - self.rounding) / self._factors) - 1) if self._factors else 0.0

    def symmetric_by_structure(self, letter: str) -> bool:
        """Whether V^T W (case a) or W (case b) is symmetric to the last bit."""
        matrix = self._mixed if letter == "a" else self.w
        return bool(np.array_equal(matrix, matrix.T))

    def scalings(self, sign: int) -> list[Array]:
        """Candidates for S in T8: the identity, and sign * sym(W V^-1) where that is positive."""
        found = [np.eye(self.size)]
        if np.linalg.cond(self.v) < 1e8:
            A = np.linalg.solve(self.v.T, self.w.T).T
            S = sign * (A + A.T) / 2
            if scipy.linalg.eigvalsh(S)[0] > 1e-8 * np.linalg.norm(S, 2):
                found.append(S)
        return found

    def result(
        self,
        verdict: Verdict,
        rule: str | None,
        scope: str | None,
        exact: bool,
        margin: float | None,
        statement: str,
        warnings: list[str],
        certificate: Certificate | None = None,
        distance: LineDistance | None = None,
    ) -> Regime:
        real = self.eigenvalues.real
        return Regime(
            verdict=verdict,
            rule=rule,
            scope=scope,
            exact=exact,
            margin=margin,
            statement=statement,
            alpha=self.alpha,
            omega=self.omega,
            n_pos=int(np.sum(real > self.rounding)),
            n_neg=int(np.sum(real < -self.rounding)),
            n_zero=int(np.sum(np.abs(real) <= self.rounding)),
            growth_index=positive_share(real),
            w_min=self.w_min,
            w_max=self.w_max,
            a_min=self.a_min,
            a_max=self.a_max,
            spread_index=positive_share(self._a),
            asym_A=self.asym_A,
            asym_W=self.asym_W,
            distance=distance,
            certificate=certificate,
            warnings=tuple(warnings),
            eigenvalues=self.eigenvalues,
            condition=self.condition,
        )


def _sym_eigenvalues(matrix: Array) -> Array:
    """Those of the symmetric part; a sum over heads has no W, and zeros are not worth a factorisation."""
    if not matrix.any():
        return np.zeros(len(matrix))
    return np.asarray(np.linalg.eigvalsh((matrix + matrix.T) / 2))


def positive_share(values: NDArray[np.floating[Any]]) -> float | None:
    """The positive part of a sum over its total size: an index in [0, 1], None where all are zero."""
    total = float(np.abs(values).sum())
    return float(values[values > 0].sum()) / total if total > 0 else None


def _asymmetry(matrix: Array) -> float:
    """0 for symmetric, 1 for antisymmetric matrices."""
    odd, even = float(np.linalg.norm(matrix - matrix.T)), float(np.linalg.norm(matrix + matrix.T))
    total = float(np.hypot(odd, even))
    return odd / total if total > 0 else 0.0


def _inactive() -> Regime:
    return Regime(
        verdict=Verdict.INACTIVE,
        rule=None,
        scope=None,
        exact=True,
        margin=None,
        statement="O V is zero",
        alpha=None,
        omega=None,
        n_pos=0,
        n_neg=0,
        n_zero=0,
        growth_index=None,
        w_min=None,
        w_max=None,
        a_min=None,
        a_max=None,
        spread_index=None,
        asym_A=None,
        asym_W=None,
        distance=None,
        certificate=None,
        warnings=(),
        eigenvalues=np.zeros(0, dtype=np.complex128),
    )


def _square(matrix: ArrayLike, name: str) -> Array:
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise BadValue(f"{name} has shape {array.shape}; expected a square matrix.")
    if not np.isfinite(array).all():
        raise BadValue(f"{name} holds NaN or infinity; every verdict on it would be meaningless.")
    if np.abs(array).max() > LARGEST:
        raise BadValue(
            f"{name} holds {np.abs(array).max():.3g}; products of entries above {LARGEST:g} overflow. Scale W and V "
            "down: that changes no verdict."
        )
    return array
