"""A config.json without weights: what it says is found, what it cannot say is said, for every type of an adapter."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import toposcope
from toposcope.checkpoints.config_only import without_weights
from toposcope.checkpoints.families import families
from toposcope.checkpoints.lone_config import lone_configuration, open_configuration
from toposcope.checks.configuration import ALONE
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadValue, MissingTensor, ToposcopeError

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3,
    "max_position_embeddings": 4096, "rope_theta": 500000.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
# Types that only tensors tell: of two stacks, with a stored bias, or hybrids that do not list their layers.
NOT_TOLD = {
    "bamba", "bart", "blenderbot", "blenderbot-small", "granitemoehybrid", "jamba", "lfm2_moe", "m2m_100", "marian",
    "mbart", "mpnet", "mt5", "mvp", "nemotron_h", "nemotron_h_omni", "nllb-moe", "pegasus", "plbart",
    "speech_to_text", "switch_transformers", "t5", "umt5", "whisper",
}  # fmt: skip
UNSOUND = {"glm4_moe", "qwen3_omni_moe_thinker"}  # sizes that do not fit together, with weights as without
TYPES = sorted(
    {kind for each in families().values() if each.container == "transformers" for kind in each.model_types}
)


def written(place: Path, **changes: Any) -> Path:
    place.mkdir(exist_ok=True, parents=True)
    path = place / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}))
    return path


@pytest.mark.parametrize("as_directory", [False, True])
def test_a_lone_configuration_is_checked(as_directory: bool, tmp_path: Path) -> None:
    path = written(tmp_path, rope_scaling=YARN)
    result = toposcope.check(path.parent if as_directory else path)
    assert result.worst == "cannot_tell"
    assert result.layers == 3
    assert "yarn x4" in result.encoding
    assert result.find(ALONE) is not None
    assert result.provenance.subjects[0].format == "config"
    assert result.find("dead-heads") is None


def test_its_faults_are_found(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0}
    result = toposcope.check(written(tmp_path, rope_parameters=parameters))
    finding = result.find("base-lost")
    assert finding is not None
    assert finding.status == "fault"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(json.dumps(LLAMA).encode())

    monkeypatch.setattr("sys.stdin", Stdin())
    assert toposcope.check("-").layers == 3


@pytest.mark.parametrize("content", ["[1, 2]", "{", "\x00\x01"])
def test_what_is_no_configuration_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(BadConfig):
        toposcope.check(path)


def test_options_of_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue):
        toposcope.check(written(tmp_path), num_heads=4)


def test_a_whole_model_is_no_lone_configuration(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert lone_configuration(tmp_path) is None
    assert lone_configuration(path) is not None


def test_other_verbs_do_not_take_it(tmp_path: Path) -> None:
    with pytest.raises(ToposcopeError):
        toposcope.scan(written(tmp_path))


def test_weights_are_not_made_up(tmp_path: Path) -> None:
    found = lone_configuration(written(tmp_path))
    assert found is not None
    model = open_configuration(*found)
    assert without_weights(model.source)
    with pytest.raises(MissingTensor):
        _ = model.layers[0].weights


def test_a_learned_table_is_there_and_not_read(tmp_path: Path) -> None:
    result = toposcope.check(written(tmp_path, model_type="gpt2"))
    finding = result.find("mechanisms")
    assert finding is not None
    assert finding.evidence["mechanisms"] == ["input"]
    assert result.find("position-table") is None
    assert result.find("context") is None


def test_what_is_not_told_is_said(tmp_path: Path) -> None:
    result = toposcope.check(written(tmp_path, model_type="t5"), expect="rope")
    assert result.layers == 0
    assert result.worst == "cannot_tell"
    assert {finding.id for finding in result.findings} == {ALONE, "expected-encoding"}
    assert "list index" not in str(result)  # an exception of Python's is no reason
    assert result.findings[0].status == "cannot_tell"


@pytest.mark.sample(12, of="default configurations")
@pytest.mark.parametrize("kind", TYPES)
def test_every_default_configuration_works_or_says_so(kind: str, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers", reason="default configurations are transformers'")
    if kind not in hf.CONFIG_MAPPING:
        pytest.skip("not a type of this transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = json.loads(json.dumps(hf.CONFIG_MAPPING[kind]().to_dict(), default=str))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    if kind in UNSOUND:
        with pytest.raises(BadConfig):
            toposcope.check(path)
        return
    result = toposcope.check(path)
    assert result.find(ALONE) is not None
    assert (result.layers == 0) == (kind in NOT_TOLD)


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["check", *words])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("expect", "code"),
    [("rope:scaling=yarn,factor=4", 0), ("yarn:factor=8", 1), ("rope", 0), ("alibi", 1), ("rop", 2)],
)
def test_exit_codes_of_expectations(expect: str, code: int, tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path, rope_scaling=YARN)
    assert exit_code(str(path), "--expect", expect) == code


def test_an_expectation_that_cannot_be_told_fails(tmp_path: Path, capsys: Any) -> None:
    assert exit_code(str(written(tmp_path, model_type="t5")), "--expect", "t5") == 1
