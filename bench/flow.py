"""The flow of attention: our Dormand-Prince against its own evaluations of a bare field, torchdiffeq and SciPy.

The bound is the bare field (matrix products and a softmax, nothing else) at the very states our integrator asked for.
Solvers measure errors in different ways, so each peer is given the tolerances at which its end state is as far from a
tight reference as ours is, as nearly as a few trials find them; the errors are printed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from bench.peers import MISSING, Peer, there
from bench.row import Row, cpu, interleaved
from toposcope.dynamics.fields import AttentionField, System
from toposcope.dynamics.integrate import integrate
from toposcope.dynamics.run import SAMPLES, Piece, Problem, run

Array = np.ndarray
RTOL, ATOL, TIGHT = 1e-6, 1e-9, 1e-11
GOAL = 1.15
MEASURED = {64: 3.5, 576: 2.0}  # by width: a run with all observables, in units of the integration
TRIALS = 4


@dataclass(frozen=True, eq=False)
class Case:
    """Tokens, and the maps of one head: W = Q^T K and U = O V, where `q` and `o` None stand for the identity."""

    name: str
    words: str
    start: Array
    k: Array
    v: Array
    q: Array | None
    o: Array | None
    end: float
    rounds: int
    repeat: int
    measured: float | None = None  # how many times the integration a run with all observables may take

    def save(self, where: Path) -> None:
        named = {"start": self.start, "k": self.k, "v": self.v, "q": self.q, "o": self.o}
        arrays: dict[str, Any] = {name: each for name, each in named.items() if each is not None}
        np.savez(where / f"{self.name}.npz", **arrays)

    def ours(self) -> AttentionField:
        q, o = (None if each is None else each[None] for each in (self.q, self.o))
        return AttentionField(System(self.k[None], self.v[None], q, o), len(self.start))

    def bare(self) -> Callable[[Array], Array]:
        """The field and nothing else, in place where NumPy can."""
        q, o = (None if each is None else np.ascontiguousarray(each.T) for each in (self.q, self.o))
        k, v = np.ascontiguousarray(self.k.T), np.ascontiguousarray(self.v.T)
        mask = np.where(np.tri(len(self.start), dtype=bool), 0.0, -np.inf)

        def field(x: Array) -> Array:
            logits = (x if q is None else x @ q) @ (x @ k).T
            logits += mask
            logits -= logits.max(axis=1, keepdims=True)
            np.exp(logits, out=logits)
            mixed = logits @ (x @ v)
            mixed /= logits.sum(axis=1, keepdims=True)
            return mixed if o is None else mixed @ o

        return field


def cases() -> list[Case]:
    draw = np.random.default_rng(0).standard_normal

    def dense(n: int, d: int, end: float, rounds: int, repeat: int) -> Case:
        k, v = draw((d, d)) / d, draw((d, d)) / np.sqrt(d) - np.eye(d) / 2
        words = f"{n} tokens, W and V of width {d}"
        return Case(f"dense{d}", words, draw((n, d)), k, v, None, None, end, rounds, repeat, MEASURED.get(d))

    d, r, n = 576, 64, 256
    q, k, v = draw((r, d)) / np.sqrt(d * r), draw((r, d)) / np.sqrt(d), draw((r, d)) / np.sqrt(d)
    words = f"{n} tokens, a head of SmolLM2's shape (width {d}, head {r})"
    head = Case("head", words, draw((n, d)), k, v, q, draw((d, r)) / np.sqrt(r), 3.0, 7, 1, MEASURED[d])
    return [dense(64, 64, 3.0, 15, 4), head, dense(512, 768, 1.0, 3, 1)]


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        where = Path(name)
        peer = stack.enter_context(Peer("bench.peer_torchdiffeq", name)) if there() else None
        for case in cases():
            case.save(where)
            rows += _rows(case, peer, where)
    return rows


@dataclass(eq=False)
class Solver:
    """A peer: `solve` takes (rtol, atol) and gives processor seconds, evaluations and the end state."""

    name: str
    solve: Callable[[float, float], tuple[float, int, Array]]
    share: float = 1.0  # of RTOL and ATOL
    error: float = float("nan")
    evaluations: int = 0

    def match(self, error_of: Callable[[Array], float], wanted: float) -> None:
        """Find the tolerances that give the wanted error, to a quarter: errors go about as the tolerance does."""
        for _ in range(TRIALS):
            _, self.evaluations, state = self.solve(self.share * RTOL, self.share * ATOL)
            self.error = error_of(state)
            if 0.8 <= self.error / wanted <= 1.25:
                return
            used, self.share = self.share, self.share * wanted / self.error
        self.share = used  # the last that was tried

    def seconds(self) -> float:
        return self.solve(self.share * RTOL, self.share * ATOL)[0]


def _rows(case: Case, peer: Peer | None, where: Path) -> list[Row]:
    field, bare, start = case.ours(), case.bare(), case.start
    asked: list[Array] = []

    def recorded(state: Array) -> Array:
        asked.append(state.copy())
        return field(state)

    solved = integrate(recorded, start, case.end, rtol=RTOL, atol=ATOL)
    exact = _scipy(bare, start, case.end, "DOP853")(TIGHT, TIGHT)[2]

    def error_of(state: Array) -> float:
        return float(np.abs(state - exact).max() / np.abs(exact).max())

    solvers = [Solver(f"SciPy {method}", _scipy(bare, start, case.end, method)) for method in ("RK45", "DOP853")]
    if peer is not None:
        solvers.insert(0, Solver("torchdiffeq dopri5", _torchdiffeq(peer, where, case)))
    wanted = error_of(solved.state)
    for solver in solvers:
        solver.match(error_of, wanted)
    ours, bound, own, *theirs = interleaved(
        case.rounds,
        lambda: cpu(lambda: integrate(field, start, case.end, rtol=RTOL, atol=ATOL), case.repeat),
        lambda: cpu(lambda: [bare(state) for state in asked], case.repeat),
        lambda: cpu(lambda: [field(state) for state in asked], case.repeat),
        *(solver.seconds for solver in solvers),
    )
    said = f"{_time(ours)}, {solved.evaluations} evaluations, error {wanted:.0e}"
    rows = [
        Row(
            f"flow, {case.words}, to t = {case.end:g}",
            said,
            f"{solved.evaluations} bare evaluations {_time(bound)} (of our own field {_time(own)})",
            f"{ours / bound:.2f}x the bound",
            f"<= {GOAL}x",
            ours / bound <= GOAL,
            f"our own field takes {own / bound:.2f}x of the bare one (it looks at sizes and at groups of heads), the "
            f"integrator adds {(ours - own) / solved.evaluations * 1e6:.0f} us an evaluation: calls, not arithmetic",
        )
    ]
    problem = Problem(case.name, start, (Piece(lambda: field),), case.end)
    whole, alone = interleaved(
        case.rounds,
        lambda: cpu(lambda: run(problem, rtol=RTOL, atol=ATOL)),
        lambda: cpu(lambda: integrate(field, start, case.end, rtol=RTOL, atol=ATOL)),
    )
    rows.append(
        Row(
            f"the same as `toposcope flow` runs it, all observables at up to {SAMPLES} times",
            _time(whole),
            f"the integration alone {_time(alone)}",
            f"{whole / alone:.1f}x",
            f"<= {case.measured}x" if case.measured else "-",
            whole / alone <= case.measured if case.measured else None,
        )
    )
    if peer is None:
        rows.append(Row("the same against torchdiffeq dopri5", said, MISSING, "-", "-", None))
    for solver, seconds in zip(solvers, theirs, strict=True):
        rows.append(
            Row(
                f"the same against {solver.name}, at the same error",
                said,
                f"{_time(seconds)}, {solver.evaluations} evaluations, error {solver.error:.0e}",
                f"{seconds / ours:.2f}x",
                "-",
                None,
            )
        )
    return rows


def _scipy(
    bare: Callable[[Array], Array], start: Array, end: float, method: str
) -> Callable[[float, float], tuple[float, int, Array]]:
    def solve(rtol: float, atol: float) -> tuple[float, int, Array]:
        found = {}

        def run() -> None:
            found["it"] = solve_ivp(
                lambda t, y: bare(y.reshape(start.shape)).ravel(),
                (0.0, end),
                start.ravel(),
                method=method,
                t_eval=[end],
                rtol=rtol,
                atol=atol,
            )

        seconds = cpu(run)
        return seconds, int(found["it"].nfev), found["it"].y[:, -1].reshape(start.shape)

    return solve


def _torchdiffeq(peer: Peer, where: Path, case: Case) -> Callable[[float, float], tuple[float, int, Array]]:
    def solve(rtol: float, atol: float) -> tuple[float, int, Array]:
        found = peer.ask(case=case.name, end=case.end, rtol=rtol, atol=atol)
        return found["seconds"], found["evaluations"], np.load(where / "torchdiffeq.npy")

    return solve


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
