"""A measured rotation or bias as an encoding: by name where a configuration can ask for it, else as measured.

A `Recipe` is plain data, so that it can be kept; `made` turns it into an encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from toposcope.checkpoints.families.common import learned_table
from toposcope.checkpoints.generic.match import Index
from toposcope.checkpoints.generic.record import Array
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadConfig, BadEncoding, BadFile, ToposcopeError
from toposcope.encodings import NONE, Encoding, rope_from_config
from toposcope.encodings.absolute import sinusoidal
from toposcope.encodings.bias_alibi import alibi
from toposcope.encodings.bias_t5 import t5
from toposcope.encodings.record import Pairing, QueryScale, Rotary, combine

SNAP = 3e-7  # how near frequencies must be to those of a configuration
_ROPE_KEYS = (
    *("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "max_position_embeddings"),
    *("original_max_position_embeddings", "partial_rotary_factor", "rotary_dim", "rotary_pct", "rope_pct"),
    *("rope_local_base_freq", "local_rope_theta", "global_rope_theta"),
)
_LAYER_TYPES = (None, "full_attention", "sliding_attention", "chunked_attention", "main", "compress")
UNNAMED = "input-unnamed"

Kind = Literal["rope", "turning", "alibi", "t5", "learned", "sinusoidal", "unnamed"]


@dataclass(frozen=True)
class Recipe:
    """One way in which position enters, as plain data: what kind it is and its options."""

    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)


def made(recipes: tuple[Recipe, ...], source: TensorSource, in_file: Any = lambda name: name) -> Encoding:
    """The encoding of a layer: its recipes together. `in_file` gives a tensor's name in the file."""
    encoding = NONE
    for recipe in recipes:
        if recipe.kind == "rope" and "query_scale" in recipe.options and len(recipe.options) == 1:
            continue
        try:
            encoding = combine(encoding, _made(recipe, source, in_file))
        except (TypeError, KeyError, ValueError) as error:
            raise BadFile(f"a kept description of an encoding is damaged: {error}. Remove it.") from error
    return encoding


def _made(recipe: Recipe, source: TensorSource, in_file: Any) -> Encoding:
    options = dict(recipe.options)
    if recipe.kind == "rope":
        return rope_from_config(options.pop("settings"), options.pop("head_dim"), **options)
    if recipe.kind == "turning":
        return _as_measured(**options)
    if recipe.kind == "alibi":
        return alibi(**options)
    if recipe.kind == "sinusoidal":
        return sinusoidal(**options)
    if recipe.kind == "learned":
        return learned_table(source, in_file(options["tensor"]), offset=options["offset"])
    if recipe.kind == "t5":
        table = source.read(in_file(options.pop("tensor")))
        return t5(table, **options)
    return Encoding(
        UNNAMED,
        "position is added at the input; its table was not found",
        exact_tables=False,
        notes=("the input changes with position, by a table that was not found in the file.",),
    )


def _as_measured(
    head_dim: int, pairs: list[list[int]], frequencies: list[float], pairing: Pairing, factor: float
) -> Encoding:
    frequencies_F = np.array(frequencies, dtype=np.float64)
    pairs_F2 = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    if len(frequencies_F) != len(pairs_F2) or (
        len(pairs_F2) and not 0 <= pairs_F2.min() <= pairs_F2.max() < head_dim
    ):
        raise BadFile("a kept rotation has pairs outside its head. Remove it.")
    return Encoding(
        "rope",
        f"rotation as measured, {2 * len(pairs)} of {head_dim} channels",
        parameters={"measured": True},
        rotary=Rotary(head_dim, pairs_F2, lambda context: frequencies_F, pairing, factor),
        notes=("the frequencies are as measured; the configuration does not name them.",),
    )


def rotation(
    config: Mapping[str, Any], head_dim: int, pairs_F2: Index, frequencies_F: Array, factor: float | None, length: int
) -> tuple[Recipe, float]:
    """The recipe of a measured rotation, and the factor of its turning channels that is part of it."""
    order = np.argsort(pairs_F2.min(axis=1))
    pairs_F2, frequencies_F = pairs_F2[order], frequencies_F[order]
    flipped = pairs_F2[:, 0] > pairs_F2[:, 1]
    pairs_F2 = np.where(flipped[:, None], pairs_F2[:, ::-1], pairs_F2)
    frequencies_F = np.where(flipped, -frequencies_F, frequencies_F)
    pairing: Pairing = "interleaved" if (np.diff(pairs_F2, axis=1) == 1).all() and len(pairs_F2) > 1 else "half"
    for settings in sections(config):
        kept = {key: settings[key] for key in _ROPE_KEYS if settings.get(key) is not None}
        for layer_type in _LAYER_TYPES:
            for width in (None, 2 * len(pairs_F2)):
                options: dict[str, Any] = {"pairing": pairing, "channel_offset": int(pairs_F2.min())}
                options |= {} if layer_type is None else {"layer_type": layer_type}
                options |= {} if width is None else {"rotary_dim": width}
                found = _tried(kept, head_dim, options)
                if found is None or not _equal(found, pairs_F2, frequencies_F, length):
                    continue
                if factor is None or abs(found.attention_factor - factor) < 1e-5:
                    return Recipe("rope", {"settings": kept, "head_dim": head_dim, **options}), found.attention_factor
    factor = 1.0 if factor is None else factor
    return (
        Recipe(
            "turning",
            {
                "head_dim": head_dim,
                "pairs": pairs_F2.tolist(),
                "frequencies": frequencies_F.tolist(),
                "pairing": pairing,
                "factor": factor,
            },
        ),
        factor,
    )


def sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A configuration and those inside it, text first."""
    nested = [key for key, value in config.items() if isinstance(value, Mapping) and key.endswith("config")]
    for key in sorted(nested, key=lambda each: (not each.startswith(("text", "llm", "decoder", "thinker")), each)):
        yield from sections(config[key])
    yield config


def _tried(settings: Mapping[str, Any], head_dim: int, options: Mapping[str, Any]) -> Rotary | None:
    try:
        return rope_from_config(settings, head_dim, **options).rotary
    except (ToposcopeError, BadConfig, BadEncoding):
        return None


def _equal(found: Rotary, pairs_F2: Index, frequencies_F: Array, length: int) -> bool:
    theirs = found.frequencies(length)
    turning = {tuple(pair): w for pair, w in zip(found.pairs_F2.tolist(), theirs, strict=True)}
    mine = {tuple(pair): w for pair, w in zip(pairs_F2.tolist(), frequencies_F, strict=True)}
    every = set(turning) | set(mine)
    return all(abs(turning.get(pair, 0.0) - mine.get(pair, 0.0)) < SNAP for pair in every)


def with_query_scale(encoding: Encoding, scale: QueryScale | None) -> Encoding:
    """The encoding with what multiplies queries by their own position."""
    return encoding if scale is None else replace(encoding, query_scale=scale)
