"""Random systems with a known answer, heads and layers without a checkpoint, and a plain simulation of the flow.

Everything here is dense and slow on purpose: it is what the code under test is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.integrate
import scipy.linalg

from toposcope.checkpoints.spec import LayerSpec, Linear, NormSpec
from toposcope.checkpoints.view import Head, Layer, LayerWeights, Norm
from toposcope.encodings import Encoding, Rotary, rope
from toposcope.encodings.record import NONE, LogitBias

Array = np.ndarray


def rotation(angle: float) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def orthogonal(random: np.random.Generator, d: int) -> Array:
    return np.linalg.qr(random.standard_normal((d, d)))[0]


def positive(random: np.random.Generator, d: int, least: float = 0.5) -> Array:
    """A symmetric positive definite matrix with eigenvalues in [least, least + 2]."""
    q = orthogonal(random, d)
    made = q @ np.diag(least + 2 * random.random(d)) @ q.T
    return (made + made.T) / 2


def antisymmetric(random: np.random.Generator, d: int) -> Array:
    drawn = random.standard_normal((d, d))
    return drawn - drawn.T


def sym(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def with_spectrum(random: np.random.Generator, d: int, least: float, most: float, skew: float = 0.5) -> Array:
    """A non-normal matrix whose eigenvalues have real parts in [least, most]."""
    block = np.diag(random.uniform(least, most, d)) + skew * np.triu(random.standard_normal((d, d)), 1)
    for i in range(0, d - 1, 2):
        if random.random() < 0.5:  # a complex pair
            block[i, i] = block[i + 1, i + 1]
            block[i + 1, i] = -block[i, i + 1]
    q = orthogonal(random, d)
    return q @ block @ q.T


def planted(rule: str, random: np.random.Generator, d: int) -> tuple[Array, Array]:
    """W and V that satisfy the premises of T3a, T3b, T4a or T4b, and of no other of these."""
    sign = -1 if rule.startswith("T3") else 1
    if rule.endswith("a"):  # A symmetric, W not
        form = positive(random, d)
        w = positive(random, d) + 0.5 * antisymmetric(random, d)
        return w, sign * np.linalg.solve(form, w)
    w = positive(random, d)  # W symmetric, A not
    a = sign * (positive(random, d) + 0.4 * antisymmetric(random, d))
    return w, np.linalg.solve(a, w)


# --- the flow -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Sizes of all tokens along time; `grew` where the run stopped at the growth cap."""

    times: Array
    states: Array  # (times, n, d)
    grew: bool

    @property
    def last(self) -> Array:
        return np.linalg.norm(self.states[-1], axis=-1)

    @property
    def first(self) -> Array:
        return np.linalg.norm(self.states[0], axis=-1)


def attention_of(x: Array, w: Array, bias: Array | None, causal: bool) -> Array:
    """softmax of x_i^T W x_j, or of x_i^T W_ij x_j where `w` has one matrix for each pair."""
    n = len(x)
    logits = x @ w @ x.T if w.ndim == 2 else np.einsum("id,ijde,je->ij", x, w, x)
    if bias is not None:
        logits = logits + bias
    if causal:
        logits = np.where(np.tri(n, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def velocity(x: Array, w: Array, v: Array, *, bias: Array | None = None, causal: bool = False) -> Array:
    """dx_i/dt = V sum_j P_ij x_j."""
    return attention_of(x, w, bias, causal) @ x @ v.T


def simulate(
    w: Array,
    v: Array,
    start: Array,
    horizon: float,
    *,
    causal: bool = False,
    bias: Array | None = None,
    value_bias: Array | None = None,
    cap: float = 1e3,
    rtol: float = 1e-6,
) -> Run:
    """The flow by SciPy until `horizon`, or until some token is `cap` times as large as the largest was."""
    shape = start.shape
    limit = cap * max(1.0, float(np.linalg.norm(start, axis=1).max()))
    constant = 0.0 if value_bias is None else value_bias

    def field(_: float, flat: Array) -> Array:
        return (velocity(flat.reshape(shape), w, v, bias=bias, causal=causal) + constant).ravel()

    def beyond(_: float, flat: Array) -> float:
        return float(np.linalg.norm(flat.reshape(shape), axis=1).max()) - limit

    beyond.terminal = True  # type: ignore[attr-defined]
    done = scipy.integrate.solve_ivp(
        field, (0.0, horizon), start.ravel(), method="RK45", rtol=rtol, atol=1e-9, events=beyond
    )
    return Run(done.t, done.y.T.reshape(-1, *shape), grew=done.status == 1)


# --- heads and layers -----------------------------------------------------------------------------------------------


def make_head(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    *,
    scale: float | None = None,
    index: int = 0,
    q_bias: Array | None = None,
    k_bias: Array | None = None,
    v_bias: Array | None = None,
) -> Head:
    size = 1 / np.sqrt(len(q)) if scale is None else scale
    return Head(0, index, index, q, k, v, o, q_bias, k_bias, v_bias, size, None, None)


def random_head(random: np.random.Generator, d: int, r: int, **options: Any) -> Head:
    q, k, v = (random.standard_normal((r, d)) for _ in range(3))
    return make_head(q, k, v, random.standard_normal((d, r)), **options)


def make_layer(
    heads: list[Head],
    *,
    causal: bool = True,
    encoding: Encoding = NONE,
    input_norm: Norm | None = None,
    output_norm: Norm | None = None,
    residual_norm: Norm | None = None,
    o_bias: Array | None = None,
    output_gain: Array | float | None = None,
    **spec: Any,
) -> Layer:
    """A layer of given heads, each with keys and values of its own; no file stands behind it."""

    def stacked(name: str) -> Array | None:
        parts = [getattr(head, name) for head in heads]
        return None if parts[0] is None else np.stack(parts)

    def named(norm: Norm | None) -> NormSpec | None:
        return None if norm is None else NormSpec("layer" if norm.kind == "layer" else "rms", norm.eps)

    first = heads[0]
    described = LayerSpec(
        stack="decoder",
        index=0,
        width=len(first.o),
        heads=len(heads),
        kv_heads=len({head.kv_group for head in heads}),
        head_dim=len(first.q),
        scale=first.scale,
        causal=causal,
        o=Linear("o"),
        encoding=encoding,
        value_dim=len(first.v),
        input_norm=named(input_norm),
        output_norm=named(output_norm),
        residual_norm=named(residual_norm),
        **spec,
    )
    weights = LayerWeights(
        q_HRD=np.stack([head.q for head in heads]),
        k_GRD=np.stack([head.k for head in heads]),
        v_GVD=np.stack([head.v for head in heads]),
        o_HDV=np.stack([head.o for head in heads]),
        q_bias_HR=stacked("q_bias"),
        k_bias_GR=stacked("k_bias"),
        v_bias_GV=stacked("v_bias"),
        o_bias_D=o_bias,
        input_norm=input_norm,
        output_norm=output_norm,
        residual_norm=residual_norm,
        output_gain=output_gain,
    )
    return Layer(0, described, lambda _: weights)


def turning(
    head_dim: int, *, pairing: str = "half", partial: float | None = None, factor: float = 1.0, base: float = 100.0
) -> Rotary:
    """A rotation of a head; an attention factor comes with YaRN."""
    options: dict[str, Any] = {"base": base, "pairing": pairing, "partial": partial}
    if factor != 1.0:
        options |= {"scaling": "yarn", "factor": 4.0, "original_context": 32, "attention_factor": factor}
    found = rope(head_dim, **options).rotary
    assert found is not None
    return found


def turn_matrix(rotary: Rotary, position: float) -> Array:
    """R_position as a dense matrix, written out pair by pair from its definition."""
    made = np.eye(rotary.head_dim)
    for (a, b), w in zip(rotary.pairs_F2, rotary.frequencies(), strict=True):
        cos, sin = np.cos(w * position), np.sin(w * position)
        made[np.ix_([a, b], [a, b])] = rotary.attention_factor * np.array([[cos, -sin], [sin, cos]])
    return made


def logit_matrix(head: Head, rotary: Rotary | None = None, offset: float = 0.0, query: float = 0.0) -> Array:
    """W_k = scale (R_i Q)^T (R_{i+k} K), dense; the answer does not depend on the query's position i."""
    if rotary is None:
        return head.scale * head.q.T @ head.k
    turned_q = turn_matrix(rotary, query) @ head.q
    return head.scale * turned_q.T @ turn_matrix(rotary, query + offset) @ head.k


def distance_bias(heads: int, slope: float = 0.5) -> LogitBias:
    """ALiBi in both directions."""
    return LogitBias(
        heads,
        lambda i, j: np.broadcast_to(-slope * np.abs(i[:, None] - j), (heads, len(i), len(j))).copy(),
        toeplitz=True,
    )
