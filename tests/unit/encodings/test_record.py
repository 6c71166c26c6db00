"""The record of an encoding: what its tables accept, what they give back, and what two of them make together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.foreseeing import foreseen
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import (
    NONE,
    Encoding,
    LogitBias,
    alibi,
    combine,
    fire_init,
    kerple,
    learned,
    rope,
    sinusoidal,
    t5_init,
    xpos,
)
from toposcope.encodings.record import InputTable, Rotary
from toposcope.encodings.registry import LARGEST

RECORD = "toposcope.encodings.record"


def turning(**changes: Any) -> Rotary:
    """Two pairs of a head of five channels, at 1 and 0.1 radians per token."""
    given: dict[str, Any] = {
        "head_dim": 5,
        "pairs_F2": np.array([[0, 3], [1, 2]]),
        "frequencies_at": lambda context: np.array([1.0, 0.1]),
        "pairing": "half",
    }
    return Rotary(**{**given, **changes})


def written_out(rotary: Rotary, rows_NR: np.ndarray, at_N: np.ndarray, side: str) -> np.ndarray:
    """The rotation as a complex number for each pair, one row at a time."""
    out = np.array(rows_NR, dtype=np.float64)
    decay_F = np.zeros(len(rotary.pairs_F2)) if rotary.decay_F is None else rotary.decay_F
    for row, at in zip(out, at_N, strict=True):
        for (a, b), w, g in zip(rotary.pairs_F2, rotary.frequencies(), decay_F, strict=True):
            grown = np.exp(-g * at if side == "query" else g * at)
            turned = (row[a] + 1j * row[b]) * np.exp(1j * w * at) * rotary.attention_factor * grown
            row[a], row[b] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"attention_factor": 1.5}, {"decay_F": np.array([0.01, 0.2])}],
    ids=["plain", "factor", "decay"],
)
def test_pairs_turn_and_other_channels_stay(side: Any, changes: dict[str, Any]) -> None:
    rotary = turning(**changes)
    rows, at = np.random.default_rng(0).standard_normal((6, 5)), np.array([-4.0, 0.0, 0.5, 1.0, 7.0, 30.0])
    kept = rows.copy()
    found = rotary.rotate(rows, at, side=side)
    np.testing.assert_allclose(found, written_out(rotary, rows, at, side), rtol=1e-12)
    np.testing.assert_array_equal(found[:, 4], rows[:, 4])  # in no pair
    np.testing.assert_array_equal(rows, kept)
    assert rotary.channels == 4


def test_heads_beyond_the_turning_ones_stay_in_any_batch() -> None:
    rotary, whole = turning(turning_heads=2), turning()
    at = np.arange(3)
    rows = np.random.default_rng(1).standard_normal((2, 4, 3, 5))  # batch, heads, positions, channels
    for given in (rows, rows[0]):
        found = rotary.rotate(given, at, side="query")
        np.testing.assert_array_equal(found[..., 2:, :, :], given[..., 2:, :, :])
        np.testing.assert_array_equal(found[..., :2, :, :], whole.rotate(given, at, side="query")[..., :2, :, :])
    np.testing.assert_array_equal(  # without an axis of heads: one that turns
        rotary.rotate(rows[0, 3], at, side="query"), whole.rotate(rows[0, 3], at, side="query")
    )
    np.testing.assert_array_equal(turning(turning_heads=0).rotate(rows, at, side="key"), rows)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_decay_is_used_up_to_the_range_of_float64(sign: int) -> None:
    rotary = turning(decay_F=np.array([0.5, 0.25]))
    rows = np.ones((2, 5))
    found = rotary.rotate(rows, [0, sign * 1400], side="key")  # e^700
    assert np.isfinite(found).all()
    assert np.hypot(found[1, 0], found[1, 3]) == pytest.approx(np.sqrt(2) * np.exp(sign * 700.0), rel=1e-9)
    for at in ([0, sign * 1401], [sign * 1401, 0]):
        with pytest.raises(BadValue, match="1401"):
            rotary.rotate(rows, at, side="key")
    assert rotary.rotate(np.ones((0, 5)), [], side="key").shape == (0, 5)


def test_a_rotation_of_another_width_is_refused() -> None:
    for width in (4, 6):
        with pytest.raises(BadValue):
            turning().rotate(np.ones((2, width)), [0, 1], side="query")


def test_frequencies_that_depend_on_the_length_are_known_as_such() -> None:
    def by_length(**given: Any) -> bool:
        rotary = rope(8, **given).rotary
        assert rotary is not None
        return rotary.by_length

    assert not by_length()
    assert not by_length(scaling="linear", factor=4.0)
    for original in (1, 64, 4096, LARGEST["context"] - 1):  # any length that a text may have
        longrope = {"scaling": "longrope", "factor": 1.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        assert by_length(**longrope, original_context=original)
    assert by_length(scaling="dynamic", factor=2.0, original_context=2048)
    never = {"scaling": "longrope", "factor": 1.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    assert not by_length(**never, original_context=LARGEST["context"])  # no text is longer
    assert turning(frequencies_at=lambda context: np.array([1.0, 1 / context])).by_length


# ------------------------------------------------------------------ tables
def test_a_table_has_its_positions_and_no_others() -> None:
    table = InputTable(2, lambda at_N: np.stack([at_N, 10 * at_N], axis=1), length=4)
    np.testing.assert_array_equal(table.vectors([3, 0]), [[3, 30], [0, 0]])
    np.testing.assert_array_equal(table.vectors(2), [[2, 20]])
    assert table.vectors([]).shape == (0, 2)
    for wrong in ([4], [0, 4], [-1], [-1, 3], [-0.5], [3, 3.5 + 0.5]):
        with pytest.raises(BadValue):
            table.vectors(wrong)
    endless = InputTable(2, table.vectors_at)
    np.testing.assert_array_equal(endless.vectors([-7, 10**6]), [[-7, -70], [10**6, 10**7]])


def test_tables_of_the_wrong_shape_are_refused() -> None:
    """Plug-ins may give anything."""
    flat = InputTable(2, lambda at_N: np.zeros((len(at_N), 3)))
    with pytest.raises(BadEncoding):
        flat.vectors([0, 1])
    for shape in ((3, 4), (1, 3, 4), (2, 4, 3)):
        with pytest.raises(BadEncoding):
            LogitBias(2, lambda i, j, shape=shape: np.zeros(shape), toeplitz=True).table(np.arange(3), np.arange(4))
    good = LogitBias(2, lambda i, j: np.zeros((2, len(i), len(j))), toeplitz=True)
    assert good.table(np.arange(3), np.arange(4)).shape == (2, 3, 4)


def test_a_bias_by_offset_is_its_table_at_query_minus_key() -> None:
    """Read at the query 0, whatever the function would say elsewhere."""
    bias = LogitBias(2, lambda i, j: np.array([1.0, 10.0])[:, None, None] * (i[:, None] - j), toeplitz=True)
    np.testing.assert_array_equal(bias.by_offset([-2, 0, 3]), [[-2, 0, 3], [-20, 0, 30]])
    np.testing.assert_array_equal(bias.by_offset(4), [[4], [40]])
    with pytest.raises(BadValue):
        LogitBias(2, bias.bias_at, toeplitz=False).by_offset([1])


# ------------------------------------------------------------------ encodings
def test_the_parts_of_two_encodings_stand_side_by_side() -> None:
    parts = {
        "input": sinusoidal(8),
        "rotary": rope(8),
        "bias": alibi(2),
    }
    for one, first in parts.items():
        for other, second in parts.items():
            if one == other:
                with pytest.raises(BadEncoding):
                    combine(first, second)
                continue
            both = combine(first, second)
            for part in parts:
                held = getattr(first, part) if part == one else getattr(second, part)
                assert getattr(both, part) is held
            assert both.name == f"{first.name}+{second.name}"
            assert both.parameters[first.name] == dict(first.parameters)
            assert both.parameters[second.name] == dict(second.parameters)
            assert set(both.mechanisms) == {one, other}
            assert both.exact_tables
            assert both.citations == first.citations + second.citations
    noted = combine(t5_init(2), rope(8))
    assert noted.notes == t5_init(2).notes + rope(8).notes


def test_only_an_encoding_without_tables_says_so() -> None:
    plain = Encoding("plain", "nothing at all")
    assert plain.exact_tables
    assert (plain.mechanisms, plain.notes, dict(plain.parameters)) == ((), (), {})
    plain.tables()
    NONE.tables()
    content = Encoding("content", "position by content", rotary=rope(8).rotary, exact_tables=False)
    assert content.mechanisms == ("content",)
    with pytest.raises(BadEncoding, match="'content'"):
        content.tables()


# ------------------------------------------------------------------ memory
def test_vectors_foresee_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    at = np.arange(2000)
    for encoding in (sinusoidal(64), sinusoidal(64, layout="half"), learned(np.ones((2000, 64)))):
        assert encoding.input is not None
        asked, peak = foreseen(monkeypatch, RECORD, lambda table=encoding.input: table.vectors(at))  # type: ignore[misc]
        assert peak < asked < 2.2 * peak


@pytest.mark.parametrize("shape", [(2000, 64), (4, 500, 64)])
def test_rotations_foresee_their_memory(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, at = np.ones(shape), np.arange(shape[-2])
    for encoding in (rope(64), xpos(64)):
        rotary = encoding.rotary
        assert rotary is not None
        asked, peak = foreseen(monkeypatch, RECORD, lambda rotary=rotary: rotary.rotate(rows, at, side="key"))  # type: ignore[misc]
        assert 0.95 * peak < asked < 1.2 * peak


@pytest.mark.parametrize("heads", [1, 8])
def test_biases_foresee_their_memory(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[Callable[[], Encoding]] = [
        lambda: alibi(heads),
        lambda: alibi(heads, table_dtype="bfloat16"),
        lambda: t5_init(heads),
        lambda: kerple(heads),
        lambda: fire_init(heads),
    ]
    most = 0
    for make in makers:
        bias = make().bias
        assert bias is not None
        asked, peak = foreseen(
            monkeypatch,
            RECORD,
            lambda bias=bias: bias.table(np.arange(300), np.arange(500)),  # type: ignore[misc]
        )
        assert peak < asked
        most = max(most, peak)
    assert asked < 2 * most
