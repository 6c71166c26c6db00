"""Encodings that turn channel pairs of queries and keys: RoPE and its scalings, xPos, and MLA's rotary part.

The pair (a, b) of a vector at position i turns by w_f i, so a logit sees position only through
e^{i w_f (i - j)}. Two layouts of pairs are in use, and mistaking one for the other destroys a model:

* `half`         pair f is (f, f + d/2): Llama, Qwen, GPT-NeoX as Hugging Face stores them
* `interleaved`  pair f is (2f, 2f + 1): GPT-J, the RoPE paper, DeepSeek, GGUF files of Llama
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding, did_you_mean
from toposcope.encodings.record import Array, Encoding, Pairing, Rotary
from toposcope.encodings.scalings import Scaled, Scaling, scaled
from toposcope.encodings.words import short, stated

_PAPERS = {
    "linear": "chen2023pi",
    "dynamic": "bloc972023ntk",
    "ntk": "bloc972023ntk",
    "yarn": "peng2024yarn",
    "longrope": "ding2024longrope",
    "llama3": "dubey2024llama3",
}


def channel_pairs(rotary_dim: int, pairing: Pairing, channel_offset: int = 0) -> NDArray[np.intp]:
    """The channels (first, second) of each pair, shape (rotary_dim / 2, 2)."""
    if pairing not in get_args(Pairing):
        raise BadEncoding(f"'{pairing}' is no pairing. {did_you_mean(str(pairing), get_args(Pairing))}")
    number_F = np.arange(rotary_dim // 2, dtype=np.intp)
    if pairing == "half":
        pairs_F2 = np.stack([number_F, number_F + rotary_dim // 2], axis=1)
    else:
        pairs_F2 = np.stack([2 * number_F, 2 * number_F + 1], axis=1)
    return pairs_F2 + channel_offset


def rope(
    head_dim: int,
    *,
    base: float = 10000.0,
    pairing: Pairing = "half",
    rotary_dim: int | None = None,
    partial: float | None = None,
    channel_offset: int = 0,
    turning_heads: int | None = None,
    divisors: ArrayLike | None = None,
    frequency_dim: int | None = None,
    scaling: str = "default",
    factor: float | None = None,
    original_context: int | None = None,
    context: int | None = None,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    beta_fast: float | None = None,
    beta_slow: float | None = None,
    truncate: bool = True,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    short_factor: Sequence[float] | None = None,
    long_factor: Sequence[float] | None = None,
) -> Encoding:
    """Rotary position embedding: pair f of every query and key turns by w_f = base^(-2f/d) radians per token.

    The first `rotary_dim` channels after `channel_offset` turn (or the fraction `partial` of the head; by default
    all), d being their number. `divisors` divides the frequencies pair by pair (GGUF stores such a list);
    `frequency_dim` is d in the exponent where it is not `rotary_dim`. `turning_heads` lets only the first so many
    heads turn. The remaining parameters belong to the scalings: see `toposcope.encodings.scalings`. For the
    proportional one, `rotary_dim` is the block that d counts and `partial` the fraction of it that turns.
    """
    _check_base(base)
    if scaling == "proportional":  # exponents over the whole block, of which only the first pairs turn
        width = rotary_dim = _rotary_width(head_dim, rotary_dim, None, channel_offset)
        turning = int((1.0 if partial is None else _fraction(partial)) * width // 2)
        if not turning:
            raise BadEncoding(f"the fraction {partial} of {width} channels is less than one pair.")
    else:
        rotary_dim = _rotary_width(head_dim, rotary_dim, partial, channel_offset)
        width = rotary_dim if frequency_dim is None else frequency_dim
        turning = rotary_dim // 2
    stretched = scaled(
        width,
        base,
        Scaling(
            kind=scaling,
            factor=factor,
            original_context=original_context,
            context=context,
            attention_factor=attention_factor,
            mscale=mscale,
            mscale_all_dim=mscale_all_dim,
            beta_fast=beta_fast or 32.0,
            beta_slow=beta_slow or 1.0,
            truncate=truncate,
            low_freq_factor=low_freq_factor,
            high_freq_factor=high_freq_factor,
            short_factor=None if short_factor is None else tuple(short_factor),
            long_factor=None if long_factor is None else tuple(long_factor),
        ),
    )
    divisors_F = _checked_divisors(divisors, turning)
    rotary = Rotary(
        head_dim=head_dim,
        pairs_F2=channel_pairs(rotary_dim, pairing, channel_offset)[:turning],
        frequencies_at=_cut(stretched, turning, divisors_F),
        pairing=pairing,
        attention_factor=stretched.attention_factor,
        turning_heads=turning_heads,
    )
    label = f" ({stretched.label})" if stretched.label else ""
    if divisors_F is not None:
        label += " with frequency divisors"
    heads = "" if turning_heads is None else f", first {turning_heads} heads"
    paper = _PAPERS.get(scaling)
    return Encoding(
        name="rope",
        title=f"RoPE{label}, base {short(base)}, {_pairs_in_words(rotary)}{heads}",
        parameters=stated(
            head_dim=head_dim,
            base=base,
            pairing=pairing,
            rotary_dim=rotary_dim,
            partial=partial if scaling == "proportional" else None,
            channel_offset=channel_offset or None,
            turning_heads=turning_heads,
            divisors=None if divisors_F is None else divisors_F.tolist(),
            frequency_dim=frequency_dim,
            scaling=scaling,
            factor=factor,
            original_context=original_context if scaling != "default" else None,
            context=context if scaling != "default" else None,
            attention_factor=stretched.attention_factor,
            mscale=mscale,
            mscale_all_dim=mscale_all_dim,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            truncate=truncate if scaling == "yarn" else None,
            low_freq_factor=low_freq_factor if scaling == "llama3" else None,
            high_freq_factor=high_freq_factor if scaling == "llama3" else None,
            short_factor=None if short_factor is None else [float(x) for x in short_factor],
            long_factor=None if long_factor is None else [float(x) for x in long_factor],
        ),
        rotary=rotary,
        citations=("su2021roformer",) if paper is None else ("su2021roformer", paper),
    )


def xpos(
    head_dim: int,
    *,
    base: float = 10000.0,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    pairing: Pairing = "interleaved",
    rotary_dim: int | None = None,
    channel_offset: int = 0,
) -> Encoding:
    """Rotation with decay: pair f of the logit is multiplied by e^{(i w_f - g_f)(i - j)}.

    g_f = -ln(zeta_f) / scale_base with zeta_f = (2f/d + gamma) / (1 + gamma): fast pairs fade sooner than slow
    ones, and a logit falls by zeta_f every `scale_base` tokens. Meant for causal attention: towards the future
    (i < j) the same factor grows.
    """
    _check_base(base)
    if not (math.isfinite(scale_base) and scale_base > 0):
        raise BadEncoding(f"scale_base must be positive, got {scale_base}.")
    if not (math.isfinite(gamma) and gamma > 0):
        raise BadEncoding(f"gamma must be positive, got {gamma}: at 0 the fastest pair would vanish at once.")
    rotary_dim = _rotary_width(head_dim, rotary_dim, None, channel_offset)
    stretched = scaled(rotary_dim, base, Scaling())
    zeta_F = (np.arange(0, rotary_dim, 2) / rotary_dim + gamma) / (1 + gamma)
    rotary = Rotary(
        head_dim=head_dim,
        pairs_F2=channel_pairs(rotary_dim, pairing, channel_offset),
        frequencies_at=_cut(stretched, rotary_dim // 2, None),
        pairing=pairing,
        decay_F=-np.log(zeta_F) / scale_base,
    )
    return Encoding(
        name="xpos",
        title=f"xPos, base {short(base)}, decay over {short(scale_base)} tokens, {_pairs_in_words(rotary)}",
        parameters=stated(
            head_dim=head_dim,
            base=base,
            scale_base=scale_base,
            gamma=gamma,
            pairing=pairing,
            rotary_dim=rotary_dim,
            channel_offset=channel_offset or None,
        ),
        rotary=rotary,
        citations=("sun2023xpos",),
    )


def mla(
    nope_dim: int, rope_dim: int, *, base: float = 10000.0, pairing: Pairing = "interleaved", **scaling: object
) -> Encoding:
    """Multi-head latent attention's decoupled rotation: `nope_dim` content channels, then `rope_dim` that turn.

    The last `rope_dim` channels are a RoPE block of their own (exponents 2f / rope_dim); content channels have
    w = 0. `scaling` takes the scaling parameters of `rope`.
    """
    if nope_dim < 0:
        raise BadEncoding(f"nope_dim must not be negative, got {nope_dim}.")
    turned = rope(
        nope_dim + rope_dim,
        base=base,
        pairing=pairing,
        rotary_dim=rope_dim,
        channel_offset=nope_dim,
        **scaling,  # type: ignore[arg-type]
    )
    return Encoding(
        name="mla",
        title=turned.title.replace("RoPE", "MLA, decoupled RoPE", 1),
        parameters=stated(nope_dim=nope_dim, rope_dim=rope_dim, **dict(turned.parameters)),
        rotary=turned.rotary,
        citations=("deepseek2024v2", *turned.citations),
    )


def _cut(stretched: Scaled, turning: int, divisors_F: Array | None) -> Callable[[int | None], Array]:
    """The frequencies of the pairs that turn, as a new array each time: no caller can change another's encoding."""

    def frequencies_at(context: int | None) -> Array:
        frequencies_F = stretched.frequencies_at(context)[:turning]
        return frequencies_F.copy() if divisors_F is None else frequencies_F / divisors_F

    return frequencies_at


def _pairs_in_words(rotary: Rotary) -> str:
    layout = "half-split" if rotary.pairing == "half" else "interleaved"
    return f"{layout}, {rotary.channels} of {rotary.head_dim} channels"


def _check_base(base: float) -> None:
    if not (math.isfinite(base) and base > 1):
        raise BadEncoding(f"the rotary base must be greater than 1, got {base}. Usual values: 10000 to 10000000.")


def _fraction(partial: float) -> float:
    if not 0 < partial <= 1:
        raise BadEncoding(f"the rotary fraction must be in (0, 1], got {partial}.")
    return partial


def _rotary_width(head_dim: int, rotary_dim: int | None, partial: float | None, channel_offset: int) -> int:
    if rotary_dim is not None and partial is not None:
        raise BadEncoding("give rotary_dim or partial, not both.")
    if head_dim < 1:
        raise BadEncoding(f"the head width must be positive, got {head_dim}.")
    if partial is not None:
        rotary_dim = int(head_dim * _fraction(partial))
    elif rotary_dim is None:
        rotary_dim = head_dim - channel_offset
    if rotary_dim < 2 or rotary_dim % 2:
        raise BadEncoding(
            f"{rotary_dim} rotary channels cannot form pairs: their number must be even and at least 2. "
            f"Choose another width, or rotate only part of the {head_dim} channels of a head."
        )
    if channel_offset < 0 or channel_offset + rotary_dim > head_dim:
        raise BadEncoding(
            f"{rotary_dim} rotary channels from channel {channel_offset} on do not fit a head of {head_dim} channels."
        )
    return rotary_dim


def _checked_divisors(divisors: ArrayLike | None, pairs: int) -> Array | None:
    if divisors is None:
        return None
    divisors_F = np.asarray(divisors, dtype=np.float64).copy()
    if divisors_F.shape != (pairs,):
        raise BadEncoding(f"{divisors_F.size} frequency divisors given for {pairs} channel pairs; give one per pair.")
    if not (np.isfinite(divisors_F).all() and (divisors_F > 0).all()):
        raise BadEncoding("frequency divisors must be positive and finite.")
    return divisors_F
