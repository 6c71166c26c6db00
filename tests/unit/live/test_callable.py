"""`check_rotation` on functions with known mistakes: what is wrong is named, or left open; what is right is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import toposcope
from toposcope.core.errors import BadValue
from toposcope.encodings import rope
from toposcope.live.recover import ROUNDING

DTYPES = [each for each in ROUNDING if each != "float64"]
WIDTH = 32
LONGER = rope(WIDTH, attention_factor=1.3)


def rotation(
    base: float = 10000.0,
    *,
    half: bool = True,
    turning: int = WIDTH,
    kept: torch.dtype | None = None,  # of the frequencies
    placed: torch.dtype | None = None,  # of the positions
    times: float = 1.0,
    factor: float = 1.0,
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """RoPE as many write it, with one thing or another done wrong."""

    def rotate(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        w_F = base ** (-torch.arange(0, turning, 2).double() / turning)
        w_F = times * w_F.float().to(kept or torch.float32).float()
        at_N = positions.to(placed or torch.float32).float()
        angle_NF = at_N[:, None] * w_F
        cos, sin = ((factor * wave).to(q.dtype) for wave in (angle_NF.cos(), angle_NF.sin()))

        def turn(x: Tensor) -> Tensor:
            y = x.clone()
            first = slice(0, turning // 2) if half else slice(0, turning, 2)
            second = slice(turning // 2, turning) if half else slice(1, turning, 2)
            y[..., first] = x[..., first] * cos - x[..., second] * sin
            y[..., second] = x[..., second] * cos + x[..., first] * sin
            return y

        return turn(q), turn(k)

    return rotate


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "encoding"),
    [
        (rotation(), "rope"),
        (rotation(5e5), "rope:base=500000"),
        (rotation(half=False), "rope:pairing=interleaved"),
        (rotation(turning=16), "rope:rotary_dim=16"),
    ],
)
def test_what_is_right(function: Any, encoding: str, dtype: str) -> None:
    found = toposcope.check_rotation(function, head_dim=WIDTH, encoding=encoding, dtype=dtype)
    assert found.worst == "ok"
    evidence = found.findings[0].evidence
    assert evidence["share_of_threshold"] < 0.6
    if dtype == "float32":
        assert evidence["frequency_error"] <= 3e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("bug", "function", "encoding"),
    [
        ("theta-lost", rotation(), "rope:base=500000"),
        ("scaling-dropped", rotation(), "rope:scaling=linear,factor=8"),
        ("scaling-dropped", rotation(1e6), "rope:base=1000000,scaling=llama3,factor=8,original_context=8192"),
        ("partial-ignored", rotation(), "rope:rotary_dim=16"),
        ("pairing-swapped", rotation(half=False), "rope"),
        ("pairing-swapped", rotation(), "rope:pairing=interleaved"),
        ("rotated-twice", rotation(times=2), "rope"),
        ("frequencies-rounded", rotation(kept=torch.bfloat16), "rope"),
        ("frequencies-rounded", rotation(kept=torch.float16), "rope"),
        ("frequencies-uninitialised", rotation(times=float("nan")), "rope"),
        ("attention-factor-dropped", rotation(), LONGER),
        ("attention-factor-twice", rotation(factor=1.69), LONGER),
        (None, rotation(factor=1.5), LONGER),
        (None, rotation(times=-1), "rope"),
        (None, rotation(placed=torch.bfloat16), "rope"),
        (None, rotation(10000 * (1 + 1e-4)), "rope"),  # no rounding, though as large as one
        (None, rotation(2e4), "rope"),
        (None, rotation(times=0.37), "rope"),
    ],
)
def test_what_is_wrong_is_named_or_left_open(bug: str | None, function: Any, encoding: Any, dtype: str) -> None:
    found = toposcope.check_rotation(function, head_dim=WIDTH, encoding=encoding, dtype=dtype)
    assert found.worst == "fault"
    assert {fault.evidence["bug"] for fault in found.faults} == {bug}


def test_a_rounding_is_a_matter_of_precision_and_says_from_where_on_it_matters() -> None:
    found = toposcope.check_rotation(rotation(kept=torch.bfloat16), head_dim=WIDTH, encoding="rope")
    evidence = found.faults[0].evidence
    w_F = 10000.0 ** (-torch.arange(0, WIDTH, 2).double() / WIDTH)
    apart = float((w_F.float().bfloat16().double() - w_F).abs().max())
    assert evidence["probe"] == "precision"
    assert evidence["since"] == pytest.approx(0.1 / apart, rel=0.05)


def test_without_an_encoding_it_is_described() -> None:
    found = toposcope.check_rotation(rotation(3e4, turning=16), head_dim=WIDTH)
    assert found.worst == "ok"
    assert found.pairs == tuple((f, f + 8) for f in range(8))
    w_F = [3e4 ** (-f / 8) for f in range(8)]
    assert found.frequencies == pytest.approx(w_F, rel=3e-7)
    assert all(
        abs(seen - true) <= error + 1e-7 * true
        for seen, true, error in zip(found.frequencies, w_F, found.errors, strict=True)
    )


@pytest.mark.parametrize(
    "given",
    [
        {"dtype": "int8"},
        {"head_dim": 1},
        {"encoding": "alibi"},
        {"encoding": rope(2 * WIDTH)},
    ],
)
def test_bad_arguments(given: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        toposcope.check_rotation(rotation(), **{"head_dim": WIDTH, "encoding": "rope", **given})


def test_what_a_function_returns_is_checked() -> None:
    with pytest.raises(BadValue, match="expected the turned queries"):
        toposcope.check_rotation(lambda q, k, positions: q, head_dim=WIDTH)
    with pytest.raises(BadValue, match="came back as"):
        toposcope.check_rotation(lambda q, k, positions: (q[..., :2], k), head_dim=WIDTH)
