"""Types without an adapter, read from a file and compared with the very model that wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toposcope
from tests.architectures import build, inputs
from toposcope.checkpoints.attention import attention
from toposcope.checkpoints.families import families
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.generic import cache, reader
from toposcope.checkpoints.generic.bounds import Deadline, Refused
from toposcope.checkpoints.generic.compare import ATTENTION, Taps, boosted, difference, readable
from toposcope.checkpoints.generic.copied import SmallCopy
from toposcope.checkpoints.generic.measure import measure
from toposcope.checkpoints.generic.record import arrays, flat, run
from toposcope.checkpoints.generic.shrink import attempts, model_class, true_config
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.spec import LayerSpec
from toposcope.checkpoints.view import Model
from toposcope.core.errors import MissingExtra, UnknownFamily
from toposcope.encodings import NONE

TOKENS = 13


def saved(kind: str, group: str, where: Path) -> Any:
    model = build(kind, group)
    model.save_pretrained(where)
    return model


def measured_model(where: Path) -> Model:
    """The file as if no adapter knew its type."""
    opened = open_checkpoint(where)
    spec = reader.measured_spec(Config(dict(opened.config or {}), "config.json"), opened.source)
    assert spec is not None
    return Model(spec, opened.source, {}, read_layer)


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("gpt_oss", "causal"),  # sinks, windows in every other layer
        ("qwen3_next", "causal"),  # a gate beside the queries, linear layers
        ("llama4_text", "causal"),  # a query scale, chunks, layers without position
        ("glm4_moe_lite", "causal"),  # latents
        ("nanochat", "causal"),  # norms after rotation
        ("gemma4_text", "causal"),  # a value norm, shared keys
        ("xglm", "causal"),  # a sinusoid
        ("mpnet", "masked"),  # T5's buckets in another type
        ("blenderbot", "seq2seq"),  # cross-attention
        ("bart", "masked"),  # post-norm
    ],
)
def test_the_file_is_read_as_the_model_computes(kind: str, group: str, tmp_path: Path) -> None:
    model = saved(kind, group, tmp_path)
    given = inputs(model, 2, TOKENS, 7)
    noted = run(model, given, 2, Deadline(100))
    ours = measured_model(tmp_path)
    compared = 0
    for layer in ours.layers:
        if layer.spec.kind != "self":
            continue
        call = next(each for each in noted.calls if _has(each.layer, layer.spec))
        x = flat(call.layer_input, 2, TOKENS)
        assert x is not None
        np.testing.assert_allclose(attention(layer, x[1]), arrays(call, 2)[3][1], atol=ATTENTION)
        compared += 1
    assert compared == sum(layer.spec.kind == "self" for layer in ours.layers) > 0
    assert ours.spec.compared is not None
    assert ours.spec.compared.attention <= ATTENTION


def _has(layer: str | None, spec: LayerSpec) -> bool:
    return layer is not None and spec.o.weight.startswith(f"{layer}.")


def test_windows_beyond_the_text_follow_the_configuration() -> None:
    """gpt-oss looks causal in 23 tokens; its window of 128 is known from a copy with a window of 5."""
    from transformers import GptOssConfig

    small = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    values = GptOssConfig(**small, hidden_size=64, sliding_window=128, num_local_experts=4, vocab_size=200).to_dict()
    found = measure(values)
    assert [layer.spec.reach for layer in found.layers] == [127, None, 127]
    assert found.compared.unreached == ()


def test_a_query_scale_beyond_the_text_follows_the_configuration() -> None:
    values = build("llama4_text", "causal").config.to_dict() | {"floor_scale": 8192, "attention_chunk_size": 4096}
    found = measure(values)
    scales = {layer.query_scale for layer in found.layers} - {None}
    assert {(scale.period, scale.shift) for scale in scales} == {(8192, 1)}
    assert {layer.spec.chunk for layer in found.layers} <= {4096, None}
    assert 4096 in {layer.spec.chunk for layer in found.layers}


# ---------------------------------------------------------------- negative controls
def broken(spec: LayerSpec) -> dict[str, LayerSpec]:
    """The description with one thing wrong at a time."""
    found = {"scale 1 %": replace(spec, scale=1.01 * spec.scale)}
    norm, rotary = spec.input_norm, spec.encoding.rotary
    if norm is not None:
        other = "layer" if norm.kind == "rms" else "rms"
        found["norm kind"] = replace(spec, input_norm=replace(norm, kind=other))
        found["gain + 1"] = replace(spec, input_norm=replace(norm, offset=1 - norm.offset))
        found["no input norm"] = replace(spec, input_norm=None)
    if rotary is not None:
        w, at = rotary.frequencies(), np.arange(len(rotary.pairs_F2))
        other_pairs = rotary.pairs_F2.T.reshape(-1, 2) if len(at) > 1 else rotary.pairs_F2[:, ::-1]
        for name, change in {
            "pairing": {"pairs_F2": other_pairs},
            "base x 2": {"frequencies_at": lambda context: w * 2.0 ** (-at / len(at))},
            "factor 1 %": {"attention_factor": 1.01 * rotary.attention_factor},
        }.items():
            found[name] = replace(spec, encoding=replace(spec.encoding, rotary=replace(rotary, **change)))
        found["no rotation"] = replace(spec, encoding=replace(NONE, query_scale=spec.encoding.query_scale))
    if spec.reach is not None:
        found["window + 1"] = replace(spec, reach=spec.reach + 1)
    if spec.q_norm is not None:
        found["no query norm"] = replace(spec, q_norm=None)
    if spec.sinks is not None:
        found["no sinks"] = replace(spec, sinks=None)
    if spec.softcap is not None:
        found["no cap"] = replace(spec, softcap=None)
    return found


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "qwen3", "cohere2", "phimoe"])
def test_the_comparison_notices_what_is_broken(kind: str) -> None:
    values = build(kind, "causal").config.to_dict()
    config = true_config(values)
    copy = SmallCopy(model_class(config), type(config), next(attempts(config)), Deadline(100))
    copy.describe_layers(config.to_dict())
    assert not copy.reasons
    plain = copy.run(21, 12)
    large = copy.run(21, 13, boost=30.0)
    unnoticed = []
    for number, found in list(copy.found.items())[:2]:
        good = copy.read(found)
        for what, spec in broken(good.spec).items():
            bad = readable(spec, copy.source)
            worst = max(
                difference(bad, found.taps, plain, number)[0],
                difference(boosted(bad, 30.0), found.taps, large, number)[0],
            )
            if worst <= ATTENTION:
                unnoticed.append((number, what))
        assert difference(good, found.taps, plain, number)[0] < ATTENTION
    assert unnoticed == []


# ---------------------------------------------------------------- a family that the user names
def test_a_named_family_is_compared_and_refused_where_it_is_wrong(tmp_path: Path) -> None:
    saved("arcee", "causal", tmp_path / "right")
    right = reader.checked(families()["llama"], Config(_config(tmp_path / "right"), "c"), _source(tmp_path / "right"))
    assert not isinstance(right, str)
    assert right.attention < ATTENTION
    saved("helium", "causal", tmp_path / "wrong")  # the same names, other pairs
    with pytest.raises(UnknownFamily, match="differently"):
        reader.checked(families()["llama"], Config(_config(tmp_path / "wrong"), "c"), _source(tmp_path / "wrong"))
    unknown = Config({**_config(tmp_path / "right"), "model_type": "nobody_knows"}, "c")
    assert isinstance(reader.checked(families()["llama"], unknown, _source(tmp_path / "right")), str)


def _config(where: Path) -> dict[str, Any]:
    return json.loads((where / "config.json").read_text())


def _source(where: Path) -> Any:
    return open_checkpoint(where).source


# ---------------------------------------------------------------- files from elsewhere
def test_a_file_whose_shapes_differ_is_refused(tmp_path: Path) -> None:
    saved("helium", "causal", tmp_path)
    values = _config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**values, "num_key_value_heads": 4}))
    with pytest.raises(UnknownFamily, match="shape"):
        measured_model(tmp_path)


def test_a_file_with_another_prefix_is_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved("helium", "causal", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"wrapped.{name}": each for name, each in tensors.items()}, tmp_path / "model.safetensors")
    ours = measured_model(tmp_path)
    assert ours.layers[0].spec.o.weight.startswith("wrapped.")
    assert ours.layers[0].weights.q_HRD.size


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1 << 40},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 0},
        {"num_attention_heads": -3},
        {"head_dim": 3},
        {"rope_parameters": {"rope_type": "nonsense"}},
        {"hidden_act": "__import__"},
        {"vocab_size": "many"},
        {"num_attention_heads": 1 << 20, "head_dim": 4096},
    ],
)
def test_hostile_configurations_are_refused_in_time(change: dict[str, Any]) -> None:
    values = {**build("helium", "causal").config.to_dict(), **change}
    with pytest.raises((Refused, toposcope.core.errors.ToposcopeError)):
        measure(values, Deadline(60))


def test_code_that_a_configuration_names_is_not_run(tmp_path: Path) -> None:
    saved("helium", "causal", tmp_path)
    trap = tmp_path / "modeling_trap.py"
    trap.write_text("raise SystemExit('this was run')\n")
    values = _config(tmp_path) | {
        "auto_map": {"AutoModelForCausalLM": "modeling_trap.Trap", "AutoConfig": "modeling_trap.C"}
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert measured_model(tmp_path).layers


# ---------------------------------------------------------------- what is kept
def test_a_description_is_kept_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("gpt_oss", "causal", tmp_path)
    first = measured_model(tmp_path)
    monkeypatch.setattr(reader, "measure", _never)
    again = measured_model(tmp_path)
    for mine, theirs in zip(again.spec.layers, first.spec.layers, strict=True):
        assert replace(mine, encoding=NONE) == replace(theirs, encoding=NONE)
        np.testing.assert_array_equal(mine.encoding.rotary.frequencies(), theirs.encoding.rotary.frequencies())
    assert again.spec.compared == first.spec.compared


def test_what_is_kept_is_used_where_transformers_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("helium", "causal", tmp_path)
    monkeypatch.setattr(reader, "_installed", lambda: False)
    with pytest.raises(MissingExtra, match="toposcope"):
        measured_model(tmp_path)
    monkeypatch.undo()
    measured_model(tmp_path)
    monkeypatch.setattr(reader, "_installed", lambda: False)
    monkeypatch.setattr(reader, "measure", _never)
    assert measured_model(tmp_path).layers


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"layers": 3}', "cut", "field", "scale"])
def test_a_damaged_description_is_measured_again(damage: str, tmp_path: Path) -> None:
    values = build("helium", "causal").config.to_dict()
    cache.keep(values, measure(values))
    home = cache.directory()
    assert home is not None
    (path,) = home.iterdir()
    text = path.read_text()
    assert cache.find(values) is not None
    whole = json.loads(text)
    if damage == "field":
        whole["layers"][0]["spec"]["heads"] = "four"
    if damage == "scale":
        whole["layers"][0]["spec"]["scale"] = -1
    path.write_text({"cut": text[:-40], "field": json.dumps(whole), "scale": json.dumps(whole)}.get(damage, damage))
    assert cache.find(values) is None


def test_nothing_is_kept_where_the_cache_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SETTING, "off")
    assert cache.directory() is None
    assert cache.find({"model_type": "helium"}) is None


def _never(*_: Any) -> Any:
    raise AssertionError("measured again")


def test_taps_move_with_their_layer() -> None:
    taps = Taps("model.layers.1.norm", "model.layers.1.o", None)
    assert taps.moved("model.layers.1", "model.layers.12") == Taps("model.layers.12.norm", "model.layers.12.o", None)
    assert torch.is_grad_enabled()


def test_blocks_that_a_short_text_does_not_fill_are_told() -> None:
    found = measure(build("bigbird_pegasus", "seq2seq").config.to_dict())
    assert "block_size = 64" in found.compared.unreached


def test_a_model_in_memory_is_measured_as_well(tmp_path: Path) -> None:
    from toposcope.checkpoints.opened import live

    model = saved("nanochat", "causal", tmp_path)
    held = live(model)
    assert held.spec.compared is not None
    assert len(held.remarks) == 1
    with toposcope.load(tmp_path) as read:
        for one, other in zip(held.layers, read.layers, strict=True):
            np.testing.assert_array_equal(one.heads[0].q, other.heads[0].q)
            np.testing.assert_array_equal(one.heads[0].o, other.heads[0].o)
