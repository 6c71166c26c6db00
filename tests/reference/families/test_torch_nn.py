"""PyTorch's own modules: attention recomputed from the state dict equals nn.MultiheadAttention on the same input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import toposcope
from toposcope.checkpoints.attention import attention, output, project
from toposcope.core.errors import BadConfig, MissingTensor, UnknownFamily

from .harness import array, check_output, compare, far_from_uniform, randomise

WIDTH, HEADS, LENGTH = 32, 4, 10


def save(model: nn.Module | dict[str, torch.Tensor], saved: Path, **config: Any) -> Path:
    """The state dict as torch.save writes it, with a config.json beside it if there is anything to say."""
    saved.mkdir(exist_ok=True)
    torch.save(model.state_dict() if isinstance(model, nn.Module) else model, saved / "model.pt")
    if config:
        (saved / "config.json").write_text(json.dumps(config))
    return saved / "model.pt"


def tokens(seed: int, length: int = LENGTH, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(1, length, width, generator=torch.Generator().manual_seed(seed))


def encoder(**options: Any) -> nn.TransformerEncoder:
    settings = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True, **options}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **settings)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def streams(layers: nn.ModuleList) -> list[list[torch.Tensor]]:
    """The residual stream that enters each layer."""
    seen: list[list[torch.Tensor]] = [[] for _ in layers]
    for layer, calls in zip(layers, seen, strict=True):
        layer.register_forward_pre_hook(lambda m, args, calls=calls: calls.append(args[0].detach()))
    return seen


def run(module: nn.MultiheadAttention, x: torch.Tensor, source: torch.Tensor, causal: bool) -> tuple[Any, Any]:
    """What the module itself computes: its output and its probabilities, by head."""
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
    with torch.no_grad():
        return module(x, source, source, attn_mask=mask, need_weights=True, average_attn_weights=False)


def check_layer(
    setting: str, layer: toposcope.Layer, block: nn.Module, x: torch.Tensor, norm_first: bool, causal: bool
) -> torch.Tensor:
    """Self-attention of one layer: probabilities, what it adds, and the norm; returns the stream behind it."""
    y = block.norm1(x) if norm_first else x
    added, theirs = run(block.self_attn, y, y, causal)
    assert far_from_uniform(array(theirs[0]))
    compare("torch", setting, attention(layer, array(x[0])), array(theirs[0]))
    check_output(layer, array(x[0]), array(added[0]))
    assert layer.spec.placement == ("pre" if norm_first else "post")
    behind = x + added if norm_first else block.norm1(x + added)
    norm = layer.weights.residual_norm
    if norm is not None:
        np.testing.assert_allclose(norm(array(x + added)[0]), array(behind)[0], atol=2e-5)
    return behind


def check_key_bias(layer: toposcope.Layer, module: nn.MultiheadAttention) -> None:
    """The bias of keys adds the same to all logits of a query, so no probability shows it: compare it itself."""
    assert layer.weights.k_bias_GR is not None
    theirs = array(module.in_proj_bias)[WIDTH : 2 * WIDTH]
    np.testing.assert_array_equal(layer.weights.k_bias_GR.reshape(-1), theirs)


@pytest.mark.parametrize(
    ("setting", "options", "config"),
    [
        ("encoder", {}, {}),
        ("encoder, norm_first", {"norm_first": True}, {"norm_first": True}),
        ("encoder without biases", {"bias": False}, {}),
        ("encoder, large norm eps", {"layer_norm_eps": 0.1}, {"layer_norm_eps": 0.1}),
        ("encoder, causal by config", {}, {"causal": True}),
    ],
)
def test_encoder(saved: Path, setting: str, options: dict[str, Any], config: dict[str, Any]) -> None:
    model = encoder(**options)
    randomise(model)
    file = save(model, saved, **config)
    seen = streams(model.layers)
    with torch.no_grad():
        model(tokens(1))
    with toposcope.load(file, num_heads=HEADS) as ours:
        assert ours.family == "torch"
        assert [layer.spec.stack for layer in ours.layers] == ["encoder"] * 3
        assert not ours.skipped
        for layer, block, calls in zip(ours.layers, model.layers, seen, strict=True):
            check_layer(setting, layer, block, calls[0], "norm_first" in options, "causal" in config)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_and_decoder(saved: Path, norm_first: bool) -> None:
    setting = "nn.Transformer, norm_first" if norm_first else "nn.Transformer"
    options: dict[str, Any] = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    with_warning = pytest.warns(UserWarning, match="nested_tensor") if norm_first else None
    if with_warning is None:
        model = nn.Transformer(WIDTH, HEADS, 2, 2, **options)
    else:
        with with_warning:
            model = nn.Transformer(WIDTH, HEADS, 2, 2, **options)
    randomise(model)
    file = save(model, saved, model_type="nn.Transformer", nhead=HEADS, norm_first=norm_first)
    into_encoder, into_decoder = streams(model.encoder.layers), streams(model.decoder.layers)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    with torch.no_grad():
        memory = model.encoder(tokens(1, 7))
        model.decoder(tokens(2), memory, tgt_mask=mask)
    with toposcope.load(file) as ours:
        assert [(layer.spec.stack, layer.spec.index, layer.spec.kind) for layer in ours.layers] == [
            ("encoder", 0, "self"),
            ("encoder", 1, "self"),
            ("decoder", 0, "self"),
            ("decoder", 0, "cross"),
            ("decoder", 1, "self"),
            ("decoder", 1, "cross"),
        ]
        assert all(not layer.spec.warnings for layer in ours.layers)
        for layer, block, calls in zip(ours.layers[:2], model.encoder.layers, into_encoder, strict=True):
            check_layer(f"{setting}: encoder", layer, block, calls[0], norm_first, False)
        for i, (block, calls) in enumerate(zip(model.decoder.layers, into_decoder, strict=True)):
            x = check_layer(f"{setting}: decoder", ours.layers[2 + 2 * i], block, calls[0], norm_first, True)
            cross = ours.layers[3 + 2 * i]
            y = block.norm2(x) if norm_first else x
            added, theirs = run(block.multihead_attn, y, memory, False)
            mine = attention(cross, array(x[0]), array(memory[0]))
            compare("torch", f"{setting}: cross", mine, array(theirs[0]))
            _, _, values = project(cross, array(x[0]), array(memory[0]))
            np.testing.assert_allclose(output(cross, mine, values), array(added[0]), atol=1e-4)
            norm = cross.weights.input_norm if norm_first else cross.weights.residual_norm
            assert norm is not None
            np.testing.assert_allclose(norm.gain, array(block.norm2.weight))


def test_decoder_alone(saved: Path) -> None:
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 48, 0.0, batch_first=True)
    model = nn.TransformerDecoder(layer, 2)
    randomise(model)
    seen = streams(model.layers)
    with torch.no_grad():
        model(tokens(1), tokens(2), tgt_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH))
    with toposcope.load(save(model, saved), num_heads=HEADS) as ours:
        assert [layer.spec.stack for layer in ours.layers] == ["decoder"] * 4
        for i, block in enumerate(model.layers):
            check_layer("decoder alone", ours.layers[2 * i], block, seen[i][0], False, True)


@pytest.mark.parametrize("prefix", ["", "net.backbone.", "model.transformer_encoder."])
def test_prefixes_and_many_layers(saved: Path, prefix: str) -> None:
    """Layers are put in the order of their numbers, not of their names: 10 comes after 9."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    randomise(model)
    file = save({f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}, saved)
    with toposcope.load(file, num_heads=HEADS) as ours:
        assert [layer.spec.index for layer in ours.layers] == list(range(12))
        for mine, block in zip(ours.layers, model.layers, strict=True):
            check_layer("twelve layers", mine, block, tokens(4), False, False)


def test_one_layer_alone(saved: Path) -> None:
    model = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, 0.0, batch_first=True)
    randomise(model)
    with toposcope.load(save(model, saved), num_heads=HEADS) as ours:
        (layer,) = ours.layers
        check_layer("one layer", layer, model, tokens(5), False, False)
        check_key_bias(layer, model.self_attn)


@pytest.mark.parametrize("name", ["", "attn.", "blocks.0.attention."])
def test_bare_attention(saved: Path, name: str) -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    randomise(module)
    file = save({f"{name}{key}": tensor for key, tensor in module.state_dict().items()}, saved)
    x = tokens(6)
    added, theirs = run(module, x, x, False)
    with toposcope.load(file, num_heads=HEADS) as ours:
        (layer,) = ours.layers
        compare("torch", "nn.MultiheadAttention", attention(layer, array(x[0])), array(theirs[0]))
        check_output(layer, array(x[0]), array(added[0]))
        assert layer.spec.placement == "none"
        assert all(each in layer.spec.warnings[0] for each in ("norms", "mask"))


@pytest.mark.parametrize("bias", [True, False])
def test_keys_of_another_width(saved: Path, bias: bool) -> None:
    """With kdim and vdim the three weights are apart while their biases stand in one tensor."""
    module = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, kdim=20, vdim=20, batch_first=True)
    randomise(module)
    x, source = tokens(7), tokens(8, 6, 20)
    added, theirs = run(module, x, source, False)
    with toposcope.load(save(module, saved), num_heads=HEADS) as ours:
        (layer,) = ours.layers
        assert layer.spec.kind == "cross"
        mine = attention(layer, array(x[0]), array(source[0]))
        setting = "kdim = vdim" if bias else "kdim = vdim without biases"
        compare("torch", setting, mine, array(theirs[0]))
        _, _, values = project(layer, array(x[0]), array(source[0]))
        np.testing.assert_allclose(output(layer, mine, values), array(added[0]), atol=1e-4)
        if bias:
            check_key_bias(layer, module)


def test_keys_and_values_of_different_widths_are_skipped(saved: Path) -> None:
    model = nn.ModuleDict(
        {
            "odd": nn.MultiheadAttention(WIDTH, HEADS, kdim=20, vdim=24),
            "plain": nn.MultiheadAttention(WIDTH, HEADS),
        }
    )
    with toposcope.load(save(model, saved), num_heads=HEADS) as ours:
        assert len(ours.layers) == 1
        assert any(entry.what == "odd" and "width 20" in entry.why for entry in ours.skipped)


def test_added_keys_are_said_to_be_left_out(saved: Path) -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    with toposcope.load(save(module, saved), num_heads=HEADS) as ours:
        assert any("bias_k" in warning for warning in ours.layers[0].spec.warnings)
        assert any(entry.tensors == ("bias_k", "bias_v") for entry in ours.skipped)


def sinusoid(length: int) -> torch.Tensor:
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
    return torch.stack([angle.sin(), angle.cos()], dim=2).reshape(length, WIDTH)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pos_encoder.pe", (50, 1, WIDTH)),
        ("embed.pos_encoding", (1, 50, WIDTH)),
        ("positional_encoding.pe", (50, WIDTH)),
        ("position_embedding.weight", (50, WIDTH)),
        ("position_embeddings.weight", (50, WIDTH)),
        ("pos_embed", (1, 50, WIDTH)),
        ("net.positional_embedding", (50, WIDTH)),
    ],
)
def test_position_table(saved: Path, name: str, shape: tuple[int, ...]) -> None:
    state = {f"net.{key}": tensor for key, tensor in encoder().state_dict().items()}
    state |= {name: sinusoid(50).reshape(shape), "token_embedding.weight": torch.randn(70, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        encoding = ours.layers[0].encoding
        assert encoding.input is not None
        np.testing.assert_allclose(encoding.input.vectors(np.arange(50)), array(sinusoid(50)), atol=1e-6)
        assert any(name in note for note in encoding.notes)
        assert ours.spec.context == 50
        assert ours.spec.embedding == "token_embedding.weight"


@pytest.mark.parametrize(
    "name", ["position_wise.linear.weight", "postnet.weight", "layers.0.pos_ffn.w_1.weight", "composer.pe_net.weight"]
)
def test_other_tensors_are_no_position_table(saved: Path, name: str) -> None:
    state = {**encoder().state_dict(), name: torch.randn(50, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert ours.layers[0].encoding.name == "none"


def test_two_tables_go_by_their_names(saved: Path) -> None:
    model = nn.Transformer(WIDTH, HEADS, 1, 1, 48, batch_first=True)
    state = {**model.state_dict(), "src_pos.weight": torch.zeros(40, WIDTH), "tgt_pos.weight": torch.ones(30, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        tables = [layer.encoding.input for layer in ours.layers]
        assert [None if table is None else table.length for table in tables] == [40, 30, None]


def test_two_tables_that_cannot_be_told_apart_are_named(saved: Path) -> None:
    state = {**encoder().state_dict(), "pos_embed": torch.zeros(1, 9, WIDTH), "pe": torch.zeros(9, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert ours.layers[0].encoding.name == "none"
        assert any(entry.tensors == ("pe", "pos_embed") for entry in ours.skipped)
    with toposcope.load(save(state, saved, position_table="pe"), num_heads=HEADS) as ours:
        assert ours.layers[0].encoding.input is not None
    with pytest.raises(MissingTensor, match="'absent'"):
        toposcope.load(save(state, saved, position_table="absent"), num_heads=HEADS)


def test_what_is_assumed_is_said(saved: Path) -> None:
    with toposcope.load(save(encoder(), saved), num_heads=HEADS) as ours:
        said = " ".join(ours.layers[0].spec.warnings)
        assert "norm_first=False" in said
        assert "a mask" in said


def test_the_number_of_heads_is_never_guessed(saved: Path) -> None:
    file = save(encoder(), saved)
    with pytest.raises(BadConfig, match="--num-heads") as caught:
        toposcope.load(file)
    assert "32" in str(caught.value)
    with pytest.raises(BadConfig, match="5 heads"):
        toposcope.load(file, num_heads=5)


def test_several_stacks_keep_their_names(saved: Path) -> None:
    state = {
        f"{side}.{name}": tensor for side in ("left", "right") for name, tensor in encoder().state_dict().items()
    }
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert [layer.spec.stack for layer in ours.layers] == ["left.layers"] * 3 + ["right.layers"] * 3


def test_safetensors_hold_state_dicts_too(saved: Path) -> None:
    model = encoder()
    randomise(model)
    saved.mkdir()
    save_file(model.state_dict(), saved / "model.safetensors")
    with toposcope.load(saved, num_heads=HEADS) as ours:
        check_layer("safetensors", ours.layers[1], model.layers[1], tokens(9), False, False)


def test_a_file_without_attention_is_refused(saved: Path) -> None:
    with pytest.raises(UnknownFamily, match=r"nn\.MultiheadAttention"):
        toposcope.load(save(nn.Linear(4, 4), saved), family="torch")


@pytest.mark.parametrize(
    ("stored", "first", "scale"),
    [
        (lambda rows: rows, 0, 1.0),
        (lambda rows: torch.cat([torch.zeros(1, WIDTH), rows]), 1, 1.0),
        (lambda rows: rows * WIDTH**0.5, 0, WIDTH**0.5),
        (lambda rows: rows / rows.norm(dim=1, keepdim=True), 0, (WIDTH / 2) ** -0.5),
    ],
)
def test_a_stored_sinusoid_is_known_by_its_numbers(
    saved: Path, stored: Callable[[torch.Tensor], torch.Tensor], first: int, scale: float
) -> None:
    table = stored(sinusoid(50))
    state = {**encoder().state_dict(), "pos_encoder.pe": table}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        encoding = ours.layers[0].encoding
        assert encoding.name == "sinusoidal"
        assert encoding.parameters["base"] == 10000.0
        assert encoding.parameters["layout"] == "interleaved"
        assert encoding.parameters["scale"] == pytest.approx(scale, rel=1e-5)
        assert encoding.input is not None
        np.testing.assert_array_equal(encoding.input.vectors(np.arange(50)), array(table[first:]).astype(float))
        assert ours.spec.context == 50
        assert not ours.skipped


def test_a_learned_table_stays_one(saved: Path) -> None:
    state = {**encoder().state_dict(), "pos_encoder.pe": torch.randn(50, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert ours.layers[0].encoding.name == "learned"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.0.self_attn.rel_pos_bias", (HEADS, 9, 9)),
        ("layers.1.self_attn.relative_position_bias_table", (81, HEADS)),
        ("layers.0.self_attn.rotary_emb.inv_freq", (4,)),
        ("rotary_emb.inv_freq", (4,)),
        ("alibi_slopes", (HEADS,)),
        ("layers.0.self_attn.slopes", (HEADS, 1, 1)),
        ("rel_embeddings.weight", (64, 8)),
        ("pos_emb", (3, 3, WIDTH)),
        ("freqs_cis", (50, 4)),
        ("pos_proj.weight", (WIDTH, 2)),
    ],
)
def test_what_speaks_of_position_and_is_not_understood_is_named(
    saved: Path, name: str, shape: tuple[int, ...]
) -> None:
    state = {**encoder().state_dict(), name: torch.randn(shape)}
    for more in ({}, {"pos_encoder.pe": sinusoid(50)}):
        with toposcope.load(save({**state, **more}, saved), num_heads=HEADS) as ours:
            assert [entry.tensors for entry in ours.skipped if name in entry.tensors] == [(name,)]
            assert ours.layers[0].encoding.name == ("sinusoidal" if more else "none")
            assert any("position" in warning for warning in ours.layers[0].spec.warnings)
            found = {finding.id: finding.status for finding in toposcope.check(ours).findings}
            assert found["position-unknown"] == "warning"
            assert found.get("no-position") is None


@pytest.mark.parametrize("name", ["spatial_encoder.weight", "centrality_encoder.weight", "edge_embedding.weight"])
def test_what_may_carry_position_is_named_where_none_was_found(saved: Path, name: str) -> None:
    state = {**encoder().state_dict(), name: torch.randn(40, HEADS), "token_embedding.weight": torch.randn(70, WIDTH)}
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert [entry.tensors for entry in ours.skipped] == [(name,)]
        assert "no-position" not in {finding.id for finding in toposcope.check(ours).findings}
    state["pos_encoder.pe"] = sinusoid(50)
    with toposcope.load(save(state, saved), num_heads=HEADS) as ours:
        assert not ours.skipped


def test_without_anything_the_fault_stays(saved: Path) -> None:
    with toposcope.load(save(encoder(), saved), num_heads=HEADS) as ours:
        assert {finding.id: finding.status for finding in toposcope.check(ours).findings}["no-position"] == "fault"
        assert not ours.skipped


@pytest.mark.parametrize("name", ["layers.0.self_attn.gate.weight", "layers.0.self_attn.sinks"])
def test_other_parts_of_attention_are_refused(saved: Path, name: str) -> None:
    state = {**encoder().state_dict(), name: torch.randn(HEADS)}
    with pytest.raises(UnknownFamily, match=name.split(".")[3]):
        toposcope.load(save(state, saved), num_heads=HEADS)
