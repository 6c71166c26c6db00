"""A model's heads as one system of attention: their folded weights, norms, masks and biases, ready for a field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Layer, LayerWeights, Norm
from toposcope.core.errors import BadValue
from toposcope.dynamics.diagonal import chosen_diagonal
from toposcope.dynamics.fields import System, TokenFactor
from toposcope.dynamics.matrices import fitting
from toposcope.encodings import Encoding

Array = NDArray[np.float64]
Norms = Literal["on", "start", "off"]


def heads_system(
    layer: Layer, heads: list[Head], numbers: list[int], used: Encoding, causal: bool | None, norms: Norms
) -> System:
    """Folded heads as one system; heads that share keys and values are to share them here too."""
    spec = layer.spec
    groups = sorted({head.kv_group for head in heads})
    firsts = [next(head for head in heads if head.kv_group == group) for group in groups]
    norm = spec.input_norm
    rotary = fitting(used, spec.head_dim)
    turning = None if rotary is None else rotary.turning_heads
    if turning is not None:
        turning = sum(number < turning for number in numbers)
    if used.bias is not None and used.bias.heads <= max(numbers):
        raise BadValue(f"the bias of '{used.name}' has {used.bias.heads} heads, but head {max(numbers)} is asked.")
    return System(
        k_GRD=np.stack([head.k for head in firsts]),
        v_GSD=np.stack([head.v for head in firsts]),
        q_HRD=np.stack([head.q for head in heads]),
        o_HDS=np.stack([head.o for head in heads]),
        scale=spec.scale,
        q_bias_HR=_stacked([head.q_bias for head in heads]),
        k_bias_GR=_stacked([head.k_bias for head in firsts]),
        v_bias_GS=_stacked([head.v_bias for head in firsts]),
        causal=spec.causal if causal is None else causal,
        reach=spec.reach,
        rotary=rotary,
        turning=turning,
        bias=used.bias,
        bias_heads=tuple(numbers),
        softcap=spec.softcap,
        q_norm=_norms_of([head.q_norm for head in heads]),
        k_norm=_norms_of([head.k_norm for head in firsts]),
        qk_norm_over=spec.qk_norm_over if len(heads) == spec.heads else "head",
        factor=TokenFactor(norm.kind, norm.eps) if norm is not None and norms == "on" else None,
    )


def layer_system(
    layer: Layer, used: Encoding, causal: bool | None, norms: Norms, diagonal: float | Literal["auto"]
) -> System:
    """A layer with all its heads, output bias and output norm included."""
    heads = list(layer.heads)
    folded = [fold(layer, head) for head in heads]
    system = heads_system(layer, folded, list(range(len(heads))), used, causal, norms)
    w = layer.weights
    if w.output_norm is not None and norms == "on":
        system = replace(system, o_HDS=np.stack([head.o for head in heads]), output=_output(w))
    elif w.o_bias_D is not None:
        gain = 1.0 if w.output_gain is None else w.output_gain
        through = w.output_norm.gain if w.output_norm is not None and w.output_norm.gain is not None else 1.0
        system = replace(system, o_bias_D=np.asarray(w.o_bias_D, dtype=np.float64) * through * gain)
    return replace(system, diagonal=chosen_diagonal(diagonal, system))


def together(system: System) -> Array:
    """U = sum_h O_h V_h, the matrix that the first token and every consensus follow (T5)."""
    repeat = system.heads // len(system.v_GSD)
    if system.o_HDS is None:
        return system.v_GSD[0]
    return np.asarray(sum(system.o_HDS[h] @ system.v_GSD[h // repeat] for h in range(system.heads)))


def _output(w: LayerWeights) -> Callable[[Array], Array]:
    """The norm and gain on what a layer writes, with the bias that comes before them."""
    norm, gain, bias = w.output_norm, w.output_gain, w.o_bias_D
    assert norm is not None

    def apply(out: Array) -> Array:
        normed = norm(out if bias is None else out + np.asarray(bias, dtype=np.float64))
        return normed if gain is None else normed * gain

    return apply


def _stacked(parts: list[Array | None]) -> Array | None:
    found = [part for part in parts if part is not None]
    return np.stack(found) if found else None


def _norms_of(parts: list[Norm | None]) -> Norm | None:
    first = parts[0]
    if first is None:
        return None
    found = [part for part in parts if part is not None]
    gain = _stacked([part.gain for part in found])
    return Norm(first.kind, first.eps, gain, _stacked([part.bias for part in found]))
