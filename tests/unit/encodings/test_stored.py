"""Stored sinusoids, planted in every way that code in the wild keeps them, and tables that are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.encodings.stored import stored_sinusoid, table_encoding


def planted(
    n: int,
    width: int,
    *,
    layout: str = "interleaved",
    base: float = 10000.0,
    steps: float | None = None,
    start: float = 0,
    scale: float = 1.0,
) -> np.ndarray:
    """The formula written out once more, in single precision."""
    pairs = (width + 1) // 2
    steps = steps or (width / 2 if layout == "interleaved" else width / 2 - 1)
    angle = (np.arange(n) + start)[:, None] * base ** (-np.arange(pairs) / steps)
    if layout == "half":
        rows = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    else:
        rows = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(n, -1)[:, :width]
    return (scale * rows).astype(np.float32)


@given(
    n=st.integers(8, 300),
    pairs=st.integers(2, 40),
    layout=st.sampled_from(["interleaved", "half"]),
    base=st.sampled_from([10000.0, 100.0, 500000.0, 20000.0]),
    scale=st.sampled_from([1.0, 0.02, 22.627417, 0.17677669]),
    start=st.sampled_from([0, 1, 2]),
    other=st.booleans(),
)
def test_what_was_planted_is_found(
    n: int, pairs: int, layout: str, base: float, scale: float, start: int, other: bool
) -> None:
    usual = pairs if layout == "interleaved" else pairs - 1
    steps = float((pairs - 1 if layout == "interleaved" else pairs) if other else usual)
    rows = planted(n, 2 * pairs, layout=layout, base=base, steps=steps, start=start, scale=scale)
    found = stored_sinusoid(rows)
    assert found is not None
    said = found.encoding.parameters
    assert (said["layout"], said["offset"], found.first) == (layout, start, 0)
    assert said["scale"] == pytest.approx(scale, rel=1e-5)
    # base and denominator enter by base^(1/denominator) alone
    assert np.log(said["base"]) / said["denominator"] == pytest.approx(np.log(base) / steps, rel=1e-3)
    assert found.error < 1e-3
    made = found.encoding.input
    assert made is not None
    assert np.abs(made.vectors(np.arange(n)) - rows).max() < 1e-3 * scale


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_the_usual_base_is_called_by_its_name(layout: str, base: float) -> None:
    found = stored_sinusoid(planted(64, 32, layout=layout, base=base))
    assert found is not None
    assert found.encoding.parameters["base"] == base
    assert found.encoding.parameters["denominator"] == (16 if layout == "interleaved" else 15)


@pytest.mark.parametrize(("pad", "start"), [(0, 0), (1, 0), (1, 1), (2, 2)])
def test_rows_that_are_reserved(pad: int, start: int) -> None:
    """Padding in front, or a zero row put over that of position pad - 1, as fairseq and others do."""
    rows = np.concatenate([np.zeros((pad, 24), np.float32), planted(50, 24, start=start)])
    encoding = table_encoding(rows)
    assert encoding.name == "sinusoidal"
    assert encoding.parameters["offset"] == start
    assert encoding.input is not None
    assert encoding.input.length == 50
    assert np.array_equal(encoding.input.vectors(np.arange(50)), rows[pad:].astype(float))


def test_a_zero_row_between_reserved_ones() -> None:
    rows = planted(50, 24)
    rows[1] = 0
    found = stored_sinusoid(rows)
    assert found is not None
    assert (found.first, found.encoding.parameters["offset"]) == (2, 2)


def test_rows_of_length_one_are_a_scale() -> None:
    rows = planted(40, 32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = stored_sinusoid(unit)
    assert found is not None
    assert found.encoding.parameters["scale"] == pytest.approx(0.25, rel=1e-5)


def test_an_odd_width() -> None:
    found = stored_sinusoid(planted(40, 31))
    assert found is not None
    assert found.encoding.parameters["width"] == 31


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    import ml_dtypes

    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    found = stored_sinusoid(planted(512, 64).astype(kind).astype(np.float32))
    assert found is not None
    assert found.encoding.parameters["base"] == 10000.0
    assert 1e-5 < found.error < 5e-3


def test_a_long_table() -> None:
    found = stored_sinusoid(planted(10_000, 16))
    assert found is not None
    assert found.error < 2e-3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: np.random.default_rng(0).standard_normal(rows.shape),
        lambda rows: rows + 0.05 * np.random.default_rng(0).standard_normal(rows.shape),
        lambda rows: rows + 0.1,
        lambda rows: rows * np.linspace(1, 2, len(rows))[:, None],
        lambda rows: rows * np.linspace(1, 2, rows.shape[1]),
        lambda rows: rows[np.random.default_rng(0).permutation(len(rows))],
        lambda rows: rows[:, np.random.default_rng(0).permutation(rows.shape[1])],
        lambda rows: rows[::3],
        lambda rows: np.zeros_like(rows),
        lambda rows: rows[:4],
        lambda rows: np.concatenate([rows[:20], rows[:20]]),
        lambda rows: rows[::-1],
    ],
)
def test_what_is_no_sinusoid_is_a_learned_table(spoil) -> None:  # type: ignore[no-untyped-def]
    rows = np.asarray(spoil(planted(64, 32)), dtype=np.float32)
    encoding = table_encoding(rows, note="here")
    assert encoding.name == "learned"
    assert "here" in encoding.notes
    assert encoding.input is not None
    assert np.array_equal(encoding.input.vectors(np.arange(len(rows))), rows.astype(float))


def test_the_difference_is_said() -> None:
    rows = planted(64, 32)
    changed = 0.004
    rows[7, 3] += changed
    encoding = table_encoding(rows)
    assert any(f"{changed:.1e}" in note for note in encoding.notes)
