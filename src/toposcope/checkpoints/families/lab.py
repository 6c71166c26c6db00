"""Toposcope's own small models: norm before attention, plain or latent projections, any encoding of the registry.

The configuration lists for each layer which encodings act in it and on which heads, as the registry writes them; what
was trained of them (a table, a network) stands among the tensors. From both, `layer_encoding` builds the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, LayerSizes
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig, BadEncoding, BadFile, MissingTensor, NotFound
from toposcope.core.untrusted import SETTINGS, read_json, require_inside
from toposcope.encodings import (
    NONE,
    Encoding,
    EncodingSpec,
    LogitBias,
    Sizes,
    combine,
    parse,
)

Array = NDArray[np.floating[Any]]
MODEL_TYPE = "toposcope-lab"


def model_directory(target: str | Path) -> Path | None:
    """Where a model that `toposcope train` wrote lies: in a directory, or in 'model' inside it; None: it is none."""
    for place in (Path(target), Path(target) / "model"):
        try:
            require_inside(place, target)
            said = read_json(place / "config.json", most=SETTINGS, inside=place)
        except (BadFile, NotFound):
            continue
        if isinstance(said, dict) and said.get("model_type") == MODEL_TYPE:
            return place
    return None


@dataclass(frozen=True)
class Acting:
    """An encoding that acts inside one layer; `heads` is None where it acts on all of them."""

    spec: EncodingSpec
    heads: tuple[int, ...] | None = None


def trained_encoding(spec: EncodingSpec, sizes: Sizes, tensors: Mapping[str, Array]) -> Encoding:
    """The encoding with what was trained of it in place of its initial values."""
    made = spec.build(sizes)
    trained = spec.kind.trained
    return made if trained is None else trained(sizes, made.parameters, tensors)


def layer_encoding(
    acting: Sequence[Acting], sizes: Sizes, tensors_of: Callable[[int], Mapping[str, Array]]
) -> Encoding:
    """The record of one layer: each part limited to its heads, all parts together."""
    made = NONE
    for number, part in enumerate(acting):
        one = trained_encoding(part.spec, sizes, tensors_of(number))
        made = combine(made, one if part.heads is None else limited(one, part.heads, sizes.heads))
    return made


def limited(encoding: Encoding, heads: Sequence[int], of: int) -> Encoding:
    """The encoding on some heads only: the others do not turn, and their bias is 0."""
    said = f"{encoding.title}, {len(heads)} of {of} heads"
    if encoding.rotary is not None:
        if list(heads) != list(range(len(heads))):
            raise BadEncoding(f"heads {list(heads)} are to turn, but those that turn come first.")
        return replace(encoding, title=said, rotary=replace(encoding.rotary, turning_heads=len(heads)))
    if encoding.bias is None:
        raise BadEncoding(f"'{encoding.name}' cannot be limited to heads.")
    whole = encoding.bias
    chosen_H11 = np.isin(np.arange(of), list(heads))[:, None, None]
    some = LogitBias(of, lambda at_N, at_M: np.where(chosen_H11, whole.bias_at(at_N, at_M), 0.0), whole.toeplitz)
    return replace(encoding, title=said, bias=some)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """A model that `toposcope train` wrote."""
    sizes = LayerSizes.of(config)
    context, causal = config.integer("max_position_embeddings"), config.flag("causal", default=False)
    latent = config.part("latent")
    quirks = config.part("quirks")
    head_dim, value_dim = sizes.head_dim, sizes.head_dim
    if latent:
        head_dim, value_dim = latent.integer("head_dim"), latent.integer("value_dim")
    measured = Sizes(sizes.width, sizes.heads, head_dim, context, causal)
    tables: list[str] = []

    def tensors(prefix: str, spec: EncodingSpec) -> Mapping[str, Array]:
        found = {}
        for name in spec.kind.learns:
            full = f"{prefix}{name}"
            if full not in source.names():
                raise MissingTensor(f"{source.path} holds no tensor '{full}', a part of the encoding '{spec}'.")
            found[name] = source.read(full)
            tables.append(full)
        return found

    added = NONE
    if config.get("input_encoding") is not None:
        spec = parse(config.text("input_encoding", default="none"))
        added = trained_encoding(spec, measured, tensors("position.", spec))
    per_layer = config.listed("layer_encodings", sizes.layers) or [[]] * sizes.layers
    apart = bool(latent) and quirks.flag("mla_apart", default=False)
    raw = quirks.flag("raw_keys_values", default=False) and not apart
    eps = config.number("layer_norm_eps", default=1e-5)
    own = config.part("lab")
    loops = own.integer("loops", default=1, most=max(1, 10_000 // sizes.layers))
    scale = own.number("logit_scale", default=1.0) * head_dim**-0.5

    def layer(at_depth: int) -> LayerSpec:
        i = at_depth % sizes.layers
        at = f"layers.{i}.attention."
        acting = _acting(per_layer[i], config.where)
        inside = layer_encoding(
            acting, measured, lambda part: tensors(f"{at}position.parts.{part}.", acting[part].spec)
        )
        misread = inside.name == "mla" and quirks.flag("mla_misread", default=False)
        if misread:
            note = "sines and cosines are read from the wrong columns: it is no rotation."
            inside = replace(inside, rotary=None, exact_tables=False, notes=(note,))
        plain = sizes.layer(
            stack="decoder" if causal else "encoder",
            index=at_depth,
            head_dim=head_dim,
            value_dim=value_dim,
            scale=scale,
            shared_with=i if at_depth != i else None,
            causal=causal,
            kind="cross" if raw else "self",
            encoding=combine(added, inside),
            source_width=sizes.width if raw else None,
            q=Linear.at(f"{at}q_proj"),
            k=Linear.at(f"{at}k_proj"),
            v=Linear.at(f"{at}v_proj"),
            o=Linear.at(f"{at}o_proj"),
            input_norm=NormSpec.at("layer", f"layers.{i}.attention_norm", eps),
            warnings=("keys and values read the raw embeddings, in every layer.",) if raw else (),
        )
        if not latent:
            return plain
        rank, turning = latent.integer("rank"), latent.integer("shared_key", least=0)
        return replace(
            plain,
            k=None,
            v=None,
            q=Linear.at(f"{at}q_b_proj"),
            q_latent=LatentSpec(Linear.at(f"{at}q_a_proj"), None, rank),
            kv_latent=LatentSpec(Linear.at(f"{at}kv_a_proj"), None, rank),
            kv_up=Linear.at(f"{at}kv_b_proj"),
            shared_key=turning,
        )

    return ModelSpec(
        family="lab",
        layers=tuple(layer(i) for i in range(sizes.layers * loops)),
        embedding="embed.weight",
        context=context,
        accounted=tuple(tables),
    )


def _acting(entries: Any, where: str) -> tuple[Acting, ...]:
    """The parts of one layer, as the configuration writes them."""
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("encoding"), str) for entry in entries
    ):
        raise BadConfig(f"'layer_encodings' in {where} holds {entries!r}; expected a list of encodings.")
    return tuple(
        Acting(parse(entry["encoding"]), None if entry.get("heads") is None else tuple(entry["heads"]))
        for entry in entries
    )


FAMILIES = (Family("lab", (MODEL_TYPE,), describe, "the small models that 'toposcope train' makes"),)
