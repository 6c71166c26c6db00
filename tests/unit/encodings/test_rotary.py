"""Rotations: orthogonal, relative, and on the channels they claim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toposcope.core.memory
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Encoding, channel_pairs, mla, rope, xpos
from toposcope.encodings.record import Rotary
from toposcope.encodings.scalings import Scaling, scaled

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "original_context": 64},
    "yarn": {"factor": 8.0, "original_context": 256, "attention_factor": 1.0},
    "llama3": {"factor": 8.0, "original_context": 256},
    "longrope": {"original_context": 64, "context": 64},
}


def turning(encoding: Encoding) -> Rotary:
    assert encoding.rotary is not None
    return encoding.rotary


@st.composite
def rotations(draw: st.DrawFn) -> Rotary:
    """Any RoPE: pairing, part of the head, place in the head, base, scaling."""
    pairs = draw(st.integers(1, 12))
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    kind = draw(st.sampled_from(list(SCALINGS)))
    more = dict(SCALINGS[kind])
    if kind == "longrope":
        more |= {"short_factor": [1.0 + f for f in range(pairs)], "long_factor": [2.0 + f for f in range(pairs)]}
    if kind != "longrope" and draw(st.booleans()):
        more["divisors"] = np.linspace(1, 9, pairs)
    return turning(
        rope(
            before + 2 * pairs + after,
            base=draw(st.floats(2.0, 1e7)),
            pairing=draw(st.sampled_from(["half", "interleaved"])),
            rotary_dim=2 * pairs,
            channel_offset=before,
            scaling=kind,
            **more,
        )
    )


SEEDS = st.integers(0, 2**32 - 1)


@given(rotary=rotations(), seed=SEEDS, context=st.none() | st.integers(1, 500))
@settings(deadline=None)
def test_a_rotation_is_orthogonal(rotary: Rotary, seed: int, context: int | None) -> None:
    draw = np.random.default_rng(seed)
    x, y = draw.standard_normal((2, 1, rotary.head_dim))
    at = draw.integers(0, 5000, 1)
    tx, ty = (rotary.rotate(v, at, side="query", context=context) for v in (x, y))
    assert (tx @ ty.T).item() == pytest.approx((x @ y.T).item(), abs=1e-9)
    identity = rotary.rotate(np.eye(rotary.head_dim), np.full(rotary.head_dim, at), side="key", context=context)
    np.testing.assert_allclose(identity @ identity.T, np.eye(rotary.head_dim), atol=1e-12)


@given(rotary=rotations(), seed=SEEDS, shift=st.integers(1, 3000))
@settings(deadline=None)
def test_logits_depend_on_the_distance_only(rotary: Rotary, seed: int, shift: int) -> None:
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, 6, rotary.head_dim))
    at = np.arange(6) * 3

    def logits(shifted: int) -> np.ndarray:
        turned_q = rotary.rotate(q, at + shifted, side="query", context=40)
        return turned_q @ rotary.rotate(k, at + shifted, side="key", context=40).T

    np.testing.assert_allclose(logits(shift), logits(0), atol=1e-9)
    moved_keys_only = (
        rotary.rotate(q, at, side="query", context=40) @ rotary.rotate(k, at + 1, side="key", context=40).T
    )
    assert np.abs(moved_keys_only - logits(0)).max() > 1e-6  # or it would not turn at all


@given(rotary=rotations(), seed=SEEDS)
@settings(deadline=None)
def test_the_one_logit_formula(rotary: Rotary, seed: int) -> None:
    """l = Re sum_f q^f conj(k^f) e^{i w_f (i-j)} over the pairs, plus the channels that do not turn."""
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, rotary.head_dim))
    i, j = draw.integers(0, 300, 2)
    first, second = rotary.pairs_F2.T
    still = np.setdiff1d(np.arange(rotary.head_dim), rotary.pairs_F2)
    zq, zk = q[first] + 1j * q[second], k[first] + 1j * k[second]
    formula = (zq * zk.conj() * np.exp(1j * rotary.frequencies() * (i - j))).sum().real + q[still] @ k[still]
    turned = rotary.rotate(q[None], i, side="query") @ rotary.rotate(k[None], j, side="key").T
    assert turned.item() == pytest.approx(formula, abs=1e-10)


@given(rotary=rotations(), seed=SEEDS)
@settings(deadline=None)
def test_any_positions_are_read_from_the_same_table(rotary: Rotary, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((30, rotary.head_dim))
    pick = draw.permutation(30)[:7]
    whole = rotary.rotate(x, np.arange(30), side="query", context=30)
    np.testing.assert_array_equal(rotary.rotate(x[pick], pick, side="query", context=30), whole[pick])


@given(
    pairs=st.integers(1, 8),
    gamma=st.floats(0.05, 2.0),
    scale_base=st.floats(8.0, 2048.0),
    pairing=st.sampled_from(["half", "interleaved"]),
    seed=SEEDS,
)
@settings(deadline=None)
def test_xpos_decays_by_distance(pairs: int, gamma: float, scale_base: float, pairing: Any, seed: int) -> None:
    rotary = turning(xpos(2 * pairs, gamma=gamma, scale_base=scale_base, pairing=pairing))
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, 2 * pairs))
    i, j = draw.integers(0, 200, 2)
    f = np.arange(pairs)
    decay = -np.log((f / pairs + gamma) / (1 + gamma)) / scale_base
    first, second = channel_pairs(2 * pairs, pairing).T
    zq, zk = q[first] + 1j * q[second], k[first] + 1j * k[second]
    frequency = 10000.0 ** -(f / pairs)
    expected = (zq * zk.conj() * np.exp((1j * frequency - decay) * (i - j))).sum().real
    turned = rotary.rotate(q[None], i, side="query") @ rotary.rotate(k[None], j, side="key").T
    assert turned.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert (decay > 0).all()


def test_xpos_says_when_positions_leave_float64() -> None:
    rotary = turning(xpos(8))
    with pytest.raises(BadValue, match="float64"):
        rotary.rotate(np.ones((1, 8)), [1_000_000], side="key")


def test_pairs() -> None:
    np.testing.assert_array_equal(channel_pairs(6, "half"), [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(channel_pairs(6, "interleaved", 4), [[4, 5], [6, 7], [8, 9]])
    with pytest.raises(BadEncoding, match="'interleaved'"):
        channel_pairs(6, "interleave")  # type: ignore[arg-type]


def test_mla_turns_the_last_channels_by_a_block_of_their_own() -> None:
    rotary = turning(mla(12, 4, base=100.0))
    np.testing.assert_array_equal(rotary.pairs_F2, [[12, 13], [14, 15]])
    np.testing.assert_allclose(rotary.frequencies(), [1.0, 0.1])
    turned = rotary.rotate(np.ones((1, 16)), [5], side="query")
    np.testing.assert_array_equal(turned[0, :12], 1.0)
    assert (turned[0, 12:] != 1.0).all()


def test_divisors_divide_pair_by_pair() -> None:
    plain, divided = turning(rope(8)), turning(rope(8, divisors=[1, 2, 4, 8]))
    np.testing.assert_allclose(divided.frequencies() * [1, 2, 4, 8], plain.frequencies(), rtol=1e-15)


def test_only_the_first_heads_turn() -> None:
    rotary = turning(rope(4, turning_heads=2))
    x_HNR = np.random.default_rng(0).standard_normal((5, 3, 4))
    turned = rotary.rotate(x_HNR, [1, 2, 3], side="query")
    everywhere = turning(rope(4)).rotate(x_HNR, [1, 2, 3], side="query")
    np.testing.assert_array_equal(turned[:2], everywhere[:2])
    np.testing.assert_array_equal(turned[2:], x_HNR[2:])


def test_a_caller_cannot_change_the_frequencies() -> None:
    rotary = turning(rope(8))
    rotary.frequencies()[:] = 7.0
    np.testing.assert_allclose(rotary.frequencies()[1], 0.1)


def test_titles() -> None:
    assert rope(64, base=100000.0).title == "RoPE, base 100,000, all 64 channels turn, i with i+32"
    title = rope(64, scaling="yarn", factor=8, original_context=4096, partial=0.5, pairing="interleaved").title
    assert title == "RoPE (yarn x8 from 4,096), base 10,000, the first 32 of 64 channels turn, 2i with 2i+1"
    assert mla(128, 64).title == "MLA, decoupled RoPE, base 10,000, the last 64 of 192 channels turn, 2i with 2i+1"


@pytest.mark.parametrize(
    ("arguments", "channels", "pair"),
    [
        ({"rotary_dim": 8, "channel_offset": 4}, "8 of 16", "i with i+4"),
        ({"rotary_dim": 8, "channel_offset": 8}, "the last 8 of 16", "i with i+4"),
        ({"rotary_dim": 8, "channel_offset": 3, "pairing": "interleaved"}, "8 of 16", "2i+1 with 2i+2"),
        ({"rotary_dim": 16, "partial": 0.5, "scaling": "proportional"}, "8 of 16", "i with i+8"),
    ],
)
def test_a_title_says_which_channels_turn_with_which(arguments: dict[str, Any], channels: str, pair: str) -> None:
    made = rope(16, **arguments)
    assert made.title.endswith(f", {channels} channels turn, {pair}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_dim": 7}, "even"),
        ({"head_dim": 8, "rotary_dim": 3}, "even"),
        ({"head_dim": 8, "rotary_dim": 6, "channel_offset": 4}, "do not fit"),
        ({"head_dim": 8, "rotary_dim": 4, "partial": 0.5}, "not both"),
        ({"head_dim": 8, "partial": 1.5}, "fraction"),
        ({"head_dim": 8, "base": 1.0}, "base"),
        ({"head_dim": 8, "base": float("nan")}, "base"),
        ({"head_dim": 8, "scaling": "yarm"}, "'yarn'"),
        ({"head_dim": 8, "scaling": "linear"}, "factor"),
        ({"head_dim": 8, "scaling": "linear", "factor": -2.0}, "positive factor"),
        ({"head_dim": 8, "scaling": "yarn", "factor": 2.0}, "original_context"),
        ({"head_dim": 8, "scaling": "yarn", "original_context": 64}, "factor"),
        ({"head_dim": 8, "scaling": "llama3", "factor": 2.0}, "original_context"),
        (
            {"head_dim": 8, "scaling": "llama3", "factor": 2.0, "original_context": 8, "low_freq_factor": 4.0},
            "low_freq_factor",
        ),
        ({"head_dim": 8, "scaling": "longrope", "original_context": 8, "factor": 2.0}, "short_factor"),
        (
            {
                "head_dim": 8,
                "scaling": "longrope",
                "original_context": 8,
                "factor": 2.0,
                "short_factor": [1.0] * 3,
                "long_factor": [1.0] * 4,
            },
            "3 numbers.* 4 ",
        ),
        ({"head_dim": 8, "divisors": [1.0]}, "divisors.* 4"),
        ({"head_dim": 8, "divisors": [1.0, 0.0, 1.0, 1.0]}, "positive"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        rope(**arguments)


def test_a_vector_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(BadValue, match="width 6"):
        turning(rope(8)).rotate(np.ones((1, 6)), [0], side="query")


def test_the_record_states_what_was_in_force() -> None:
    """Lengths that only a scaling reads are stated with a scaling, and left out without one."""
    assert {"context", "original_context"}.isdisjoint(rope(8, context=64, original_context=16).parameters)
    stretched = rope(8, scaling="yarn", context=64, original_context=16).parameters
    assert (stretched["context"], stretched["original_context"], stretched["scaling"]) == (64, 16, "yarn")


@pytest.mark.parametrize("build", [rope, xpos, lambda width, base: mla(width, 4, base=base)])
@pytest.mark.parametrize("base", [1.0, 0.5, -3.0, np.inf, np.nan])
def test_a_base_that_spreads_no_frequencies_is_refused(build: Any, base: float) -> None:
    with pytest.raises(BadEncoding, match=f"base.* {base}"):
        build(8, base=base)


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"gamma": -0.4}, {"scale_base": 0.0}, {"scale_base": -1.0}])
def test_a_decay_needs_positive_numbers(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(BadEncoding, match=f"{name} .* {value}"):
        xpos(8, **wrong)  # type: ignore[arg-type]


def test_rows_may_be_lists_and_too_many_are_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary = rope(4).rotary
    assert rotary is not None
    rows = [[1.0, 2.0, 3.0, 4.0]]
    np.testing.assert_array_equal(
        rotary.rotate(rows, [3], side="key"), rotary.rotate(np.array(rows), [3], side="key")
    )
    monkeypatch.setattr(toposcope.core.memory, "UNNOTICED", 0)
    monkeypatch.setattr(toposcope.core.memory, "available", lambda: 10)
    with pytest.raises(BadValue, match="1 vectors"):
        rotary.rotate(rows, [3], side="key")


def test_what_a_rotation_is_unless_told() -> None:
    encoding = rope(6)
    rotary = turning(encoding)
    np.testing.assert_array_equal(rotary.pairs_F2, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_allclose(rotary.frequencies(), 10000.0 ** -(np.arange(3) / 3))
    assert (rotary.pairing, rotary.attention_factor, rotary.decay_F, rotary.turning_heads) == (
        "half",
        1.0,
        None,
        None,
    )
    assert dict(encoding.parameters) == {
        "head_dim": 6,
        "base": 10000.0,
        "pairing": "half",
        "rotary_dim": 6,
        "scaling": "default",
        "attention_factor": 1.0,
    }
    assert encoding.citations == ("su2021roformer",)
    assert turning(mla(4, 2)).pairing == turning(xpos(4)).pairing == "interleaved"
    np.testing.assert_allclose(turning(mla(0, 4)).frequencies(), [1.0, 0.01])


def test_xpos_unless_told_is_that_of_the_paper() -> None:
    encoding = xpos(8)
    zeta = (np.arange(4) / 4 + 0.4) / 1.4
    np.testing.assert_allclose(turning(encoding).decay_F, -np.log(zeta) / 512)
    np.testing.assert_allclose(turning(encoding).frequencies(), [1, 0.1, 0.01, 0.001])
    assert dict(encoding.parameters) == {
        "head_dim": 8,
        "base": 10000.0,
        "scale_base": 512.0,
        "gamma": 0.4,
        "pairing": "interleaved",
        "rotary_dim": 8,
    }
    part = turning(xpos(8, rotary_dim=4, channel_offset=3, gamma=1.0, scale_base=2.0))
    np.testing.assert_array_equal(part.pairs_F2, [[3, 4], [5, 6]])
    assert xpos(8, rotary_dim=4, channel_offset=3).parameters["channel_offset"] == 3
    np.testing.assert_allclose(part.decay_F, -np.log([0.5, 0.75]) / 2)
    np.testing.assert_allclose(part.frequencies(), [1, 0.01])
    for wrong in ({"gamma": np.inf}, {"gamma": np.nan}, {"scale_base": np.inf}, {"scale_base": np.nan}):
        with pytest.raises(BadEncoding):
            xpos(8, **wrong)
    assert xpos(8, gamma=0.5, scale_base=0.5).parameters["gamma"] == 0.5


@pytest.mark.parametrize(
    ("given", "channels"),
    [
        ({}, range(8)),
        ({"rotary_dim": 2}, range(2)),
        ({"rotary_dim": 8}, range(8)),
        ({"rotary_dim": 4, "channel_offset": 4}, range(4, 8)),
        ({"channel_offset": 2}, range(2, 8)),
        ({"partial": 1.0}, range(8)),
        ({"partial": 0.5}, range(4)),
        ({"partial": 0.25, "channel_offset": 6}, range(6, 8)),
        ({"partial": 0.3}, range(2)),
    ],
)
def test_which_channels_turn(given: dict[str, Any], channels: range) -> None:
    for pairing in ("half", "interleaved"):
        rotary = turning(rope(8, pairing=pairing, **given))
        assert sorted(rotary.pairs_F2.ravel()) == list(channels)
        assert len(rotary.frequencies()) == len(channels) // 2
        np.testing.assert_allclose(rotary.frequencies(), 1e4 ** -(np.arange(0, len(channels), 2) / len(channels)))


@pytest.mark.parametrize(
    "given",
    [
        {"rotary_dim": 0},
        {"rotary_dim": -2},
        {"rotary_dim": 1},
        {"rotary_dim": 10},
        {"channel_offset": -2},
        {"channel_offset": 8},
        {"channel_offset": 1},
        {"rotary_dim": 4, "channel_offset": 5},
        {"rotary_dim": 2, "channel_offset": -1},
        {"partial": 0.0},
        {"partial": -0.5},
        {"partial": 1.01},
        {"partial": 0.1},
        {"divisors": [1.0, 1.0, 1.0, np.inf]},
        {"divisors": [1.0, 1.0, 1.0, np.nan]},
        {"divisors": [1.0, 1.0, 1.0, -1.0]},
        {"divisors": [[1.0] * 4]},
        {"scaling": "proportional", "partial": 0.0},
        {"scaling": "proportional", "partial": 0.2},
        {"scaling": "proportional", "partial": 2.0},
    ],
)
def test_channels_that_cannot_turn_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadEncoding):
        rope(8, **given)


def test_no_head_is_too_narrow_but_an_empty_one() -> None:
    assert turning(rope(2)).channels == 2
    for width in (0, -2):
        with pytest.raises(BadEncoding):
            rope(width)
    with pytest.raises(BadEncoding):
        mla(-1, 4)
    assert turning(mla(0, 2)).channels == 2


def test_proportional_pairs_are_the_first_of_the_whole_block() -> None:
    for partial, count in ((None, 4), (1.0, 4), (0.5, 2), (0.25, 1), (0.49, 1)):
        encoding = rope(8, scaling="proportional", partial=partial)
        rotary = turning(encoding)
        np.testing.assert_array_equal(rotary.pairs_F2, [[f, f + 4] for f in range(count)])
        np.testing.assert_allclose(rotary.frequencies(), 10.0 ** -np.arange(count))
        assert encoding.parameters["rotary_dim"] == 8
        assert encoding.parameters.get("partial") == partial
    block = turning(rope(8, scaling="proportional", rotary_dim=4, partial=0.5, channel_offset=2))
    np.testing.assert_array_equal(block.pairs_F2, [[2, 4]])
    assert "partial" not in rope(8, partial=0.5).parameters


def test_the_exponents_may_count_another_width() -> None:
    rotary = turning(rope(8, rotary_dim=4, frequency_dim=16))
    np.testing.assert_allclose(rotary.frequencies(), 1e4 ** -(np.array([0, 2]) / 16))
    assert rope(8, rotary_dim=4, frequency_dim=16).parameters["frequency_dim"] == 16


def test_scalings_are_handed_what_is_said() -> None:
    """Every parameter of a scaling reaches it, and is stated."""
    yarn = {
        "factor": 4.0,
        "original_context": 1000,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    }
    longrope = {
        "factor": 4.0,
        "original_context": 1000,
        "context": 4000,
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "attention_factor": 1.25,
    }
    llama3 = {"factor": 4.0, "original_context": 1000, "low_freq_factor": 2.0, "high_freq_factor": 9.0}
    for kind, told in (("yarn", yarn), ("longrope", longrope), ("llama3", llama3)):
        encoding = rope(8, scaling=kind, **told)  # type: ignore[arg-type]
        as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        direct = scaled(8, 10000.0, Scaling(kind, **as_tuples))  # type: ignore[arg-type]
        for context in (None, 500, 2000):
            np.testing.assert_array_equal(turning(encoding).frequencies(context), direct.frequencies_at(context))
        assert turning(encoding).attention_factor == direct.attention_factor
        assert {name: encoding.parameters[name] for name in told} == told
        assert encoding.parameters["attention_factor"] == direct.attention_factor
        assert len(encoding.citations) == 2
    plain = rope(8, scaling="linear", factor=2.0).parameters
    assert {"truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"}.isdisjoint(plain)
    assert rope(8, scaling="yarn", factor=2.0, original_context=64).parameters["truncate"] is True
    placed = rope(8, channel_offset=2, rotary_dim=4, turning_heads=3, divisors=[1.0, 2.0]).parameters
    assert (placed["channel_offset"], placed["turning_heads"], placed["divisors"]) == (2, 3, [1.0, 2.0])
    assert mla(4, 2).parameters["nope_dim"] == 4
