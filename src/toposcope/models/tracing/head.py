"""What is measured of one head on one sequence: contraction, Toeplitz share, split, kernel (section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding
from toposcope.models.tracing.logits import HeadContent, HeadLogits, bias_by_offset
from toposcope.spectra.anova import Shares, decompose
from toposcope.spectra.head_kernel import HeadKernel, kernel
from toposcope.spectra.rotary_kernel import kernel_spectrum
from toposcope.spectra.toeplitz import diagonal_means

Array = NDArray[np.float64]
TOKENS, POSITIONS = 16, 32  # the factorial design
SAMPLED = 256  # positions at which the Gram blocks are formed
OFFSETS = 128  # how far the kernel is looked at for its peak, as in `scan`
_EPS = float(np.finfo(np.float64).eps)


def in_input_only(encoding: Encoding) -> bool:
    """Whether position is added to the input and acts nowhere else."""
    return encoding.mechanisms == ("input",)


def toeplitz_shares(head: HeadLogits, square: float) -> tuple[float | None, float | None]:
    """How much of the visible logits depends on i - j alone (3.5), raw and with their mean removed.

    `square` is their sum of squares. None for biases that depend on both positions, and where nothing is left.
    """
    if head.bias is not None and not head.bias.toeplitz:
        return None, None
    least, most = head.offsets
    length = head.length
    at_T = np.arange(least, most + 1)
    means_T = diagonal_means(head.q_NR, head.k_NR)[at_T + length - 1]
    bias_T = bias_by_offset(head)
    if bias_T is not None:
        means_T = means_T + bias_T[at_T + length - 1]
    weight_T = length - np.abs(at_T)
    on_diagonals = float((weight_T * means_T**2).sum())
    mean = float((weight_T * means_T).sum() / weight_T.sum())
    raw = min(on_diagonals / square, 1.0) if square > 0 else None
    left = square - float(weight_T.sum()) * mean**2
    spread_T = means_T - mean
    centred = min(float((weight_T * spread_T**2).sum()) / left, 1.0) if left > 64 * _EPS * square else None
    return raw, centred


def design(of: HeadContent, seed: int = 0) -> Shares:
    """Content, position, coupling (3.6): 16 tokens of the sequence, each put at 32 consecutive positions.

    Token 0 is not drawn: where it serves as a sink its key is unlike all others. A window narrower than 32 leaves as
    many positions as see each other.
    """
    ordinary = np.arange(1 if of.length > 2 else 0, of.length)
    drawn = np.random.default_rng(seed).choice(ordinary, min(TOKENS, len(ordinary)), replace=False)
    positions = min(POSITIONS, of.length, POSITIONS if of.reach is None else of.reach + 1)
    return decompose(
        of.q_NR[drawn],
        of.k_NR[drawn],
        of.encoding,
        np.arange(positions),
        causal=of.causal,
        scale=of.scale,
        head=of.head,
        direct_limit=0,  # by second moments: the Toeplitz part of the coupling is not asked for
    )


@dataclass(frozen=True)
class GramShares:
    """Parts of the logits' square for positions added to the input: ||G_cc||^2, ||G_cp + G_pc||^2, ||G_pp||^2, rest.

    c are queries and keys without their position mean p (over sequences, less the mean over all). Each part over the
    square of the whole, with what depends on the query only taken off (the softmax gauge); `cross`, the products
    between parts, is what is missing to 1 and may be negative.
    """

    content: float
    mixed: float
    position: float
    cross: float


def gram_shares(
    q_NR: Array, k_NR: Array, of_q_NR: Array, of_k_NR: Array, *, causal: bool, reach: int | None
) -> GramShares | None:
    """The shares at up to 256 evenly spaced positions; `of_q_NR` and `of_k_NR` are the position means."""
    length = len(q_NR)
    at = np.unique(np.linspace(0, length - 1, min(length, SAMPLED)).astype(int))
    offset = at[:, None] - at
    visible = np.ones(offset.shape, dtype=bool) if not causal else offset >= 0
    if reach is not None:
        visible &= np.abs(offset) <= reach
    parts = [(q_NR - of_q_NR)[at], of_q_NR[at], (k_NR - of_k_NR)[at], of_k_NR[at]]
    query_c, query_p, key_c, key_p = parts

    def gauged(block: Array) -> Array:
        means = np.where(visible, block, 0.0).sum(axis=1) / visible.sum(axis=1)
        return np.asarray(np.where(visible, block - means[:, None], 0.0))

    blocks = [
        gauged(query_c @ key_c.T),
        gauged(query_c @ key_p.T + query_p @ key_c.T),
        gauged(query_p @ key_p.T),
    ]
    total = float((np.sum(blocks, axis=0) ** 2).sum())
    scale = float((q_NR[at] ** 2).sum() * (k_NR[at] ** 2).sum())
    if not total > (64 * _EPS) ** 2 * scale:
        return None
    content, mixed, position = (float((block**2).sum()) / total for block in blocks)
    return GramShares(content, mixed, position, 1 - content - mixed - position)


def mean_kernel(of: HeadContent) -> HeadKernel | None:
    """The head's mean kernel over offsets (3.7); None where the bias has no offsets."""
    if of.encoding.bias is not None and not of.encoding.bias.toeplitz:
        return None
    return kernel(
        of.q_NR,
        of.k_NR,
        of.encoding,
        context=min(OFFSETS, of.length),
        causal=of.causal,
        scale=of.scale,
        head=of.head,
    )


def kernel_contraction(found: HeadKernel, encoding: Encoding, length: int) -> float | None:
    """rho_n = sigma_max(T_n(g)) / (n sum_f a_f) of the rotary kernel at the sequence's length."""
    total = float(found.a_F.sum())
    decays = encoding.rotary is not None and encoding.rotary.decay_F is not None
    if total == 0 or decays:
        return None
    return kernel_spectrum(found.frequencies_F, found.a_F, length, found.phi_F).top / (length * total)
