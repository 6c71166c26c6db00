"""Tensors of attention that no description uses: refused in a module that is read, listed where none of it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import toposcope
from tests.unit.tiny import write_llama
from toposcope.checkpoints.unclaimed import is_attention
from toposcope.cli import main
from toposcope.core.errors import UnknownFamily

AT = "model.layers.1.self_attn."
FREQUENCIES = 10000.0 ** (-np.arange(2) / 2)  # of heads that are four wide


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "base")


def with_tensors(place: Path, **more: np.ndarray) -> Path:
    held = load_file(place / "model.safetensors")
    save_file(
        {**held, **{name: np.ascontiguousarray(each) for name, each in more.items()}}, place / "model.safetensors"
    )
    return place


def as_another_type(place: Path, name: str = "unheard_of") -> Path:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "model_type": name}))
    return place


@pytest.mark.parametrize("family", [None, "llama"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("sinks", (4,)),
        ("gate_proj.weight", (4, 16)),
        ("q_norm.weight", (4,)),
        ("k_norm.weight", (4,)),
        ("temperature", ()),
        ("scales", (4,)),  # of the module, not of one of its maps
        ("q_scale", (4,)),
        ("rel_pos_bias", (4, 3, 3)),
        ("q_proj.lora_A.weight", (2, 16)),
        ("bias", (16,)),  # of one dimension: no mask
        ("bias", (4, 8, 8)),  # one for each head: no mask
    ],
)
def test_an_unused_tensor_of_a_used_module_is_refused(
    base: Path, name: str, shape: tuple[int, ...], family: str | None
) -> None:
    with_tensors(base, **{f"{AT}{name}": np.ones(shape, np.float32)})
    with pytest.raises(UnknownFamily, match=name.split(".")[0]):
        toposcope.load(base, family=family)
    with pytest.raises(UnknownFamily, match=name.split(".")[0]):
        toposcope.load(as_another_type(base), family="llama")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bias", np.tril(np.ones((1, 1, 8, 8), np.uint8))),
        ("masked_bias", np.float32(-1e4).reshape(())),
        ("causal_mask", np.ones((8, 8), bool)),
        ("rotary_emb.inv_freq", FREQUENCIES.astype(np.float32)),
        ("rotary_emb.cos_cached", np.ones((8, 4), np.float32)),
        ("k_scale", np.ones(1, np.float32)),
        ("q_proj.input_scale", np.ones(1, np.float32)),
    ],
)
def test_known_buffers_change_nothing(base: Path, name: str, value: np.ndarray) -> None:
    with_tensors(base, **{f"{AT}{name}": value})
    for family in (None, "llama"):
        with toposcope.load(base, family=family) as model:
            assert not model.skipped
    with toposcope.load(as_another_type(base), family="llama") as model:
        assert not model.skipped


@pytest.mark.parametrize("name", ["model.rotary_emb.inv_freq", f"{AT}rotary_emb.inv_freq"])
def test_stored_frequencies_are_held_against_those_in_force(base: Path, name: str) -> None:
    with_tensors(as_another_type(base), **{name: FREQUENCIES.astype(np.float32)})
    toposcope.load(base, family="llama").close()
    with_tensors(base, **{name: (500000.0 ** (-np.arange(2) / 2)).astype(np.float32)})
    with pytest.raises(UnknownFamily, match="inv_freq"):
        toposcope.load(base, family="llama")


def test_an_rms_norm_has_no_bias(base: Path) -> None:
    with_tensors(as_another_type(base), **{"model.layers.0.input_layernorm.bias": np.ones(16, np.float32)})
    with pytest.raises(UnknownFamily, match=r"input_layernorm\.bias"):
        toposcope.load(base, family="llama")


def test_a_module_of_which_nothing_is_used_is_listed(base: Path) -> None:
    name = "vision_tower.layers.0.self_attn.q_proj.weight"
    with_tensors(base, **{name: np.ones((8, 8), np.float32), "vision_tower.layers.0.self_attn.sinks": np.ones(2)})
    for place in (base, as_another_type(base)):
        with toposcope.load(place, family="llama") as model:
            assert [skipped.tensors for skipped in model.skipped] == [(name,)]


def test_norms_beside_attention_are_no_part_of_it() -> None:
    parts = ["self_attn.sinks", "attn.bias", "attention.self.query.weight", "SelfAttention.q.weight", "attn_q.weight"]
    others = [
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "attention_norm.weight",
        "embed_tokens.weight",
    ]
    assert all(is_attention(f"model.layers.3.{name}") for name in parts)
    assert not any(is_attention(f"model.layers.3.{name}") for name in others)


def test_a_family_that_the_user_named_is_a_remark(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with toposcope.load(base, family="llama") as model:
        assert not model.remarks  # the type is its own
    as_another_type(base)
    found = toposcope.inspect(base, family="llama")
    (remark,) = found.provenance.subjects[0].remarks
    assert "unheard_of" in remark
    with pytest.raises(SystemExit) as ended:
        main(["check", str(base), "--family", "llama"])
    assert ended.value.code == 0
    assert remark in " ".join(capsys.readouterr().out.split())
