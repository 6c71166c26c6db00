"""The vector field of attention: where every token is pushed by all tokens it sees.

With tokens x_i in rows, heads h, and what is read y_i = f_i (x_i + p_i):

    q_i = Q y_i + b_q,   k_j = K y_j + b_k,   v_j = V y_j + b_v
    l_ij = scale (R_i q_i) . (R_j k_j) + tau y_i . y_j + b_ij          (softcap and q/k norm where the model has them)
    dx_i/dt = sum_h O_h sum_j softmax_j(l_ij) v_j + b_o

f_i is 1, or the per-token factor of RMSNorm or LayerNorm; p_i an absolute position read by the logits only or by the
values too; R_i the rotation of RoPE; tau the added diagonal D = tau I. The state may also be a smaller one: tokens
x = B s + base with `lift` B and a fixed base (T9), for which every product below is formed once.

One evaluation is a handful of matrix products, O(n d H r + n^2 H r). States beyond 1e100 are divided by their size
first and the logits multiplied after the largest has been taken off, so that no size overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Norm
from toposcope.core.errors import BadValue
from toposcope.core.memory import require_memory
from toposcope.encodings.record import LogitBias, Rotary

Array = NDArray[np.float64]

MOST_WORK = 1e12  # operations of one evaluation of the field: minutes, and a run takes hundreds of them
HUGE = 1e100  # beyond this size products of two tokens are formed in units of that size
NO_WEIGHT = -1e3  # a logit so far below the largest has a weight of 0 in float64
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class TokenFactor:
    """The part of a norm that folding leaves out: 1 / sqrt(mean(x^2) + eps), for `layer` of x less its mean."""

    kind: str
    eps: float


@dataclass(frozen=True, eq=False)
class System:
    """Attention as maps on tokens of width D: H heads of width R (values S) in G key-value groups.

    `q` None stands for Q = identity and `o` None for O = identity, both with one head of the tokens' own width: then
    `k` is W and `v` is V. `turning` is the number of leading heads that rotate (None: all). `bias_heads` names the
    rows of the bias table that belong to these heads. `output` is applied to what all heads write together.
    """

    k_GRD: Array
    v_GSD: Array
    q_HRD: Array | None = None
    o_HDS: Array | None = None
    scale: float = 1.0
    q_bias_HR: Array | None = None
    k_bias_GR: Array | None = None
    v_bias_GS: Array | None = None
    o_bias_D: Array | None = None
    causal: bool = True
    reach: int | None = None
    rotary: Rotary | None = None
    turning: int | None = None
    bias: LogitBias | None = None
    bias_heads: tuple[int, ...] | None = None
    diagonal: float = 0.0
    softcap: float | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    qk_norm_over: str = "head"
    factor: TokenFactor | None = None
    output: Callable[[Array], Array] | None = None

    @property
    def width(self) -> int:
        return self.k_GRD.shape[2]

    @property
    def heads(self) -> int:
        return 1 if self.q_HRD is None else len(self.q_HRD)


class AttentionField:
    """The field of a system for a given number of tokens at positions 0 .. n-1; calling it gives dx/dt.

    `lift` (D, M) and `base` (n, D) make the state a smaller one, x = lift s + base; then `o_HDS` must already be the
    map from values to the state. `position` (n, D) is added to what the logits read, and with `reinject` to what the
    values read as well.
    """

    def __init__(
        self,
        system: System,
        count: int,
        *,
        lift: Array | None = None,
        base: Array | None = None,
        position: Array | None = None,
        reinject: bool = False,
    ) -> None:
        if count < 1:
            raise BadValue(f"a flow needs at least one token, got {count}.")
        squares = system.heads * count * count
        require_memory(
            32 * squares, f"attention among {count:,} tokens with {system.heads} heads", "Use fewer tokens."
        )
        work = 2.0 * squares * (system.k_GRD.shape[1] + system.v_GSD.shape[1])
        if work > MOST_WORK:
            raise BadValue(
                f"{count:,} tokens with {system.heads} heads take {work:.0e} operations for each of thousands of "
                f"evaluations of the field; expected at most {MOST_WORK:.0e}. Use fewer tokens."
            )
        self.system, self.count = system, count
        self._groups = len(system.k_GRD)
        self._repeat = system.heads // self._groups
        self._lift = lift
        read = _sum(base, position)  # what the logits read beyond the state
        kept = read if reinject else base  # what the values read
        self._base, self._read, self._kept = base, read, kept
        self._turns = None if system.rotary is None else _turns(system.rotary, count)
        order = self._order = None if self._turns is None else self._turns.order
        q_HRD = system.q_HRD
        if q_HRD is None and (order is not None or lift is not None):
            q_HRD = np.eye(system.width)[None]
        self._q, self._q_shift = _maps(q_HRD, order, lift, read)
        self._k, self._k_shift = _maps(system.k_GRD, order, lift, read)
        self._v, self._v_shift = _maps(system.v_GSD, None, lift, kept)
        self._q_bias = _flat(system.q_bias_HR, order)
        self._k_bias = _flat(system.k_bias_GR, order)
        self._v_bias = _flat(system.v_bias_GS, None)
        o = system.o_HDS
        self._o = None if o is None else np.ascontiguousarray(o.transpose(0, 2, 1).reshape(-1, o.shape[1]))
        self._fixed = _mask(system, count)

    def __call__(self, state: Array) -> Array:
        """dx/dt for every token (n, M)."""
        seen, unit, factor_N1 = self._seen(state)
        weights_HNN, power = self._logits(seen, unit, factor_N1)
        _below_largest(weights_HNN, power)
        np.exp(weights_HNN, out=weights_HNN)
        total_HN1 = weights_HNN.sum(axis=2, keepdims=True)
        v_NS = self._project(seen, self._v, self._v_shift, self._v_bias, factor_N1, unit)
        v_GNS = v_NS.reshape(self.count, self._groups, -1).transpose(1, 0, 2)
        mixed_HNS = self._by_group(weights_HNN) @ v_GNS[:, None]
        mixed_HNS = mixed_HNS.reshape(len(weights_HNN), self.count, -1)
        mixed_HNS /= total_HN1
        if self._o is None:
            out = mixed_HNS[0]
        else:
            out = mixed_HNS.transpose(1, 0, 2).reshape(self.count, -1) @ self._o
        if unit != 1.0 and factor_N1 is None:
            out = out * unit
        if self.system.o_bias_D is not None:
            out = out + self.system.o_bias_D
        return out if self.system.output is None else self.system.output(out)

    def attention(self, state: Array) -> Array:
        """The attention matrices (H, n, n) at a state."""
        weights_HNN, power = self._logits(*self._seen(state))
        _below_largest(weights_HNN, power)
        np.exp(weights_HNN, out=weights_HNN)
        weights_HNN /= weights_HNN.sum(axis=2, keepdims=True)
        return weights_HNN

    def log_energy(self, state: Array) -> float:
        """log E with E = sum of e^{l_ij} over heads and visible pairs: the Lyapunov function of T3b and T4b."""
        return self.entropy_and_energy(state)[1]

    def entropy_and_energy(self, state: Array) -> tuple[float, float]:
        """The mean entropy of attention over tokens and heads, and log E.

        With z_ij the logits less the largest of their row and Z_i = sum_j e^{z_ij},

            -sum_j P_ij log P_ij = log Z_i - sum_j e^{z_ij} z_ij / Z_i.
        """
        below_HNN, power = self._logits(*self._seen(state))
        top_HN1 = _below_largest(below_HNN, power)
        weights_HNN = np.exp(below_HNN)
        total_HN = weights_HNN.sum(axis=2)
        np.maximum(below_HNN, NO_WEIGHT, out=below_HNN)  # hidden tokens are at -inf, and 0 times that is not a number
        entropy_HN = np.log(total_HN) - np.einsum("hij,hij->hi", weights_HNN, below_HNN) / total_HN
        top_HN = top_HN1[..., 0]
        top = np.float64(top_HN.max())
        with np.errstate(over="ignore"):
            rest = np.log((np.exp((top_HN - top) * power) * total_HN).sum())
            return float(entropy_HN.mean()), float(np.clip(top * power + rest, -_LARGEST, _LARGEST))

    def tokens(self, state: Array) -> Array:
        """The tokens x = lift s + base (n, D) at a state; the base, not the position, belongs to them."""
        return self._lifted(state, self._base)

    def beta(self) -> float:
        """max_i log sum_j e^{b_ij - b_ii} over visible j, which sets the sizes in T8: log n without a bias."""
        if self._fixed is None:
            return float(np.log(self.count))
        own_HN1 = np.diagonal(self._fixed, axis1=1, axis2=2)[:, :, None]
        return float(np.log(np.exp(self._fixed - own_HN1).sum(axis=2)).max())

    # ---------------------------------------------------------------- inside
    def _lifted(self, state: Array, shift: Array | None) -> Array:
        tokens = state if self._lift is None else state @ self._lift.T
        return tokens if shift is None else tokens + shift

    def _by_group(self, array_HNM: Array) -> Array:
        return array_HNM.reshape(self._groups, self._repeat, *array_HNM.shape[1:])

    def _seen(self, state: Array) -> tuple[Array, float, Array | None]:
        """The state divided by its unit (1 for tokens of ordinary size), the unit, and the norm's factors."""
        size = max(float(state.max()), -float(state.min()))
        unit = size if size > HUGE else 1.0
        if unit != 1.0:
            state = state / unit
        return state, unit, self._factor(state, unit)

    def _logits(self, state: Array, unit: float, factor_N1: Array | None) -> tuple[Array, float]:
        """Logits divided by `power`, which is 1 for tokens of ordinary size."""
        system = self.system
        q = self._project(state, self._q, self._q_shift, self._q_bias, factor_N1, unit)
        k = self._project(state, self._k, self._k_shift, self._k_bias, factor_N1, unit)
        power = 1.0 if factor_N1 is not None or system.q_norm is not None else min(unit, 1e150) ** 2
        q_HNR = q.reshape(self.count, system.heads, -1).transpose(1, 0, 2)
        k_GNR = k.reshape(self.count, self._groups, -1).transpose(1, 0, 2)
        q_HNR = _normed(system.q_norm, q_HNR, system.qk_norm_over, self._order, unit)
        k_GNR = _normed(system.k_norm, k_GNR, system.qk_norm_over, self._order, unit)
        if self._turns is not None:
            q_HNR = _turn(q_HNR, *self._turns.query, system.turning)
            k_GNR = _turn(k_GNR, *self._turns.key, None if system.turning is None else system.turning // self._repeat)
        logits_HNN = self._by_group(q_HNR) @ k_GNR[:, None].swapaxes(2, 3)
        logits_HNN = logits_HNN.reshape(system.heads, self.count, self.count)
        if system.scale != 1.0:
            logits_HNN *= system.scale
        if system.diagonal:
            read = self._lifted(state, None if self._read is None else self._read / unit)
            read = read if factor_N1 is None else read * factor_N1
            size = 1.0 if factor_N1 is not None else min(unit, 1e150) ** 2 / power
            logits_HNN += (system.diagonal * size) * (read @ read.T)
        if system.softcap is not None:
            with np.errstate(over="ignore"):
                logits_HNN = system.softcap * np.tanh(logits_HNN * (power / system.softcap))
            power = 1.0
        if self._fixed is not None:
            logits_HNN += self._fixed if power == 1.0 else self._fixed / power
        return logits_HNN, power

    def _factor(self, state: Array, unit: float) -> Array | None:
        """The norm's factor of each token, times `unit`."""
        spec = self.system.factor
        if spec is None:
            return None
        x = self._lifted(state, None if self._kept is None else self._kept / unit)
        if spec.kind == "layer":
            x = x - x.mean(axis=1, keepdims=True)
        return 1 / np.sqrt(np.einsum("nd,nd->n", x, x) / x.shape[1] + spec.eps / unit / unit)[:, None]

    def _project(
        self,
        state: Array,
        matrix: Array | None,
        shift: Array | None,
        bias: Array | None,
        factor_N1: Array | None,
        unit: float,
    ) -> Array:
        y = state if matrix is None else state @ matrix
        if shift is not None:
            y = y + (shift if unit == 1.0 else shift / unit)
        if factor_N1 is not None:
            return y * factor_N1 if bias is None else y * factor_N1 + bias
        return y if bias is None else y + (bias if unit == 1.0 else bias / unit)


def _below_largest(logits_HNN: Array, power: float) -> Array:
    """Take the largest logit off each row, in place, so that no exponential overflows; gives these largest logits."""
    top_HN1 = logits_HNN.max(axis=2, keepdims=True)
    logits_HNN -= top_HN1
    if power != 1.0:
        with np.errstate(over="ignore"):
            logits_HNN *= power
    return top_HN1


@dataclass(frozen=True, eq=False)
class _Turns:
    """An order of channels (all firsts, all seconds, the rest), and (cosines, sines) for queries and keys."""

    order: NDArray[np.intp]
    query: tuple[Array, Array]
    key: tuple[Array, Array]


def _turn(vectors_HNR: Array, cos_NF: Array, sin_NF: Array, turning: int | None) -> Array:
    """Turn the pairs (channel f, channel F + f) of the first `turning` heads (None: all)."""
    pairs = cos_NF.shape[1]
    a, b = vectors_HNR[..., :pairs], vectors_HNR[..., pairs : 2 * pairs]
    turned = np.empty(vectors_HNR.shape)
    np.multiply(a, cos_NF, out=turned[..., :pairs])
    turned[..., :pairs] -= b * sin_NF
    np.multiply(a, sin_NF, out=turned[..., pairs : 2 * pairs])
    turned[..., pairs : 2 * pairs] += b * cos_NF
    turned[..., 2 * pairs :] = vectors_HNR[..., 2 * pairs :]
    if turning is not None:
        turned[turning:] = vectors_HNR[turning:]
    return turned


def _turns(rotary: Rotary, count: int) -> _Turns:
    """The rotation as tables, read off turned unit vectors.

    Logits do not change when the channels of queries and keys are reordered alike; this order makes turning cheap.
    """
    first_F, second_F = rotary.pairs_F2[:, 0], rotary.pairs_F2[:, 1]
    rest = np.setdiff1d(np.arange(rotary.head_dim), rotary.pairs_F2.ravel())
    unit_NR = np.zeros((count, rotary.head_dim))
    unit_NR[:, first_F] = 1.0
    at_N = np.arange(count)
    q_NR = rotary.rotate(unit_NR, at_N, side="query", context=count)
    k_NR = rotary.rotate(unit_NR, at_N, side="key", context=count)
    order = np.concatenate([first_F, second_F, rest]).astype(np.intp)
    return _Turns(order, (q_NR[:, first_F], q_NR[:, second_F]), (k_NR[:, first_F], k_NR[:, second_F]))


def _maps(
    weight_HRD: Array | None, order: NDArray[np.intp] | None, lift: Array | None, shift_ND: Array | None
) -> tuple[Array | None, Array | None]:
    """The matrix (M, H R) that acts on states in rows, and what a fixed part of the tokens adds (n, H R)."""
    if weight_HRD is None:
        return None, shift_ND
    if order is not None:
        weight_HRD = weight_HRD[:, order]
    flat_CD = weight_HRD.reshape(-1, weight_HRD.shape[2])
    shift = None if shift_ND is None else shift_ND @ flat_CD.T
    return np.ascontiguousarray((flat_CD if lift is None else flat_CD @ lift).T), shift


def _flat(bias_HR: Array | None, order: NDArray[np.intp] | None) -> Array | None:
    if bias_HR is None:
        return None
    return (bias_HR if order is None else bias_HR[:, order]).ravel()


def _sum(first: Array | None, second: Array | None) -> Array | None:
    if first is None or second is None:
        return first if second is None else second
    return first + second


def _mask(system: System, count: int) -> Array | None:
    """What is added to the logits whatever the tokens are: the encoding's bias, and -inf where a token cannot see."""
    at_N = np.arange(count)
    table: Array | None = None
    if system.bias is not None:
        table = system.bias.table(at_N, at_N)
        heads = list(range(system.heads)) if system.bias_heads is None else list(system.bias_heads)
        table = table[heads].astype(np.float64)
    offset_NN = at_N[:, None] - at_N
    hidden_NN = np.zeros(offset_NN.shape, dtype=bool)
    if system.causal:
        hidden_NN |= offset_NN < 0
    if system.reach is not None:
        hidden_NN |= np.abs(offset_NN) > system.reach
    if not hidden_NN.any():
        return table
    table = np.zeros((1, count, count)) if table is None else table
    return np.where(hidden_NN, -np.inf, table)


def _normed(norm: Norm | None, y_HNR: Array, over: str, order: NDArray[np.intp] | None, unit: float) -> Array:
    """q/k norm per head, or over all heads of the layer together."""
    if norm is None:
        return y_HNR
    plain = Norm(norm.kind, norm.eps / unit / unit)
    if over == "head":
        y_HNR = plain(y_HNR)
    else:
        heads, count, wide = y_HNR.shape
        flat = plain(y_HNR.transpose(1, 0, 2).reshape(count, heads * wide))
        y_HNR = flat.reshape(count, heads, wide).transpose(1, 0, 2)
    for part, add in ((norm.gain, False), (norm.bias, True)):
        if part is not None:
            part_HR = np.atleast_2d(part)
            part_H1R = (part_HR if order is None else part_HR[:, order])[:, None]
            y_HNR = y_HNR + part_H1R if add else y_HNR * part_H1R
    return y_HNR
