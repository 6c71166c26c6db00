"""`toposcope.check` on models that run: the verb, its three columns, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.models.making import write_llama_lm
from tests.unit.results import holds
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadValue
from toposcope.live.result import LiveCheckResult

torch = pytest.importorskip("torch", reason="a model is run")
transformers = pytest.importorskip("transformers", reason="a model of transformers is run")


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_a_sound_model_does_what_its_configuration_says(model: Any, tmp_path: Path) -> None:
    result = toposcope.check(model)
    assert isinstance(result, LiveCheckResult)
    assert (result.worst in ("ok", "cannot_tell"), result.dtype, result.device) == (True, "float32", "cpu")
    assert [row.agrees for row in result.by_layer] == [True, True]
    assert max(row.frequency_error for row in result.by_layer) < 3e-7
    assert all(abs(row.scale / row.scale_configured - 1) < 5e-5 for row in result.by_layer)
    assert {probe.name for probe in result.probes if probe.ran} >= {"fit", "parity"}
    holds(result, tmp_path)


def test_a_lost_base_is_seen_in_the_column_of_the_running_model(model: Any) -> None:
    model.model.rotary_emb.inv_freq = 1 / 1e4 ** (torch.arange(0, 8, 2) / 8)
    result = toposcope.check(model, probes=["fit"])
    assert [each.evidence["bug"] for each in result.faults] == ["theta-lost"]
    assert result.faults[0].layers == (0, 1)
    assert [row.agrees for row in result.by_layer] == [False, False]
    assert result.by_layer[0].frequency_error > 0.1
    assert {row.configuration for row in result.by_layer} != {row.running for row in result.by_layer}


def test_the_model_is_left_as_it_was(model: Any) -> None:
    ids = torch.arange(4, 20)[None]
    before = model(input_ids=ids).logits
    hooks = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())
    toposcope.check(model)
    assert torch.equal(model(input_ids=ids).logits, before)
    assert sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()) == hooks


def test_files_are_run_when_asked_and_only_then(tmp_path: Path) -> None:
    write_llama_lm(tmp_path)
    assert toposcope.check(tmp_path).kind == "check"
    result = toposcope.check(tmp_path, live=True, probes=["fit"], dtype="float32")
    assert (result.kind, result.worst != "fault") == ("check-live", True)


def test_the_command_ends_with_1_where_the_model_does_otherwise(
    tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama_lm(tmp_path)
    with pytest.raises(SystemExit) as sound:
        main(["check", str(tmp_path), "--live", "--probes", "fit"])
    assert sound.value.code == 0
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
    kept = rotary.forward
    monkeypatch.setattr(rotary, "forward", lambda self, x, position_ids: kept(self, x, 2 * position_ids))
    with pytest.raises(SystemExit) as broken:
        main(["check", str(tmp_path), "--live", "--probes", "fit"])
    assert broken.value.code == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"probes": ["fitt"], "live": True}, BadValue),
        ({"probes": ["fit"], "live": False}, BadValue),
        ({"family": "llama"}, BadValue),
    ],
)
def test_what_cannot_be_meant_is_refused(model: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        toposcope.check(model, **options)


def test_a_model_in_training_is_refused(model: Any) -> None:
    with pytest.raises(BadConfig):
        toposcope.check(model.train())
