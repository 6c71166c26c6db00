"""Flows of a real model: one head, one layer with all its heads, or the stack of layers one after the other.

A head alone moves tokens only inside range(O). With V~ = V O invertible, x = O z + nu and nu never moves (T9); the
run is done in r coordinates of that range (orthonormal, so that distances are those of the residual stream), with
every term that nu adds to the logits. Where O V has a lower rank than r (a LayerNorm before a head as wide as the
model leaves one direction unread) that rank takes r's place; where V~ is nearly singular even so, all d coordinates
are followed instead.

A layer is dx/dt = sum_h O_h sum_j P_ij^h V_h x_j + b_o. The stack gives each layer one unit of time, and begins again
after the last: the continuous picture of the residual steps, without MLPs.

Norms: `on` uses the model's own norm with its per-token factor; `start` normalises the tokens once, so that logits
begin at their true size, and then follows the folded weights, of which the theorems speak; `off` never normalises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.view import Head, Layer, Model, Norm
from toposcope.core.errors import BadValue
from toposcope.dynamics.diagonal import chosen_diagonal
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.heads import head_setting
from toposcope.dynamics.layers import layer_dynamics
from toposcope.dynamics.matrices import Absolute, built, cloud, natural_horizon, placed, rotary_excess
from toposcope.dynamics.reduction import reduce_head, thin_factors
from toposcope.dynamics.regime import Regime, decide
from toposcope.dynamics.rotation import turned
from toposcope.dynamics.run import Piece, Problem
from toposcope.dynamics.systems import Norms, heads_system, layer_system, together
from toposcope.encodings import Encoding, Sizes

Array = NDArray[np.float64]

SINGULAR = "V O is nearly singular: all coordinates are followed"
_WORST_CONDITION = 1e8


def head_problem(
    model: Model,
    layer: int,
    head: int,
    x0: Array,
    *,
    encoding: Encoding | str | None = None,
    absolute: Absolute = "input",
    diagonal: float | Literal["auto"] = 0.0,
    causal: bool | None = None,
    norms: Norms = "start",
    reduced: bool = True,
    horizon: float | None = None,
) -> Problem:
    """One head acting alone on tokens `x0` (n, d), in the r coordinates it can move (T9).

    With a causal mask and V~ Hurwitz every token tends to (I - O V~^-1 V) x_0 - O V~^-1 b_v (T6, T9), which is the
    origin of these coordinates. `reduced` False follows all d coordinates instead.
    """
    chosen = _layer(model, layer)
    if not 0 <= head < chosen.spec.heads:
        raise BadValue(f"layer {layer} has heads 0 to {chosen.spec.heads - 1}, not head {head}.")
    folded = fold(chosen, chosen.head(head))
    acting = own_rank(folded)
    start, used, notes = _prepared(model, chosen, x0, encoding, causal, norms)
    system = heads_system(chosen, [acting], [head], used, causal, norms)
    if chosen.spec.qk_norm_over == "layer" and chosen.spec.q_norm is not None:
        notes = (*notes, "the q/k norm runs over all heads; here it runs over this head alone")
    if chosen.spec.output_norm is not None:
        notes = (*notes, "the per-token factor of the norm on the output is left out")
    start, position, limit = placed(used, absolute, start)
    system = replace(system, diagonal=chosen_diagonal(diagonal, system))
    v_small = acting.v @ acting.o
    count = len(start)
    title = f"layer {layer}, head {head}"
    settings = _settings(chosen, used, system, absolute, norms, count) | {"layer": layer, "head": head}
    end = natural_horizon(v_small, count, system.causal) if horizon is None else horizon
    verdict = _head_verdict(chosen, folded, used, system, position, count)
    if reduced and (not v_small.size or np.linalg.cond(v_small) >= _WORST_CONDITION):
        reduced, notes = False, (*notes, SINGULAR)
    if not reduced:
        field = AttentionField(system, count, position=position, reinject=absolute == "reinject")
        return Problem(title, start, (Piece(lambda: field),), end, limit, verdict, None, settings, notes)
    frame, triangle = np.linalg.qr(acting.o)  # range(O) in orthonormal coordinates: z' = triangle z
    bias = np.zeros(len(acting.v)) if acting.v_bias is None else acting.v_bias
    read = start if position is None or absolute != "reinject" else start + position
    z = np.linalg.solve(v_small, (read @ acting.v.T + bias).T).T
    state, base = z @ triangle.T, start - z @ acting.o.T
    inner = replace(system, o_HDS=triangle[None])
    field = AttentionField(inner, count, lift=frame, base=base, position=position, reinject=absolute == "reinject")
    notes = (
        *notes,
        f"shown is the part of each token that this head can move, {len(acting.v)} of {start.shape[1]} dimensions",
    )
    return Problem(title, state, (Piece(lambda: field),), end, None, verdict, None, settings, notes)


def own_rank(head: Head) -> Head:
    """The head with V and O of the rank of O V, where that is lower than their width and the bias allows it."""
    v, o = thin_factors(head.v, head.o)
    if len(v) == len(head.v):
        return head
    bias: Array | None = None
    if head.v_bias is not None:
        moved = head.o @ head.v_bias
        bias = np.asarray(np.linalg.lstsq(o, moved)[0], dtype=np.float64)
        if np.linalg.norm(o @ bias - moved) > 1e-12 * np.linalg.norm(moved):
            return head  # the bias drives tokens where O V does not
    return replace(head, v=v, o=o, v_bias=bias)


def layer_problem(
    model: Model,
    layer: int,
    x0: Array,
    *,
    encoding: Encoding | str | None = None,
    absolute: Absolute = "input",
    diagonal: float | Literal["auto"] = 0.0,
    causal: bool | None = None,
    norms: Norms = "start",
    horizon: float | None = None,
) -> Problem:
    """All heads of one layer together on tokens `x0` (n, d).

    No theorem decides several heads at once; the first causal token follows dx/dt = U x, U = sum_h O_h V_h (T5).
    """
    chosen = _layer(model, layer)
    start, used, notes = _prepared(model, chosen, x0, encoding, causal, norms)
    start, position, limit = placed(used, absolute, start)
    system = layer_system(chosen, used, causal, norms, diagonal)
    count = len(start)
    field = AttentionField(system, count, position=position, reinject=absolute == "reinject")
    U = together(system)
    settings = _settings(chosen, used, system, absolute, norms, count) | {"layer": layer}
    end = natural_horizon(U, count, system.causal) if horizon is None else horizon
    return Problem(
        f"layer {layer}, {system.heads} heads together",
        start,
        (Piece(lambda: field),),
        end,
        limit,
        decide=lambda: layer_dynamics(chosen, storage_error=0.0, causal=system.causal).regime,
        settings=settings,
        notes=notes,
    )


def stack_problem(
    model: Model,
    x0: Array,
    *,
    encoding: Encoding | str | None = None,
    absolute: Absolute = "input",
    diagonal: float | Literal["auto"] = 0.0,
    causal: bool | None = None,
    norms: Norms = "on",
    horizon: float | None = None,
) -> Problem:
    """The layers of a model one after the other, a unit of time each, beginning again after the last.

    Absolute vectors are added where the model adds them, at the input, or in every layer when `absolute` says so.
    Post-norm layers normalise at the end of their time. Layers are read when their turn comes.
    """
    layers = [layer for layer in model.layers if layer.spec.kind == "self"]
    stacks = {layer.spec.stack for layer in layers}
    if len(stacks) != 1 or len({layer.spec.width for layer in layers}) != 1:
        raise BadValue(
            f"{model.path.name} has {' and '.join(sorted(stacks)) or 'no'} self-attention; a stack needs one "
            "of one width. Choose a layer."
        )
    for layer in layers:
        _require_known(model, layer, len(x0))
    start, used, notes = _prepared(model, layers[0], x0, encoding, causal, norms)
    start, position, limit = placed(used, absolute, start)
    count, reinject = len(start), absolute == "reinject"

    def piece(layer: Layer) -> Piece:
        def make() -> AttentionField:
            here = layer.encoding if encoding is None or _is_own(encoding, layer.encoding) else used
            return AttentionField(
                layer_system(layer, here, causal, norms, diagonal), count, position=position, reinject=reinject
            )

        return Piece(make, 1.0, _after(layer) if norms == "on" else None, f"layer {layer.number}")

    notes = (*notes, "attention only: the MLPs between the layers are left out")
    settings = {
        "encoding": used.title,
        "absolute": absolute if used.input is not None else None,
        "diagonal": diagonal,
        "norms": norms,
        "tokens": count,
        "layers": len(layers),
    }
    title = f"all {len(layers)} layers"
    end = float(len(layers)) if horizon is None else horizon
    return Problem(title, start, tuple(map(piece, layers)), end, limit, settings=settings, notes=notes)


# -------------------------------------------------------------------- inside
def _layer(model: Model, number: int) -> Layer:
    if not 0 <= number < len(model.layers):
        raise BadValue(f"{model.path.name} has layers 0 to {len(model.layers) - 1}, not layer {number}.")
    layer = model.layers[number]
    if layer.spec.kind != "self":
        raise BadValue(f"layer {number} is cross-attention: its keys come from another stack, and nothing flows.")
    return layer


def _prepared(
    model: Model, layer: Layer, x0: Array, encoding: Encoding | str | None, causal: bool | None, norms: Norms
) -> tuple[Array, Encoding, tuple[str, ...]]:
    """The tokens at their start, the encoding in force, and what a reader should know."""
    spec = layer.spec
    if norms not in ("on", "start", "off"):
        raise BadValue(f"norms must be 'on', 'start' or 'off', got '{norms}'.")
    start = cloud(x0, spec.width)
    masked = spec.causal if causal is None else causal
    if encoding is None or _is_own(encoding, layer.encoding):
        layer.encoding.tables()
        used = layer.encoding
    else:
        used = built(encoding, Sizes(spec.width, spec.heads, spec.head_dim, len(start), masked))
    _require_known(model, layer, len(start))
    notes: tuple[str, ...] = spec.warnings
    norm = spec.input_norm
    if norm is not None and norms == "start":
        start = _sized(norm.kind, norm.eps, start)
    if spec.residual_norm is not None:
        notes = (*notes, "post-norm: the flow shows the drift between two norms, no theorem speaks of it")
    if spec.q_latent is not None or spec.kv_latent is not None:
        notes = (*notes, "the per-token factors of the latent norms (MLA) are left out")
    return start, used, notes


def _require_known(model: Model, layer: Layer, tokens: int) -> None:
    spec = layer.spec
    unknown = [*spec.value_path, *spec.logit_path(tokens), *(["attention_sinks"] if spec.sinks else [])]
    if unknown:
        raise BadValue(
            f"layer {layer.number} of {model.path.name} is more than a flow knows "
            f"({', '.join(unknown).replace('_', ' ')}): what moved would not be this model. Use trace on a text, or "
            "choose another layer."
        )


def _is_own(encoding: Encoding | str, own: Encoding) -> bool:
    """Whether a bare word means the model's encoding: `own`, or `rope` and `absolute` where it has such tables."""
    word = encoding.strip().lower() if isinstance(encoding, str) else ""
    if word in ("rope", "rotary"):
        return own.rotary is not None
    return word == "own" or (word == "absolute" and own.input is not None)


def _sized(kind: str, eps: float, tokens: Array) -> Array:
    """Tokens divided by what the norm would divide them by; LayerNorm's centring is in the folded weights."""
    seen = tokens - tokens.mean(axis=1, keepdims=True) if kind == "layer" else tokens
    return tokens / np.sqrt((seen * seen).mean(axis=1, keepdims=True) + eps)


def _after(layer: Layer) -> Callable[[Array], Array] | None:
    """The norm of a post-norm layer, applied where its time ends."""
    if layer.spec.residual_norm is None:
        return None
    return lambda state: _residual(layer)(state)


def _residual(layer: Layer) -> Norm:
    norm = layer.weights.residual_norm
    assert norm is not None
    return norm


def _settings(
    layer: Layer, used: Encoding, system: System, absolute: Absolute, norms: Norms, count: int
) -> dict[str, object]:
    return {
        "causal": system.causal,
        "encoding": used.title,
        "absolute": absolute if used.input is not None else None,
        "diagonal": system.diagonal,
        "norms": norms if layer.spec.input_norm is not None else None,
        "tokens": count,
        "width": layer.spec.width,
    }


def _head_verdict(
    layer: Layer,
    head: Head,
    used: Encoding,
    system: System,
    position: Array | None,
    count: int,
) -> Callable[[], Regime]:
    """What `regime` says of the head acting alone, with everything around it that decides which theorem may speak."""

    def verdict() -> Regime:
        seen = head
        if system.rotary is not None:
            seen = replace(
                head, q=turned(system.rotary, head.q, 0, "query"), k=turned(system.rotary, head.k, 0, "key")
            )
        norm = layer.weights.input_norm
        small = reduce_head(seen, centred=norm is not None and norm.kind == "layer")
        excess = 0.0
        if system.rotary is not None:
            q, k = head.q @ small.o, head.k @ small.o
            excess = rotary_excess(q, k, head.scale, system.rotary, count, system.causal)
        if system.diagonal:
            small = replace(small, w=small.w + system.diagonal * small.o.T @ small.o)
        own = head_setting(layer, head)
        plain = system.q_norm is None and system.softcap is None and layer.spec.kv_latent is None
        setting = replace(
            own,
            causal=system.causal,
            rotary_excess=excess,
            linear_terms=position is not None or (_present(head.k_bias) and system.rotary is not None),
            relative_bias=used.bias is not None or system.reach is not None,
            bilinear=plain and (system.rotary is None or system.rotary.decay_F is None),
            norm=system.factor is not None,
        )
        return decide(small, setting)

    return verdict


def _present(bias: Array | None) -> bool:
    return bias is not None and bool(np.any(bias != 0))
