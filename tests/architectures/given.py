"""What a tiny model can be called with: random ids, and pixels, sound or features where its type asks for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.architectures.shrink import VOCABULARY

SIDE, PATCH = 16, 4  # of an image and of its patches
_TWO_TOWERS = frozenset(["siglip", "siglip2", "clip", "chinese_clip", "metaclip_2"])
_BY_FRAME = frozenset(["wav2vec2-bert", "speech_to_text", "parakeet_encoder"])  # features come as (time, channels)


def inputs(model: nn.Module, batch: int, length: int, seed: int) -> dict[str, Any]:
    """Arguments for the model's forward; texts have `length` ids, of which the first differ from one another."""
    dice = torch.Generator().manual_seed(seed)
    config, kind = model.config, model.config.model_type
    main = getattr(model, "main_input_name", "input_ids")

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn((batch, *shape), generator=dice)

    ids = torch.randint(5, VOCABULARY - 9, (batch, length), generator=dice)
    ids[:, 0] = torch.randperm(VOCABULARY - 19, generator=dice)[:batch] + 5
    codebooks = getattr(config, "num_codebooks", None) if kind.startswith("musicgen") else None
    if codebooks:
        ids = ids.repeat_interleave(codebooks, 0)
    given: dict[str, Any] = {}
    if main == "pixel_values" or kind in _TWO_TOWERS:
        given |= _pixels(kind, noise, batch)
    elif main == "pixel_values_videos":
        given["pixel_values_videos"] = noise(getattr(config, "frames_per_clip", 4), 3, SIDE, SIDE)
    elif main == "input_values":
        spectrogram = kind == "audio-spectrogram-transformer"
        given["input_values"] = noise(config.max_length, config.num_mel_bins) if spectrogram else noise(4000)
    elif main == "input_features":
        mels = getattr(config, "num_mel_bins", 80)
        if kind in _BY_FRAME:
            mels = getattr(config, "input_feat_per_channel", None) or getattr(
                config, "feature_projection_input_dim", mels
            )
            given["input_features"] = noise(128, mels)
        else:
            given["input_features"] = noise(mels, 128)
    if not given or kind in _TWO_TOWERS or hasattr(config, "text_config"):
        given["input_ids"] = ids
    if getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = ids
    if kind == "paligemma":
        given["position_ids"] = torch.arange(length)[None].expand(batch, -1)
    if kind in ("instructblip", "instructblipvideo"):
        given["qformer_input_ids"] = ids
    if kind == "udop":
        given["bbox"] = torch.randint(0, 50, (batch, length, 4), generator=dice)
    if hasattr(config, "use_cache"):
        given["use_cache"] = False
    return given


def _pixels(kind: str, noise: Any, batch: int) -> dict[str, Any]:
    if kind.startswith("siglip2"):
        many = (SIDE // PATCH) ** 2
        return {
            "pixel_values": noise(many, 3 * PATCH**2),
            "pixel_attention_mask": torch.ones((batch, many), dtype=torch.int64),
            "spatial_shapes": torch.full((batch, 2), SIDE // PATCH),
        }
    return {"pixel_values": noise(16, 3, SIDE, SIDE) if kind == "videomae" else noise(3, SIDE, SIDE)}
