"""From a layer's description and a source of tensors to its weights, sorted by head. The same for all families."""

from __future__ import annotations

import numpy as np

from toposcope.checkpoints.source import Rows, Stored, TensorSource, usable
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, NormSpec
from toposcope.checkpoints.view import Array, Gate, Latent, LayerWeights, Norm
from toposcope.core.errors import MissingTensor

_Pair = tuple[Stored, Stored | None]  # a weight (out, in) and its bias (out)


def read_layer(source: TensorSource, spec: LayerSpec) -> LayerWeights:
    """Read, check the shapes of, and sort by head the tensors of one attention layer."""
    q, k, v, shared = _projections(source, spec)
    heads, groups, wide, value = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
    own_key = wide - spec.shared_key
    if spec.ggml_permuted:
        q, k = _unpermute(q, heads), _unpermute(k, groups)
    o_weight, o_bias = _linear(source, spec.o, (spec.width, heads * value))
    return LayerWeights(
        q_HRD=_by_head(q[0], heads, wide),
        k_GRD=_by_head(k[0], groups, own_key),
        v_GVD=_by_head(v[0], groups, value),
        o_HDV=o_weight.reshape(spec.width, heads, value).transpose(1, 0, 2),
        q_bias_HR=None if q[1] is None else q[1].reshape(heads, wide),
        k_bias_GR=None if k[1] is None else k[1].reshape(groups, own_key),
        v_bias_GV=None if v[1] is None else v[1].reshape(groups, value),
        o_bias_D=o_bias,
        input_norm=_norm(source, spec.input_norm, spec.width),
        output_norm=_norm(source, spec.output_norm, spec.width),
        residual_norm=_norm(source, spec.residual_norm, spec.width),
        q_norm=_head_norm(source, spec.q_norm, heads, wide),
        k_norm=_head_norm(source, spec.k_norm, groups, wide),
        q_latent=_latent(source, spec.q_latent, spec.width, 0),
        kv_latent=_latent(source, spec.kv_latent, spec.width, spec.shared_key),
        k_shared_SD=None if shared is None else shared[0],
        k_shared_bias_S=None if shared is None else shared[1],
        output_gain=_output_gain(source, spec),
        v_norm=_head_norm(source, spec.v_norm, groups, value),
        inner_norm=_inner_norm(source, spec),
        gate=_gate(source, spec),
        sinks_H=None if spec.sinks is None else _sinks(source, spec.sinks, heads),
    )


def _projections(source: TensorSource, spec: LayerSpec) -> tuple[_Pair, _Pair, _Pair, _Pair | None]:
    heads, groups, wide, value = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
    if spec.qkv is not None:
        rows = heads * wide + groups * (wide + value)
        return (*_split_fused(_linear(source, spec.qkv, (rows, spec.width)), spec), None)
    if spec.q is None:
        raise MissingTensor("the adapter names neither separate nor fused projections: a bug in the adapter.")
    q_in = spec.width if spec.q_latent is None else spec.q_latent.rank
    q = _linear(source, spec.q, (heads * wide, q_in))
    if spec.kv_latent is not None and (spec.kv_up is not None or spec.k_up is not None):
        k, v = _unfolded(source, spec, spec.kv_latent.rank)
        down = _linear(source, spec.kv_latent.down, (spec.kv_latent.rank + spec.shared_key, spec.width))
        shared = (down[0][spec.kv_latent.rank :], None if down[1] is None else down[1][spec.kv_latent.rank :])
        return q, k, v, shared
    if spec.k is None or spec.v is None:
        raise MissingTensor("the adapter names queries but no keys or values: a bug in the adapter.")
    k = _linear(source, spec.k, (groups * wide, spec.key_source_width))
    v = _linear(source, spec.v, (groups * value, spec.key_source_width))
    return q, k, v, None


def _unfolded(source: TensorSource, spec: LayerSpec, rank: int) -> tuple[_Pair, _Pair]:
    """The keys' and values' maps from the latent, from one tensor or from one stack of matrices each."""
    groups, own_key, value = spec.kv_heads, spec.head_dim - spec.shared_key, spec.value_width
    if spec.kv_up is not None:
        return _split_rows(_linear(source, spec.kv_up, (groups * (own_key + value), rank)), groups, own_key, value)
    if spec.k_up is None or spec.v_up is None:
        raise MissingTensor("the adapter names a latent but not what unfolds it: a bug in the adapter.")
    k = _read(source, spec.k_up, (groups, rank, own_key)).swapaxes(1, 2)
    v = _read(source, spec.v_up, (groups, value, rank))
    return (k.reshape(-1, rank), None), (v.reshape(-1, rank), None)


def _split_fused(fused: _Pair, spec: LayerSpec) -> tuple[_Pair, _Pair, _Pair]:
    heads, groups, wide, value = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
    if spec.layout == "stacked":
        cuts = [heads * wide, heads * wide + groups * wide]
        weights = np.split(fused[0], cuts)
        biases = [None] * 3 if fused[1] is None else np.split(fused[1], cuts)
        return (weights[0], biases[0]), (weights[1], biases[1]), (weights[2], biases[2])
    # per_head is grouped with one query head in each group
    q_rows = heads // groups * wide
    q, kv = _split_rows(fused, groups, q_rows, wide + value)
    return q, *_split_rows(kv, groups, wide, value)


def _split_rows(pair: _Pair, blocks: int, first: int, second: int) -> tuple[_Pair, _Pair]:
    """Cut each of `blocks` equal blocks of rows into its `first` and its `second` rows."""
    weight = pair[0].reshape(blocks, first + second, -1)
    bias = None if pair[1] is None else pair[1].reshape(blocks, first + second)
    width = weight.shape[-1]
    return (
        (weight[:, :first].reshape(-1, width), None if bias is None else bias[:, :first].reshape(-1)),
        (weight[:, first:].reshape(-1, width), None if bias is None else bias[:, first:].reshape(-1)),
    )


def _unpermute(pair: _Pair, heads: int) -> _Pair:
    """Undo llama.cpp's row order: its rows 2m, 2m+1 of a head are rows m, m + r/2 of the original."""

    def back(rows: Stored) -> Stored:
        blocks = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
        return blocks.swapaxes(1, 2).reshape(rows.shape)

    return back(pair[0]), None if pair[1] is None else back(pair[1])


def _by_head(weight: Stored, heads: int, rows: int) -> Stored:
    return weight.reshape(heads, rows, weight.shape[-1])


def _linear(source: TensorSource, linear: Linear, shape: tuple[int, int]) -> _Pair:
    if linear.rows is not None:
        weight, bias = _some_rows(source, linear, linear.rows.rows, shape)
    else:
        weight = _read(source, linear.weight, shape[::-1] if linear.transposed else shape)
        weight = weight.T if linear.transposed else weight
        bias = None
        if linear.bias is not None and linear.bias in source.names():
            part, parts = linear.bias_part or (0, 1)
            bias = _read(source, linear.bias, (parts * shape[0],))[part * shape[0] : (part + 1) * shape[0]]
    if linear.factor != 1:
        weight, bias = weight * linear.factor, None if bias is None else bias * linear.factor
    return weight, bias


def _some_rows(source: TensorSource, linear: Linear, rows: Rows, shape: tuple[int, int]) -> _Pair:
    """The rows of a tensor that holds more than this map."""
    if len(rows) != shape[0]:
        raise MissingTensor(f"{len(rows)} rows of '{linear.weight}' are named where {shape[0]} are needed.")
    _require(source, linear.weight)
    stored = source.info(linear.weight).shape
    held, width = (stored[::-1] if linear.transposed else stored) if len(stored) == 2 else (0, 0)
    if held <= rows[-1] or width != shape[1]:
        raise MissingTensor(
            f"tensor '{linear.weight}' in {source.path} has shape {stored}; expected at least {rows[-1] + 1} rows of "
            f"width {shape[1]}. The configuration and the weights do not belong together."
        )
    weight = _read(source, linear.weight, stored)
    weight = (weight.T if linear.transposed else weight)[rows]
    if linear.bias is None or linear.bias not in source.names():
        return weight, None
    return weight, _read(source, linear.bias, (held,))[rows]


def _require(source: TensorSource, name: str) -> None:
    if name not in source.names():
        raise MissingTensor(
            f"{source.path} holds no tensor '{name}', which this family's layers need. "
            "The file may be incomplete, or of another family: see 'toposcope ls families' and --family."
        )


def _read(source: TensorSource, name: str, shape: tuple[int, ...]) -> Stored:
    _require(source, name)
    found = source.info(name).shape
    if found != shape:
        raise MissingTensor(
            f"tensor '{name}' in {source.path} has shape {found}; the configuration asks for {shape}. "
            "The configuration and the weights do not belong together, or --family is wrong."
        )
    return usable(source.read(name), name, source.path)


def _norm(source: TensorSource, spec: NormSpec | None, width: int) -> Norm | None:
    if spec is None:
        return None
    gain = bias = None
    if spec.weight is not None:
        gain = _read(source, spec.weight, (width,)).astype(np.float64) + spec.offset
    if spec.bias is not None and spec.bias in source.names():
        bias = _read(source, spec.bias, (width,)).astype(np.float64)
    return Norm(spec.kind, spec.eps, gain, bias)


def _head_norm(source: TensorSource, spec: NormSpec | None, heads: int, wide: int) -> Norm | None:
    """A norm of queries or keys, its gain spread to (heads, head width)."""
    if spec is None:
        return None

    def spread(name: str | None, offset: float = 0.0) -> Array | None:
        if name is None or name.replace("{head}", "0") not in source.names():
            return None
        if "{head}" in name:
            each = [_read(source, name.replace("{head}", str(i)), (wide,)) for i in range(heads)]
            return np.stack(each).astype(np.float64) + offset
        size = int(np.prod(source.info(name).shape))
        if size not in (wide, heads * wide):
            raise MissingTensor(
                f"tensor '{name}' in {source.path} has {size} entries; a norm of {heads} heads of width {wide} "
                f"has {wide} or {heads * wide}."
            )
        stored = usable(source.read(name), name, source.path).astype(np.float64) + offset
        return np.broadcast_to(stored.reshape(-1, wide), (heads, wide))

    gain = spread(spec.weight, spec.offset)
    if spec.weight is not None and gain is None:
        raise MissingTensor(f"{source.path} holds no tensor '{spec.weight}', the norm of the queries or keys.")
    return Norm(spec.kind, spec.eps, gain, spread(spec.bias))


def _latent(source: TensorSource, spec: LatentSpec | None, width: int, shared: int) -> Latent | None:
    """The bottleneck; the last `shared` rows of its tensor are not part of it."""
    if spec is None:
        return None
    down, bias = _linear(source, spec.down, (spec.rank + shared, width))
    return Latent(down[: spec.rank], None if bias is None else bias[: spec.rank], _norm(source, spec.norm, spec.rank))


def _inner_norm(source: TensorSource, spec: LayerSpec) -> Norm | None:
    """The norm before O, of all heads' outputs together or (its gain has a head's width) of each head's."""
    norm, value = spec.inner_norm, spec.value_width
    if norm is None:
        return None
    stored = None if norm.weight is None else source.info(norm.weight).shape if norm.weight in source.names() else ()
    return _norm(source, norm, value if stored == (value,) else spec.heads * value)


def _gate(source: TensorSource, spec: LayerSpec) -> Gate | None:
    if spec.gate is None:
        return None
    rows = spec.heads * (spec.value_width if spec.gate.over == "channel" else 1)
    weight, bias = _linear(source, spec.gate.linear, (rows, spec.width))
    return Gate(
        weight.reshape(spec.heads, -1, spec.width),
        None if bias is None else bias.reshape(spec.heads, -1),
        spec.gate.activation,
    )


def _sinks(source: TensorSource, name: str, heads: int) -> Array:
    """One logit per head, in a tensor of any shape with so many entries."""
    _require(source, name)
    shape = source.info(name).shape
    if int(np.prod(shape)) != heads:
        raise MissingTensor(
            f"tensor '{name}' in {source.path} has shape {shape}; expected one sink for {heads} heads."
        )
    return _read(source, name, shape).astype(np.float64).reshape(heads)


def _output_gain(source: TensorSource, spec: LayerSpec) -> Array | float | None:
    if isinstance(spec.output_gain, str):
        return _read(source, spec.output_gain, (spec.width,)).astype(np.float64)
    return spec.output_gain
