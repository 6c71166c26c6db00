"""The attention of one layer in numpy float64: the one logit formula, evaluated on given inputs.

This is the reference that ties the view of the weights to what a model computes; it forms n x n matrices and is meant
for short texts. Shapes: H heads, G key-value heads, N queries, M keys, R head width, V value width, D model width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from toposcope.checkpoints.source import Stored
from toposcope.checkpoints.view import Array, Layer, LayerWeights, Norm
from toposcope.core.errors import BadValue


def project(layer: Layer, x_ND: Array, source_MD: Array | None = None) -> tuple[Array, Array, Array]:
    """Queries (H, N, R), keys (H, M, R) and values (H, M, V) of the layer's input, before any position acts.

    `x_ND` is what enters the layer, before its norm. `source_MD` is what keys and values read in cross-attention.
    """
    spec, w = layer.spec, layer.weights
    x_ND = np.asarray(x_ND, dtype=np.float64)
    if w.input_norm is not None:
        x_ND = w.input_norm(x_ND)
    from_MD = x_ND if source_MD is None else np.asarray(source_MD, dtype=np.float64)
    query_in = x_ND if w.q_latent is None else w.q_latent(x_ND)
    key_in = from_MD if w.kv_latent is None else w.kv_latent(from_MD)
    q_HNR = _apply(w.q_HRD, w.q_bias_HR, query_in)
    k_GMR = _apply(w.k_GRD, w.k_bias_GR, key_in)
    v_GMV = _apply(w.v_GVD, w.v_bias_GV, key_in)
    k_GMR = _append_shared(w, k_GMR, from_MD)
    if not spec.qk_norm_after:
        q_HNR = _norm_heads(w.q_norm, q_HNR, spec.qk_norm_over)
        k_GMR = _norm_heads(w.k_norm, k_GMR, spec.qk_norm_over)
    v_GMV = _norm_heads(w.v_norm, v_GMV, "head")
    repeat = spec.heads // spec.kv_heads
    return q_HNR, np.repeat(k_GMR, repeat, axis=0), np.repeat(v_GMV, repeat, axis=0)


def logits(
    layer: Layer,
    q_HNR: Array,
    k_HMR: Array,
    query_positions: ArrayLike | None = None,
    key_positions: ArrayLike | None = None,
) -> Array:
    """Logits (H, N, M) with the encoding in force, before mask and softmax; positions count from 0 by default."""
    spec = layer.spec
    at_N = np.arange(q_HNR.shape[1]) if query_positions is None else np.asarray(query_positions)
    at_M = np.arange(k_HMR.shape[1]) if key_positions is None else np.asarray(key_positions)
    if at_N.ndim == 1:  # tables by number: no position in a plane, nor one that depends on content
        spec.encoding.tables()
    context = int(max(at_N.max(), at_M.max())) + 1
    rotary, bias, query_scale = spec.encoding.rotary, spec.encoding.bias, spec.encoding.query_scale
    if rotary is not None:
        q_HNR = rotary.rotate(q_HNR, at_N, side="query", context=context)
        k_HMR = rotary.rotate(k_HMR, at_M, side="key", context=context)
    if spec.qk_norm_after:
        w = layer.weights
        repeat = spec.heads // spec.kv_heads
        q_HNR = _norm_heads(w.q_norm, q_HNR, spec.qk_norm_over)
        k_HMR = np.repeat(_norm_heads(w.k_norm, k_HMR[::repeat], spec.qk_norm_over), repeat, axis=0)
    if query_scale is not None:
        q_HNR = q_HNR * query_scale.factors(at_N)[:, None]
    logits_HNM = q_HNR @ k_HMR.swapaxes(1, 2) * spec.scale
    if bias is not None:
        logits_HNM = logits_HNM + bias.table(at_N, at_M)
    if spec.softcap is not None:
        logits_HNM = spec.softcap * np.tanh(logits_HNM / spec.softcap)
    return logits_HNM


def attention(
    layer: Layer, x_ND: Array, source_MD: Array | None = None, *, positions: ArrayLike | None = None
) -> Array:
    """Attention probabilities (H, N, M) of the layer on its input, under its own mask; positions count from 0."""
    q_HNR, k_HMR, _ = project(layer, x_ND, source_MD)
    logits_HNM = logits(layer, q_HNR, k_HMR, positions, positions)
    offset_NM = np.arange(q_HNR.shape[1])[:, None] - np.arange(k_HMR.shape[1])
    visible_NM = np.ones_like(offset_NM, dtype=bool)
    if layer.spec.kind == "self" or layer.spec.keys_of is not None:
        if layer.spec.causal:
            visible_NM &= offset_NM >= 0
        if layer.spec.reach is not None:
            visible_NM &= np.abs(offset_NM) <= layer.spec.reach
        if layer.spec.chunk is not None:
            at_N = np.arange(len(offset_NM))
            visible_NM &= at_N[:, None] // layer.spec.chunk == at_N // layer.spec.chunk
    logits_HNM = np.where(visible_NM, logits_HNM, -np.inf)
    sinks_H = layer.weights.sinks_H
    if sinks_H is None:
        return softmax(logits_HNM)
    sinks_HN1 = np.broadcast_to(sinks_H[:, None, None], (*logits_HNM.shape[:2], 1))
    return softmax(np.concatenate([logits_HNM, sinks_HN1], axis=2))[..., :-1]


def softmax(logits: Array) -> Array:
    """Softmax along the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def output(layer: Layer, probabilities_HNM: Array, v_HMV: Array, x_ND: Array | None = None) -> Array:
    """What attention adds to the residual stream (N, D), given its probabilities and values.

    `x_ND` is what enters the layer, before its norm; only a gate reads it.
    """
    w = layer.weights
    heads_HNV = probabilities_HNM @ v_HMV
    if w.gate is not None:
        if x_ND is None:
            raise BadValue(
                f"layer {layer.number} has an output gate, which reads the layer's input: give it as well."
            )
        x_ND = np.asarray(x_ND, dtype=np.float64)
        heads_HNV = heads_HNV * w.gate(x_ND if w.input_norm is None else w.input_norm(x_ND))
    if w.inner_norm is not None:
        heads_HNV = _norm_joined(w.inner_norm, heads_HNV)
    out_ND = np.einsum("hnv,hdv->nd", heads_HNV, w.o_HDV.astype(np.float64), optimize=True)
    if w.o_bias_D is not None:
        out_ND = out_ND + w.o_bias_D
    if w.output_norm is not None:
        out_ND = w.output_norm(out_ND)
    return out_ND if w.output_gain is None else out_ND * w.output_gain


def _apply(weight_HRD: Stored, bias_HR: Stored | None, x_ND: Array) -> Array:
    y_HNR = np.stack([x_ND @ rows_RD.astype(np.float64).T for rows_RD in weight_HRD])  # one head in float64 at a time
    return y_HNR if bias_HR is None else y_HNR + bias_HR[:, None, :]


def _append_shared(w: LayerWeights, k_GMR: Array, x_MD: Array) -> Array:
    """MLA: the rotary part of the key, the same for all heads, stands after each head's own part."""
    if w.k_shared_SD is None:
        return k_GMR
    shared_MS = x_MD @ w.k_shared_SD.T.astype(np.float64)
    if w.k_shared_bias_S is not None:
        shared_MS = shared_MS + w.k_shared_bias_S
    return np.concatenate([k_GMR, np.broadcast_to(shared_MS, (len(k_GMR), *shared_MS.shape))], axis=2)


def _norm_joined(norm: Norm, heads_HNV: Array) -> Array:
    """The norm before O: of each head's output where its gain has that width, else of all together."""
    heads, length, value = heads_HNV.shape
    if norm.gain is not None and len(norm.gain) == value:
        return norm(heads_HNV)
    joined_NK = norm(heads_HNV.transpose(1, 0, 2).reshape(length, heads * value))
    return joined_NK.reshape(length, heads, value).transpose(1, 0, 2)


def _norm_heads(norm: Norm | None, y_HNR: Array, over: str) -> Array:
    if norm is None:
        return y_HNR
    gain = None if norm.gain is None else norm.gain[:, None, :]
    bias = None if norm.bias is None else norm.bias[:, None, :]
    if over == "head":
        return Norm(norm.kind, norm.eps, gain, bias)(y_HNR)
    heads, length, wide = y_HNR.shape
    flat = Norm(norm.kind, norm.eps)(y_HNR.transpose(1, 0, 2).reshape(length, heads * wide))
    y_HNR = flat.reshape(length, heads, wide).transpose(1, 0, 2)
    y_HNR = y_HNR if gain is None else y_HNR * gain
    return y_HNR if bias is None else y_HNR + bias
