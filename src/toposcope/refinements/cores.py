"""Square matrices whose signs are chosen, and that are otherwise free to be trained.

With X = raw / unit, C(X) lower triangular with a positive diagonal (softplus), T(X) antisymmetric from what is above
X's diagonal, both blocks built alike, and N any matrix:

    definite    +-(E + f I) + T,    E = C C^T          every M whose sym(M) is beyond the floor
    mixed       [ E+ + f I + T+     N             ]    M and sym(M) both have exactly these signs, and no eigenvalue
                [ N^T            -(E- + f I) + T- ]    of sym(M) lies between the floors
    symmetric   the same without T

all times a size s. (Mixed: sym(M) is quasi-definite; and M diag(I, -I) has a positive symmetric part, so that M has
the signs of diag(I, -I) in its spectrum, by the theorem of Ostrowski and Schneider.)

C C^T is L diag(softplus^2) L^T with L unit lower triangular, L = C diag(C)^-1; the product is formed from C because
with L and D as parameters it grows like their cube, and large steps run away. The floor f is a share of the mean
eigenvalue of E as it is now, or of a size that the caller names: a matrix that nearly vanishes in some direction does
not meet the constraint, however training rescales the rest. `s` is the size at the start; `unit` makes the entries of
raw as large as plain weights, so that a learning rate changes a core as fast, relatively, as it changes them. Nothing
is inverted.
"""

# mypy: allow-subclassing-any, allow-untyped-decorators
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toposcope.core.errors import BadValue

FLOOR = 0.05
_LEAST = 1e-4  # the least eigenvalue, and diagonal entry, that a fit gives


def negative_directions(regime: str | float, size: int) -> int:
    """How many of `size` directions are negative: 'positive', 'negative', 'half', or any fraction."""
    known = {"positive": 0.0, "negative": 1.0, "half": 0.5}
    if isinstance(regime, str) and regime not in known:
        raise BadValue(
            f"a regime is one of {', '.join(known)} or the fraction of negative directions, got '{regime}'."
        )
    share = known[regime] if isinstance(regime, str) else float(regime)
    if not 0 <= share <= 1:
        raise BadValue(f"the fraction of negative directions must be in [0, 1], got {share}.")
    if share in (0.0, 1.0):
        return round(share * size)
    if size < 2:
        raise BadValue(f"{size} direction cannot be part positive and part negative. Use 'positive' or 'negative'.")
    return min(max(round(share * size), 1), size - 1)


class Core(nn.Module):
    """A batch of `count` matrices of `size`, `negative` of whose directions are negative."""

    scale_B: Tensor
    unit: Tensor

    def __init__(
        self, count: int, size: int, negative: int, *, symmetric: bool = False, floor: float = FLOOR
    ) -> None:
        super().__init__()
        if not floor > 0:
            raise BadValue(f"the floor must be positive, got {floor}: at 0 the constraint would mean nothing.")
        self.count, self.size, self.negative_count = count, size, negative
        self.symmetric, self.floor = symmetric, floor
        self.register_buffer("scale_B", torch.ones(count))
        self.register_buffer("unit", torch.ones(()))
        # one parameter for each degree of freedom, and no more
        shapes = [(w * (w + 1) // 2,) if symmetric else (w, w) for w, _ in self._blocks()]
        if self.mixed:
            shapes.append((size - negative, negative))
        self.raw = nn.ParameterList(nn.Parameter(torch.zeros(count, *shape)) for shape in shapes)

    @property
    def mixed(self) -> bool:
        return 0 < self.negative_count < self.size

    def forward(self, least_B: Tensor | None = None) -> Tensor:
        """(count, size, size). `least_B` is the floor in the matrices' own units, in place of the relative one."""
        parts = []
        for raw, (width, sign) in zip(self.raw, self._blocks(), strict=False):
            x = self._square(raw, width) / self.unit
            low = x.tril(-1) + torch.diag_embed(F.softplus(x.diagonal(dim1=-2, dim2=-1)))
            even = low @ low.mT
            even = even + self._floor(even, least_B) * torch.eye(width, dtype=x.dtype, device=x.device)
            if self.symmetric:
                even = (even + even.mT) / 2  # equal to its transpose in every digit
            odd = x.triu(1)
            parts.append(sign * even if self.symmetric else sign * even + odd - odd.mT)
        if self.mixed:
            joint = self.raw[-1] / self.unit
            made = torch.cat([torch.cat([parts[0], joint], 2), torch.cat([joint.mT, parts[1]], 2)], 1)
        else:
            made = parts[0]
        return self.scale_B[:, None, None] * made

    @torch.no_grad()
    def fit_(self, target_BNN: Tensor, *, unit: Tensor, least_B: Tensor | None = None) -> None:
        """Come near a given matrix: its antisymmetric part stays, eigenvalues of its symmetric one change sign only.

        The size (Frobenius) stays the target's.
        """
        wanted_B = target_BNN.flatten(1).norm(dim=1)
        self.unit.copy_(unit.clamp_min(1e-30) * math.sqrt(self.size))  # a matrix of size s has entries of s / sqrt(n)
        self.scale_B.copy_((wanted_B / math.sqrt(self.size)).clamp_min(1e-30))
        near = target_BNN / self.scale_B[:, None, None]
        edge = self.size - self.negative_count
        spans = [(begin, end) for begin, end in ((0, edge), (edge, self.size)) if begin < end]
        for raw, (begin, end) in zip(self.raw, spans, strict=False):
            part = near[:, begin:end, begin:end]
            even = _absolute((part + part.mT) / 2)
            x = _definite_raw(even, self._floor(even / (1 + self.floor), least_B)) + ((part - part.mT) / 2).triu(1)
            rows, columns = torch.tril_indices(end - begin, end - begin, device=x.device)
            raw.copy_((x[:, rows, columns] if self.symmetric else x) * self.unit)
        if self.mixed:
            self.raw[-1].copy_((near + near.mT)[:, :edge, edge:] / 2 * self.unit)
        self.resize_(wanted_B / self(least_B).flatten(1).norm(dim=1).clamp_min(1e-30))

    def resize_(self, factor_B: Tensor) -> None:
        """Multiply the matrices (but for a floor that the caller names)."""
        self.scale_B.mul_(factor_B)

    # ------------------------------------------------------------- inside
    def _blocks(self) -> list[tuple[int, float]]:
        both = [(self.size - self.negative_count, 1.0), (self.negative_count, -1.0)]
        return [(width, sign) for width, sign in both if width]

    def _floor(self, even_BNN: Tensor, least_B: Tensor | None) -> Tensor:
        """(count, 1, 1), in units of s."""
        if least_B is None:
            return self.floor * even_BNN.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        return (least_B / self.scale_B)[:, None, None]

    def _square(self, raw: Tensor, width: int) -> Tensor:
        if not self.symmetric:
            return raw
        rows, columns = torch.tril_indices(width, width, device=raw.device)
        each = torch.arange(self.count, device=raw.device)[:, None]
        return raw.new_zeros(self.count, width, width).index_put((each, rows, columns), raw)


def _definite_raw(even_BNN: Tensor, floor_B11: Tensor) -> Tensor:
    """X on and below the diagonal, with C C^T = even - floor, as far as that is positive."""
    values, vectors = torch.linalg.eigh(even_BNN)
    rest = vectors @ ((values.unsqueeze(-1) - floor_B11).clamp_min(_LEAST) * vectors.mT)
    root = torch.linalg.cholesky((rest + rest.mT) / 2)
    return root.tril(-1) + torch.diag_embed(_softplus_inverse(root.diagonal(dim1=-2, dim2=-1)))


def _absolute(even_BNN: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(even_BNN)
    return vectors @ (values.abs().unsqueeze(-1) * vectors.mT)


def _softplus_inverse(value: Tensor) -> Tensor:
    value = value.clamp_min(_LEAST)
    return value + torch.log(-torch.expm1(-value))
