"""Rotary settings of a configuration: where they were found, and what is remarked about them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE, rope_from_config, rope_settings

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def test_every_value_says_where_it_stood() -> None:
    found = rope_settings({"rope_theta": 5e5, "max_position_embeddings": 4096, "rope_scaling": YARN})
    assert {name: (s.value, s.source) for name, s in found.settings.items()} == {
        "scaling": ("yarn", "rope_scaling.rope_type"),
        "base": (5e5, "rope_theta"),
        "partial": (1.0, "default"),
        "context": (4096, "max_position_embeddings"),
        "factor": (4.0, "rope_scaling.factor"),
        "original_context": (1024, "rope_scaling.original_max_position_embeddings"),
    }
    assert found.remarks == ()
    assert found.get("base") == 5e5
    assert found.get("mscale") is None


REMARKS: dict[str, tuple[dict[str, Any], str]] = {
    "both generations, differing": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}},
        "differ",
    ),
    "base lost": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 5e5}},
        "500000 in rope_parameters",
    ),
    "base assumed": ({"rope_parameters": {"rope_type": "default"}}, "10000"),
    "two bases": (
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "500000",
    ),
    "two fractions": (
        {"partial_rotary_factor": 0.5, "rotary_pct": 0.25, "rope_theta": 1e4},
        "rotary_pct",
    ),
    "original context missing": (
        {"max_position_embeddings": 4096, "rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        "max_position_embeddings (4096)",
    ),
    "two original contexts": (
        {"original_max_position_embeddings": 512, "rope_theta": 1e4, "rope_scaling": YARN},
        "512",
    ),
    "factor 1": ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 1.0}}, "changes nothing"),
    "factor below 1": ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0.5}}, "shortens"),
    "no factor to be had": (
        {"rope_theta": 1e4, "max_position_embeddings": 64, "rope_scaling": {"type": "yarn"}},
        "without a factor",
    ),
    "factor and lengths disagree": (
        {"rope_theta": 1e4, "max_position_embeddings": 8192, "rope_scaling": YARN},
        "max_position_embeddings (8192)",
    ),
    "factor without a type": ({"rope_theta": 1e4, "rope_scaling": {"factor": 8.0}}, "no rope_type"),
    "two types": (
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}},
        "type 'dynamic'",
    ),
    "unread parameters": (
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}},
        "beta_fast",
    ),
    "dynamic with an original context": (
        {
            "rope_theta": 1e4,
            "max_position_embeddings": 64,
            "rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32},
        },
        "dynamic RoPE",
    ),
    "several axes": (
        {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
        "mrope_section",
    ),
}


@pytest.mark.parametrize("case", REMARKS)
def test_remarks(case: str) -> None:
    config, fact = REMARKS[case]
    found = rope_settings(config)
    assert any(fact in remark for remark in found.remarks), found.remarks
    assert rope_from_config(config, 8).notes == found.remarks


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"rope_theta": 1e4, "rope_scaling": None, "rope_parameters": None},
        {"rope_theta": 1e6, "max_position_embeddings": 4096, "rope_scaling": {**YARN, "type": "yarn"}},
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ],
)
def test_sound_settings_draw_no_remark(config: dict[str, Any]) -> None:
    assert rope_settings(config).remarks == ()


def test_layer_types() -> None:
    config = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "chunked_attention": None,
        }
    }
    full, sliding = (rope_from_config(config, 8, layer_type=f"{kind}_attention") for kind in ("full", "sliding"))
    assert full.rotary is not None
    assert sliding.rotary is not None
    np.testing.assert_allclose(full.rotary.frequencies()[:2], [0.5, 0.5 * 10**-1.5])
    np.testing.assert_allclose(sliding.rotary.frequencies()[:2], [1.0, 0.1])
    assert rope_from_config(config, 8, layer_type="chunked_attention") is NONE
    assert not rope_settings(config, "chunked_attention").rotates
    with pytest.raises(BadConfig, match="layer type"):
        rope_settings(config)
    with pytest.raises(BadConfig, match="'full_attention'"):
        rope_settings(config, "ful_attention")


def test_no_layer_rotates() -> None:
    config = {"rope_parameters": {"full_attention": None, "sliding_attention": None}}
    assert rope_from_config(config, 8, layer_type="full_attention") is NONE


def test_a_truncate_that_transformers_does_not_read_is_remarked() -> None:
    config = {"rope_parameters": {"full_attention": {**YARN, "rope_theta": 1e4, "truncate": False}}}
    found = rope_settings(config, "full_attention")
    assert any("truncate" in remark for remark in found.remarks)
    assert found.get("truncate") is None


def test_gptj_and_the_callers_word_count_the_channels() -> None:
    config = {"rotary_dim": 4, "partial_rotary_factor": 0.75}
    by_file = rope_from_config(config, 16)
    by_caller = rope_from_config(config, 16, rotary_dim=6, channel_offset=10, pairing="interleaved")
    assert by_file.rotary is not None
    assert by_caller.rotary is not None
    assert by_file.rotary.channels == 4
    assert any("rotary_dim counts" in note for note in by_file.notes)
    np.testing.assert_array_equal(by_caller.rotary.pairs_F2, [[10, 11], [12, 13], [14, 15]])


def test_callers_defaults_yield_to_the_file() -> None:
    silent = rope_from_config({}, 16, default_base=500.0, default_partial=0.25).rotary
    spoken = rope_from_config(
        {"rope_theta": 100.0, "rotary_pct": 0.5}, 16, default_base=500.0, default_partial=0.25
    ).rotary
    assert silent is not None
    assert spoken is not None
    np.testing.assert_allclose(silent.frequencies(), [1.0, 500**-0.5])
    np.testing.assert_allclose(spoken.frequencies(), 100.0 ** -(np.arange(4) / 4))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_theta": "10000"}, "'10000'"),
        ({"rope_theta": True}, "rope_theta"),
        ({"rope_theta": 0.5}, "0.5"),
        ({"rope_scaling": "yarn"}, "mapping"),
        ({"rope_scaling": {"type": 3}}, "rope_scaling.type"),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear"}}, "linear scaling"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "positive factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": 1.0}}, "short_factor"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, "x"]}},
            "long_factor",
        ),
        ({"rope_scaling": {**YARN, "truncate": 1}}, "rope_scaling.truncate"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "original_context"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"max_position_embeddings": 10.5}, "10.5"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rotary_dim": 32}, "16 channels"),
    ],
)
def test_values_that_make_no_sense_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(message)):
        rope_from_config(config, 16)


def test_a_fraction_in_an_architecture_that_rotates_whole_heads() -> None:
    asked = {"partial_rotary_factor": 0.5, "rope_theta": 1e4}
    made = rope_from_config(asked, 8, whole_heads=True)
    assert made.rotary is not None
    assert made.rotary.channels == 8
    assert any("partial_rotary_factor" in note for note in made.notes)
    with pytest.raises(BadConfig, match="linear"):
        rope_from_config({**asked, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8, whole_heads=True)
