"""The parts of the reader that measures, on planted arrays: what was planted is found, what was not is refused."""

from __future__ import annotations

import numpy as np
import pytest

from toposcope.checkpoints.generic import logits, probes, rotation
from toposcope.checkpoints.generic.bounds import MOST_LAYERS, Refused, require_reasonable
from toposcope.checkpoints.generic.encode import rotation as named_rotation
from toposcope.checkpoints.generic.match import ModuleFlow, before, columns, matched
from toposcope.checkpoints.generic.names import prefix_change
from toposcope.checkpoints.generic.position import query_scale
from toposcope.checkpoints.generic.tensors import row_pattern
from toposcope.checkpoints.spec import RowPattern
from toposcope.encodings import rope
from toposcope.encodings.record import QueryScale

TEXTS, HEADS, TOKENS, WIDE = 5, 3, 11, 8


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_rows_are_matched_up_to_a_factor(rng: np.random.Generator) -> None:
    among = rng.standard_normal((40, 6))
    order = rng.permutation(40)[:12]
    factors = rng.uniform(-3, 3, 12)
    wanted = among[order] * factors[:, None]
    wanted[5] = rng.standard_normal(6)
    index, factor = matched(wanted, among)
    assert index[5] == -1
    kept = np.arange(12) != 5
    np.testing.assert_array_equal(index[kept], order[kept])
    np.testing.assert_allclose(factor[kept], factors[kept])


def test_channels_are_found_through_a_norm_that_comes_after_a_fused_map(rng: np.random.Generator) -> None:
    fused = rng.standard_normal((TEXTS, TOKENS, 2 * HEADS * WIDE))
    part = fused[..., HEADS * WIDE :].reshape(TEXTS, TOKENS, HEADS, WIDE)
    normed = part / np.sqrt((part**2).mean(-1, keepdims=True))
    flat = normed.reshape(TEXTS, TOKENS, -1)
    turned = rope(WIDE).rotary.rotate(np.moveaxis(normed, 1, 2), np.arange(TOKENS), side="query")
    linear = ModuleFlow("qkv", fused, fused, 1, 0)
    norm = ModuleFlow("norm", part.reshape(TEXTS, TOKENS, -1), flat, WIDE, 0)
    found = columns(turned, [linear], [norm], "queries")
    assert found.norm is norm
    np.testing.assert_array_equal(found.column.ravel(), HEADS * WIDE + np.arange(HEADS * WIDE))
    pre, after = before(found, [linear], turned)
    assert after is False
    np.testing.assert_allclose(pre, np.moveaxis(normed, 1, 2))


def test_channels_of_no_map_are_refused(rng: np.random.Generator) -> None:
    target = rng.standard_normal((TEXTS, HEADS, TOKENS, WIDE))
    y = rng.standard_normal((TEXTS, TOKENS, HEADS * WIDE))
    with pytest.raises(Refused):
        columns(target, [ModuleFlow("q", y, y, 1, 0)], [], "queries")


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("turning", "offset"), [(8, 0), (4, 0), (4, 4)])
def test_a_planted_rotation_is_found(pairing: str, turning: int, offset: int, rng: np.random.Generator) -> None:
    planted = rope(WIDE, base=500.0, rotary_dim=turning, pairing=pairing, channel_offset=offset).rotary
    pre = rng.standard_normal((TEXTS, HEADS, TOKENS, WIDE))
    found = rotation.turning(pre, planted.rotate(pre, np.arange(TOKENS), side="query"))
    assert {tuple(pair) for pair in found.pairs_F2} == {tuple(pair) for pair in planted.pairs_F2}
    np.testing.assert_allclose(found.frequencies_F, planted.frequencies(), atol=1e-9)


def test_what_is_no_rotation_is_refused(rng: np.random.Generator) -> None:
    pre = rng.standard_normal((TEXTS, HEADS, TOKENS, WIDE))
    with pytest.raises(Refused):
        rotation.turning(pre, pre @ rng.standard_normal((WIDE, WIDE)))


def test_a_rotation_is_named_by_the_configuration_only_where_it_is_equal() -> None:
    settings = {"rope_theta": 10000.0}
    planted = rope(WIDE).rotary
    recipe, factor = named_rotation(settings, WIDE, planted.pairs_F2, planted.frequencies(), None, TOKENS)
    assert (recipe.kind, factor) == ("rope", 1.0)
    recipe, _ = named_rotation(settings, WIDE, planted.pairs_F2, planted.frequencies() * (1 + 1e-5), None, TOKENS)
    assert recipe.kind == "turning"


@pytest.mark.parametrize(
    ("causal", "reach", "chunk"),
    [(True, None, None), (False, None, None), (True, 3, None), (False, 2, None), (True, None, 4)],
)
def test_masks_are_told_apart(causal: bool, reach: int | None, chunk: int | None) -> None:
    i, j = np.indices((TOKENS, TOKENS))
    seen = np.ones_like(i, dtype=bool)
    seen &= (i >= j) | (not causal)
    seen &= (np.abs(i - j) <= reach) if reach is not None else True
    seen &= (i // chunk == j // chunk) if chunk is not None else True
    assert logits.mask_pattern(seen) == (causal, reach, chunk)


def test_a_mask_with_a_hole_is_refused() -> None:
    seen = np.tril(np.ones((TOKENS, TOKENS), dtype=bool))
    seen[7, 3] = False
    with pytest.raises(Refused):
        logits.mask_pattern(seen)


def test_scale_bias_and_sinks_come_back_from_probabilities(rng: np.random.Generator) -> None:
    q, k = (rng.standard_normal((TEXTS, HEADS, TOKENS, WIDE)) for _ in "qk")
    bias = (
        -np.abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))) * np.array([0.5, 0.1, 0.02])[:, None, None]
    )
    sinks = np.array([0.3, -0.4, 1.1])
    z = np.where(np.tril(np.ones((TOKENS, TOKENS))), 0.3 * q @ k.swapaxes(-1, -2) + bias, -np.inf)
    weights = np.exp(z)
    p = weights / (weights.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    found = logits.measured(q, k, p, None, None)
    assert found.scale == pytest.approx(0.3, rel=1e-9)
    assert (found.causal, found.reach) == (True, None)
    np.testing.assert_allclose(found.sinks_H, sinks, atol=1e-8)
    np.testing.assert_allclose(np.tril(found.bias_HNM), np.tril(bias), atol=1e-8)


def test_logits_that_depend_on_more_than_q_and_k_are_refused(rng: np.random.Generator) -> None:
    q, k = (rng.standard_normal((TEXTS, HEADS, TOKENS, WIDE)) for _ in "qk")
    z = 0.3 * q @ k.swapaxes(-1, -2) + 0.1 * rng.standard_normal((TEXTS, 1, 1, TOKENS))
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    with pytest.raises(Refused):
        logits.measured(q, k, p, 0.3, None)
    with pytest.raises(Refused):
        logits.measured(q, k, p, None, None)


def test_rows_become_runs() -> None:
    assert row_pattern(np.arange(6), 6) is None
    assert row_pattern(np.array([4, 5, 6, 7]), 8) == RowPattern(4, 4)
    assert row_pattern(np.array([2, 3, 8, 9, 14, 15]), 18) == RowPattern(2, 2, 3, 6)
    with pytest.raises(Refused):
        row_pattern(np.array([3, 1, 2]), 4)
    with pytest.raises(Refused):
        row_pattern(np.array([0, 1, 4, 5, 6]), 8)


def test_lengths_follow_a_setting() -> None:
    assert probes.generalised(None, 4, 6, 128) == 127  # a window that holds the token itself
    assert probes.generalised(None, 5, 7, 8192) == 8192  # a chunk
    assert probes.generalised(None, 2, 3, 128) == 64  # half of it to each side
    assert probes.generalised(None, None, None, 128) is None
    assert probes.generalised(9, 9, 9, 128) == 9
    assert probes.generalised(None, 4, 9, 128) is None


def test_thresholds_are_found_by_halving() -> None:
    settings = {"a": 100, "b": 200, "deep": {"window": 300, "flag": True}, "c": 400, "small": 3, "vocab_size": 99}
    asked: list[int] = []

    def changes(paths: list[probes.Path], value: int) -> bool | None:
        asked.append(len(paths))
        return None if ("c",) in paths and len(paths) > 1 else ("deep", "window") in paths

    assert probes.thresholds(settings, changes) == [(("deep", "window"), 300)]
    assert max(asked) == 4
    changed = probes.with_values(settings, [("deep", "window")], 4)
    assert changed["deep"] == {"window": 4, "flag": True}
    assert settings["deep"]["window"] == 300


def test_query_scales_are_fitted_or_refused() -> None:
    planted = QueryScale(0.1, 5, 1)
    assert query_scale(planted.factors(np.arange(23))) == planted
    assert query_scale(None) is None
    with pytest.raises(Refused):
        query_scale(1 + 0.01 * np.arange(23.0))


def test_a_prefix_is_exchanged_for_all_names_or_none() -> None:
    wanted = {"model.layers.0.q.weight", "model.layers.1.q.weight"}
    assert prefix_change(wanted, wanted | {"other"}) == ("", "")
    assert prefix_change(wanted, {"layers.0.q.weight", "layers.1.q.weight"}) == ("model.", "")
    held = {"language_model.model.layers.0.q.weight", "language_model.model.layers.1.q.weight"}
    assert prefix_change(wanted, held) == ("", "language_model.")
    with pytest.raises(Refused):
        prefix_change(wanted, {"layers.0.q.weight"})


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 1 << 40},
        {"num_hidden_layers": MOST_LAYERS + 1},
        {"text_config": {"n_layer": 10**7}},
        {"a": [0] * 10**6},
    ],
)
def test_configurations_that_no_model_has_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(Refused):
        require_reasonable(values)
