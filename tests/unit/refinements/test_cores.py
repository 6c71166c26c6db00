"""Matrices of chosen signs: the signs hold for any parameters, and nothing else is given up."""

from __future__ import annotations

import pytest
import torch

from toposcope.core.errors import BadValue
from toposcope.refinements.cores import FLOOR, Core, negative_directions

UNIT = torch.tensor(0.1, dtype=torch.float64)


def _core(count: int, size: int, negative: int, *, symmetric: bool = False, noise: float = 0.0) -> Core:
    core = Core(count, size, negative, symmetric=symmetric).double()
    generator = torch.Generator().manual_seed(size + 10 * negative)
    core.fit_(torch.randn(count, size, size, generator=generator, dtype=torch.float64), unit=UNIT)
    with torch.no_grad():
        for raw in core.raw:
            raw.add_(noise * torch.randn(raw.shape, generator=generator, dtype=torch.float64))
    return core


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("size", "negative"), [(1, 0), (1, 1), (6, 0), (6, 6), (6, 1), (7, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_signs_hold_whatever_the_parameters(size: int, negative: int, symmetric: bool, noise: float) -> None:
    made = _core(5, size, negative, symmetric=symmetric, noise=noise)().detach()
    assert (made.mT == made).all() or not symmetric
    even = torch.linalg.eigvalsh((made + made.mT) / 2)
    assert ((even < 0).sum(1) == negative).all()
    spectrum = torch.linalg.eigvals(made).real
    assert ((spectrum < 0).sum(1) == negative).all()
    blocks = [made[:, : size - negative, : size - negative], -made[:, size - negative :, size - negative :]]
    floors = [FLOOR / (1 + FLOOR) * part.diagonal(dim1=1, dim2=2).mean(1) for part in blocks if part.numel()]
    assert (even.abs().amin(1) >= 0.999 * torch.stack(floors).amin(0)).all()  # however the rest is stretched


@pytest.mark.parametrize("sign", [1, -1])
def test_every_definite_matrix_is_reached(sign: int) -> None:
    generator = torch.Generator().manual_seed(3)
    root, odd = torch.randn(2, 4, 9, 9, generator=generator, dtype=torch.float64)
    target = sign * (root @ root.mT + 2 * torch.eye(9, dtype=torch.float64)) + odd - odd.mT
    core = Core(4, 9, 0 if sign > 0 else 9).double()
    core.fit_(target, unit=UNIT)
    assert torch.allclose(core(), target, atol=1e-10)
    assert sum(raw.numel() for raw in core.raw) == target.numel()


def test_a_fit_keeps_the_antisymmetric_part_and_the_size() -> None:
    target = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    core = Core(3, 8, 8).double()
    core.fit_(target, unit=UNIT)
    made = core().detach()
    assert torch.allclose(made.flatten(1).norm(dim=1), target.flatten(1).norm(dim=1))
    odd, theirs = made - made.mT, target - target.mT
    assert torch.allclose(odd / odd.norm(), theirs / theirs.norm(), atol=1e-2)  # but for the floor
    before = torch.linalg.eigvalsh((target + target.mT) / 2).abs().sort().values
    after = torch.linalg.eigvalsh((made + made.mT) / 2).abs().sort().values
    assert torch.allclose(before[:, 4:], after[:, 4:], rtol=0.1)


def test_one_parameter_for_each_degree_of_freedom() -> None:
    def count(core: Core) -> int:
        return sum(p.numel() for p in core.parameters())

    assert count(Core(2, 6, 0)) == 2 * 36
    assert count(Core(2, 6, 2)) == 2 * (16 + 4 + 8)
    assert count(Core(2, 6, 2, symmetric=True)) == 2 * 21


@pytest.mark.parametrize(("negative", "symmetric"), [(0, False), (5, False), (2, False), (2, True), (5, True)])
def test_gradients_by_finite_differences(negative: int, symmetric: bool) -> None:
    core = _core(2, 5, negative, symmetric=symmetric, noise=0.1)
    names = [f"raw.{i}" for i in range(len(core.raw))]

    def made(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(core, dict(zip(names, values, strict=True)))

    given = [raw.detach().clone().requires_grad_() for raw in core.raw]
    assert torch.autograd.gradcheck(made, given)


def test_regimes() -> None:
    assert [negative_directions(r, 8) for r in ("positive", "negative", "half", 0.25, 0.01, 1.0)] == [
        0,
        8,
        4,
        2,
        1,
        8,
    ]
    with pytest.raises(BadValue, match="sideways"):
        negative_directions("sideways", 8)
    with pytest.raises(BadValue, match=r"\[0, 1\]"):
        negative_directions(1.5, 8)
    with pytest.raises(BadValue, match="part positive"):
        negative_directions("half", 1)
    with pytest.raises(BadValue, match="floor"):
        Core(1, 3, 0, floor=0.0)
