"""One sign or operator of a formula is changed, and an oracle of the other tests must notice.

Each row names a formula, the text that is replaced in a copy of its module, and an oracle: a question whose answer is
known without the code. The oracle must be content with the code as it is and not with the changed copy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from toposcope.checkpoints.view import Norm
from toposcope.dynamics.products import Products
from toposcope.dynamics.reduction import reduce_values

from .systems import (
    antisymmetric,
    logit_matrix,
    make_head,
    make_layer,
    orthogonal,
    planted,
    positive,
    random_head,
    rotation,
    sym,
    turning,
    velocity,
    with_spectrum,
)

SYSTEMS = 25


def streams() -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(SYSTEMS)]


# --- oracles: True where the module answers as it must --------------------------------------------------------------


def planted_rules(module: Any) -> bool:
    """T3a, T3b, T4a, T4b systems get exactly their rule and word."""
    words = {"T3a": "converges", "T3b": "converges", "T4a": "diverges", "T4b": "diverges"}
    for random in streams():
        for rule, word in words.items():
            found = module.regime(*planted(rule, random, 3), causal=False)
            if (found.rule, found.verdict.value) != (rule, word):
                return False
    return True


def symmetry_is_needed(module: Any) -> bool:
    """Neither W nor A is symmetric: T3 and T4 have nothing to say."""
    for random in streams():
        w = positive(random, 3) + 1e-3 * antisymmetric(random, 3)
        a = -(positive(random, 3) + 1e-3 * antisymmetric(random, 3))
        if module.regime(w, np.linalg.solve(a, w), causal=False).rule in ("T3a", "T3b"):
            return False
    return True


def key_weights_leave_t3a(module: Any) -> bool:
    return all(
        module.regime(*planted(rule, random, 3), causal=False, **{what: True}).rule not in ("T3b", "T4a", "T4b", "T8")
        for random in streams()
        for rule in ("T3b", "T4a", "T4b")
        for what in ("query_bias", "value_bias")
    )


def spectra_decide(module: Any) -> bool:
    """Causal: all left of the axis, all right of it, both sides, and on the axis."""
    for random in streams():
        left = with_spectrum(random, 3, -2, -0.3)
        both = scipy.linalg.block_diag(left, [[1.0]])
        on = scipy.linalg.block_diag([[-1e-17, 1.0], [-1.0, -1e-17]], [[-1.0]])
        expected = {"converges": left, "diverges": -left, "not_convergent": both, "indeterminate": on}
        for word, v in expected.items():
            if module.regime(random.standard_normal(v.shape), v).verdict.value != word:
                return False
    far = module.regime(np.eye(2), np.diag([5.0, -1e-9]))
    return far.verdict.value == "not_convergent" and far.margin > 0.15


def balls_hold(module: Any) -> bool:
    """T8: x^T N m >= w' |x|^2 - log n for the largest token, and the words go with the sign."""
    for random in streams():
        for sign in (-1, 1):
            w = np.eye(2) + 0.25 * random.standard_normal((2, 2))
            v = sign * (np.eye(2) + 0.25 * random.standard_normal((2, 2)))
            excess = 0.05 * random.random()
            found = module.regime(w, v, causal=False, rotary_excess=excess)
            if found.rule != "T8":
                continue
            cert = found.certificate
            if found.verdict.value != ("bounded" if sign < 0 else "diverges_above"):
                return False
            gap = np.linalg.norm(w - cert.N, 2) + excess
            least = np.linalg.eigvalsh(sym(w))[0] - np.sqrt(np.linalg.cond(cert.S)) * gap
            if abs(least - cert.w_prime) > 1e-9:
                return False
            x = random.standard_normal((4, 2)) * 10.0 ** random.uniform(0, 2)
            i = int(np.argmax(np.einsum("id,de,ie->i", x, cert.S, x)))
            rate = sign * x[i] @ cert.S @ velocity(x, w, v)[i]
            if rate < cert.w_prime * x[i] @ x[i] - np.log(4) - 1e-9 * x[i] @ x[i]:
                return False
    return True


def balls_are_found(module: Any) -> bool:
    """Systems that T8 must certify: V = -+I, nearly, and W = I, nearly."""
    for random in streams():
        w = np.eye(2) + 0.02 * random.standard_normal((2, 2))
        for sign, word in ((-1, "bounded"), (1, "diverges_above")):
            found = module.regime(w, sign * (np.eye(2) + 0.02 * random.standard_normal((2, 2))), causal=False)
            if found.verdict.value != word:
                return False
    return balls_hold(module)


def margins_hold(module: Any) -> bool:
    """An error of .99 of the margin that pushes the nearest eigenvalue straight to the axis does not reach it."""
    for random in streams():
        q, basis = orthogonal(random, 3), orthogonal(random, 6)
        small = -q @ np.diag([0.05, 0.5, 0.9]) @ q.T
        v = np.hstack([small, scipy.linalg.sqrtm(np.eye(3) - small @ small.T).real]) @ basis.T
        o = basis[:, :3]
        size = 0.99 * module.decide(reduce_values(v, o), module.Setting()).margin
        push = np.outer(q[:, 0], q[:, 0])
        if np.linalg.eigvals((v + size * push @ o.T) @ (o + size * v.T @ push)).real.max() >= 0:
            return False
    return True


def the_pair_is_refused(module: Any) -> bool:
    return all(
        module.regime(rotation(0.9 * tol), -rotation(np.pi / 2 + 0.45 * tol), causal=causal).verdict.value
        != "converges"
        for tol in 10.0 ** -np.arange(1, 9)
        for causal in (True, False)
    )


def bounds_are_below(module: Any) -> bool:
    """The certified distance is nowhere above sigma_min, on strongly non-normal matrices."""
    for random in streams():
        matrix = with_spectrum(random, 5, -2, -0.1, skew=2.0)
        grid = np.linspace(0, 4, 1500)
        shifted = matrix - 1j * grid[:, None, None] * np.eye(5)
        lower = module.distance_to_line(matrix, tightness=0.999).lower
        if lower > np.linalg.svd(shifted, compute_uv=False)[:, -1].min() * (1 + 1e-9):
            return False
    return True


def proofs_are_true(module: Any) -> bool:
    """A Cholesky factorisation proves what is below sigma_min, and nothing above it."""
    for random in streams():
        matrix, z = with_spectrum(random, 5, -2, -0.1, skew=2.0), complex(*random.standard_normal(2))
        truth = np.linalg.svd(matrix - z * np.eye(5), compute_uv=False)[-1] ** 2
        pencil = module.Pencil(matrix)
        if pencil.surely_above(z, truth * 1.01) or not pencil.surely_above(z, truth * 0.99):
            return False
    return True


def offsets_are_covered(module: Any) -> bool:
    """tau_uniform >= -lambda_min(sym W_k) at 60 offsets of heads whose channels differ much in size."""
    for random in streams():
        head = random_head(random, 4, 4)
        head = make_head(head.q * 10.0 ** random.uniform(-2, 1, (4, 1)), head.k, head.v, head.o)
        rotary = turning(4)
        tau = module.tau_uniform(head.q, head.k, rotary, head.scale)
        for offset in random.uniform(-20, 20, 60):
            if tau < -np.linalg.eigvalsh(sym(logit_matrix(head, rotary, offset)))[0] * (1 - 1e-9):
                return False
    q = random.standard_normal((2, 3))  # and no larger than needed for Q = K
    tight = module.tau_uniform(q, q, turning(2), 1.0)
    return abs(tight - np.linalg.norm(q, 2) ** 2) < 1e-9


def rotation_is_the_models(module: Any) -> bool:
    for random in streams():
        head, rotary = random_head(random, 6, 4), turning(4, partial=0.5, factor=1.25)
        start = replace(head, q=module.turned(rotary, head.q, 0, "query"), k=module.turned(rotary, head.k, 0, "key"))
        facts = module.rotary_facts(Products(start), rotary, module.Turns.at(rotary, [0, 3, -2]))
        still = logit_matrix(head, rotary)
        moved = {k: logit_matrix(head, rotary, k) for k in (0, 3, -2)}
        rho = max(np.linalg.norm(w - still, 2) for w in moved.values())
        if abs(facts.rho - rho) > 1e-9:
            return False
        if any(abs(facts.lmin_by_offset[k] - np.linalg.eigvalsh(sym(w))[0]) > 1e-9 for k, w in moved.items()):
            return False
    return True


def folding_is_the_norm(module: Any) -> bool:
    for random in streams():
        for kind in ("rms", "layer"):
            norm = Norm(kind, 1e-6, 0.5 + random.random(6), random.standard_normal(6))
            head = random_head(random, 6, 3, v_bias=random.standard_normal(3))
            layer = make_layer([head], input_norm=norm, output_gain=0.5 + random.random(6))
            folded, x = module.fold(layer, layer.heads[0]), random.standard_normal(6)
            centred = x - x.mean() if kind == "layer" else x
            size = np.sqrt((centred**2).mean() + 1e-6)
            if not np.allclose(folded.v @ x / size + folded.v_bias, head.v @ norm(x) + head.v_bias):
                return False
            if not np.allclose(folded.o, layer.weights.output_gain[:, None] * head.o):
                return False
    return True


def small_flow_is_the_large_one(module: Any) -> bool:
    for random in streams():
        head = random_head(random, 5, 2)
        system, z = module.reduce_head(head), random.standard_normal((3, 2))
        large = velocity(z @ head.o.T, logit_matrix(head), head.o @ head.v)
        if not np.allclose(velocity(z, system.w, system.v) @ head.o.T, large):
            return False
    return True


def eigenvalues_are_dense(module: Any) -> bool:
    for random in streams():
        left, right = random.standard_normal((9, 2)), random.standard_normal((2, 9))
        dense = np.linalg.eigvalsh(sym(left @ right))
        for route in ("qr", "gram"):
            padded = np.sort(np.concatenate([module.sym_eigs(left, right, route), np.zeros(5)]))
            if not np.allclose(padded, dense, atol=1e-9):
                return False
    return True


def pairs_are_dense(module: Any) -> bool:
    for random in streams():
        head = random_head(random, 6, 2)
        product = head.o @ head.v @ logit_matrix(head).T
        if abs(module.Products(head).pair_index() - np.trace(product) / scipy.linalg.svdvals(product).sum()) > 1e-9:
            return False
    return True


def layers_are_dense(module: Any) -> bool:
    for random in streams():
        heads = [random_head(random, 7, 2, index=h) for h in range(2)]
        found = module.layer_dynamics(make_layer(heads), storage_error=0.0)
        u = sum(head.o @ head.v for head in heads)
        values = np.linalg.eigvals(u)
        values = values[np.argsort(-np.abs(values))][:4]
        if (
            abs(found.rho_euler - np.abs(1 + values).max()) > 1e-6
            or abs(found.regime.alpha - values.real.max()) > 1e-6
        ):
            return False
        grown = scipy.linalg.expm(0.1 * u)
        small = [make_head(h.q, h.k, 0.1 * h.v, h.o, index=h.head) for h in heads]
        ours = module.stack_growth([module.layer_dynamics(make_layer(small), storage_error=0.0)])
        if abs(ours - np.abs(np.linalg.eigvals(grown)).max()) > 1e-6:
            return False
    e1, e2, _ = np.eye(3)
    one = make_head(e2[None], e2[None], -e1[None], e1[:, None])
    other = make_head(e2[None], e2[None], 0 * e1[None], e2[:, None], index=1)
    for heads in ([one, other], [one]):
        if module.layer_dynamics(make_layer(heads, o_bias=e2), storage_error=0.0).regime.verdict.value == "converges":
            return False
    return True


def twins_keep_spectra(module: Any) -> bool:
    for random in streams():
        head = random_head(random, 6, 3)
        twin = module.randomised(head, random)
        if not np.allclose(*(np.linalg.svd(h.v, compute_uv=False) for h in (head, twin))) or np.allclose(
            head.v, twin.v
        ):
            return False
    return True


# --- mutations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    what: str
    module: str
    old: str
    new: str
    oracle: Callable[[Any], bool]


REGIME, ROTATION = "toposcope.dynamics.regime", "toposcope.dynamics.rotation"
MUTATIONS = [
    Mutation(
        "T3a: A need not be symmetric", REGIME, "facts.asym_A <= limit", "facts.asym_A <= 1", symmetry_is_needed
    ),
    Mutation(
        "T3b: W need not be symmetric", REGIME, "facts.asym_W <= limit", "facts.asym_W <= 1", symmetry_is_needed
    ),
    Mutation("T3: the sign of A", REGIME, "if facts.a_max < 0 and", "if facts.a_min > 0 and", planted_rules),
    Mutation("T4: the sign of A", REGIME, "if facts.a_min > 0 and", "if facts.a_max < 0 and", planted_rules),
    Mutation("T4: the word", REGIME, 'Verdict.DIVERGES, f"T4', 'Verdict.CONVERGES, f"T4', planted_rules),
    Mutation("A is W V^-1, not W V", REGIME, "mixed = system.v.T @", "mixed = system.v @", planted_rules),
    Mutation("b_q and b_v in T3b", REGIME, "        w_symmetric = False", "        pass", key_weights_leave_t3a),
    Mutation(
        "T6: the side",
        REGIME,
        "if facts.alpha < 0:\n                who",
        "if facts.alpha > 0:\n                who",
        spectra_decide,
    ),
    Mutation("T5: all to the right", REGIME, "or facts.omega > 0:", "or facts.omega < 0:", spectra_decide),
    Mutation(
        "T5: one to the right", REGIME, "    if facts.alpha > 0:\n", "    if facts.alpha < 0:\n", spectra_decide
    ),
    Mutation("T6: rounding", REGIME, "if distance.lower > facts.rounding", "if distance.upper >= 0", spectra_decide),
    Mutation(
        "T5: the best line",
        REGIME,
        "best_line(facts.pencil, 0.0, facts.alpha)",
        "distance_to_line(facts.pencil, 0.0)",
        spectra_decide,
    ),
    Mutation("T8: w'", REGIME, "facts.w_min - np.sqrt(kappa)", "facts.w_min + np.sqrt(kappa)", balls_hold),
    Mutation("T8: the rotation's part", REGIME, "(gap + excess)", "gap", balls_hold),
    Mutation("T8: the sign of N", REGIME, "N = sign * S @ facts.v", "N = -sign * S @ facts.v", balls_are_found),
    Mutation(
        "T8: ball or growth", REGIME, "    if sign < 0:\n        cert", "    if sign > 0:\n        cert", balls_hold
    ),
    Mutation(
        "the margin",
        REGIME,
        "np.sqrt(1 + (beta - self.rounding) / self._factors) - 1",
        "beta / self._factors",
        margins_hold,
    ),
    Mutation(
        "asymmetry", REGIME, "np.linalg.norm(matrix - matrix.T)", "np.linalg.norm(matrix + matrix.T)", planted_rules
    ),
    Mutation(
        "the tolerance",
        REGIME,
        "limit = min(1e3 * facts.size * EPS, 1e-3 * margin)",
        "limit = 1.0",
        symmetry_is_needed,
    ),
    Mutation(
        "the chord",
        "toposcope.dynamics.stability",
        "chord - share * (1 - share) * square",
        "chord + share * (1 - share) * square",
        bounds_are_below,
    ),
    Mutation(
        "the shift",
        "toposcope.dynamics.pencil",
        "+= (w**2 - taken)",
        "+= (w**2 + taken)",
        proofs_are_true,
    ),
    Mutation("tau: its sign", ROTATION, "return scale / 2 *", "return -scale / 2 *", offsets_are_covered),
    Mutation("tau: its half", ROTATION, "return scale / 2 *", "return scale *", offsets_are_covered),
    Mutation(
        "tau: one weight per pair", ROTATION, "energy[:, first_F] = energy[:, second_F] =", "_ =", offsets_are_covered
    ),
    Mutation(
        "the sign of J",
        ROTATION,
        "np.ascontiguousarray(turn.T)",
        "np.ascontiguousarray(turn)",
        rotation_is_the_models,
    ),
    Mutation("rho", ROTATION, "(turned_ORR - s_q) @", "(turned_ORR + s_q) @", rotation_is_the_models),
    Mutation(
        "the gain",
        "toposcope.checkpoints.fold",
        "else matrix * norm.gain",
        "else matrix / norm.gain",
        folding_is_the_norm,
    ),
    Mutation(
        "centring",
        "toposcope.checkpoints.fold",
        "folded - folded.mean(axis=1",
        "folded + folded.mean(axis=1",
        folding_is_the_norm,
    ),
    Mutation(
        "the norm's bias", "toposcope.checkpoints.fold", "else bias + shift", "else bias - shift", folding_is_the_norm
    ),
    Mutation(
        "W~",
        "toposcope.dynamics.reduction",
        "(head.q @ o).T @ (head.k @ o)",
        "(head.k @ o).T @ (head.q @ o)",
        small_flow_is_the_large_one,
    ),
    Mutation(
        "sym(LR), QR",
        "toposcope.dynamics.factored",
        "upper[:, :r] @ upper[:, r:].T",
        "upper[:, :r] @ upper[:, :r].T",
        eigenvalues_are_dense,
    ),
    Mutation(
        "sym(LR), Gram",
        "toposcope.dynamics.factored",
        "half[:r, :r] = _symmetric(x.T @ y)",
        "half[:r, :r] = _symmetric(x.T @ x)",
        eigenvalues_are_dense,
    ),
    Mutation(
        "the pair index",
        "toposcope.dynamics.products",
        "np.sum(self.qo * self.vk.T)",
        "np.sum(self.ko * self.vk.T)",
        pairs_are_dense,
    ),
    Mutation("I + U", "toposcope.dynamics.layers", "np.abs(1 + spectra)", "np.abs(1 - spectra)", layers_are_dense),
    Mutation(
        "exp U",
        "toposcope.dynamics.layers",
        "found + found @ (small @ found) / 2",
        "found - found @ (small @ found) / 2",
        layers_are_dense,
    ),
    Mutation(
        "drift through the outputs",
        "toposcope.dynamics.layers",
        "not self.output_constant.any() and rank",
        "rank",
        layers_are_dense,
    ),
    Mutation(
        "the twin", "toposcope.scanning.baseline", "return lower @", "return lower @ lower @", twins_keep_spectra
    ),
]


def mutated(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module with the first occurrence of the text replaced."""
    original = importlib.import_module(mutation.module)
    assert original.__file__ is not None
    source = Path(original.__file__).read_text(encoding="utf-8")
    assert mutation.old in source, f"{mutation.what}: the text to change is gone from {mutation.module}"
    copy = ModuleType(f"{mutation.module}_mutated")
    monkeypatch.setitem(sys.modules, copy.__name__, copy)  # dataclasses look their module up
    exec(compile(source.replace(mutation.old, mutation.new, 1), copy.__name__, "exec"), copy.__dict__)
    return copy


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_changed_formula_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not mutation.oracle(mutated(mutation, monkeypatch))


ORACLES = {mutation.oracle: mutation.module for mutation in MUTATIONS} | {the_pair_is_refused: REGIME}


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.__name__)
def test_the_code_as_it_is_satisfies_every_oracle(oracle: Callable[[Any], bool]) -> None:
    assert oracle(importlib.import_module(ORACLES[oracle]))
