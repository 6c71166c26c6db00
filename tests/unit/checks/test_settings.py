"""Rotary settings: what the configuration says against what is in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from toposcope.checks import CheckResult, check_model

from .making import Tensors, llama

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_theta": 5e5,
}


def check(path: Path) -> CheckResult:
    with toposcope.load(path) as model:
        return check_model(model, weights=False)


def raised(report: CheckResult) -> dict[str, str]:
    return {finding.id: finding.status for finding in report.findings if finding.status in ("fault", "warning")}


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_theta": 1e4},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1e6},
        {"rope_parameters": YARN},
        {"rope_theta": 1e4, "rope_scaling": {k: v for k, v in YARN.items() if k != "rope_theta"}},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
        # the two generations say the same
        {"rope_parameters": YARN, "rope_scaling": YARN, "rope_theta": 1e4},
    ],
)
def test_good_settings_raise_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    report = check(llama(tmp_path, **settings))
    assert raised(report) == {}
    found = report.find("rotary-settings")
    assert found is not None
    assert found.status == "ok"
    declared = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    assert found.evidence["scaling"] == declared.get("rope_type", "default")
    assert found.evidence["factor"] == declared.get("factor")
    assert ("no scaling" in found.title) == (found.evidence["scaling"] == "default")


def test_contradicting_generations(tmp_path: Path) -> None:
    settings = {
        "rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    report = check(llama(tmp_path, **settings))
    assert raised(report) == {"settings-contradict": "fault"}
    found = report.find("settings-contradict")
    assert found is not None
    assert found.evidence["apart"] == pytest.approx(4.0)


def test_lost_base(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_theta=500000.0, rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    assert raised(report) == {"base-lost": "fault"}
    found = report.find("base-lost")
    assert found is not None
    assert (found.evidence["written"], found.evidence["in_force"]) == (500000.0, 10000.0)


def test_base_lost_when_the_old_generation_replaces_the_new(tmp_path: Path) -> None:
    settings = {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
    }
    assert raised(check(llama(tmp_path, **settings)))["base-lost"] == "fault"


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 1.0},
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096},
        {
            "rope_type": "longrope",
            "factor": 1.0,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0] * 16,
            "long_factor": [1.0] * 16,
        },
        {**LLAMA3, "factor": 1.0},
    ],
)
def test_scaling_without_effect(tmp_path: Path, parameters: dict[str, Any]) -> None:
    report = check(llama(tmp_path, rope_parameters={"rope_theta": 1e4, **parameters}))
    assert raised(report) == {"scaling-effect": "warning"}


@pytest.mark.parametrize("kind", [{"rope_type": "default"}, {"type": "default"}, {}], ids=str)
def test_a_factor_without_a_scaling_is_a_fault(tmp_path: Path, kind: dict[str, Any]) -> None:
    report = check(llama(tmp_path, rope_parameters={"rope_theta": 1e4, "factor": 4.0, **kind}))
    assert raised(report) == {"scaling-lost": "fault"}
    in_force = report.find("rotary-settings")
    assert in_force is not None
    assert (in_force.status, in_force.evidence["scaling"]) == ("ok", "default")
    assert not any("Rope_" in each.explanation for each in report.findings)


def test_what_speaks_of_the_scaling_comes_first(tmp_path: Path) -> None:
    for name, scaling in (("lost", {"factor": 4.0}), ("good", YARN), ("odd", {**YARN, "attention_factor": 1.3})):
        found = check(
            llama(tmp_path / name, rope_theta=1e4, rope_scaling=scaling, max_position_embeddings=4096)
        ).findings
        firsts = {
            status: next(each.id for each in found if each.status == status) for status in {f.status for f in found}
        }
        assert set(firsts.values()) <= {"scaling-lost", "rotary-settings", "attention-factor"}


def test_the_attention_factor_stands_in_the_settings(tmp_path: Path) -> None:
    found = check(llama(tmp_path, rope_theta=1e4, rope_scaling=YARN)).find("rotary-settings")
    assert found is not None
    assert found.evidence["attention_factor"] == pytest.approx(0.1 * np.log(4) + 1)
    assert "1.139" in found.title


def test_a_factor_of_1_is_no_scaling(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_parameters={"rope_theta": 1e4, "factor": 1.0, "rope_type": "default"}))
    assert "scaling-lost" not in raised(report)


def test_dynamic_scaling_is_known_to_wait(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}))
    found = report.find("scaling-effect")
    assert found is not None
    assert found.status == "ok"


@pytest.mark.parametrize("parameters", [YARN, LLAMA3])
def test_original_context_missing(tmp_path: Path, parameters: dict[str, Any]) -> None:
    left = {key: value for key, value in parameters.items() if key != "original_max_position_embeddings"}
    assert raised(check(llama(tmp_path, rope_parameters=left))) == {"original-context": "warning"}


def test_two_kinds_named(tmp_path: Path) -> None:
    scaling = {"type": "dynamic", "rope_type": "linear", "factor": 2.0}
    assert raised(check(llama(tmp_path, rope_theta=1e4, rope_scaling=scaling))) == {"kinds-disagree": "warning"}


def test_misspelt_key(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embedings": 1024, "rope_theta": 1e4}
    found = raised(check(llama(tmp_path, rope_parameters=scaling)))
    assert found["unknown-key"] == "warning"


def test_unrelated_key_is_left_alone(tmp_path: Path) -> None:
    assert raised(check(llama(tmp_path, rope_parameters={**YARN, "finetuned": True}))) == {}


def test_attention_factor_of_another_scaling(tmp_path: Path) -> None:
    report = check(llama(tmp_path, rope_parameters={**YARN, "attention_factor": 1.3}))
    assert raised(report) == {"attention-factor": "warning"}
    own = 0.1 * np.log(4.0) + 1
    assert raised(check(llama(tmp_path, rope_parameters={**YARN, "attention_factor": own}))) == {}


def test_claimed_context_beyond_the_scaling(tmp_path: Path) -> None:
    assert raised(check(llama(tmp_path, rope_parameters=YARN, max_position_embeddings=16384)))["context"] == "warning"


def stored(base: float, width: int = 32) -> Any:
    def change(tensors: Tensors) -> None:
        for i in range(3):
            frequencies = base ** (-np.arange(0, width, 2) / width)
            tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = frequencies

    return change


def test_stored_frequencies(tmp_path: Path) -> None:
    report = check(llama(tmp_path / "good", stored(1e4), rope_theta=1e4))
    assert raised(report) == {}
    found = report.find("stored-frequencies")
    assert found is not None
    assert found.explanation.startswith("3 ")
    report = check(llama(tmp_path / "bad", stored(1e6), rope_theta=1e4))
    assert raised(report) == {"stored-frequencies": "fault"}
    # linear scaling of old files: positions were divided, the stored frequencies are plain
    scaling = {"type": "linear", "factor": 2.0}
    assert raised(check(llama(tmp_path / "linear", stored(1e4), rope_theta=1e4, rope_scaling=scaling))) == {}
