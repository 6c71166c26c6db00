"""Adapters made by hand: a planted change, files that do not fit, settings of other methods, hostile input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import toposcope
from tests.unit import tiny
from tests.unit.checkpoints.making import gguf_bytes, gguf_pair, gguf_string, gguf_tensor
from tests.unit.tiny import write_llama
from toposcope.checkpoints.identity import identity
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.peft import settings
from toposcope.checkpoints.peft.changes import TensorFinder
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadFile, BadValue, BadWeights, MissingTensor, NotFound, ToposcopeError

Q = "model.layers.1.self_attn.q_proj"
A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"


def factors(seed: int = 1) -> dict[str, np.ndarray]:
    """A LoRA of the queries in layer 1 that changes head 2 alone."""
    random = np.random.default_rng(seed)
    b = np.zeros((16, 2), dtype=np.float32)
    b[8:12] = random.standard_normal((4, 2))
    return {A: random.standard_normal((2, 16)).astype(np.float32), B: b}


def write_adapter(place: Path, tensors: Mapping[str, np.ndarray] | None = None, **settings: Any) -> Path:
    return tiny.write_adapter(place, factors() if tensors is None else tensors, **settings)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "base")


# ------------------------------------------------------------------ what an adapter changes
def test_a_planted_change_is_found_in_its_head_alone(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    parts = factors()
    with toposcope.load(base, adapter=adapter) as merged, toposcope.load(base) as plain:
        delta = 1.5 * parts[B].astype(float) @ parts[A]
        for layer, other in zip(merged.layers, plain.layers, strict=True):
            for head, before in zip(layer.heads, other.heads, strict=True):
                expected = before.q + (
                    delta[head.head * 4 : head.head * 4 + 4] if layer.number == 1 and head.head == 2 else 0
                )
                assert np.allclose(head.q, expected, rtol=0, atol=1e-6)
                assert np.array_equal(head.k, before.k)
                assert np.array_equal(head.o, before.o)
        assert merged.adapter == str(adapter)
        assert plain.adapter is None


def test_compare_ranks_the_changed_head_first(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    result = toposcope.compare(base, base, adapter=adapter)
    first, *rest = result.ranked()
    assert (first.layer, first.head) == (1, 2)
    assert (first.change_W or 0) > 0.01
    assert first.change_V == 0
    assert all(head.size == 0 for head in rest)
    one, two = result.provenance.subjects
    assert (one.adapter, two.adapter) == (None, str(adapter))
    assert (result.a, result.b) == ("base", "base + lora")
    assert one.sha256 != two.sha256
    assert result.provenance.options["adapter"] == str(adapter)


def test_the_command_says_what_an_adapter_changed(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = write_adapter(tmp_path / "lora", base_model_name_or_path="org/other")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(base), str(base), "--adapter", str(adapter)])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "base + lora" in out
    assert "org/other" in out  # the remark on its base


def test_stored_results_take_no_adapter(base: Path, tmp_path: Path) -> None:
    scanned = toposcope.scan(base, layers="0")
    with pytest.raises(BadValue, match="--adapter"):
        toposcope.compare(scanned, scanned, adapter=write_adapter(tmp_path / "lora"))


def test_an_open_model_takes_no_adapter(base: Path, tmp_path: Path) -> None:
    with toposcope.load(base) as model, pytest.raises(BadValue, match="adapter"):
        toposcope.inspect(model, adapter=write_adapter(tmp_path / "lora"))


@pytest.mark.parametrize("verb", ["scan", "inspect", "check"])
def test_every_verb_on_weights_takes_one(
    verb: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = write_adapter(tmp_path / "lora")
    with pytest.raises(SystemExit) as ended:
        main([verb, str(base), "--adapter", str(adapter), "--json", str(tmp_path / "found.json")])
    assert ended.value.code == 0
    saved = json.loads((tmp_path / "found.json").read_text())
    (about,) = saved["provenance"]["subjects"]
    assert (about["name"], about["adapter"]) == ("base + lora", str(adapter))
    assert any("trained on" in remark for remark in about["remarks"]) is False
    assert "lora" in capsys.readouterr().out
    read = toposcope.read(tmp_path / "found.json")
    assert read.provenance.subjects[0].adapter == str(adapter)


def test_a_flow_of_a_merged_head(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    flows = [
        toposcope.flow(base, head="1.2", tokens=4, horizon=0.2, max_evaluations=200, adapter=merged)
        for merged in (None, adapter)
    ]
    assert flows[1].provenance.subjects[0].adapter == str(adapter)
    assert flows[0].provenance.subjects[0].sha256 != flows[1].provenance.subjects[0].sha256


def test_a_quantised_base(base: Path, tmp_path: Path) -> None:
    """Codes are given their size before anything is added to them: here by bitsandbytes' maxima of rows."""
    tensors = load_file(base / "model.safetensors")
    codes = np.random.default_rng(0).integers(-127, 128, (16, 16)).astype(np.int8)
    maxima = np.linspace(1, 2, 16).astype(np.float32)
    save_file({**tensors, f"{Q}.weight": codes, f"{Q}.SCB": maxima}, base / "model.safetensors")
    config = json.loads((base / "config.json").read_text())
    said = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    parts = factors()
    plain = codes.astype(float) * maxima[:, None] / 127
    with toposcope.load(base, adapter=write_adapter(tmp_path / "lora")) as model:
        found = np.concatenate([head.q for head in model.layers[1].heads])
    assert np.allclose(found, plain + 1.5 * parts[B].astype(float) @ parts[A], atol=1e-6)


# ------------------------------------------------------------------ base and base + adapter are two models
def test_identity_tells_adapters_apart(base: Path, tmp_path: Path) -> None:
    named = [None, write_adapter(tmp_path / "one"), write_adapter(tmp_path / "two", lora_alpha=4)]
    found = []
    for adapter in named:
        with toposcope.load(base, adapter=adapter) as model:
            found.append(json.dumps(identity(model), sort_keys=True))
    assert len(set(found)) == 3
    write_adapter(tmp_path / "copy")
    with toposcope.load(base, adapter=tmp_path / "copy") as model:
        assert json.dumps(identity(model), sort_keys=True) == found[1]  # not by its name


def test_the_digest_holds_the_adapters_bytes(base: Path, tmp_path: Path) -> None:
    found = []
    for name, tensors in (("one", factors()), ("two", factors(seed=2)), ("three", factors())):
        with toposcope.load(base, adapter=write_adapter(tmp_path / name, tensors)) as model:
            _ = model.layers[1].weights
            found.append(model.source.digest())
    assert found[0] == found[2] != found[1]


def test_a_journal_of_the_base_is_not_continued_with_an_adapter(base: Path, tmp_path: Path) -> None:
    toposcope.scan(base, out=tmp_path / "out")
    with pytest.raises(ToposcopeError):
        toposcope.scan(base, out=tmp_path / "out", adapter=write_adapter(tmp_path / "lora"))


def test_a_journal_notices_another_adapter_of_the_same_shape(base: Path, tmp_path: Path) -> None:
    whole = toposcope.scan(base, out=tmp_path / "out", adapter=write_adapter(tmp_path / "lora"))
    again = toposcope.scan(base, out=tmp_path / "out", adapter=tmp_path / "lora")
    assert again.heads == whole.heads
    write_adapter(tmp_path / "lora", factors(seed=2))
    with pytest.raises(BadFile, match="q_proj"):
        toposcope.scan(base, out=tmp_path / "out", adapter=tmp_path / "lora")


@pytest.mark.parametrize(
    ("wanted", "held", "found"),
    [
        ("model.layers.0.q.weight", ["model.layers.0.q.weight", "layers.0.q.weight"], 0),
        ("transformer.h.0.q.weight", ["h.0.q.weight"], 0),
        ("h.0.q.weight", ["transformer.h.0.q.weight", "transformer.h.1.q.weight"], 0),
        ("model.language_model.layers.0.q.weight", ["model.layers.0.q.weight", "visual.layers.0.q.weight"], 0),
        ("a.language_model.layers.0.q.weight", ["vis.layers.0.q.weight", "language_model.a.layers.0.q.weight"], 1),
        ("model.language_model.embed_tokens.weight", ["model.embed_tokens.weight"], 0),
        ("model.vision_tower.layers.0.q.weight", ["model.layers.0.q.weight"], None),  # another tower
        ("decoder.layers.0.q.weight", ["encoder.layers.0.q.weight"], None),
        ("layers.0.q.weight", ["encoder.layers.0.q.weight", "decoder.layers.0.q.weight"], None),
        ("layers.0.q.weight", ["left.layers.0.q.weight", "right.layers.0.q.weight"], None),  # two of them
        ("model.layers.0.q.weight", ["model.layers.1.q.weight", "model.layers.0.k.weight"], None),
    ],
)  # fmt: skip
def test_which_tensor_a_module_means(wanted: str, held: list[str], found: int | None) -> None:
    assert TensorFinder(held)(wanted) == (None if found is None else held[found])


# ------------------------------------------------------------------ what is refused, by name
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("IA3", r"\(IA\)\^3"), ("LOHA", "LoHa"), ("LOKR", "LoKr"), ("PREFIX_TUNING", "prefix tuning"),
        ("PROMPT_TUNING", "prompt tuning"), ("XLORA", "X-LoRA"), ("VERA", "VeRA"), ("ADALORA", "AdaLoRA"),
        ("OFT", "OFT"), ("NEVER_HEARD_OF", "NEVER_HEARD_OF"),
    ],
)  # fmt: skip
def test_other_methods_are_refused_by_name(kind: str, name: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=name):
        toposcope.load(base, adapter=write_adapter(tmp_path / "a", peft_type=kind))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"use_qalora": True}, "QALoRA"),
        ({"alora_invocation_tokens": [1, 2]}, "activated LoRA"),
        ({"arrow_config": {"top_k": 2}}, "Arrow"),
        ({"kasa_config": {"beta": 1.0}}, "KaSA"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "replicated"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init_lora_weights": "olora"}, "olora"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"use_tomorrows_lora": True}, "use_tomorrows_lora"),
        ({"tomorrow": {"a": 1}}, "tomorrow"),
        ({"r": "many"}, "'r'"),
        ({"r": 0}, "'r'"),
        ({"r": 3}, "rank 3"),
        ({"lora_alpha": [1]}, "lora_alpha"),
        ({"lora_alpha": 1e300}, "lora_alpha"),
        ({"use_dora": "yes"}, "use_dora"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 2.5}}, "q_proj"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {".*.*.*.*x": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {f".*{i}": 1 for i in range(100)}}, "alpha_pattern"),
        ({"trainable_token_indices": ["x"]}, "trainable_token_indices"),
        ({"peft_type": 7}, "peft_type"),
    ],
    ids=str,
)
def test_settings_that_mean_something_else(settings: dict[str, Any], says: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=says):
        toposcope.load(base, adapter=write_adapter(tmp_path / "a", **settings))


def test_numbers_of_later_versions_are_a_remark(base: Path, tmp_path: Path) -> None:
    with toposcope.load(base, adapter=write_adapter(tmp_path / "a", tomorrows_group=16)) as model:
        assert any("tomorrows_group" in remark for remark in model.remarks)


@pytest.mark.parametrize(
    "change",
    [
        {A: np.zeros((2, 15), np.float32)},
        {B: np.zeros((15, 2), np.float32)},
        {B: np.zeros((16, 3), np.float32)},
        {A: np.zeros((2, 16, 1), np.float32)},
        {f"base_model.model.{Q}.weight": np.zeros((8, 16), np.float32)},
        {f"base_model.model.{Q}.bias": np.zeros(16, np.float32)},  # this Llama has no such bias to put another for
        {"base_model.model.model.layers.9.self_attn.q_proj.weight": np.zeros((16, 16), np.float32)},
        {"base_model.model.model.layers.0.self_attn.sinks": np.zeros(4, np.float32)},
    ],
    ids=lambda change: str({name: value.shape for name, value in change.items()}),
)
def test_tensors_that_do_not_fit(change: dict[str, np.ndarray], base: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingTensor):
        toposcope.load(base, adapter=write_adapter(tmp_path / "a", {**factors(), **change}))


@pytest.mark.parametrize("turned", [True, False])
def test_a_map_on_its_side_does_not_fit(turned: bool, base: Path, tmp_path: Path) -> None:
    """Keys are (8, 16) in this base; an adapter of a (16, 8) map has the sizes, and the wrong sides."""
    name = "base_model.model.model.layers.0.self_attn.k_proj"
    out, into = (16, 8) if turned else (8, 16)
    tensors = {f"{name}.lora_A.weight": np.ones((2, into)), f"{name}.lora_B.weight": np.ones((out, 2))}
    adapter = write_adapter(tmp_path / "a", {key: value.astype(np.float32) for key, value in tensors.items()})
    if not turned:
        toposcope.load(base, adapter=adapter).close()
        return
    with pytest.raises(MissingTensor, match="k_proj"):
        toposcope.load(base, adapter=adapter)


@pytest.mark.parametrize(
    "change",
    [
        {f"base_model.model.{Q}.lora_E": np.zeros(2, np.float32)},
        {f"base_model.model.{Q}.lora_A.default.weight": np.zeros((2, 16), np.float32)},
        {f"base_model.model.{Q}.hada_w1_a": np.zeros((16, 2), np.float32)},
        {f"base_model.model.{Q}.lora_magnitude_vector": np.ones(16, np.float32)},  # and the settings ask for LoRA
        {f"{Q}.lora_A.weight": np.zeros((2, 16), np.float32)},  # the same once more, without the prefix
        {B: None},
    ],
    ids=lambda change: str(list(change)),
)
def test_parts_that_are_not_understood(change: dict[str, Any], base: Path, tmp_path: Path) -> None:
    tensors = {name: value for name, value in {**factors(), **change}.items() if value is not None}
    with pytest.raises(BadFile):
        toposcope.load(base, adapter=write_adapter(tmp_path / "a", tensors))


def test_an_adapter_of_another_model(base: Path, tmp_path: Path) -> None:
    named = factors().items()
    other = {name.replace("model.layers.1.self_attn", "transformer.h.1.attn"): each for name, each in named}
    with pytest.raises(MissingTensor, match="org/base"):
        toposcope.load(base, adapter=write_adapter(tmp_path / "a", other))


def test_another_base_is_a_remark(base: Path, tmp_path: Path) -> None:
    for name, remarked in (("org/base", False), ("org/other", True), (str(base), False), (None, False)):
        adapter = write_adapter(tmp_path / "a", base_model_name_or_path=name)
        with toposcope.load(base, adapter=adapter) as model:
            assert any("trained on" in remark for remark in model.remarks) == remarked


def test_what_is_outside_attention_is_counted(base: Path, tmp_path: Path) -> None:
    tensors = load_file(base / "model.safetensors")
    save_file({**tensors, "model.layers.0.mlp.up.weight": np.ones((8, 16), np.float32)}, base / "model.safetensors")
    name = "base_model.model.model.layers.0.mlp.up"
    more = {f"{name}.lora_A.weight": np.ones((2, 16)), f"{name}.lora_B.weight": np.ones((8, 2))}
    mlp = {key: value.astype(np.float32) for key, value in more.items()}
    for held, words in (({**factors(), **mlp}, "1 tensors outside"), (mlp, "nothing that is read")):
        with toposcope.load(base, adapter=write_adapter(tmp_path / "a", held)) as model:
            assert any(words in remark for remark in model.remarks)


def test_weights_that_overflow_are_refused(base: Path, tmp_path: Path) -> None:
    large = {name: np.full(value.shape, 1e30, np.float32) for name, value in factors().items()}
    model = toposcope.load(base, adapter=write_adapter(tmp_path / "a", large))
    with model, pytest.raises(BadWeights, match="q_proj"):
        _ = model.layers[1].weights


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@example(settings={"alpha_pattern": {"\x1f": None}})
@given(settings=st.dictionaries(st.sampled_from(sorted(settings.KNOWN)) | st.text(max_size=6), _JSON, max_size=4))
def test_no_setting_ends_in_anything_but_a_sentence(
    settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("any")
    base = write_llama(place / "base")
    said = ""
    try:
        toposcope.load(base, adapter=write_adapter(place / "a", **settings)).close()
    except ToposcopeError as error:
        said = str(error)
    assert said.isprintable()


# ------------------------------------------------------------------ directories
def test_a_directory_of_several_adapters(base: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_adapter(tmp_path / "both" / name)
    with pytest.raises(NotFound, match="one, two"):
        toposcope.load(base, adapter=tmp_path / "both")


def test_a_directory_without_an_adapter(base: Path, tmp_path: Path) -> None:
    for place in (base, tmp_path / "none", base / "config.json"):
        with pytest.raises(NotFound, match=r"adapter_config\.json"):
            toposcope.load(base, adapter=place)
    adapter = write_adapter(tmp_path / "empty")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(NotFound, match="adapter_model"):
        toposcope.load(base, adapter=adapter)


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b'{"a":' * 50_000])
def test_damaged_settings(content: bytes, base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    (adapter / "adapter_config.json").write_bytes(content)
    with pytest.raises(BadConfig, match=r"adapter_config\.json"):
        toposcope.load(base, adapter=adapter)
    with pytest.raises(NotFound, match="adapter"):
        open_checkpoint(adapter)


def test_links_that_leave_the_directory_are_not_followed(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    (tmp_path / "elsewhere").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (adapter / name).rename(tmp_path / "elsewhere" / name)
        (adapter / name).symlink_to(tmp_path / "elsewhere" / name)
        with pytest.raises(ToposcopeError, match="link"):
            toposcope.load(base, adapter=adapter)


def test_an_adapter_given_as_a_model_says_how_to_use_it(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora")
    for place in (adapter, adapter / "adapter_model.safetensors"):
        with pytest.raises(NotFound, match="--adapter") as refused:
            toposcope.load(place)
        assert all(each in str(refused.value) for each in ("org/base", str(adapter)))


def test_an_adapter_beside_a_model_is_mentioned(base: Path, tmp_path: Path) -> None:
    write_adapter(base)
    with toposcope.load(base) as model:
        assert any("--adapter" in remark for remark in model.remarks)
        plain = model.layers[1].heads[2].q
    with toposcope.load(base, adapter=base) as model:
        assert not np.allclose(model.layers[1].heads[2].q, plain)


def test_terminal_control_characters_are_not_obeyed(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", base_model_name_or_path="org/\x1b[31mred", tomorrow="\x1b[2J")
    with pytest.raises(BadConfig) as refused:
        toposcope.load(base, adapter=adapter)
    assert "\x1b" not in str(refused.value)
    write_adapter(tmp_path / "a", base_model_name_or_path="org/\x1b[31mred")
    with toposcope.load(base, adapter=adapter) as model:
        assert "\x1b" not in "".join(model.remarks)


def test_an_adapter_in_ggufs_format_is_no_model(tmp_path: Path) -> None:
    pairs = [gguf_pair("general.type", 8, gguf_string("adapter"))]
    tensor = gguf_tensor("blk.0.attn_q.weight.lora_a", [4, 2])
    file = tmp_path / "lora.gguf"
    file.write_bytes(gguf_bytes(pairs, [tensor], bytes(64)))
    with pytest.raises(NotFound, match="--adapter"):
        toposcope.load(file)
