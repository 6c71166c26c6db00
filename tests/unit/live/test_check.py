"""`toposcope.check` on models that run: the verb, its three columns, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.models.making import write_llama_lm
from tests.unit.results import holds
from toposcope.checkpoints.live import view
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadValue
from toposcope.live import foreseen
from toposcope.live.check import TESTED_TRANSFORMERS
from toposcope.live.foreseen import seconds
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


def test_a_scaling_that_is_not_read_is_not_called_configured(tmp_path: Path) -> None:
    write_llama_lm(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps({**settings, "rope_scaling": {"typ": "yarn", "factor": 4.0}}))
    result = toposcope.check(tmp_path, live=True, probes=["fit"], dtype="float32")
    assert [each.id for each in result.faults] == ["unknown-key"]
    assert all(row.agrees for row in result.by_layer)  # with what is read
    said = [*(each.title for each in result.findings), *(row.running for row in result.by_layer), str(result)]
    assert not any("as configured" in each for each in said)


def test_what_disagrees_is_named(model: Any) -> None:
    def from_the_start(module: Any, given: Any, options: dict[str, Any]) -> Any:
        cache = options.get("past_key_values")
        if cache is not None and cache.get_seq_length():
            options["position_ids"] = torch.arange(options["input_ids"].shape[1])[None]
        return given, options

    model.model.register_forward_pre_hook(from_the_start, with_kwargs=True)
    row = toposcope.check(model, probes=["fit", "parity"], weights=False).by_layer[0]
    assert (row.agrees, bool(row.differs)) == (False, True)
    assert "as configured" in row.running  # queries and keys do turn
    assert "--no-weights" in row.files


def test_a_newer_transformers_is_told(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.live.check.TESTED_TRANSFORMERS", "5.0.0")
    (remark,) = toposcope.check(model, probes=["axes"], weights=False).remarks
    assert "5.0.0" in remark
    monkeypatch.setattr("toposcope.live.check.TESTED_TRANSFORMERS", "5.999")
    assert not toposcope.check(model, probes=["axes"], weights=False).remarks


def test_the_tested_transformers_is_the_pinned_one() -> None:
    pinned = (Path(__file__).parents[3] / "constraints.txt").read_text()
    assert f"transformers=={TESTED_TRANSFORMERS}\n" in pinned


def test_how_long_it_takes_is_told_beforehand(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="toposcope")
    toposcope.check(model, probes=["axes"], weights=False)
    assert not caplog.records  # tiny: done before anyone wonders
    monkeypatch.setattr("toposcope.live.foreseen.PATIENCE", 0.0)
    toposcope.check(model, probes=["axes"], weights=False)
    assert len(caplog.records) == 2  # a range before, and what is left once the model has run


def test_a_moment_is_not_extrapolated_to_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.live.foreseen.pace", lambda: 1e4)
    assert foreseen.slower(0.0) == foreseen.SLOWEST
    assert foreseen.span(20.0) == "20 s to 3 min"


def test_what_is_left_goes_by_what_was_done() -> None:
    forecast = foreseen.Forecast({"fit": 2.0, "parity": 6.0, "axes": 1.0})
    assert forecast.news() is None
    forecast.done("fit", 8.0)
    assert forecast.news() == "30 s"  # 4 times as long as foreseen, of 7 s
    assert forecast.news() is None  # said already
    forecast.done("fit", 8.0)  # the rest of it takes as long again: all is twice as slow
    assert forecast.news() == "60 s"
    forecast.done("parity", 6.0)
    assert forecast.news() is None  # 3 s: nobody waits for that


def test_what_is_left_is_not_told_again_for_a_few_seconds_more() -> None:
    forecast = foreseen.Forecast({"fit": 1.0, "parity": 9.0, "lengths": 5.0, "axes": 1.0})
    forecast.done("fit", 1.0)
    assert forecast.news() is not None  # 15 s
    forecast.done("parity", 24.0)  # 15 s still
    assert forecast.news() is None
    forecast.done("lengths", 100.0)
    assert forecast.news() is not None or sum(forecast.parts.values()) < 5


def test_more_probes_and_more_weights_take_longer(model: Any) -> None:
    described = view(model)
    times = [
        seconds(described, 10**8, probes, weights=weights, slower=1.0)
        for probes, weights in ((["fit"], False), (["fit", "parity"], False), (["fit", "parity"], True))
    ]
    assert times == sorted(set(times))
    assert seconds(described, 10**9, ["fit"], weights=False, slower=1.0) > times[0]
