"""What training leaves in queries and keys, planted: pairs, width, one side alone, direction, base; and nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from toposcope.checks import CheckResult, check_model
from toposcope.checks.fresh import is_fresh
from toposcope.checks.overlaps import fall_of

from .making import Tensors, llama

LAYERS, HEADS, SIZE, WIDTH = 4, 2, 32, 64
BASE = 1e6  # of 16 pairs, those up to 9 turn by more than a radian within 4096 tokens


def check(path: Path) -> CheckResult:
    with toposcope.load(path) as model:
        return check_model(model)


def states(report: CheckResult) -> dict[str, str]:
    return {finding.id: finding.status for finding in reversed(report.findings)}


def trained(
    pairs: np.ndarray, turning: int | slice = 10, sign: float = 1.0, after: Callable[[Tensors], None] | None = None
) -> Callable[[Tensors], None]:
    """Give these pairs the sine part of heads that look back, and take from all rows that they look drawn."""
    chosen = pairs[turning if isinstance(turning, slice) else slice(turning)]

    def change(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("proj.weight"):
                tensors[name] = tensors[name] * np.linspace(0.5, 1.5, WIDTH) + 0.05
            if name.endswith("layernorm.weight"):
                tensors[name] = np.linspace(0.9, 1.1, WIDTH)
        for i in range(LAYERS):
            q, k = (tensors[f"model.layers.{i}.self_attn.{part}_proj.weight"] for part in "qk")
            q_HRD, k_HRD = q.reshape(HEADS, SIZE, WIDTH), k.reshape(HEADS, SIZE, WIDTH)
            k_HRD[:, chosen[:, 1]] += sign * q_HRD[:, chosen[:, 0]]
            k_HRD[:, chosen[:, 0]] -= sign * q_HRD[:, chosen[:, 1]]
        if after is not None:
            after(tensors)

    return change


def half(width: int = SIZE) -> np.ndarray:
    return np.arange(width).reshape(2, -1).T


def model(directory: Path, change: Callable[[Tensors], None], **settings: Any) -> CheckResult:
    return check(llama(directory, change, **{"num_hidden_layers": LAYERS, "rope_theta": BASE, **settings}))


def in_order(*parts: str, rows: np.ndarray) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for i in range(LAYERS):
            for part in parts:
                name = f"model.layers.{i}.self_attn.{part}_proj.weight"
                tensors[name] = tensors[name].reshape(HEADS, SIZE, WIDTH)[:, rows].reshape(-1, WIDTH)

    return change


def test_a_sound_model(tmp_path: Path) -> None:
    found = states(model(tmp_path, trained(half())))
    assert {found[id] for id in ("pairing", "direction", "base", "initial-values")} == {"ok"}


@pytest.mark.parametrize("part", ["q", "k"])
@pytest.mark.parametrize("inverse", [False, True])
def test_rows_of_one_side(tmp_path: Path, part: str, inverse: bool) -> None:
    rows = np.arange(SIZE).reshape(2, -1).T.reshape(-1)
    rows = np.argsort(rows) if inverse else rows
    report = model(tmp_path, trained(half(), after=in_order(part, rows=rows)))
    finding = report.find("row-order")
    assert finding is not None
    assert (finding.status, finding.evidence["side"]) == ("fault", {"q": "query", "k": "key"}[part])


def test_another_width(tmp_path: Path) -> None:
    settings = {"model_type": "stablelm", "partial_rotary_factor": 0.5}
    finding = model(tmp_path, trained(half()), **settings).find("rotated-part")
    assert finding is not None
    assert (finding.status, finding.evidence["turning"], finding.evidence["trained"]) == ("fault", 16, 32)


def test_the_wrong_way_round(tmp_path: Path) -> None:
    assert states(model(tmp_path, trained(half(), sign=-1)))["direction"] == "warning"


def test_reversed_channels(tmp_path: Path) -> None:
    change = trained(half(), after=in_order("q", "k", rows=np.arange(SIZE)[::-1]))
    assert states(model(tmp_path, change))["frequency-order"] == "fault"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"rope_theta": 1e6}, "ok"),
        ({"rope_theta": 1e8}, "cannot_tell"),
        ({"rope_theta": 1e10}, "warning"),
        ({"rope_theta": 1e2}, "warning"),
        ({"max_position_embeddings": 4096 * 16}, "cannot_tell"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "cannot_tell"),
    ],
)
def test_base_and_context(tmp_path: Path, settings: dict[str, Any], status: str) -> None:
    assert states(model(tmp_path, trained(half()), **settings))["base"] == status


def test_without_a_fall_the_base_is_open(tmp_path: Path) -> None:
    assert states(model(tmp_path, trained(half(), turning=16)))["base"] == "cannot_tell"


def test_fall() -> None:
    found = fall_of(np.array([4.0] * 9 + [1.0] * 7))
    assert found is not None
    assert (found.at, found.factor, found.fit) == (9, pytest.approx(4), pytest.approx(1))
    assert fall_of(np.ones(16)) is None
    assert fall_of(np.array([1.0, 1.5] * 8)) is None


# initial values


@pytest.mark.parametrize("draw", ["normal", "uniform"])
@pytest.mark.parametrize("seed", range(5))
def test_drawn_weights_are_fresh(draw: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    stack = random.normal(0, 0.02, (4, 32, 64)) if draw == "normal" else random.uniform(-0.2, 0.2, (4, 32, 64))
    assert is_fresh(stack)
    shared = random.standard_normal(64)
    assert is_fresh(stack + 0.3 * stack.std() * shared) is False  # all rows lean one way
    assert is_fresh(stack * np.linspace(0.3, 1.7, 64)) is False
    assert is_fresh(np.zeros((4, 32, 64))) is None


@pytest.mark.parametrize("parts", ["q", "k", "qk"])
def test_projections_drawn_anew(tmp_path: Path, parts: str) -> None:
    def anew(tensors: Tensors) -> None:
        random = np.random.default_rng(3)
        for i in range(LAYERS):
            for part in parts:
                name = f"model.layers.{i}.self_attn.{part}_proj.weight"
                tensors[name] = random.normal(0, 0.02, tensors[name].shape)

    report = model(tmp_path, trained(half(), after=anew))
    found = [finding for finding in report.findings if finding.id == "initial-values"]
    assert {finding.status for finding in found} == {"fault"}
    assert {finding.evidence["part"] for finding in found} == {{"q": "query", "k": "key"}[part] for part in parts}


def test_gains_of_one(tmp_path: Path) -> None:
    def lost(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("layers.2.input_layernorm.weight"):
                tensors[name] = np.ones(WIDTH)

    finding = model(tmp_path, trained(half(), after=lost)).find("norm-gains")
    assert finding is not None
    assert (finding.status, finding.layers) == ("warning", (2,))
