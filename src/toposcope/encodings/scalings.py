"""The ways to stretch RoPE beyond the length it was trained on: from (width, base) to frequencies.

Unscaled, pair f of a rotary block of width d turns by w_f = base^(-2f/d) radians per token. With s the factor and
L the original context:

* `linear`        w_f / s: every angle shrinks alike (position interpolation)
* `ntk`           base -> base s^(d/(d-2)): the slowest pair is divided by s, the fastest is kept
* `dynamic`       the same with s -> s n/L - (s - 1) for a text of n > L tokens, nothing for shorter ones
* `yarn`          pairs that turn often within L are kept, pairs that hardly turn are divided by s, a ramp between
* `llama3`        the same idea with a ramp in wavelength instead of pair number
* `longrope`      w_f / short_f up to L tokens, w_f / long_f beyond: two searched lists
* `proportional`  the exponents are spread over the whole head, but only the first pairs turn

`yarn` and `longrope` also multiply the rotated vectors by an attention factor. All in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from toposcope.core.errors import BadEncoding, did_you_mean
from toposcope.encodings.record import Array, short
from toposcope.encodings.registry import Paper

# The parameters each scaling reads beside base and width; anything else said about it has no effect.
READS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "dynamic": ("factor",),
        "ntk": ("factor",),
        "proportional": ("factor",),
        "yarn": ("factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"),
        "longrope": ("factor", "attention_factor", "short_factor", "long_factor"),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
)
SCALING_PAPERS = {
    "linear": "chen2023pi",
    "dynamic": "bloc972023ntk",
    "ntk": "bloc972023ntk",
    "yarn": "peng2024yarn",
    "longrope": "ding2024longrope",
    "llama3": "dubey2024llama3",
}
PAPERS = {
    "chen2023pi": Paper(
        "Chen et al.",
        "Extending Context Window of Large Language Models via Positional Interpolation",
        "arXiv",
        2023,
        "2306.15595",
    ),
    "bloc972023ntk": Paper("bloc97, emozilla", "NTK-aware scaled RoPE, static and dynamic", "r/LocalLLaMA", 2023),
    "peng2024yarn": Paper(
        "Peng et al.",
        "YaRN: Efficient Context Window Extension of Large Language Models",
        "ICLR",
        2024,
        "2309.00071",
    ),
    "ding2024longrope": Paper(
        "Ding et al.",
        "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens",
        "ICML",
        2024,
        "2402.13753",
    ),
    "dubey2024llama3": Paper("Dubey et al.", "The Llama 3 Herd of Models", "arXiv", 2024, "2407.21783"),
}
STRETCHED_FROM_ORIGINAL = ("yarn", "longrope", "llama3")


@dataclass(frozen=True)
class Scaling:
    """What may be said about a scaling; each kind reads the part it needs.

    `original_context` is the length before stretching and `context` the length the model claims after it.
    Where `factor` is None, yarn and longrope take context / original_context.
    """

    kind: str = "default"
    factor: float | None = None
    original_context: int | None = None
    context: int | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Scaled:
    """The outcome: frequencies by context, the factor on rotated vectors, and words for a title."""

    frequencies_at: Callable[[int | None], Array]
    attention_factor: float = 1.0
    label: str = ""


def plain_frequencies(width: int, base: float) -> Array:
    """Frequencies of unscaled RoPE: w_f = base^(-2f/width), f = 0 .. ceil(width/2) - 1."""
    return np.asarray(base ** -(np.arange(0, width, 2) / width), dtype=np.float64)


def scaled(width: int, base: float, scaling: Scaling) -> Scaled:
    """Frequencies of a rotary block of `width` channels under `scaling`."""
    if scaling.kind not in SCALINGS:
        raise BadEncoding(f"'{scaling.kind}' is no RoPE scaling. {did_you_mean(scaling.kind, SCALINGS)}")
    result = SCALINGS[scaling.kind](width, base, scaling)
    if scaling.attention_factor is None:
        return result
    return Scaled(result.frequencies_at, float(scaling.attention_factor), result.label)


def _default(width: int, base: float, scaling: Scaling) -> Scaled:
    return _always(plain_frequencies(width, base), "")


def _linear(width: int, base: float, scaling: Scaling) -> Scaled:
    factor = _factor(scaling)
    return _always(plain_frequencies(width, base) / factor, f"linear x{short(factor)}")


def _ntk(width: int, base: float, scaling: Scaling) -> Scaled:
    factor = _factor(scaling)
    return _always(plain_frequencies(width, _stretched(base, factor, width)), f"ntk x{short(factor)}")


def _dynamic(width: int, base: float, scaling: Scaling) -> Scaled:
    factor, original = _factor(scaling), _original(scaling)

    def frequencies_at(context: int | None) -> Array:
        length = original if context is None else max(context, original)
        return plain_frequencies(width, _stretched(base, factor * length / original - (factor - 1), width))

    return Scaled(frequencies_at, 1.0, f"dynamic x{short(factor)} from {short(original)}")


def _yarn(width: int, base: float, scaling: Scaling) -> Scaled:
    original = _original(scaling)
    factor = _factor_or_ratio(scaling, original)

    def pair_that_turns(times: float) -> float:
        """The (fractional) number of the pair that makes so many turns within the original context."""
        return (width * math.log(original / (times * 2 * math.pi))) / (2 * math.log(base))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp, without dividing by zero
    kept = plain_frequencies(width, base)
    ramp_F = np.clip((np.arange(len(kept)) - first) / (last - first), 0, 1)

    def size(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        attention_factor = size(scaling.mscale) / size(scaling.mscale_all_dim)
    else:
        attention_factor = size(1.0)
    return _always(
        kept / factor * ramp_F + kept * (1 - ramp_F),
        f"yarn x{short(factor)} from {short(original)}",
        attention_factor,
    )


def _longrope(width: int, base: float, scaling: Scaling) -> Scaled:
    original = _original(scaling)
    factor = _factor_or_ratio(scaling, original)
    kept = plain_frequencies(width, base)
    within = kept / _divisors(scaling.short_factor, "short_factor", len(kept))
    beyond = kept / _divisors(scaling.long_factor, "long_factor", len(kept))
    attention_factor = 1.0
    if factor > 1:
        if original < 2:
            raise BadEncoding(f"longrope needs an original context of at least 2 tokens, got {original}.")
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))

    def frequencies_at(context: int | None) -> Array:
        return beyond if context is not None and context > original else within

    return Scaled(frequencies_at, attention_factor, f"longrope x{short(factor)} from {short(original)}")


def _llama3(width: int, base: float, scaling: Scaling) -> Scaled:
    factor, original = _factor(scaling), _original(scaling)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if not 0 < low < high:
        raise BadEncoding(
            f"llama3 scaling needs 0 < low_freq_factor < high_freq_factor, got {short(low)} and {short(high)}."
        )
    kept = plain_frequencies(width, base)
    turns_F = original * kept / (2 * math.pi)  # within the original context
    smooth_F = np.clip((turns_F - low) / (high - low), 0, 1)
    return _always(
        kept / factor * (1 - smooth_F) + kept * smooth_F, f"llama3 x{short(factor)} from {short(original)}"
    )


def _proportional(width: int, base: float, scaling: Scaling) -> Scaled:
    factor = 1.0 if scaling.factor is None else _factor(scaling)
    return _always(
        plain_frequencies(width, base) / factor, "proportional" + (f" x{short(factor)}" if factor != 1 else "")
    )


SCALINGS: dict[str, Callable[[int, float, Scaling], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk": _ntk,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


def _always(frequencies_F: Array, label: str, attention_factor: float = 1.0) -> Scaled:
    return Scaled(lambda context: frequencies_F, attention_factor, label)


def _stretched(base: float, factor: float, width: int) -> float:
    """The base at which the slowest of width/2 pairs is divided by `factor`; a lone pair has no slower one."""
    return base if width <= 2 else base * factor ** (width / (width - 2))


def _factor(scaling: Scaling) -> float:
    if scaling.factor is None:
        raise BadEncoding(f"{scaling.kind} scaling needs a factor, such as factor=8.")
    if not (math.isfinite(scaling.factor) and scaling.factor > 0):
        raise BadEncoding(f"{scaling.kind} scaling needs a positive factor, got {scaling.factor}.")
    return float(scaling.factor)


def _original(scaling: Scaling) -> int:
    original = scaling.original_context if scaling.original_context is not None else scaling.context
    if original is None:
        raise BadEncoding(
            f"{scaling.kind} scaling needs the context length the model was trained on; give original_context."
        )
    if original < 1:
        raise BadEncoding(f"original_context must be at least 1, got {original}.")
    return int(original)


def _factor_or_ratio(scaling: Scaling, original: int) -> float:
    if scaling.factor is not None:
        return _factor(scaling)
    if scaling.context is None:
        raise BadEncoding(f"{scaling.kind} scaling needs a factor, or the context it is to reach.")
    return scaling.context / original


def _divisors(given: tuple[float, ...] | None, name: str, pairs: int) -> Array:
    if given is None:
        raise BadEncoding(f"longrope scaling needs {name}: one divisor for each of the {pairs} channel pairs.")
    divisors_F = np.asarray(given, dtype=np.float64)
    if divisors_F.shape != (pairs,):
        raise BadEncoding(
            f"{name} holds {divisors_F.size} numbers, but {pairs} channel pairs rotate. Give one number per pair."
        )
    if not (np.isfinite(divisors_F).all() and (divisors_F > 0).all()):
        raise BadEncoding(f"{name} must hold positive numbers: frequencies are divided by them.")
    return divisors_F
