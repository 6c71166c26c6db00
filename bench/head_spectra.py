"""Spectra of sym(Q^T K) and sym(O V) per head: from the factors, against dense eigenvalues and against the bound."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from bench.row import Row, cpu, interleaved
from toposcope.dynamics.factored import sym_eigs

# model width, head width, goals of the Gram route: against dense (none where the bound is not far from it either),
# and in units of the bound
CASES = ((576, 64, None, 1.25), (768, 64, None, 1.25), (4096, 128, 400, 1.5))


def measure() -> list[Row]:
    rows = []
    random = np.random.default_rng(0)
    for width, head, goal, close in CASES:
        left, right = random.standard_normal((width, head)), random.standard_normal((head, width))

        def dense(left: np.ndarray = left, right: np.ndarray = right) -> object:
            full = left @ right
            return scipy.linalg.eigvalsh((full + full.T) / 2)

        def bound(left: np.ndarray = left, right: np.ndarray = right) -> object:
            """What the Gram route cannot do without: three products and one eigenvalue problem of size 2r."""
            blocks = (left.T @ left, right @ right.T, right @ left)
            small = np.block([[blocks[0], blocks[2].T], [blocks[2], blocks[1]]])
            return np.linalg.eigvalsh(small)

        def ours(route: str, left: np.ndarray = left, right: np.ndarray = right) -> object:
            return sym_eigs(left, right, "gram" if route == "gram" else "qr")

        square = np.asarray(random.standard_normal((2 * head, 2 * head)))
        gram, qr, limit, small, reference = interleaved(
            7 if width < 1000 else 3,
            lambda: cpu(lambda: ours("gram"), 5),
            lambda: cpu(lambda: ours("qr"), 5),
            lambda: cpu(bound, 5),
            lambda square=square: cpu(lambda: np.linalg.eigvalsh(square), 5),
            lambda: cpu(dense),
        )
        top = np.abs(np.asarray(dense())).max() if width < 1000 else None
        error = ""
        if top is not None:
            full = np.sort(np.concatenate([np.asarray(ours("gram")), np.zeros(width - 2 * head)]))
            error = f", error {np.abs(full - np.asarray(dense())).max() / top:.0e} of the top"
        rows.append(
            Row(
                f"spectrum of one head's sym(Q^T K), d = {width}, r = {head}",
                f"{gram * 1e3:.2f} ms (QR route {qr * 1e3:.2f} ms){error}",
                f"dense {reference * 1e3:.0f} ms; products + eigenvalues {limit * 1e3:.2f} ms",
                f"{reference / gram:.0f}x dense (QR {reference / qr:.0f}x), {gram / limit:.2f}x of the bound",
                f"{'' if goal is None else f'>= {goal}x dense, '}<= {close}x of the bound",
                reference / gram >= (goal or 0) and gram / limit <= close,
                f"the bound itself is {reference / limit:.0f}x dense: eigenvalues of size {2 * head} alone take "
                f"{small * 1e3:.2f} ms.",
            )
        )
    return rows
