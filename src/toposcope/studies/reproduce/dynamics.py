"""What the released code of the dynamics paper does, as checks on small random matrices; nothing is trained.

Tokens are columns in the theory and rows here: q = x Q^T as nn.Linear computes it, so the logits are x (Q^T K) x^T.
`W = Q^T K` and `A = W V^-1` as in the theory notes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.dynamics import Verdict as Regime
from toposcope.dynamics import regime, simulate
from toposcope.dynamics.presets import rotation
from toposcope.encodings import Rotary, rope, xpos
from toposcope.studies.reproduce.result import ClaimVerdict, ReproducedClaim

Array = NDArray[np.float64]
DRAWS, WIDTH = 50, 40
TRAINED = "regimes compared by training"  # what stands here until models are trained (studies/language)


@dataclass(frozen=True)
class Fact:
    """Something said about position or dynamics, what the released code does, and the check that decides."""

    id: str
    claim: str
    released: str
    rule: str
    check: Callable[[], tuple[bool, list[str]]]  # whether the released code does what is claimed; what was measured


def checked(facts: tuple[Fact, ...] | None = None) -> list[ReproducedClaim]:
    """Run every check."""
    found = []
    for fact in FACTS if facts is None else facts:
        holds, words = fact.check()
        verdict = ClaimVerdict.HOLDS if holds else ClaimVerdict.FAILS
        found.append(ReproducedClaim(fact.id, fact.claim, fact.released, tuple(words), verdict, fact.rule))
    trained = ReproducedClaim(
        id=TRAINED,
        claim="Models whose weights drive tokens together do worse than those that drive them apart.",
        released_code="With a learned output projection the two scenarios are one model class (see above).",
        measured=("-",),
        verdict=ClaimVerdict.UNMEASURED,
        rule="Needs training: toposcope reproduce dynamics --size demo, or full.",
    )
    return [*found, trained]


def rotated_logits(x_BND: Array, rotary: Rotary, axis: int) -> Array:
    """Logits (B, N, N) of tokens that are their own queries and keys, turned by their index along an axis."""
    at = np.arange(x_BND.shape[axis])
    moved = np.moveaxis(x_BND, axis, -2)
    q, k = (np.moveaxis(rotary.rotate(moved, at, side=side), -2, axis) for side in ("query", "key"))
    return q @ np.swapaxes(k, -1, -2)


def _batch_axis() -> tuple[bool, list[str]]:
    x_BND = np.random.default_rng(0).standard_normal((4, 12, 16))
    plain = x_BND @ np.swapaxes(x_BND, -1, -2)
    turning = rope(16, pairing="interleaved").rotary
    assert turning is not None
    by_batch, by_token = (np.abs(rotated_logits(x_BND, turning, axis) - plain).max() for axis in (0, 1))
    scale = np.abs(plain).max()
    words = [
        f"turned along the batch, logits change by {by_batch:.1e} on a scale of {scale:.0f}",
        f"turned along the tokens, by {by_token:.1f}",
    ]
    return bool(by_batch > 1e-9 * scale), words


def _plain_rope() -> tuple[bool, list[str]]:
    x_ND = np.random.default_rng(1).standard_normal((64, 16))
    turned = {}
    for name, made in (("RoPE", rope(16)), ("xPos", xpos(16))):
        assert made.rotary is not None
        rows = made.rotary.rotate(x_ND, np.arange(64), side="query")
        turned[name] = np.linalg.norm(rows, axis=1) / np.linalg.norm(x_ND, axis=1)
    words = [
        f"{name}: a query's length at the 64th place is {ratio[-1]:.3f} of that at the first"
        for name, ratio in turned.items()
    ]
    words.append("16 of 41 channels turn; the other 25 carry no position")
    return bool(np.allclose(turned["xPos"], 1.0, atol=1e-6)), words


def definite(random: np.random.Generator, width: int) -> Array:
    """L D L^T + T - T^T with D > 0: a matrix whose symmetric part is positive definite."""
    lower = np.eye(width) + np.tril(random.standard_normal((width, width)), -1) / np.sqrt(width)
    weights = np.log1p(np.exp(random.standard_normal(width)))
    skew = random.standard_normal((width, width)) / np.sqrt(width)
    return lower * weights @ lower.T + skew - skew.T


def least(matrix: Array) -> float:
    """The least eigenvalue of the symmetric part."""
    return float(np.linalg.eigvalsh(matrix + matrix.T)[0] / 2)


def _wrong_product() -> tuple[bool, list[str]]:
    random = np.random.default_rng(2)
    lost = {}
    for size in (0.0, 0.03, 0.3):
        lost[size] = 0
        for _ in range(DRAWS):
            orthogonal, _ = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))
            query = orthogonal + size * random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
            wanted = definite(random, WIDTH)
            key = np.linalg.solve(query, wanted).T  # so that Q K^T is what was wanted
            assert least(query @ key.T) > 0
            lost[size] += least(query.T @ key) <= 0
    words = [
        f"Q orthogonal + {size:g} noise: Q^T K has lost definiteness in {count} of {DRAWS}"
        for size, count in lost.items()
    ]
    return lost[0.3] == 0, words


def _two_definitions() -> tuple[bool, list[str]]:
    random = np.random.default_rng(3)
    apart, wrong = [], 0
    for _ in range(DRAWS):
        w, a = definite(random, WIDTH), -definite(random, WIDTH)
        by_inverse = np.linalg.solve(a, w)  # A = W V^-1
        by_transpose = np.linalg.solve(w, a).T  # A = W V^T
        apart.append(np.linalg.norm(by_inverse - by_transpose) / np.linalg.norm(by_inverse))
        wrong += least(-w @ np.linalg.inv(by_transpose)) <= 0
    words = [
        f"the two values V from one W and A differ by {np.median(apart):.0%} of their size (median of {DRAWS} draws)",
        f"with V from A = W V^T, the form W V^-1 of the theory is not negative definite in {wrong} of {DRAWS}",
    ]
    return wrong == 0, words


def _split_into_heads() -> tuple[bool, list[str]]:
    random = np.random.default_rng(4)
    heads = 4
    indefinite = 0
    for _ in range(DRAWS):
        query, _ = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))
        key = query @ definite(random, WIDTH)  # Q orthogonal: Q^T K is definite as a whole
        assert least(query.T @ key) > 0
        parts = zip(np.split(query, heads), np.split(key, heads), strict=True)
        indefinite += sum(least(q.T @ k) < -1e-9 for q, k in parts)
    words = [
        f"of a definite whole, {indefinite} of {DRAWS * heads} heads have directions of both signs (T: inertia r, r)"
    ]
    return indefinite == 0, words


def _word(verdict: Regime) -> str:
    return verdict.value.replace("_", " ")


def _counterexample() -> tuple[bool, list[str]]:
    w, v = rotation(60), rotation(-60)
    a = w @ np.linalg.inv(v)
    said = regime(w, v, causal=False)
    alone = simulate(w, v, np.array([[1.0, 0.5]]), causal=False, horizon=12.0)
    grown = float(np.exp(alone.log_growth))
    mirror = rotation(120)
    said_mirror = regime(w, mirror, causal=False)
    several = simulate(w, mirror, np.random.default_rng(5).standard_normal((5, 2)), causal=False, horizon=40.0)
    folds = float(np.exp(min(several.log_growth, 50)))
    words = [
        f"W = R(60), V = R(-60): least eigenvalue of sym W {least(w):+.2f}, of sym -A {least(-a):+.2f}; verdict "
        f"{_word(said.verdict)}; a single token has grown {grown:.0f}-fold by t = {alone.end:.0f} (e^(t/2): "
        f"{np.exp(alone.end / 2):.0f})",
        f"V = R(120): sym A positive definite; verdict {_word(said_mirror.verdict)}; five tokens grow "
        + (f"{folds:,.0f}-fold" if folds < 1e6 else f"{folds:.2g}-fold"),
    ]
    return bool(said.verdict is Regime.CONVERGES and grown < 1), words


def _sign_is_absorbed() -> tuple[bool, list[str]]:
    random = np.random.default_rng(6)
    x, w = random.standard_normal((8, WIDTH)), random.standard_normal((WIDTH, WIDTH)) / WIDTH
    value, out = random.standard_normal((2, WIDTH, WIDTH))
    logits = x @ w @ x.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    first = weights @ x @ value.T @ out.T
    second = weights @ x @ (-value).T @ (-out).T
    difference = np.abs(first - second).max()
    apart = f"differ by {difference:.1e}" if difference else "are the same to the bit"
    return bool(difference > 0), [f"outputs with (V, O) and (-V, -O) {apart}"]


FACTS = (
    Fact(
        "rotary",
        "The rotary model knows positions.",
        "It rotates along the batch axis, so the rotation cancels between query and key: that model is NoPE with a "
        "causal mask.",
        "Tokens turned by their index along the batch, and along the sentence; do the logits change?",
        _batch_axis,
    ),
    Fact(
        "plain RoPE",
        "The rotary branch is RoPE.",
        "It is xPos, on the last 16 of 41 channels.",
        "Is the rotation one that keeps lengths, as RoPE's is?",
        _plain_rope,
    ),
    Fact(
        "definiteness imposed",
        "W is kept positive definite.",
        "It is imposed on Q K^T of the stored matrices, while nn.Linear makes the logits use Q^T K.",
        f"{DRAWS} draws of a Q near an orthogonal matrix and a K such that Q K^T has a positive definite symmetric "
        f"part (width {WIDTH}): has Q^T K?",
        _wrong_product,
    ),
    Fact(
        "one A",
        "A ties value and logits together in one way.",
        "It is W V^T in one folder and W V^-1 in two others.",
        f"V recovered from one W and one negative definite A by both, {DRAWS} draws.",
        _two_definitions,
    ),
    Fact(
        "heads",
        "Each head is in the regime that was imposed.",
        "It is imposed on the whole d x d matrix, which is then split into heads; output projection and norms are "
        "ignored.",
        f"{DRAWS} definite matrices Q^T K of width {WIDTH}, split into 4 heads: are the heads' forms definite?",
        _split_into_heads,
    ),
    Fact(
        "definite means decided",
        "With W positive definite, the sign of A decides where tokens go.",
        "Both may keep an antisymmetric part.",
        "Counterexample C1, without a mask: the verdict of the theorems, and a simulation. Thm 3 and 4 need W or A "
        "symmetric.",
        _counterexample,
    ),
    Fact(
        "regimes are different models",
        "The positive and the negative scenario are different model classes.",
        "The output projection is learned: turning A into -A turns V into -V, which O into -O absorbs.",
        "One attention with (V, O) and with (-V, -O).",
        _sign_is_absorbed,
    ),
)
