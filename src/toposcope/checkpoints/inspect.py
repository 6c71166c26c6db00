"""What a checkpoint is made of, layer by layer and head by head."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.opened import ModelLike, opened, said, subject
from toposcope.checkpoints.source import headers
from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Array, Head, Layer, Model
from toposcope.core.progress import Progress, steps
from toposcope.core.ranges import parse_range, written_layers
from toposcope.core.result import Provenance, Result
from toposcope.encodings import Encoding


@dataclass(frozen=True)
class InspectedHead:
    """One head: how strongly it can look, and how strongly it writes, seen from the residual stream.

    `logit_strength` is the Frobenius norm of scale * Q^T K, `write_strength` that of O V, norm gains folded in;
    `rotating_share` is the part of the logit's energy that passes through rotating channels (None: no rotation).
    """

    layer: int
    head: int
    kv_group: int
    logit_strength: float
    write_strength: float
    rotating_share: float | None


@dataclass(frozen=True)
class StrengthRange:
    """The least, the median and the greatest strength of a layer's heads."""

    least: float
    median: float
    most: float


@dataclass(frozen=True)
class InspectedLayer:
    """One attention layer: its shape, its mask, its norms, its encoding, and how strong its heads are."""

    layer: int
    stack: str
    index: int
    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool
    reach: int | None
    scale: float
    norm: str
    qk_norm: bool
    softcap: float | None
    extras: tuple[str, ...]
    biases: tuple[str, ...]
    latent: bool
    shared_with: int | None
    encoding: str
    encoding_title: str
    encoding_parameters: Mapping[str, Any]
    mechanisms: tuple[str, ...]
    warnings: tuple[str, ...]
    logit_strength: StrengthRange | None  # None where no weights were read
    write_strength: StrengthRange | None


@dataclass(frozen=True, kw_only=True, eq=False)
class InspectResult(Result):
    """What a checkpoint is made of; `dtypes` counts its tensors by the type they are stored in."""

    kind = "inspect"
    table = "heads"

    family: str
    format: str
    width: int
    parameters: int
    stored_bytes: int
    dtypes: Mapping[str, int]
    context: int | None
    layers: tuple[InspectedLayer, ...]
    heads: tuple[InspectedHead, ...]


def inspect(
    model: ModelLike,
    *,
    layers: str | int | Sequence[int] | None = None,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> InspectResult:
    """What a checkpoint is made of: its layers, how each encodes position, its heads, and what was not read.

    `model` is a name, a path, a `Model`, or a loaded model of transformers or TransformerLens; `layers` selects
    ("0-3,7"). `family` and `num_heads` say how a file is to be read; `adapter` is one of PEFT, merged as it is read.
    Without `weights` only headers and the configuration are read: kilobytes of a model on the hub, and no word on
    single heads.
    """
    started = time.perf_counter()
    layers = written_layers(layers)
    with opened(model, family=family, num_heads=num_heads, adapter=adapter) as found:
        chosen = parse_range(layers, len(found.layers))
        result = inspect_model(found, chosen, weights=weights, progress=progress)
        asked = {
            "layers": layers, "family": family, "num_heads": num_heads, "adapter": said(adapter), "weights": weights
        }  # fmt: skip
        return replace(
            result,
            provenance=Provenance((subject(found, model),), asked, time.perf_counter() - started),
            skipped=found.skipped,
        )


def inspect_model(
    model: Model, layers: Sequence[int], *, weights: bool = True, progress: Progress | None = None
) -> InspectResult:
    """Read these layers of an open model once, and describe it; without `weights`, from its headers."""
    layer_rows: list[InspectedLayer] = []
    head_rows: list[InspectedHead] = []
    if model.hub is not None:
        model.hub.headers()
    if weights:
        model.expect(layers, progress)
    step = steps(progress, "layers", len(layers))
    for layer in (model.layers[i] for i in layers):
        heads = [_head_row(layer, fold(layer, head)) for head in layer.heads] if weights else []
        layer_rows.append(_layer_row(layer, heads, model.source.names()))
        head_rows += heads
        step()
    infos = headers(model.source)
    dtypes: dict[str, int] = {}
    for info in infos:
        dtypes[info.dtype] = dtypes.get(info.dtype, 0) + 1
    return InspectResult(
        family=model.family,
        format=model.source.format,
        width=model.layers[0].spec.width if model.layers else 0,
        parameters=sum(int(np.prod(info.shape, dtype=object)) for info in infos),
        stored_bytes=sum(info.nbytes for info in infos),
        dtypes=dict(sorted(dtypes.items(), key=lambda item: -item[1])),
        context=model.spec.context,
        layers=tuple(layer_rows),
        heads=tuple(head_rows),
    )


def _layer_row(layer: Layer, heads: Sequence[InspectedHead], stored: Collection[str]) -> InspectedLayer:
    spec = layer.spec
    return InspectedLayer(
        layer=layer.number,
        stack=spec.stack,
        index=spec.index,
        kind=spec.kind,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.value_width,
        causal=spec.causal,
        reach=spec.reach,
        scale=spec.scale,
        norm=spec.placement,
        qk_norm=spec.q_norm is not None,
        softcap=spec.softcap,
        extras=(*(["attention_sinks"] if spec.sinks else []), *spec.value_path, *spec.logit_path()),
        biases=_biases(layer) if heads else _stored_biases(spec, stored),
        latent=spec.kv_latent is not None,
        shared_with=spec.shared_with,
        encoding=spec.encoding.name,
        encoding_title=spec.encoding.title,
        encoding_parameters=dict(spec.encoding.parameters),
        mechanisms=spec.encoding.mechanisms,
        warnings=spec.warnings,
        logit_strength=_range([head.logit_strength for head in heads]),
        write_strength=_range([head.write_strength for head in heads]),
    )


def _biases(layer: Layer) -> tuple[str, ...]:
    w = layer.weights
    biases = {"q": w.q_bias_HR, "k": w.k_bias_GR, "v": w.v_bias_GV, "o": w.o_bias_D}
    return tuple(name for name, bias in biases.items() if bias is not None)


def _stored_biases(spec: LayerSpec, stored: Collection[str]) -> tuple[str, ...]:
    """Which maps have a bias, by the names of the tensors alone."""
    q, k, v = (spec.qkv,) * 3 if spec.qkv is not None else (spec.q, spec.k or spec.kv_up, spec.v or spec.kv_up)
    maps = {"q": q, "k": k, "v": v, "o": spec.o}
    return tuple(name for name, each in maps.items() if each is not None and each.bias in stored)


def _range(strengths: Sequence[float]) -> StrengthRange | None:
    ranked = sorted(strengths)
    return StrengthRange(ranked[0], ranked[len(ranked) // 2], ranked[-1]) if ranked else None


def _head_row(layer: Layer, head: Head) -> InspectedHead:
    return InspectedHead(
        layer=head.layer,
        head=head.head,
        kv_group=head.kv_group,
        logit_strength=head.scale * _product_norm(head.q, head.k),
        write_strength=_product_norm(head.v, head.o.T),
        rotating_share=_rotating_share(layer.encoding, head),
    )


def _product_norm(left: Array, right: Array) -> float:
    """The Frobenius norm of left^T right from two small Gram matrices: tr(L L^T R R^T)."""
    return float(np.sqrt(max(0.0, np.sum((left @ left.T) * (right @ right.T)))))


def _rotating_share(encoding: Encoding, head: Head) -> float | None:
    """Energy of the rotating channels' own part of Q^T K over the sum of both parts' energies."""
    if encoding.rotary is None:
        return None
    turning = np.zeros(len(head.q), dtype=bool)
    turning[encoding.rotary.pairs_F2.ravel()] = True
    turned, still = (_product_norm(head.q[part], head.k[part]) ** 2 for part in (turning, ~turning))
    total = turned + still
    return None if total == 0 else turned / total
