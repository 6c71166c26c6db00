"""All plants: each bug in at least three architectures and three settings, and by which runs it proves itself.

`differs` are ways of running in which the broken model and the sound one give different outputs, `agrees` those in
which they do not: that is what makes a bug invisible to the test that its project had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.zoo import breaks
from tests.zoo.breaks import Break
from tests.zoo.models import tiny

Settings = dict[str, Any]
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Plant:
    """A bug in a model: what to build, what to break, where it shows and where it does not."""

    bug: str
    architecture: str
    setting: str
    settings: Settings
    plant: Break
    differs: tuple[str, ...]
    agrees: tuple[str, ...] = ()
    ready: Callable[[nn.Module], None] | None = None  # what transformers' own model lacks to be sound
    grows: bool = False  # with the distance of the tokens: far apart ten times what it is among neighbours

    def __str__(self) -> str:
        return f"{self.bug}-{self.architecture}-{self.setting.replace(' ', '_')}"

    def sound(self) -> nn.Module:
        """The model before it is broken."""
        model = tiny(self.architecture, **self.settings)
        if self.ready is not None:
            self.ready(model)
        return model


# Three settings that suit every plain rotary model.
SMALL: Settings = {"base": 500000.0, "width": 16, "context": 256}
WIDE: Settings = {"base": 1000000.0, "width": 32, "context": 4096}
ODD: Settings = {"base": 30000.0, "width": 24, "context": 1000}
PLAIN = {"base 5e5, width 16": SMALL, "base 1e6, width 32": WIDE, "base 3e4, width 24": ODD}
FAR = {
    "base 1e4, width 32, context 4096": {"base": 1e4, "width": 32, "context": 4096},
    "base 5e5, width 64, context 8192": {"base": 5e5, "width": 64, "context": 8192},
    "base 1e5, width 48, context 3000": {"base": 1e5, "width": 48, "context": 3000},
}


def yarn(factor: float, before: int, **more: Any) -> Settings:
    """YaRN settings."""
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": before, **more}


def llama3(factor: float, before: int) -> Settings:
    """Settings of Llama 3's scaling."""
    slow_fast = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": before, **slow_fast}


def longrope(width: int, before: int, **more: Any) -> Settings:
    """longrope settings with two lists that differ in every pair."""
    pairs = torch.arange(width // 2)
    return {
        "rope_type": "longrope",
        "short_factor": (1 + 0.02 * pairs).tolist(),
        "long_factor": (1.5 + 0.5 * pairs).tolist(),
        "original_max_position_embeddings": before,
        **more,
    }


SCALED = {
    "llama3 x8": {**SMALL, "context": 1024, "scaling": llama3(8.0, 128)},
    "linear x4": {**ODD, "scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn x4": {**WIDE, "scaling": yarn(4.0, 1024)},
}
YARN = {
    "yarn x4, width 32": {**WIDE, "scaling": yarn(4.0, 1024)},
    "yarn x16, width 16": {**SMALL, "context": 2048, "scaling": yarn(16.0, 128)},
    "yarn x8, factor 1.3 stated": {**ODD, "context": 1024, "scaling": yarn(8.0, 128, attention_factor=1.3)},
}
LATENT = {
    "yarn x40": {
        "base": 1e4,
        "width": 16,
        "context": 4096,
        "scaling": yarn(40.0, 128, mscale=1.0, mscale_all_dim=1.0),
    },
    "yarn x8": {"base": 5e4, "width": 32, "context": 1024, "scaling": yarn(8.0, 128, mscale=0.7, mscale_all_dim=0.7)},
    "yarn x4": {"base": 1e6, "width": 24, "context": 512, "scaling": yarn(4.0, 128, mscale=1.0, mscale_all_dim=2.0)},
}
LONG = {
    "width 16, 32 to 128": {"base": 1e4, "width": 16, "context": 128, "scaling": longrope(16, 32)},
    "width 32, 40 to 400": {"base": 1e5, "width": 32, "context": 400, "scaling": longrope(32, 40)},
    "width 24, 64 to 256": {"base": 5e4, "width": 24, "context": 256, "scaling": longrope(24, 64)},
}
DYNAMIC = {
    "x2 of 64": {"base": 1e4, "width": 16, "context": 64, "scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "x4 of 100": {"base": 5e5, "width": 32, "context": 100, "scaling": {"rope_type": "dynamic", "factor": 4.0}},
    "x8 of 48": {"base": 5e4, "width": 24, "context": 48, "scaling": {"rope_type": "dynamic", "factor": 8.0}},
}


def by_type(sliding: Settings, full: Settings, pattern: str, **more: Any) -> Settings:
    """Rotary settings for sliding and full layers; the pattern spells the layers, s and f."""
    layers = [_SLIDING if each == "s" else _FULL for each in pattern]
    return {
        "base": None,
        "rope_parameters": {_SLIDING: {"rope_type": "default", **sliding}, _FULL: {"rope_type": "default", **full}},
        "layer_types": layers,
        "num_hidden_layers": len(layers),
        "sliding_window": 12,
        **more,
    }


TWO_BASES = {
    "1e4 and 1e6, sssf": by_type({"rope_theta": 1e4}, {"rope_theta": 1e6}, "sssf", width=16, context=512),
    "2e4 and 5e5, sf": by_type({"rope_theta": 2e4}, {"rope_theta": 5e5}, "sfsf", width=32, context=4096),
    "1e4 and 1e5, ssf": by_type({"rope_theta": 1e4}, {"rope_theta": 1e5}, "ssfs", width=24, context=1024),
}
SCALED_FULL = {
    "linear x8": by_type(
        {"rope_theta": 1e4}, {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0}, "sssf", width=16, context=512
    ),
    "yarn x4, one base": by_type(
        {"rope_theta": 5e5}, {"rope_theta": 5e5, **yarn(4.0, 256)}, "sfsf", width=32, context=1024
    ),
    "llama3 x8": by_type(
        {"rope_theta": 5e5}, {"rope_theta": 5e5, **llama3(8.0, 128)}, "ssfs", width=24, context=1024
    ),
}
NO_POSITION = {
    "last of four": {"base": 5e5, "width": 16, "context": 256, "pattern": "rrrn"},
    "every second": {"base": 1e4, "width": 32, "context": 4096, "pattern": "rnrn"},
    "first of three": {"base": 1e6, "width": 24, "context": 1000, "pattern": "nrrn"},
}
AXES = {
    "2, 3, 3 of 8": {"base": 1e4, "width": 16, "context": 512, "scaling": {"mrope_section": [2, 3, 3]}},
    "4, 6, 6 of 16": {"base": 1e6, "width": 32, "context": 2048, "scaling": {"mrope_section": [4, 6, 6]}},
    "6, 3, 3 of 12": {"base": 1e5, "width": 24, "context": 1024, "scaling": {"mrope_section": [6, 3, 3]}},
}
LEARNED = {
    "context 64": {"base": None, "context": 64},
    "context 128, width 24": {"base": None, "context": 128, "width": 24},
    "context 256, width 32": {"base": None, "context": 256, "width": 32},
}


def _unrotated(architecture: str, settings: Settings) -> Settings:
    """A pattern of layers that rotate (r) and do not (n), as the architecture says it."""
    settings = dict(settings)
    pattern = settings.pop("pattern")
    if architecture in ("smollm3", "llama4_text"):
        return {**settings, "no_rope_layers": [int(each == "r") for each in pattern]}
    return {**settings, "layer_types": [_SLIDING if each == "r" else _FULL for each in pattern], "sliding_window": 12}


def _everywhere(
    bug: str,
    architectures: tuple[str, ...],
    settings: dict[str, Settings],
    plant: Break | Callable[[str, int], Break],
    *,
    by_case: bool = False,
    fit: Callable[[str, Settings], Settings] = lambda _, settings: settings,
    **proof: Any,
) -> Iterator[Plant]:
    """Each architecture in each setting; with `by_case` the break depends on both, the setting by its number."""
    for architecture in architectures:
        for number, (name, setting) in enumerate(settings.items()):
            chosen = plant(architecture, number) if by_case else plant  # type: ignore[call-arg,arg-type]
            yield Plant(bug, architecture, name, fit(architecture, setting), chosen, **proof)  # type: ignore[arg-type]


def _partners(architecture: str, number: int) -> Break:
    if architecture in ("glm", "cohere"):
        orders = (breaks.odd_rolled, breaks.odd_rolled, breaks.odd_rolled)
    elif architecture in ("gpt_neox", "phi3"):
        orders = (breaks.half_of_the_head, breaks.second_half_reversed, breaks.second_half_rolled)
    else:
        orders = (breaks.second_half_reversed, breaks.second_half_rolled, breaks.second_half_reversed)
    return breaks.permuted(orders[number])


def _pairing(architecture: str, _: int) -> Break:
    return breaks.permuted(breaks.to_half_split if architecture in ("glm", "cohere") else breaks.to_interleaved)


def _half(architecture: str, settings: Settings) -> Settings:
    """Partial rotation, half the head, in architectures that know it."""
    if architecture in ("gpt_neox", "phi", "phi3", "glm", "stablelm"):
        return {**settings, "scaling": {**settings.get("scaling", {}), "partial_rotary_factor": 0.5}}
    return settings


def _quarter(architecture: str, settings: Settings) -> Settings:
    share = 0.25 if settings["width"] == 32 else 0.5
    return {**settings, "scaling": {"partial_rotary_factor": share}}


def _original(_: str, settings: Settings) -> Settings:
    """The original length, at the top of the configuration too, where Phi-3 looks for it."""
    return {**settings, "original_max_position_embeddings": settings["scaling"]["original_max_position_embeddings"]}


def _interleaved_axes(architecture: str, settings: Settings) -> Settings:
    """Qwen3-VL deals its pairs out to the axes in turn."""
    if architecture != "qwen3_vl":
        return settings
    return {**settings, "scaling": {**settings["scaling"], "mrope_interleaved": True}}


def _untruncated(_: str, settings: Settings) -> Settings:
    return {**settings, "scaling": {**settings["scaling"], "truncate": False}}


def _beyond(_: str, settings: Settings) -> Settings:
    """A stated factor that is not the ratio of the lengths."""
    return {**settings, "scaling": {**settings["scaling"], "factor": settings["scaling"]["factor"] * 2}}


def _ratio(settings: Settings) -> float:
    return settings["context"] / settings["scaling"]["original_max_position_embeddings"]


def _factor_ignored(_: str, number: int) -> Break:
    return breaks.other_frequencies(factor=_ratio(list(YARN.values())[number]))


def _uninitialised(_: str, number: int) -> Break:
    return breaks.uninitialised(("zeros", "nan", "numbers")[number])


def _rounded(_: str, number: int) -> Break:
    return (breaks.rounded(), breaks.cast_whole(), breaks.rounded())[number]


def _confused(_: str, number: int) -> Break:
    return (breaks.layer_types_swapped(), breaks.one_table(_FULL), breaks.one_table(_SLIDING))[number]


def _longrope(_: str, number: int) -> Break:
    choices = (
        lambda length, original: True,  # by capacity
        lambda length, original: length >= original,  # one early
        lambda length, original: length > original + 1,  # one late
    )
    return breaks.longrope_by(choices[number])


def _offset(_: str, number: int) -> Break:
    return breaks.cache_offset((lambda past: 0, lambda past: past + 1, lambda past: past - 1)[number])


def _dynamic(_: str, number: int) -> Break:
    return (breaks.dynamic_kept(), breaks.dynamic_constant(4 * 100), breaks.dynamic_kept())[number]


def _axes(_: str, number: int) -> Break:
    return breaks.axes_dropped(((1, 2), (2,), (1, 2))[number])


def _twice(_: str, number: int) -> Break:
    return (breaks.rotated_twice("qk"), breaks.rotated_twice("qk"), breaks.rotated_twice("k"))[number]


def _nope(_: str, number: int) -> Break:
    return (breaks.all_layers_rotated(), breaks.pattern_inverted(), breaks.all_layers_rotated())[number]


def _all() -> Iterator[Plant]:
    lengths: dict[int, dict[str, tuple[str, ...]]] = {
        0: {"differs": ("below", "at"), "agrees": ("above",)},
        1: {"differs": ("at",), "agrees": ("below", "above")},
        2: {"differs": ("above",), "agrees": ("below", "at", "twice")},
    }
    yield from _everywhere(
        "theta-lost", ("llama", "qwen3", "glm"), PLAIN, breaks.theta_lost(), fit=_half, differs=("whole", "far")
    )
    yield from _everywhere(
        "scaling-dropped", ("llama", "qwen3", "smollm3"), SCALED, breaks.scaling_dropped(), differs=("far",)
    )
    yield from _everywhere(
        "frequencies-uninitialised",
        ("llama", "qwen3", "phi"),
        PLAIN,
        _uninitialised,
        by_case=True,
        differs=("whole", "far"),
    )
    yield from _everywhere(
        "frequencies-rounded",
        ("llama", "qwen3", "phi"),
        FAR,
        _rounded,
        by_case=True,
        differs=("far",),
        agrees=("one_token",),
        grows=True,
    )
    yield from _everywhere(
        "partial-ignored",
        ("gpt_neox", "phi", "glm"),
        PLAIN,
        breaks.partial_ignored(),
        fit=_quarter,
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "partners-wrong",
        ("llama", "gpt_neox", "cohere"),
        PLAIN,
        _partners,
        by_case=True,
        fit=_half,
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "pairing-swapped",
        ("llama", "qwen3", "glm"),
        PLAIN,
        _pairing,
        by_case=True,
        fit=_half,
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "attention-factor-dropped",
        ("llama", "qwen3"),
        YARN,
        breaks.factor_dropped(),
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(  # with sinks the scale shows even in one token
        "attention-factor-dropped", ("gpt_oss",), YARN, breaks.factor_dropped(), differs=("whole",)
    )
    yield from _everywhere(
        "attention-factor-twice",
        ("llama", "qwen3"),
        YARN,
        breaks.factor_twice(),
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(  # with sinks the scale shows even in one token
        "attention-factor-twice", ("gpt_oss",), YARN, breaks.factor_twice(), differs=("whole",)
    )
    yield from _everywhere(
        "logit-scale-missing",
        ("deepseek_v3", "deepseek_v2", "youtu"),
        LATENT,
        breaks.plain_logit_scale(),
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "truncate-ignored",
        ("llama", "qwen3", "gpt_oss"),
        YARN,
        breaks.other_frequencies(truncate=True),
        fit=_untruncated,
        differs=("far",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "factor-ignored",
        ("llama", "qwen3", "mistral"),
        YARN,
        _factor_ignored,
        by_case=True,
        fit=_beyond,
        differs=("far",),
        agrees=("one_token",),
    )
    for plant in _everywhere(
        "longrope-choice", ("llama", "qwen3", "phi3"), LONG, _longrope, by_case=True, fit=_original, differs=()
    ):
        number = list(LONG).index(plant.setting)
        yield Plant(**{**vars(plant), **lengths[number]})
    yield from _everywhere(
        "cache-stale",
        ("phi3",),
        LONG,
        breaks.cache_kept(),
        fit=_original,
        differs=("generated_across",),
        agrees=("below", "above", "generated"),
    )
    yield from _everywhere(
        "cache-stale",
        ("llama", "qwen3"),
        LONG,
        breaks.cache_kept(),
        fit=_original,
        ready=breaks.renew_cache,
        differs=("generated_across",),
        agrees=("below", "above", "generated"),
    )
    yield from _everywhere(
        "layers-confused",
        ("gemma3_text", "olmo3", "mellum"),
        TWO_BASES,
        _confused,
        by_case=True,
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "scaling-on-sliding-layers",
        ("gemma3_text", "olmo3", "mellum"),
        SCALED_FULL,
        breaks.sliding_scaled(),
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "no-position-layers-rotated",
        ("smollm3", "llama4_text", "cohere2"),
        NO_POSITION,
        _nope,
        by_case=True,
        fit=_unrotated,
        differs=("whole",),
    )
    yield from _everywhere(
        "left-padding",
        ("gpt2", "biogpt"),
        LEARNED,
        breaks.padding_counted(decoding=True),
        differs=("padded",),
        agrees=("whole", "stepwise", "chunks"),
    )
    yield from _everywhere(
        "left-padding",
        ("llama", "qwen3"),
        PLAIN,
        breaks.padding_counted(decoding=False),
        differs=("padded", "generated_padded"),
        agrees=("whole", "stepwise", "chunks", "generated"),
    )
    yield from _everywhere(
        "cache-offset",
        ("llama", "qwen3", "glm"),
        PLAIN,
        _offset,
        by_case=True,
        fit=_half,
        differs=("chunks", "stepwise"),
        agrees=("whole",),
    )
    yield from _everywhere(
        "axes-dropped",
        ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"),
        AXES,
        _axes,
        by_case=True,
        fit=_interleaved_axes,
        differs=("grid",),
        agrees=("whole", "stepwise"),
    )
    yield from _everywhere(
        "rotated-twice",
        ("llama", "qwen3", "cohere"),
        PLAIN,
        _twice,
        by_case=True,
        differs=("whole",),
        agrees=("one_token",),
    )
    yield from _everywhere(
        "rotated-twice",
        ("llama", "qwen3", "mistral"),
        {f"{name}, in the cache": setting for name, setting in PLAIN.items()},
        breaks.rotated_in_cache(),
        differs=("stepwise", "chunks"),
        agrees=("whole",),
    )
    for plant in _everywhere(
        "dynamic-not-reset", ("llama", "qwen3", "mistral"), DYNAMIC, _dynamic, by_case=True, differs=()
    ):
        kept = list(DYNAMIC).index(plant.setting) != 1
        shows = ("short_after_long",) if kept else ("short", "below")
        yield Plant(**{**vars(plant), "differs": shows, "agrees": ("short", "twice") if kept else ()})


PLANTS: tuple[Plant, ...] = tuple(_all())
