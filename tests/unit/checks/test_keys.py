"""Settings that nothing reads: near-misses of rotary keys at every level, and rotary settings in the wrong place."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import toposcope
from toposcope.checkpoints.view import Model
from toposcope.checks import Finding, check_model
from toposcope.checks.keys import near_misses, unread

from .making import bert, llama, smooth_table

try:
    from transformers import CONFIG_MAPPING

    TYPES = sorted(CONFIG_MAPPING.keys())
except ImportError:
    TYPES = []
LINEAR = {"rope_type": "linear", "factor": 4.0}


def raised(path: Path) -> dict[str, Finding]:
    with toposcope.load(path) as model:
        found = check_model(model, weights=False).findings
    return {finding.id: finding for finding in found if finding.status in ("fault", "warning")}


@pytest.mark.parametrize(
    ("settings", "path", "near"),
    [
        ({"rope_scalling": LINEAR}, "rope_scalling", "rope_scaling"),
        ({"rope_scalings": LINEAR}, "rope_scalings", "rope_scaling"),
        ({"RopeScaling": LINEAR}, "RopeScaling", "rope_scaling"),
        ({"rope_base": 5e5}, "rope_base", "rope_theta"),
        ({"rope_thta": 5e5}, "rope_thta", "rope_theta"),
        ({"rope-theta": 5e5}, "rope-theta", "rope_theta"),
        ({"partial_rotary_facter": 0.5}, "partial_rotary_facter", "partial_rotary_factor"),
        ({"max_position_embedding": 8192}, "max_position_embedding", "max_position_embeddings"),
        ({"rope_parameter": {"rope_theta": 5e5}}, "rope_parameter", "rope_parameters"),
        ({"rope_type": "yarn"}, "rope_type", "rope_scaling.rope_type"),
        ({"text_config": {"rope_tehta": 5e5}}, "text_config.rope_tehta", "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "facter": 4.0}}, "rope_scaling.facter", "factor"),
        (
            {"rope_parameters": {"full_attention": {"rope_thta": 5e5}}},
            "rope_parameters.full_attention.rope_thta",
            "rope_theta",
        ),
    ],
)
def test_near_misses(settings: dict[str, Any], path: str, near: str) -> None:
    (found,) = near_misses(settings)
    assert (found.path, found.near) == (path, near)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 1e4, "rope_base": 1e4},  # said twice, and the same
        {"rope_scalling": None},
        {"quantization_config": {"rope_thta": 1.0}},
        {"num_position_embeddings": 2304, "max_position_embeddings": 4096},
        {"rope_scaling": {**LINEAR, "finetuned": True}},
        {"id2label": {"0": "rope_thta"}},
    ],
)
def test_what_is_no_miss(settings: dict[str, Any]) -> None:
    assert list(near_misses(settings)) == []


@pytest.mark.sample(60)
@pytest.mark.parametrize("model_type", TYPES)
def test_default_configurations_hold_none(model_type: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = CONFIG_MAPPING[model_type]()
        except Exception as error:  # noqa: BLE001 - what other people's classes say when they miss something
            pytest.skip(str(error)[:80])
    assert list(near_misses(json.loads(config.to_json_string(use_diff=False)))) == []


def test_a_scaling_under_a_misspelt_name_is_a_fault(tmp_path: Path) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, rope_scalling={**LINEAR, "rope_theta": 5e5}))
    assert {name: each.status for name, each in found.items()} == {"unknown-key": "fault"}


@pytest.mark.parametrize(
    ("key", "value", "mapping", "status"),
    [
        ("rope_scaling_factor", 4.0, '{"rope_type": …, "factor": 4}', "warning"),
        ("rope_freq_scale", 0.25, '{"rope_type": "linear", "factor": 4}', "warning"),
        ("rope_scaling_type", "yarn", '{"rope_type": "yarn", "factor": …}', "fault"),
    ],
)
def test_a_single_value_is_no_mapping(tmp_path: Path, key: str, value: Any, mapping: str, status: str) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, **{key: value}))
    assert found["unknown-key"].status == status
    assert mapping in found["unknown-key"].what_to_do


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["typ", "rope_typ", "rope-type", "kind", "scaling_type"])
@pytest.mark.parametrize("factor", [{}, {"factor": 4.0}], ids=["no factor", "factor"])
def test_a_scaling_named_under_a_misspelt_key_is_one_fault(
    tmp_path: Path, place: str, key: str, factor: dict[str, float]
) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, **{place: {"rope_theta": 1e4, key: "yarn", **factor}}))
    assert {name: each.status for name, each in found.items()} == {"unknown-key": "fault"}
    evidence = found["unknown-key"].evidence
    assert (evidence["key"], evidence["scaling"], evidence["factor"]) == (
        f"{place}.{key}",
        "yarn",
        factor.get("factor"),
    )
    assert "'rope_type'" in found["unknown-key"].what_to_do


def test_a_scaling_named_at_the_top_is_a_fault(tmp_path: Path) -> None:
    assert raised(llama(tmp_path, rope_theta=1e4, rope_type="yarn"))["unknown-key"].status == "fault"


@pytest.mark.parametrize(
    ("scaling", "status"),
    [
        ({**LINEAR, "typ": "linear"}, None),  # said twice, and the same
        ({"type": "linear", "factor": 4.0, "rope_typ": "yarn"}, "fault"),
        ({"type": "linear", "factor": 4.0, "rope_typ": "linear"}, None),
        ({"typ": "default"}, "warning"),
        ({"typ": 4}, "warning"),
        ({"typ": "yran", "factor": 4.0}, "fault"),  # no name of a scaling, but the factor is lost
    ],
    ids=str,
)
def test_a_misspelt_kind_is_a_fault_where_a_scaling_is_lost(
    tmp_path: Path, scaling: dict[str, Any], status: str | None
) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, rope_scaling=scaling))
    assert [each.status for each in found.values()] == ([] if status is None else [status])


def test_a_near_miss_beside_a_scaling_is_a_warning(tmp_path: Path) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, rope_scaling=LINEAR, rope_scalling={**LINEAR, "factor": 9.0}))
    assert set(found) == {"unknown-key"}
    assert found["unknown-key"].status == "warning"
    assert found["unknown-key"].evidence == {"key": "rope_scalling", "near": "rope_scaling"}


def test_settings_of_a_part_that_is_not_read(tmp_path: Path) -> None:
    found = raised(llama(tmp_path, rope_theta=1e4, text_config={"rope_scaling": LINEAR, "rope_theta": 1e4}))
    assert found["unread-settings"].evidence == {"key": "text_config"}
    assert raised(llama(tmp_path / "same", rope_theta=1e4, text_config={"rope_theta": 1e4})) == {}


def test_scaling_in_a_model_that_does_not_rotate(tmp_path: Path) -> None:
    found = raised(bert(tmp_path, smooth_table(), rope_scaling=LINEAR))
    assert found["unread-settings"].evidence == {"key": "rope_scaling"}
    assert raised(bert(tmp_path / "base", smooth_table(), rope_theta=1e4)) == {}


def test_settings_of_a_layer_type_that_is_not_there(tmp_path: Path) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e4}
    settings = {"full_attention": plain, "slidng_attention": plain}
    with toposcope.load(llama(tmp_path, rope_theta=1e4)) as model:
        config = {**model.config, "rope_parameters": settings, "layer_types": ["full_attention"] * 3}
        (found,) = unread(Model(model.spec, model.source, config, model._read_layer))
    assert (found.id, found.evidence) == ("unread-settings", {"key": "rope_parameters.slidng_attention"})
