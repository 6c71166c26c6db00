"""Settings as published files write them, of encoders and of pairs of encoder and decoder.

Every type has a case in which as much is left out as its files leave out, so that the defaults count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import toposcope
from tests.architectures import build
from toposcope.core.errors import BadConfig, ToposcopeError

from .written import PAIR, SIZES, STORED, check_written

# Without heads, epsilon, padding and context: 12 or 16 heads, the type's own epsilon, 512 positions.
UNSAID = {"vocab_size": 99, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2}
SAID = {**SIZES, "num_hidden_layers": 2, "layer_norm_eps": 0.05, "type_vocab_size": 1}
ROBERTA = {**SAID, "pad_token_id": 1, "bos_token_id": 0}
PICTURE = {"image_size": 16, "patch_size": 4}
PICTURED = {**PICTURE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TURNING = {"rope_type": "default", "rope_theta": 30.0}
LISTENS = {
    "num_feat_extract_layers": 2,
    "conv_dim": [24, 24],
    "conv_kernel": [10, 3],
    "conv_stride": [160, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
HEARD = {**LISTENS, "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = {**TOWER, "vocab_size": 99, "max_position_embeddings": 64, "layer_norm_eps": 0.05}
SEEING = {**PICTURE, **TOWER, "num_patches": 16}
PAGES = {"max_xpath_tag_unit_embeddings": 20, "max_xpath_subs_unit_embeddings": 20, "tag_pad_id": 3, "subs_pad_id": 3}
XMOD = {**ROBERTA, "languages": ["en_XX", "de_DE"], "default_language": "en_XX", "adapter_reduction_factor": 2}


def _less(settings: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in keys}


TEXT: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ernie", "masked", "nothing said", UNSAID),
    ("ernie", "masked", "tasks", {**SAID, "use_task_id": True, "task_type_vocab_size": 3, "type_vocab_size": 4}),
    ("rembert", "masked", "nothing said", {**UNSAID, "hidden_size": 72}),
    ("rembert", "masked", "narrow", {**SAID, "input_embedding_size": 16, "output_embedding_size": 40}),
    ("layoutlm", "masked", "nothing said", UNSAID),
    ("layoutlm", "masked", "pages", {**SAID, "max_2d_position_embeddings": 50}),
    ("splinter", "encoder", "nothing said", UNSAID),
    ("splinter", "encoder", "eps", {**SAID, "question_token_id": 4}),
    ("roc_bert", "masked", "nothing said", {**UNSAID, "shape_vocab_size": 99, "pronunciation_vocab_size": 99}),
    (
        "roc_bert",
        "masked",
        "no shapes",
        {**SAID, "enable_shape": False, "pronunciation_embed_dim": 16, "pronunciation_vocab_size": 99},
    ),
    ("dpr", "encoder", "nothing said", UNSAID),
    ("dpr", "encoder", "projected", {**SAID, "projection_dim": 16, "_name_or_path": "a/b"}),
    ("bert-generation", "causal", "nothing said", UNSAID),
    ("bert-generation", "causal", "decodes", {**SAID, "is_decoder": True}),
    ("data2vec-text", "masked", "nothing said", UNSAID),
    ("data2vec-text", "masked", "padding 3", {**ROBERTA, "pad_token_id": 3}),
    ("xmod", "masked", "nothing said", {**UNSAID, "languages": ["en_XX"]}),
    ("xmod", "masked", "two languages", {**XMOD, "ln_before_adapter": True}),
    ("xmod", "masked", "norms before", {**XMOD, "pre_norm": True}),
    ("markuplm", "encoder", "nothing said", {**UNSAID, **PAGES, "max_depth": 5}),
    ("markuplm", "encoder", "padding 0", {**ROBERTA, **PAGES, "pad_token_id": 0, "xpath_unit_hidden_size": 8}),
    ("megatron-bert", "masked", "nothing said", UNSAID),
    ("megatron-bert", "masked", "eps", SAID),
    ("xlm-roberta-xl", "masked", "nothing said", {**UNSAID, "hidden_size": 64}),
    ("xlm-roberta-xl", "masked", "padding 0", {**ROBERTA, "pad_token_id": 0}),
    ("roberta-prelayernorm", "masked", "nothing said", UNSAID),
    ("roberta-prelayernorm", "masked", "padding 2", {**ROBERTA, "pad_token_id": 2}),
    ("mpnet", "masked", "nothing said", UNSAID),
    ("mpnet", "masked", "rows that are not used", {**ROBERTA, "relative_attention_num_buckets": 40}),
    ("ibert", "masked", "nothing said", UNSAID),
    ("ibert", "masked", "as published", {**ROBERTA, "quant_mode": False, "force_dequant": "none"}),
    ("luke", "masked", "nothing said", {**UNSAID, "entity_vocab_size": 20}),
    ("luke", "masked", "plain queries", {**ROBERTA, "entity_vocab_size": 20, "use_entity_aware_attention": False}),
    ("big_bird", "masked", "nothing said", UNSAID),
    ("big_bird", "masked", "no biases", {**SAID, "use_bias": False, "attention_type": "original_full"}),
    ("big_bird", "masked", "rescaled", {**SAID, "rescale_embeddings": True, "block_size": 16}),
    ("eurobert", "masked", "nothing said", {**UNSAID, "num_attention_heads": 6, "pad_token_id": 0}),
    (
        "eurobert",
        "masked",
        "old: base, groups",
        {**SIZES, "rope_theta": 250.0, "rope_scaling": None, "num_key_value_heads": 2, "head_dim": 16},
    ),
    ("eurobert", "masked", "biases", {**SIZES, "attention_bias": True, "rms_norm_eps": 0.05}),
]
SOUND: list[tuple[str, str, str, dict[str, Any]]] = [
    *(
        (kind, "encoder", what, {**HEARD, **options})
        for kind in ("wav2vec2", "hubert")
        for what, options in (
            ("nothing said", {"hidden_size": 48}),
            ("eps", {"num_attention_heads": 4, "layer_norm_eps": 0.05}),
            (
                "norms before",
                {
                    "num_attention_heads": 4,
                    "do_stable_layer_norm": True,
                    "feat_extract_norm": "layer",
                    "conv_bias": True,
                },
            ),
        )
    ),
    (
        "wav2vec2",
        "encoder",
        "adapters",
        {**HEARD, "num_attention_heads": 4, "do_stable_layer_norm": True, "adapter_attn_dim": 4},
    ),
    ("hubert", "encoder", "no norm of features", {**HEARD, "num_attention_heads": 4, "feat_proj_layer_norm": False}),
    ("data2vec-audio", "encoder", "nothing said", {**HEARD, "hidden_size": 48, "num_conv_pos_embeddings": 2}),
    (
        "data2vec-audio",
        "encoder",
        "a norm that is not there",
        {
            **HEARD,
            "num_attention_heads": 4,
            "do_stable_layer_norm": True,
            "conv_pos_kernel_size": 3,
            "layer_norm_eps": 0.05,
        },
    ),
]
IMAGES: list[tuple[str, str, str, dict[str, Any]]] = [
    *(
        (kind, "encoder", what, {**PICTURED, **options})
        for kind in ("vit_mae", "ijepa", "dinov2_with_registers", "dinov3_vit")
        for what, options in (
            ("nothing said", {"hidden_size": 48, "num_attention_heads": 6 if kind == "dinov3_vit" else 12}),
            ("eps", {"layer_norm_eps": 0.05}),
        )
    ),
    ("vit_mae", "encoder", "no biases", {**PICTURED, "qkv_bias": False, "decoder_num_hidden_layers": 1}),
    ("ijepa", "encoder", "no biases", {**PICTURED, "qkv_bias": False}),
    (
        "dinov2_with_registers",
        "encoder",
        "giant",
        {**PICTURED, "use_swiglu_ffn": True, "num_register_tokens": 2, "qkv_bias": False},
    ),
    (
        "dinov3_vit",
        "encoder",
        "registers, base",
        {**PICTURED, "num_register_tokens": 4, "rope_theta": 30.0, "query_bias": False, "value_bias": False},
    ),
    ("dinov3_vit", "encoder", "key biases", {**PICTURED, "key_bias": True, "use_gated_mlp": True}),
    ("sapiens2", "encoder", "nothing said", {**PICTURED, "hidden_size": 64, "num_attention_heads": 16}),
    (
        "sapiens2",
        "encoder",
        "groups in the middle",
        {
            **PICTURED,
            "num_hidden_layers": 4,
            "num_first_full_attention_layers": 1,
            "num_last_full_attention_layers": 1,
            "num_key_value_attention_heads": 2,
            "rms_norm_eps": 0.05,
        },
    ),
    (
        "sapiens2",
        "encoder",
        "groups listed",
        {**PICTURED, "num_key_value_heads_per_layer": [4, 1], "use_qk_norm": False, "rope_theta": 30.0},
    ),
    ("pixtral", "encoder", "old: base", {**PICTURED, "head_dim": 8, "rope_theta": 30.0}),
    ("pixtral", "encoder", "new: base", {**PICTURED, "rope_parameters": TURNING}),
    ("pixtral", "encoder", "nothing said", {**PICTURE, "hidden_size": 64, "num_hidden_layers": 2}),
    *(
        (
            "audio-spectrogram-transformer",
            "encoder",
            what,
            {**PICTURED, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4, **options},
        )
        for what, options in (("eps", {"layer_norm_eps": 0.05}), ("no biases", {"qkv_bias": False}))
    ),
    *(
        (kind, "encoder", what, {"text_config": {**WORDS, **text}, "vision_config": {**SEEING, **vision}})
        for kind in ("metaclip_2", "chinese_clip", "siglip", "siglip2")
        for what, text, vision in (
            ("eps", {}, {"layer_norm_eps": 0.02}),
            ("towers unlike", {"num_attention_heads": 2, "projection_size": 48}, {"hidden_size": 48}),
        )
    ),
    ("siglip_vision_model", "encoder", "eps", {**PICTURED, "layer_norm_eps": 0.05}),
    ("siglip2_vision_model", "encoder", "eps", {**PICTURED, "layer_norm_eps": 0.05, "num_patches": 16}),
]
PAIRS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("mvp", "seq2seq", "scaled", {**PAIR, "scale_embedding": True}),
    ("mvp", "seq2seq", "as published", {**PAIR, "use_prompt": False, "prompt_length": 100}),
    (
        "nllb-moe",
        "seq2seq",
        "experts",
        {**PAIR, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "scale_embedding": True},
    ),
    ("nllb-moe", "seq2seq", "padding 0", {**PAIR, "pad_token_id": 0, "num_experts": 4, "expert_capacity": 32}),
    (
        "speech_to_text",
        "encoder",
        "layers unlike",
        {**PAIR, "decoder_layers": 1, "conv_channels": 32, "input_feat_per_channel": 16, "max_target_positions": 64},
    ),
    (
        "speech_to_text",
        "encoder",
        "heads left out",
        {
            **_less(PAIR, "encoder_attention_heads", "decoder_attention_heads"),
            "pad_token_id": 0,
            "conv_channels": 32,
            "input_feat_per_channel": 16,
        },
    ),
    ("blenderbot", "seq2seq", "encoder left out", _less(PAIR, "encoder_layers")),
    *(
        (
            "switch_transformers",
            "seq2seq",
            what,
            {
                "vocab_size": 99,
                "d_model": 48,
                "d_ff": 64,
                "num_layers": 2,
                "num_decoder_layers": 1,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
                "num_experts": 2,
                "pad_token_id": 0,
                "decoder_start_token_id": 0,
                **options,
            },
        )
        for what, options in (
            ("heads left out", {"d_kv": 8}),
            (
                "buckets",
                {
                    "num_heads": 4,
                    "d_kv": 16,
                    "relative_attention_num_buckets": 8,
                    "relative_attention_max_distance": 20,
                    "layer_norm_epsilon": 0.05,
                },
            ),
        )
    ),
]


def _cases(table: list[tuple[str, str, str, dict[str, Any]]]) -> pytest.MarkDecorator:
    """The cases of a table; how weights are stored goes round among them."""
    rows = [(*row, STORED[k % len(STORED)]) for k, row in enumerate(table)]
    ids = [f"{kind}: {setting}, {stored}" for kind, _, setting, _, stored in rows]
    return pytest.mark.parametrize(("kind", "group", "setting", "options", "stored"), rows, ids=ids)


@_cases(TEXT)
def test_text(tmp_path: Path, kind: str, group: str, setting: str, options: dict[str, Any], stored: str) -> None:
    check_written(tmp_path, setting, {"model_type": kind, **options}, group, stored=stored)


@_cases(SOUND)
def test_sound(tmp_path: Path, kind: str, group: str, setting: str, options: dict[str, Any], stored: str) -> None:
    check_written(tmp_path, setting, {"model_type": kind, **options}, group, stored=stored)


@_cases(IMAGES)
def test_images(tmp_path: Path, kind: str, group: str, setting: str, options: dict[str, Any], stored: str) -> None:
    check_written(tmp_path, setting, {"model_type": kind, **options}, group, stored=stored)


@_cases(PAIRS)
def test_pairs(tmp_path: Path, kind: str, group: str, setting: str, options: dict[str, Any], stored: str) -> None:
    check_written(tmp_path, setting, {"model_type": kind, **options}, group, stored=stored)


def test_prompts_are_refused(tmp_path: Path) -> None:
    settings = {"model_type": "mvp", **PAIR, "use_prompt": True, "prompt_length": 3, "prompt_mid_dim": 8}
    with pytest.raises(BadConfig, match="use_prompt"):
        check_written(tmp_path, "prompts", settings, "seq2seq")


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_a_stored_table_of_another_width_is_refused(tmp_path: Path, kind: str) -> None:
    build(kind, "seq2seq").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {**load_file(file), "model.encoder.embed_positions.weight": torch.zeros(9, 5)}
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ToposcopeError), toposcope.load(tmp_path) as ours:
        assert ours.layers[0].weights
