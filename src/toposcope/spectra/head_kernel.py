"""The mean positional kernel of a head: at which offset its rotation looks, and which frequencies it uses.

Shape suffixes: N queries, M keys, R head width, D model width, F channel pairs, T offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.encodings.record import Encoding, Rotary
from toposcope.spectra.contraction import checked_head
from toposcope.spectra.singular import factors, finite

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class TokenRows:
    """A second moment C = X^T X / T that is kept as the T tokens it is the mean of, drawn from `vocabulary` tokens.

    For wide models this is smaller than C, and Q C K^T = (X Q^T)^T (X K^T) / T is cheaper.
    """

    rows_TD: NDArray[np.floating[Any]]  # in float32 more than precise enough for a mean over drawn tokens
    vocabulary: int

    def __len__(self) -> int:
        """The width of C."""
        return self.rows_TD.shape[1]


@dataclass(frozen=True, eq=False)
class Projected:
    """The rows of Q or K as tokens of a second moment C meet them: Q C K^T is left of the queries, right of the keys.

    `left_RX` is W C and `right_RX` is W, or both are W X^T / sqrt(T) where C is kept as T tokens.
    """

    left_RX: Array
    right_RX: Array

    @property
    def energy_R(self) -> Array:
        """The diagonal of W C W^T."""
        return np.asarray(np.einsum("rx,rx->r", self.left_RX, self.right_RX))


@dataclass(frozen=True, eq=False)
class HeadKernel:
    """What the average logit of a head says about the offset t = i - j (query minus key; t > 0 is the past).

    * `a_F`, `phi_F`: size and phase of every frequency, a_f e^{i phi_f} = mean z_i^f conj(w_j^f); `frequencies_F` in
      radians per token.
    * `g_T` = sum_f a_f cos(w_f t + phi_f) on `offsets_T` (times e^{-g_f t} where the rotation decays): |g| <= sum a_f
      without decay. `bias_T` is the head's bias there, `constant` what the channels that do not turn add.
    * `peak_offset`: the offset where g + bias is largest (of equals the nearest to 0); None where it is flat.
    * `query_energy_F`, `key_energy_F`: mean |z^f|^2 and |w^f|^2, how much of the head each frequency holds.
    """

    frequencies_F: Array
    a_F: Array
    phi_F: Array
    offsets_T: Array
    g_T: Array
    bias_T: Array | None
    constant: float
    peak_offset: int | None
    peak_value: float | None
    query_energy_F: Array
    key_energy_F: Array

    @property
    def total_T(self) -> Array:
        """The whole mean kernel: rotation, bias and the constant."""
        return np.asarray(self.g_T + self.constant + (0.0 if self.bias_T is None else self.bias_T))

    def __str__(self) -> str:
        """Where the kernel peaks, in words: a fact of the kernel, not of what the head attends to."""
        if self.peak_offset is None:
            return "no offset preferred"
        if self.peak_offset == 0:
            return "peaks at offset 0"
        return f"peaks {self.peak_offset} back" if self.peak_offset > 0 else f"peaks {-self.peak_offset} ahead"


def kernel(
    q: ArrayLike,
    k: ArrayLike,
    encoding: Encoding,
    *,
    context: int = 128,
    causal: bool = True,
    scale: float = 1.0,
    head: int = 0,
) -> HeadKernel:
    """The mean positional kernel of given queries (N, R) and keys (M, R), taken before the rotation (metric 3.7).

    a_f e^{i phi_f} = mean_{i,j} z_i^f conj(w_j^f) = mean(z^f) conj(mean(w^f)). Offsets run from 0 to context - 1, and
    to the future as well unless `causal`.
    """
    q_NR, k_MR = factors(q, k)
    return _assemble(
        encoding,
        np.outer(q_NR.mean(axis=0), k_MR.mean(axis=0)),
        (q_NR**2).mean(axis=0),
        (k_MR**2).mean(axis=0),
        context=context,
        causal=causal,
        scale=scale,
        head=head,
    )


def from_mean(
    Q: ArrayLike,
    K: ArrayLike,
    mean: ArrayLike,
    encoding: Encoding,
    *,
    q_bias: ArrayLike | None = None,
    k_bias: ArrayLike | None = None,
    context: int = 128,
    causal: bool = True,
    scale: float = 1.0,
    head: int = 0,
) -> HeadKernel:
    """The kernel between two independent tokens of mean mu, from weights: (Q mu)^f conj((K mu)^f).

    For independent x_i and x_j with mean mu, E[z_i^f conj(w_j^f)] needs the mean only (S5d). Q and K are (R, D) and
    act as q = Q x + q_bias.
    """
    Q_RD, K_RD = _weights(Q, K)
    mean_D = finite("the token mean", mean, axes=1)
    if len(mean_D) != Q_RD.shape[1]:
        raise BadValue(f"a token mean of width {len(mean_D)} given to weights of width {Q_RD.shape[1]}.")
    q_R, k_R = Q_RD @ mean_D, K_RD @ mean_D
    if q_bias is not None:
        q_R = q_R + finite("q_bias", q_bias, axes=1)
    if k_bias is not None:
        k_R = k_R + finite("k_bias", k_bias, axes=1)
    return _assemble(
        encoding, np.outer(q_R, k_R), q_R**2, k_R**2, context=context, causal=causal, scale=scale, head=head
    )


def from_covariance(
    Q: ArrayLike,
    K: ArrayLike,
    covariance: ArrayLike | TokenRows | None,
    encoding: Encoding,
    *,
    context: int = 128,
    causal: bool = True,
    scale: float = 1.0,
    head: int = 0,
) -> HeadKernel:
    """The kernel of a token with its like, from weights: E[z^f conj(w^f)] for x = x' with E[x x^T] = C.

    Re = q1 C k1 + q2 C k2 and Im = q2 C k1 - q1 C k2, with q1, q2 (k1, k2) the two rows of pair f. C is (D, D), or
    (D,) for a diagonal one, the tokens it is the mean of, or None for the identity. An index: it speaks of tokens
    that resemble one another.
    """
    Q_RD, K_RD = _weights(Q, K)
    if covariance is not None and not isinstance(covariance, TokenRows):
        covariance = finite("the covariance", covariance, axes=1 if np.ndim(covariance) == 1 else 2)
    queries = seen_through(covariance, Q_RD)
    keys = queries if K_RD is Q_RD else seen_through(covariance, K_RD)
    return from_seen(queries, keys, encoding, context=context, causal=causal, scale=scale, head=head)


def seen_through(covariance: Array | TokenRows | None, weights_RD: Array) -> Projected:
    """Queries or keys of tokens with this second moment; heads that share keys need theirs once."""
    width = weights_RD.shape[1]
    if isinstance(covariance, TokenRows):
        if len(covariance) != width:
            raise BadValue(f"tokens of width {len(covariance)} given to weights of width {width}.")
        # W C = (X W^T)^T X / T, so with X W^T in place of W nothing else changes
        rows_TD = covariance.rows_TD
        mapped = (rows_TD @ weights_RD.T.astype(rows_TD.dtype)).T.astype(np.float64) / len(rows_TD) ** 0.5
        return Projected(mapped, mapped)
    if covariance is None:
        return Projected(weights_RD, weights_RD)
    C = covariance
    if C.shape not in ((width,), (width, width)):
        raise BadValue(f"a covariance of shape {C.shape} given to weights of width {width}.")
    return Projected(weights_RD * C if C.ndim == 1 else weights_RD @ C, weights_RD)


def from_seen(
    queries: Projected,
    keys: Projected,
    encoding: Encoding,
    *,
    context: int = 128,
    causal: bool = True,
    scale: float = 1.0,
    head: int = 0,
) -> HeadKernel:
    """`from_covariance` of what is made of the weights already."""
    return _assemble(
        encoding,
        queries.left_RX @ keys.right_RX.T,
        queries.energy_R,
        keys.energy_R,
        context=context,
        causal=causal,
        scale=scale,
        head=head,
    )


def frequency_weights(rotary: Rotary, moments_RR: Array) -> Complex:
    """E[z^f conj(w^f)] per pair, from the matrix of moments E[q_r k_s]."""
    first_F, second_F = rotary.pairs_F2.T
    real_F = moments_RR[first_F, first_F] + moments_RR[second_F, second_F]
    imaginary_F = moments_RR[second_F, first_F] - moments_RR[first_F, second_F]
    return np.asarray(real_F + 1j * imaginary_F)


def _weights(Q: ArrayLike, K: ArrayLike) -> tuple[Array, Array]:
    Q_RD, K_RD = finite("Q", Q, axes=2), finite("K", K, axes=2)
    if Q_RD.shape != K_RD.shape:
        raise BadValue(f"Q and K must have one shape (head width, model width), got {Q_RD.shape} and {K_RD.shape}.")
    return Q_RD, K_RD


def _assemble(
    encoding: Encoding,
    moments_RR: Array,
    query_energy_R: Array,
    key_energy_R: Array,
    *,
    context: int,
    causal: bool,
    scale: float,
    head: int,
) -> HeadKernel:
    checked_head(encoding, head)
    if context < 1:
        raise BadValue(f"the context must be at least 1, got {context}.")
    offsets_T = np.arange(0 if causal else -(context - 1), context, dtype=np.float64)
    rotary, width = encoding.rotary, len(moments_RR)
    if rotary is not None and rotary.head_dim != width:
        raise BadValue(f"queries and keys of width {width} given to a rotation of width {rotary.head_dim}.")
    if rotary is None or (rotary.turning_heads is not None and head >= rotary.turning_heads):
        pairs_F2, frequencies_F, weight_F = np.empty((0, 2), np.intp), np.empty(0), np.empty(0, np.complex128)
        wave_FT = np.empty((0, len(offsets_T)), np.complex128)
    else:
        pairs_F2, frequencies_F = rotary.pairs_F2, rotary.frequencies(context)
        weight_F = frequency_weights(rotary, moments_RR) * scale * rotary.attention_factor**2
        decay_F = np.zeros_like(frequencies_F) if rotary.decay_F is None else rotary.decay_F
        wave_FT = np.exp((1j * frequencies_F - decay_F)[:, None] * offsets_T)
    g_T = np.asarray((weight_F @ wave_FT).real)
    bias_T = None if encoding.bias is None else _bias(encoding, head, offsets_T)
    single = np.setdiff1d(np.arange(width), pairs_F2)
    offset, value = _peak(offsets_T, g_T if bias_T is None else g_T + bias_T, float(np.abs(weight_F).sum()))
    first_F, second_F = pairs_F2.T
    return HeadKernel(
        frequencies_F=frequencies_F,
        a_F=np.abs(weight_F),
        phi_F=np.angle(weight_F),
        offsets_T=offsets_T,
        g_T=g_T,
        bias_T=bias_T,
        constant=float(np.diag(moments_RR)[single].sum() * scale),
        peak_offset=offset,
        peak_value=value,
        query_energy_F=query_energy_R[first_F] + query_energy_R[second_F],
        key_energy_F=key_energy_R[first_F] + key_energy_R[second_F],
    )


def _bias(encoding: Encoding, head: int, offsets_T: Array) -> Array:
    if encoding.bias is None or not encoding.bias.toeplitz:
        raise BadValue(f"the bias of '{encoding.name}' depends on both positions: it has no kernel over offsets.")
    return encoding.bias.by_offset(offsets_T)[head]


def _peak(offsets_T: Array, kernel_T: Array, size: float) -> tuple[int | None, float | None]:
    top, spread = float(kernel_T.max()), float(np.ptp(kernel_T))
    slack = 1e-12 * max(size, float(np.abs(kernel_T).max()))
    if spread <= slack:
        return None, None
    best = offsets_T[kernel_T >= top - slack]
    return int(best[np.argmin(np.abs(best))]), top
