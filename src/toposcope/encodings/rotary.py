"""RoPE and its scalings, on whole heads or a part of them: channel pairs of queries and keys turn with position.

The pair (a, b) of a vector at position i turns by w_f i, so a logit sees position only through
e^{i w_f (i - j)}. Two layouts of pairs are in use, and mistaking one for the other destroys a model:

* `half`         pair f is (f, f + d/2): Llama, Qwen, GPT-NeoX as Hugging Face stores them
* `interleaved`  pair f is (2f, 2f + 1): GPT-J, the RoPE paper, DeepSeek, GGUF files of Llama
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding, did_you_mean
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import Array, Encoding, Pairing, Rotary, short, stated
from toposcope.encodings.registry import Given, Kind, Paper, Sizes
from toposcope.encodings.scalings import READS, SCALING_PAPERS, STRETCHED_FROM_ORIGINAL, Scaled, Scaling, scaled


def channel_pairs(rotary_dim: int, pairing: Pairing, channel_offset: int = 0) -> NDArray[np.intp]:
    """The channels (first, second) of each pair, shape (rotary_dim / 2, 2)."""
    if pairing not in get_args(Pairing):
        raise BadEncoding(f"unknown pairing '{pairing}'. {did_you_mean(str(pairing), get_args(Pairing))}")
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
    check_base(base)
    if scaling == "proportional":  # exponents over the whole block, of which only the first pairs turn
        width = rotary_dim = rotary_width(head_dim, rotary_dim, None, channel_offset)
        turning = int((1.0 if partial is None else _fraction(partial)) * width // 2)
        if not turning:
            raise BadEncoding(f"the fraction {partial} of {width} channels is less than one pair.")
    else:
        rotary_dim = rotary_width(head_dim, rotary_dim, partial, channel_offset)
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
        frequencies_at=cut_frequencies(stretched, turning, divisors_F),
        pairing=pairing,
        attention_factor=stretched.attention_factor,
        turning_heads=turning_heads,
    )
    label = f" ({stretched.label})" if stretched.label else ""
    if divisors_F is not None:
        label += " with frequency divisors"
    heads = "" if turning_heads is None else f", in the first {turning_heads} heads"
    paper = SCALING_PAPERS.get(scaling)
    return Encoding(
        name="rope",
        title=f"RoPE{label}, base {short(base)}, {pairs_in_words(rotary)}{heads}",
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


def cut_frequencies(stretched: Scaled, turning: int, divisors_F: Array | None) -> Callable[[int | None], Array]:
    """The frequencies of the pairs that turn, as a new array each time: no caller can change another's encoding."""

    def frequencies_at(context: int | None) -> Array:
        frequencies_F = stretched.frequencies_at(context)[:turning]
        return frequencies_F.copy() if divisors_F is None else frequencies_F / divisors_F

    return frequencies_at


def pairs_in_words(rotary: Rotary) -> str:
    """Which channels of a head turn, and with which other: all 64 channels turn, i with i+32"""
    turning, of = rotary.channels, rotary.head_dim
    begin, end = int(rotary.pairs_F2.min()), int(rotary.pairs_F2.max()) + 1
    if turning == of:
        which = f"all {of}"
    elif end - begin == turning and (begin == 0 or end == of):
        which = f"the {'first' if begin == 0 else 'last'} {turning} of {of}"
    else:
        which = f"{turning} of {of}"
    first, second = map(int, rotary.pairs_F2[0])
    neighbours = "2i with 2i+1" if first % 2 == 0 else "2i+1 with 2i+2"
    return f"{which} channels turn, {f'i with i+{second - first}' if rotary.pairing == 'half' else neighbours}"


def check_base(base: float) -> None:
    if not (math.isfinite(base) and base > 1):
        raise BadEncoding(f"the rotary base must be greater than 1, got {base}. Usual values: 10000 to 10000000.")


def _fraction(partial: float) -> float:
    if not 0 < partial <= 1:
        raise BadEncoding(f"the rotary fraction must be in (0, 1], got {partial}.")
    return partial


def rotary_width(head_dim: int, rotary_dim: int | None, partial: float | None, channel_offset: int) -> int:
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


BASE = Parameter.number("base", 10000.0, "w_f = base^(-2f/d): a larger base turns slow pairs slower", above=1)
PAIRS = "half: channel f with f + d/2; interleaved: 2f with 2f + 1"
SCALING = (
    Parameter.choice("scaling", "default", "how frequencies are stretched", *READS),
    Parameter.number("factor", None, "stretch; yarn and longrope: default context / original_context", least=1),
    Parameter.whole("original_context", None, "length before stretching; default: the model's context"),
    Parameter.number(
        "attention_factor", None, "yarn, longrope: factor on rotated vectors; default: the paper's", above=0
    ),
    Parameter.number("mscale", None, "yarn: weight of ln(factor) in the attention factor", least=0),
    Parameter.number("mscale_all_dim", None, "yarn: the same, in its denominator", least=0),
    Parameter.number("beta_fast", 32.0, "yarn: pairs with more turns in the original context are kept", above=0),
    Parameter.number("beta_slow", 1.0, "yarn: pairs with fewer turns are divided by the factor", above=0),
    Parameter("truncate", "bool", True, "yarn: round the ends of the ramp to whole pairs"),
    Parameter.number("low_freq_factor", 1.0, "llama3: pairs with fewer turns are divided by the factor", above=0),
    Parameter.number("high_freq_factor", 4.0, "llama3: pairs with more turns are kept", above=0),
    Parameter("short_factor", "floats", None, "longrope: a divisor per pair, up to original_context", above=0),
    Parameter("long_factor", "floats", None, "longrope: a divisor per pair, beyond it", above=0),
)
ROPE = (
    BASE,
    Parameter.choice("pairing", "half", PAIRS, "half", "interleaved"),
    Parameter.whole("rotary_dim", None, "channels that turn; default: all", least=2),
    Parameter.number("partial", None, "the same as a fraction of the head", above=0, most=1),
    Parameter.whole("channel_offset", 0, "the first channel that turns", least=0),
    Parameter("divisors", "floats", None, "divides the frequencies, one number per pair", above=0),
    *SCALING,
)


def checked_scaling(sizes: Sizes, given: Given) -> dict[str, Any]:
    """The given parameters with the model's context; a parameter the scaling does not read is an error."""
    kind = given.get("scaling", "default")
    read = {"scaling", *READS[kind]}
    if kind in STRETCHED_FROM_ORIGINAL or kind == "dynamic":
        read.add("original_context")
    idle = [each.name for each in SCALING if each.name in given and each.name not in read]
    if idle:
        users = [name for name in READS if idle[0] in (*READS[name], *_original_if_read(name))]
        raise BadEncoding(
            f"'{idle[0]}' has no effect with scaling={kind}; it belongs to scaling={' or '.join(users)}."
        )
    if kind == "yarn" and not {"factor", "original_context"} & given.keys():
        raise BadEncoding("yarn scaling needs a factor, such as factor=8, or the original_context it stretches.")
    return {**given, "context": sizes.context}


def _original_if_read(kind: str) -> tuple[str, ...]:
    return ("original_context",) if kind in STRETCHED_FROM_ORIGINAL or kind == "dynamic" else ()


def _rope(sizes: Sizes, given: Given) -> Encoding:
    return rope(sizes.head_dim, **checked_scaling(sizes, given))


def _rope_partial(sizes: Sizes, given: Given) -> Encoding:
    asked = dict(given)
    heads = asked.pop("heads", None)
    if heads is not None and heads > sizes.heads:
        raise BadEncoding(f"heads={heads} are to turn, but the model has {sizes.heads}.")
    if heads is None and not {"partial", "rotary_dim"} & asked.keys():
        asked["rotary_dim"] = max(2 * (sizes.head_dim // 4), 2)
    made = rope(sizes.head_dim, turning_heads=heads, **checked_scaling(sizes, asked))
    return replace(made, name="rope-partial", citations=("black2022neox", *made.citations))


PAPERS = {
    "su2021roformer": Paper(
        "Su et al.", "RoFormer: Enhanced Transformer with Rotary Position Embedding", "arXiv", 2021, "2104.09864"
    ),
    "black2022neox": Paper(
        "Black et al.", "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", "arXiv", 2022, "2204.06745"
    ),
}
KINDS = (
    Kind(
        "rope",
        "channel pairs of queries and keys turn with position",
        "rotary",
        _rope,
        ROPE,
        {
            "rotary": {},
            "pi": {"scaling": "linear"},
            "ntk": {"scaling": "ntk"},
            "dynamic-ntk": {"scaling": "dynamic"},
            "yarn": {"scaling": "yarn"},
            "longrope": {"scaling": "longrope"},
            "llama3": {"scaling": "llama3"},
        },
        ("su2021roformer",),
    ),
    Kind(
        "rope-partial",
        "RoPE on part of each head, or on the first heads only",
        "rotary",
        _rope_partial,
        (*ROPE, Parameter.whole("heads", None, "only the first so many heads turn; default: part of every head")),
        {"partial": {}, "partial-rope": {}, "rope_partial": {}},
        ("su2021roformer", "black2022neox"),
    ),
)
