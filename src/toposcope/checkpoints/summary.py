"""What a checkpoint is made of, layer by layer and head by head: the result of `toposcope inspect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.spec import Skipped
from toposcope.checkpoints.view import Array, Head, Layer, Model
from toposcope.encodings import Encoding


@dataclass(frozen=True)
class HeadRow:
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
class LayerRow:
    """One attention layer: its shape, its mask, its norms and its encoding."""

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
    biases: tuple[str, ...]
    latent: bool
    shared_with: int | None
    encoding: str
    encoding_title: str
    encoding_parameters: dict[str, Any]
    mechanisms: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The whole of it."""

    family: str
    format: str
    width: int
    parameters: int
    stored_bytes: int
    dtypes: dict[str, int]
    context: int | None
    layers: tuple[LayerRow, ...]
    heads: tuple[HeadRow, ...]
    skipped: tuple[Skipped, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def summarise(
    model: Model,
    layers: Sequence[int] | None = None,
    *,
    tick: Callable[[], None] = lambda: None,
) -> Inspection:
    """Read the chosen layers once and describe the model; `tick` is called after each layer."""
    chosen = model.layers if layers is None else [model.layers[i] for i in layers]
    layer_rows: list[LayerRow] = []
    head_rows: list[HeadRow] = []
    for layer in chosen:
        layer_rows.append(_layer_row(layer))
        head_rows.extend(_head_row(layer, fold(layer, head)) for head in layer.heads)
        tick()
    infos = [model.source.info(name) for name in model.source.names()]
    dtypes: dict[str, int] = {}
    for info in infos:
        dtypes[info.dtype] = dtypes.get(info.dtype, 0) + 1
    return Inspection(
        family=model.family,
        format=model.source.format,
        width=model.layers[0].spec.width if model.layers else 0,
        parameters=sum(int(np.prod(info.shape, dtype=object)) for info in infos),
        stored_bytes=sum(info.nbytes for info in infos),
        dtypes=dict(sorted(dtypes.items(), key=lambda item: -item[1])),
        context=model.spec.context,
        layers=tuple(layer_rows),
        heads=tuple(head_rows),
        skipped=model.skipped,
    )


def same_encoding(rows: Sequence[LayerRow]) -> list[tuple[LayerRow, list[int]]]:
    """Layers grouped by what encodes position in them: an example of each, and the layers' numbers."""
    groups: dict[tuple[str, str, str], tuple[LayerRow, list[int]]] = {}
    for row in rows:
        groups.setdefault((row.stack, row.kind, row.encoding_title), (row, []))[1].append(row.layer)
    return list(groups.values())


def _layer_row(layer: Layer) -> LayerRow:
    spec, w = layer.spec, layer.weights
    biases = {"q": w.q_bias_HR, "k": w.k_bias_GR, "v": w.v_bias_GV, "o": w.o_bias_D}
    return LayerRow(
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
        biases=tuple(name for name, bias in biases.items() if bias is not None),
        latent=spec.kv_latent is not None,
        shared_with=spec.shared_with,
        encoding=spec.encoding.name,
        encoding_title=spec.encoding.title,
        encoding_parameters=dict(spec.encoding.parameters),
        mechanisms=spec.encoding.mechanisms,
        warnings=spec.warnings,
    )


def _head_row(layer: Layer, head: Head) -> HeadRow:
    return HeadRow(
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
