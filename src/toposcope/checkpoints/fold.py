"""Fold what surrounds a head into its matrices, so that they act on the residual stream itself.

For pre-norm layers the gain multiplies the columns of Q, K and V, LayerNorm's centring acts on x first, and its
bias turns into biases of q, k and v. What is left out is the norm's per-token factor 1/rms(x): a positive number.
A norm on attention's output gives its gain to O, as do layer scales and residual multipliers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from toposcope.checkpoints.view import Array, Head, Layer, Norm


def fold(layer: Layer, head: Head) -> Head:
    """The head with the layer's norms and output gains folded in; see the module's text for what is exact."""
    w = layer.weights
    if w.input_norm is not None:
        q, q_bias = _through(w.input_norm, head.q, head.q_bias)
        if layer.spec.kind == "self":
            k, k_bias = _through(w.input_norm, head.k, head.k_bias)
            v, v_bias = _through(w.input_norm, head.v, head.v_bias)
        else:  # cross-attention reads keys and values from the other stack, past this norm
            k, k_bias, v, v_bias = head.k, head.k_bias, head.v, head.v_bias
        head = replace(head, q=q, k=k, v=v, q_bias=q_bias, k_bias=k_bias, v_bias=v_bias)
    return replace(head, o=fold_output(layer, head.o))


def fold_values(layer: Layer, group: int) -> tuple[Array, Array | None]:
    """V of a key-value head and its bias, as `fold` has them in self-attention."""
    norm = layer.weights.input_norm
    return layer.values(group) if norm is None else _through(norm, *layer.values(group))


def fold_output(layer: Layer, o: Array) -> Array:
    """O of a head with what stands behind it folded in."""
    w = layer.weights
    if w.output_norm is not None:
        if w.output_norm.kind == "layer":
            o = o - o.mean(axis=0, keepdims=True)
        if w.output_norm.gain is not None:
            o = w.output_norm.gain[:, None] * o
    if w.output_gain is not None:
        o = np.broadcast_to(np.asarray(w.output_gain, dtype=np.float64), (len(o),))[:, None] * o
    return o


def _through(norm: Norm, matrix: Array, bias: Array | None) -> tuple[Array, Array | None]:
    """M norm(x) + b as a matrix and a bias acting on x / (per-token size): M diag(gain) [centring], b + M beta."""
    if norm.bias is not None:
        shift = matrix @ norm.bias
        bias = shift if bias is None else bias + shift
    folded = matrix if norm.gain is None else matrix * norm.gain
    if norm.kind == "layer":
        folded = folded - folded.mean(axis=1, keepdims=True)  # centring x is projecting the rows off the ones vector
    return folded, bias
