"""The flow of a full system given by two matrices: dx_i/dt = V sum_j softmax_j(l_ij) x_j, l_ij = x_i^T W x_j.

Position enters as in the theory notes, section 3:

* absolute vectors p at the `input` change the start only; `reinject`ed into logits and values they make the limit
  -p_i in place of 0 (T6 for y = x + p); in the `logits` only they leave T6 alone;
* rotary encodings act on q_i = x_i and k_j = W x_j, channel pairs being pairs of coordinates:
  l_ij = (R_i x_i)^T R_j W x_j, so W_0 = W (give `factors` Q and K to rotate those instead: W = Q^T K);
* biases such as ALiBi's are added to the logits of the one head;
* `diagonal` tau adds tau x_i^T x_j to every logit, D = tau I; "auto" takes the uniform bound of section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.ranges import LARGEST, SMALLEST, computable
from toposcope.dynamics.diagonal import chosen_diagonal
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.integrate import MAX_EVALUATIONS
from toposcope.dynamics.regime import Regime, regime
from toposcope.dynamics.rotation import turned
from toposcope.dynamics.run import GROWTH_CAP, SAMPLES, Piece, Problem, run
from toposcope.dynamics.trajectory import Trajectory
from toposcope.encodings import NONE, Encoding, EncodingSpec, Rotary, Sizes, parse

Array = NDArray[np.float64]
Absolute = Literal["input", "reinject", "logits"]


def simulate(
    W: ArrayLike,
    V: ArrayLike,
    x0: ArrayLike,
    *,
    causal: bool = True,
    encoding: Encoding | EncodingSpec | str | None = None,
    absolute: Absolute = "input",
    diagonal: float | Literal["auto"] = 0.0,
    factors: tuple[ArrayLike, ArrayLike] | None = None,
    horizon: float | None = None,
    times: ArrayLike | None = None,
    samples: int = SAMPLES,
    rtol: float = 1e-6,
    atol: float | None = None,
    growth_cap: float = GROWTH_CAP,
    max_evaluations: int = MAX_EVALUATIONS,
    pair_matrix: ArrayLike | None = None,
    tick: Callable[[float], None] = lambda share: None,
) -> Trajectory:
    """Let tokens flow under W and V and record what becomes of them.

    Integrates dx_i/dt = V sum_j softmax_j(x_i^T W x_j + position) x_j from the rows of `x0` (n, d) up to `horizon`
    (default: see `natural_horizon`). With a causal mask T6 says where it ends, without one T3, T4 and T8 of `regime`.
    `factors` gives (Q, K) with W = Q^T K where a rotation should act on q = Q x and k = K x. `pair_matrix` is the A
    of the pair forms (T1); default: W V^-1 where that is symmetric.
    """
    problem = matrices(
        W,
        V,
        x0,
        causal=causal,
        encoding=encoding,
        absolute=absolute,
        diagonal=diagonal,
        factors=factors,
        pair_matrix=pair_matrix,
    )
    return run(
        problem,
        horizon=horizon,
        times=times,
        samples=samples,
        rtol=rtol,
        atol=atol,
        growth_cap=growth_cap,
        max_evaluations=max_evaluations,
        tick=tick,
    )


def matrices(
    W: ArrayLike,
    V: ArrayLike,
    x0: ArrayLike,
    *,
    causal: bool = True,
    encoding: Encoding | EncodingSpec | str | None = None,
    absolute: Absolute = "input",
    diagonal: float | Literal["auto"] = 0.0,
    factors: tuple[ArrayLike, ArrayLike] | None = None,
    pair_matrix: ArrayLike | None = None,
    horizon: float | None = None,
    title: str = "W and V as given",
    notes: tuple[str, ...] = (),
) -> Problem:
    """The problem that `simulate` runs, before it is run; see there for the arguments."""
    w, v = square(W, "W"), square(V, "V")
    if w.shape != v.shape:
        raise BadValue(f"W has shape {w.shape} and V {v.shape}; expected the same square shape for both.")
    start = cloud(x0, len(v))
    count, width = start.shape
    q, k = (None, w) if factors is None else _factors(factors, w)
    used = built(encoding, Sizes(width, 1, width if q is None else len(q), count, causal))
    system = System(
        k_GRD=k[None],
        v_GSD=v[None],
        q_HRD=None if q is None else q[None],
        causal=causal,
        rotary=fitting(used, width if q is None else len(q)),
        bias=used.bias,
    )
    system = replace(system, diagonal=chosen_diagonal(diagonal, system))
    start, position, limit = placed(used, absolute, start)
    make = AttentionField(system, count, position=position, reinject=absolute == "reinject")
    if np.linalg.matrix_rank(v) < width:
        notes = (*notes, "V is singular: part of every token never moves or drifts, and no verdict speaks of it")
    if count == 1:
        notes = (*notes, "a single token follows dx/dt = V x alone; neither W nor position matters")
    A = _pair_matrix(pair_matrix, w, v, system, position, causal)
    return Problem(
        title=title,
        start=start,
        pieces=(Piece(lambda: make),),
        horizon=natural_horizon(v, count, causal) if horizon is None else horizon,
        limit=limit,
        decide=lambda: _regime(system, w, v, count, position is not None and absolute == "logits"),
        pair_matrix=A,
        settings={
            "causal": causal,
            "encoding": used.title,
            "absolute": absolute if used.input is not None else None,
            "diagonal": system.diagonal,
            "tokens": count,
            "width": width,
        },
        notes=notes,
    )


def natural_horizon(V: Array, count: int, causal: bool) -> float:
    """How long to look by default: 10 / |alpha|, where alpha is the largest real part of V's spectrum.

    A decaying causal system is given 14 n / |alpha|, since token i finally decays at the rate |alpha| / i (T6); never
    more than 300 / |V|, so that a run ends.
    """
    norm = float(np.linalg.norm(V, 2)) if V.size else 0.0
    if norm == 0:
        return 1.0
    alpha = float(np.linalg.eigvals(V).real.max())
    wanted = 14.0 * count if alpha < 0 and causal else 10.0
    return float(min(wanted / max(abs(alpha), 1e-12), 300 / norm))


def built(encoding: Encoding | EncodingSpec | str | None, sizes: Sizes) -> Encoding:
    """The encoding with its tables for these sizes; the word `absolute` alone stands for `sinusoidal` here."""
    if encoding is None:
        return NONE
    if isinstance(encoding, str):
        # Learned vectors do not exist before training, and at the usual 0.02 nobody would see them.
        encoding = parse("sinusoidal" if encoding.strip().lower() == "absolute" else encoding)
    made = encoding.build(sizes) if isinstance(encoding, EncodingSpec) else encoding
    made.tables()
    return made


def fitting(encoding: Encoding, width: int) -> Rotary | None:
    """The encoding's rotation, after a check that it turns vectors of this width."""
    rotary = encoding.rotary
    if rotary is not None and rotary.head_dim != width:
        raise BadEncoding(f"'{encoding.name}' turns vectors of width {rotary.head_dim}, but queries have {width}.")
    return rotary


def placed(encoding: Encoding, absolute: Absolute, start: Array) -> tuple[Array, Array | None, Array | None]:
    """(start, what logits read beyond the tokens, limit) for the encoding's absolute vectors."""
    if absolute not in ("input", "reinject", "logits"):
        raise BadValue(f"absolute must be 'input', 'reinject' or 'logits', got '{absolute}'.")
    if encoding.input is None:
        return start, None, None
    if encoding.input.width != start.shape[1]:
        raise BadEncoding(
            f"'{encoding.name}' gives vectors of width {encoding.input.width}, but tokens have {start.shape[1]}."
        )
    vectors = encoding.input.vectors(np.arange(len(start)))
    if absolute == "input":
        return start + vectors, None, None
    return start, vectors, -vectors if absolute == "reinject" else None


def square(matrix: ArrayLike, name: str) -> Array:
    """A finite square matrix in float64, or an error that names it."""
    try:
        array = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(f"{name} is not a matrix of real numbers ({error}).") from error
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise BadValue(f"{name} has shape {array.shape}; expected a square matrix.")
    if not np.isfinite(array).all():
        raise BadValue(f"{name} holds NaN or infinity; a flow of it would be meaningless.")
    if not computable(float(np.abs(array).max())):
        raise BadValue(
            f"the largest entry of {name} is {np.abs(array).max():.3g}; expected one between {SMALLEST:g} and "
            f"{LARGEST:g}. Rescale it: V only sets the clock, W the size of the tokens."
        )
    return array


def cloud(x0: ArrayLike, width: int) -> Array:
    """Tokens in rows, finite and of the given width, or an error."""
    try:
        array = np.asarray(x0, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(f"the tokens are not a table of real numbers ({error}).") from error
    if array.ndim != 2 or len(array) == 0 or array.shape[1] != width:
        raise BadValue(f"tokens have shape {array.shape}; expected (tokens, {width}) with at least one token.")
    if not np.isfinite(array).all():
        raise BadValue("the tokens hold NaN or infinity.")
    if np.abs(array).max() > 1e6:
        raise BadValue(f"a token has an entry of size {np.abs(array).max():.3g}; expected entries up to 1e6.")
    return array


def _factors(factors: tuple[ArrayLike, ArrayLike], w: Array) -> tuple[Array, Array]:
    q, k = (np.asarray(part, dtype=np.float64) for part in factors)
    if q.ndim != 2 or q.shape != k.shape or q.shape[1] != len(w):
        raise BadValue(f"Q has shape {q.shape} and K {k.shape}; expected the same shape (r, {len(w)}) for both.")
    if not np.allclose(q.T @ k, w, rtol=1e-8, atol=1e-10 * max(1.0, float(np.abs(w).max()))):
        raise BadValue("Q^T K is not W. Fold the scale into Q or K, and give W = Q^T K.")
    return q, k


def _pair_matrix(
    given: ArrayLike | None, w: Array, v: Array, system: System, position: Array | None, causal: bool
) -> Array | None:
    """A of the pair forms: as given, else (W + tau I) V^-1 where that is symmetric and T1 applies."""
    if given is not None:
        own = square(given, "the pair matrix")
        if own.shape != w.shape:
            raise BadValue(f"the pair matrix has shape {own.shape}; expected {w.shape}.")
        return (own + own.T) / 2
    if causal or system.rotary is not None or system.bias is not None or position is not None:
        return None
    if np.linalg.cond(v) > 1e8:
        return None
    A = np.asarray(np.linalg.solve(v.T, (w + system.diagonal * np.eye(len(w))).T).T, dtype=np.float64)
    return (A + A.T) / 2 if np.linalg.norm(A - A.T) <= 1e-10 * np.linalg.norm(A) else None


def _regime(system: System, w: Array, v: Array, count: int, linear_terms: bool) -> Regime:
    """The verdict on these matrices with what position adds; T8 needs sup |W_k - W_0| over the visible offsets."""
    excess, seen = 0.0, w
    if system.rotary is not None:
        q = np.eye(len(w)) if system.q_HRD is None else system.q_HRD[0]
        k = system.k_GRD[0]
        excess = rotary_excess(q, k, system.scale, system.rotary, count, system.causal)
        seen = system.scale * turned(system.rotary, q, 0, "query").T @ turned(system.rotary, k, 0, "key")
    return regime(
        seen + system.diagonal * np.eye(len(w)),
        v,
        causal=system.causal,
        rotary_excess=excess,
        relative_bias=system.bias is not None,
        linear_terms=linear_terms,
        bilinear=system.rotary is None or system.rotary.decay_F is None,
    )


def rotary_excess(q: Array, k: Array, scale: float, rotary: Rotary, count: int, causal: bool) -> float:
    """sup |W_k - W_0| over the offsets that `count` tokens see, or an upper bound of it where they are many (T8)."""
    if count == 1:
        return 0.0
    if count * q.shape[1] > 4096:
        return 2 * rotary.attention_factor**2 * scale * float(np.linalg.norm(q, 2) * np.linalg.norm(k, 2))
    offsets = np.arange(1, count)
    offsets = -offsets if causal else np.concatenate([-offsets, offsets])
    seen = scale * turned(rotary, q, 0, "query", count).T
    still = turned(rotary, k, 0, "key", count)
    each, at = np.tile(np.eye(rotary.head_dim), (len(offsets), 1)), np.repeat(offsets, rotary.head_dim)
    turns_ORR = rotary.rotate(each, at, side="key", context=count).reshape(len(offsets), *still.shape[:1], -1)
    return float(np.linalg.norm(seen @ (turns_ORR.swapaxes(1, 2) @ k - still), 2, axis=(1, 2)).max())
