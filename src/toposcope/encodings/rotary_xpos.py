"""xPos: RoPE with a decay, slower for slower pairs."""

from __future__ import annotations

import math

import numpy as np

from toposcope.core.errors import BadEncoding
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Encoding, Pairing, Rotary, short, stated
from toposcope.encodings.registry import Kind, Paper
from toposcope.encodings.rotary import (
    BASE,
    PAIRS,
    channel_pairs,
    check_base,
    cut_frequencies,
    pairs_in_words,
    rotary_width,
)
from toposcope.encodings.scalings import Scaling, scaled


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
    check_base(base)
    if not (math.isfinite(scale_base) and scale_base > 0):
        raise BadEncoding(f"scale_base must be positive, got {scale_base}.")
    if not (math.isfinite(gamma) and gamma > 0):
        raise BadEncoding(f"gamma must be positive, got {gamma}: at 0 the fastest pair would vanish at once.")
    rotary_dim = rotary_width(head_dim, rotary_dim, None, channel_offset)
    stretched = scaled(rotary_dim, base, Scaling())
    zeta_F = (np.arange(0, rotary_dim, 2) / rotary_dim + gamma) / (1 + gamma)
    rotary = Rotary(
        head_dim=head_dim,
        pairs_F2=channel_pairs(rotary_dim, pairing, channel_offset),
        frequencies_at=cut_frequencies(stretched, rotary_dim // 2, None),
        pairing=pairing,
        decay_F=-np.log(zeta_F) / scale_base,
    )
    return Encoding(
        name="xpos",
        title=f"xPos, base {short(base)}, decay over {short(scale_base)} tokens, {pairs_in_words(rotary)}",
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


PAPERS = {
    "sun2023xpos": Paper("Sun et al.", "A Length-Extrapolatable Transformer", "ACL", 2023, "2212.10554"),
}
KINDS = (
    Kind(
        "xpos",
        "RoPE with a decay, slower for slower pairs",
        "rotary",
        lambda sizes, given: xpos(sizes.head_dim, **given),
        (
            BASE,
            Parameter.number("scale_base", 512.0, "tokens over which a pair decays by zeta", above=0),
            Parameter.number("gamma", 0.4, "zeta = (2f/d + gamma) / (1 + gamma)", above=0),
            Parameter.choice("pairing", "interleaved", PAIRS, "half", "interleaved"),
            Parameter.whole("rotary_dim", None, "channels that turn; default: all", least=2),
            Parameter.whole("channel_offset", 0, "the first channel that turns", least=0),
        ),
        citations=("sun2023xpos",),
    ),
)
