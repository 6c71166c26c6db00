"""The table of encodings a user can name: parameters, aliases, papers, and how each is built for given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.plugins import Plugin, origins, plugins
from toposcope.core.printable import printable
from toposcope.encodings import absolute, bias, content, rotary
from toposcope.encodings.parameter import Parameter, Value
from toposcope.encodings.record import NONE, Encoding
from toposcope.encodings.scalings import READS, STRETCHED_FROM_ORIGINAL

Mechanism = Literal["none", "input", "rotary", "bias", "content"]
Given = Mapping[str, Any]
# No model is larger by far, and tables of these sizes would take hours or more than any memory.
LARGEST = MappingProxyType({"width": 2**24, "heads": 2**16, "head_dim": 2**14, "context": 2**40})


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model an encoding is built for. `head_dim` is the width of a query, whatever it is made of."""

    width: int
    heads: int
    head_dim: int
    context: int
    causal: bool = True

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadValue(f"{name} must be between 1 and {most:,}, got {printable(getattr(self, name), 40)}.")


@dataclass(frozen=True)
class Kind:
    """One encoding a user can name. `aliases` maps other names to the parameters they stand for."""

    name: str
    summary: str
    mechanism: Mechanism
    build: Callable[[Sizes, Given], Encoding]
    parameters: tuple[Parameter, ...] = ()
    aliases: Mapping[str, Mapping[str, Value]] = field(default_factory=lambda: MappingProxyType({}))
    citations: tuple[str, ...] = ()

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, if there is one."""
        return next((each for each in self.parameters if each.name == name), None)


def _float(
    name: str,
    default: float | None,
    doc: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Parameter:
    return Parameter(name, "float", default, doc, (), above, least, most)


def _int(name: str, default: int | None, doc: str, least: float = 1) -> Parameter:
    return Parameter(name, "int", default, doc, least=least)


def _choice(name: str, default: str, doc: str, *choices: str) -> Parameter:
    return Parameter(name, "choice", default, doc, choices)


_SEED = _int("seed", 0, "seed of the draw", least=0)
_BASE = _float("base", 10000.0, "w_f = base^(-2f/d): a larger base turns slow pairs slower", above=1)
_PAIRS = "half: channel f with f + d/2; interleaved: 2f with 2f + 1"
_PRECISION = ("float64", "float32", "bfloat16")
_SCALING = (
    _choice("scaling", "default", "how frequencies are stretched", *READS),
    _float("factor", None, "stretch; yarn and longrope: default context / original_context", least=1),
    _int("original_context", None, "length before stretching; default: the model's context"),
    _float("attention_factor", None, "yarn, longrope: factor on rotated vectors; default: the paper's", above=0),
    _float("mscale", None, "yarn: weight of ln(factor) in the attention factor", least=0),
    _float("mscale_all_dim", None, "yarn: the same, in its denominator", least=0),
    _float("beta_fast", 32.0, "yarn: pairs with more turns in the original context are kept", above=0),
    _float("beta_slow", 1.0, "yarn: pairs with fewer turns are divided by the factor", above=0),
    Parameter("truncate", "bool", True, "yarn: round the ends of the ramp to whole pairs"),
    _float("low_freq_factor", 1.0, "llama3: pairs with fewer turns are divided by the factor", above=0),
    _float("high_freq_factor", 4.0, "llama3: pairs with more turns are kept", above=0),
    Parameter("short_factor", "floats", None, "longrope: a divisor per pair, up to original_context", above=0),
    Parameter("long_factor", "floats", None, "longrope: a divisor per pair, beyond it", above=0),
)
_ROPE = (
    _BASE,
    _choice("pairing", "half", _PAIRS, "half", "interleaved"),
    _int("rotary_dim", None, "channels that turn; default: all", least=2),
    _float("partial", None, "the same as a fraction of the head", above=0, most=1),
    _int("channel_offset", 0, "the first channel that turns", least=0),
    Parameter("divisors", "floats", None, "divides the frequencies, one number per pair", above=0),
    *_SCALING,
)


def _stretched(sizes: Sizes, given: Given) -> dict[str, Any]:
    """The given parameters with the model's context; a parameter the scaling does not read is an error."""
    kind = given.get("scaling", "default")
    read = {"scaling", *READS[kind]}
    if kind in STRETCHED_FROM_ORIGINAL or kind == "dynamic":
        read.add("original_context")
    idle = [each.name for each in _SCALING if each.name in given and each.name not in read]
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
    return rotary.rope(sizes.head_dim, **_stretched(sizes, given))


def _rope_partial(sizes: Sizes, given: Given) -> Encoding:
    asked = dict(given)
    heads = asked.pop("heads", None)
    if heads is not None and heads > sizes.heads:
        raise BadEncoding(f"heads={heads} are to turn, but the model has {sizes.heads}.")
    if heads is None and not {"partial", "rotary_dim"} & asked.keys():
        asked["rotary_dim"] = max(2 * (sizes.head_dim // 4), 2)
    made = rotary.rope(sizes.head_dim, turning_heads=heads, **_stretched(sizes, asked))
    return replace(made, name="rope-partial", citations=("black2022neox", *made.citations))


def _mla(sizes: Sizes, given: Given) -> Encoding:
    asked = dict(given)
    nope_dim, rope_dim = asked.pop("nope_dim", None), asked.pop("rope_dim", None)
    if rope_dim is None:
        rope_dim = max(2 * (sizes.head_dim // 4), 2) if nope_dim is None else sizes.head_dim - nope_dim
    if nope_dim is None:
        nope_dim = sizes.head_dim - rope_dim
    if nope_dim + rope_dim != sizes.head_dim:
        raise BadEncoding(
            f"nope_dim + rope_dim is {nope_dim + rope_dim}, but a query has {sizes.head_dim} channels. "
            "Give only one of the two, or make them add up."
        )
    return rotary.mla(nope_dim, rope_dim, **_stretched(sizes, asked))


_KINDS = (
    Kind(
        "none",
        "no positional encoding; a causal mask alone tells order",
        "none",
        lambda sizes, given: replace(NONE, citations=("kazemnejad2023nope",)),
        aliases=MappingProxyType({"nope": {}, "no": {}}),
        citations=("kazemnejad2023nope",),
    ),
    Kind(
        "sinusoidal",
        "sines and cosines added to the input",
        "input",
        lambda sizes, given: absolute.sinusoidal(sizes.width, **given),
        (
            _choice(
                "layout",
                "interleaved",
                "sine and cosine alternate, or all sines before all cosines",
                "interleaved",
                "half",
            ),
            _float("base", 10000.0, "ratio of the fastest to the slowest frequency", above=1),
            _float("denominator", None, "of the exponents; default d/2, for layout=half d/2 - 1", above=0),
            _int("offset", 0, "added to every position", least=0),
            _float("scale", 1.0, "multiplies the vectors", above=0),
        ),
        MappingProxyType({"sin": {}, "sincos": {}, "sinusoid": {}}),
        ("vaswani2017attention",),
    ),
    Kind(
        "learned",
        "a trained vector per position, added to the input",
        "input",
        lambda sizes, given: absolute.learned_init(sizes.width, **{"length": sizes.context, **given}),
        (
            _int("length", None, "positions in the table; default: the model's context"),
            _float("std", 0.02, "standard deviation before training", least=0),
            _SEED,
        ),
        MappingProxyType({"absolute": {}, "ape": {}}),
        ("gehring2017convolutional",),
    ),
    Kind(
        "random",
        "a fixed random vector per position, added to the input",
        "input",
        lambda sizes, given: absolute.random(sizes.width, **{"length": sizes.context, **given}),
        (
            _int("length", None, "positions in the table; default: the model's context"),
            _float("std", 0.5**0.5, "standard deviation; the default is a sinusoid's", least=0),
            _SEED,
        ),
    ),
    Kind(
        "t5",
        "a trained number per bucket of distances, added to the logit",
        "bias",
        lambda sizes, given: bias.t5_init(sizes.heads, **{"bidirectional": not sizes.causal, **given}),
        (
            _int("buckets", 32, "rows of the table", least=2),
            _int("max_distance", 128, "beyond it all distances share a bucket", least=2),
            Parameter("bidirectional", "bool", None, "past and future apart; default: unless causal"),
            _float("std", 0.05, "standard deviation before training", least=0),
            _SEED,
        ),
        MappingProxyType({"relative": {}, "t5-bias": {}}),
        ("raffel2020t5",),
    ),
    Kind(
        "alibi",
        "a penalty that grows with distance, a slope per head",
        "bias",
        lambda sizes, given: bias.alibi(sizes.heads, **given),
        (
            Parameter("symmetric", "bool", True, "minus slope times distance; false: times i - j, signed"),
            Parameter("slopes", "floats", None, "one per head; default: the published ones"),
            _float("max_bias", 8.0, "the flattest published slope is 2^-max_bias", above=0),
            _float("scale", 1.0, "multiplies the bias", above=0),
            _choice("slope_dtype", "float64", "precision the slopes are rounded to", *_PRECISION),
            _choice("table_dtype", "float64", "precision slope times position is rounded to", *_PRECISION),
        ),
        MappingProxyType({"linear-bias": {}}),
        ("press2022alibi",),
    ),
    Kind(
        "kerple",
        "a logarithmic or power-law penalty on distance",
        "bias",
        lambda sizes, given: bias.kerple(sizes.heads, **given),
        (
            _choice("kernel", "log", "log: -r1 ln(1 + r2 t); power: -r1 t^r2", "log", "power"),
            Parameter("r1", "floats", (1.0,), "one for all heads, or one per head", above=0),
            Parameter("r2", "floats", (1.0,), "one for all heads, or one per head", above=0),
        ),
        MappingProxyType({"kerple-log": {"kernel": "log"}, "kerple-power": {"kernel": "power"}}),
        ("chi2022kerple",),
    ),
    Kind(
        "fire",
        "a small network of the distance relative to the position, added to the logit",
        "bias",
        lambda sizes, given: bias.fire_init(sizes.heads, **{"causal": sizes.causal, **given}),
        (
            _int("hidden", 32, "units of the network"),
            _float("c", 0.1, "psi(x) = ln(c x + 1)", above=0),
            _float("threshold", 512.0, "L: queries before this position do not rescale distances", above=0),
            Parameter("causal", "bool", None, "normalise by the query's position only; default: as the model"),
            _SEED,
        ),
        citations=("li2024fire",),
    ),
    Kind(
        "rope",
        "channel pairs of queries and keys turn with position",
        "rotary",
        _rope,
        _ROPE,
        MappingProxyType(
            {
                "rotary": {},
                "pi": {"scaling": "linear"},
                "ntk": {"scaling": "ntk"},
                "dynamic-ntk": {"scaling": "dynamic"},
                "yarn": {"scaling": "yarn"},
                "longrope": {"scaling": "longrope"},
                "llama3": {"scaling": "llama3"},
            }
        ),
        ("su2021roformer",),
    ),
    Kind(
        "rope-partial",
        "RoPE on part of each head, or on the first heads only",
        "rotary",
        _rope_partial,
        (*_ROPE, _int("heads", None, "only the first so many heads turn; default: part of every head")),
        MappingProxyType({"partial": {}, "partial-rope": {}, "rope_partial": {}}),
        ("su2021roformer", "black2022neox"),
    ),
    Kind(
        "xpos",
        "RoPE with a decay, slower for slower pairs",
        "rotary",
        lambda sizes, given: rotary.xpos(sizes.head_dim, **given),
        (
            _BASE,
            _float("scale_base", 512.0, "tokens over which a pair decays by zeta", above=0),
            _float("gamma", 0.4, "zeta = (2f/d + gamma) / (1 + gamma)", above=0),
            _choice("pairing", "interleaved", _PAIRS, "half", "interleaved"),
            _int("rotary_dim", None, "channels that turn; default: all", least=2),
            _int("channel_offset", 0, "the first channel that turns", least=0),
        ),
        citations=("sun2023xpos",),
    ),
    Kind(
        "mla",
        "content channels that do not turn beside rotary ones that do",
        "rotary",
        _mla,
        (
            _int("nope_dim", None, "content channels; default: those that do not turn", least=0),
            _int("rope_dim", None, "rotary channels, the last ones; default: about half", least=2),
            _BASE,
            _choice("pairing", "interleaved", _PAIRS, "half", "interleaved"),
            *_SCALING,
        ),
        MappingProxyType({"decoupled-rope": {}}),
        ("deepseek2024v2", "su2021roformer"),
    ),
    Kind(
        "cope",
        "distance counted by gates that read the content; no tables",
        "content",
        lambda sizes, given: content.cope(sizes.head_dim, **given),
        (_int("positions", 64, "contextual positions in the table", least=2),),
        citations=("golovneva2024cope",),
    ),
    Kind(
        "pope",
        "content sets lengths, position sets angles; no tables",
        "content",
        lambda sizes, given: content.pope(sizes.head_dim, **given),
        (_float("base", 10000.0, "w_c = base^(-c/d), one frequency per channel", above=1),),
        MappingProxyType({"polar": {}}),
        ("gopalakrishnan2025pope",),
    ),
)
BUILT_IN: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _KINDS})


@cache
def kinds() -> Mapping[str, Kind]:
    """Every encoding that can be named, in the order of the documentation; then those of other packages."""
    return MappingProxyType({**BUILT_IN, **{name: each.value for name, each in _brought().items()}})


def kind_origins() -> Mapping[str, str]:
    """The package behind each encoding."""
    return origins(BUILT_IN, _brought())


@cache
def _brought() -> Mapping[str, Plugin]:
    return plugins("encodings", _wrong)


def _wrong(value: Any) -> str | None:
    if not isinstance(value, Kind):
        return f"it is a {type(value).__name__}; expected a toposcope.encodings.Kind"
    taken = {name for kind in _KINDS for name in (kind.name, *kind.aliases)}
    clash = next((name for name in (value.name, *value.aliases) if name in taken), None)
    return None if clash is None else f"'{clash}' is an encoding of Toposcope already"
