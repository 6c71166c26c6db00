"""Inputs for a copy: random texts whose first tokens differ; images or sound where it asks for those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.shrink import SPECIAL, VOCABULARY

TEXTS, LENGTH = 6, 23
SENSES = (
    *("text", "pixels", "text pixels", "sound", "frames", "frames text", "spectrum", "spectrum text"),
    *("patches", "text patches", "video", "spectrogram"),
)


def senses(model: Any) -> Iterator[str]:
    """What a model may be given, the likeliest first; text before all else, since that is what is analysed."""
    main = getattr(model, "main_input_name", "input_ids")
    first = {"pixel_values": ("pixels", "text pixels"), "input_values": ("sound",), "input_features": ("frames",)}
    begin = first.get(main, ())
    yield from begin
    yield from (each for each in SENSES if each not in begin)


def inputs(model: Any, sense: str, texts: int, length: int, seed: int) -> dict[str, Any]:
    """Random inputs of some senses; an image or a sound has the length it has."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    dtype = next((each.dtype for each in model.parameters()), torch.float32)
    config = model.config

    def noise(*shape: int) -> Any:
        return torch.randn((texts, *shape), generator=generator).to(dtype)

    given: dict[str, Any] = {}
    for each in sense.split():
        if each == "text":
            given["input_ids"] = _ids(model, texts, length, generator)
        elif each == "pixels":
            seen = getattr(config, "vision_config", None) or config
            side = _side(seen)
            given["pixel_values"] = noise(int(getattr(seen, "num_channels", 3) or 3), side, side)
        elif each == "patches":  # of images of many sizes, cut already
            seen = getattr(config, "vision_config", None) or config
            given["pixel_values"] = noise(16, int(seen.num_channels) * int(seen.patch_size) ** 2)
            given["pixel_attention_mask"] = torch.ones((texts, 16), dtype=torch.int64)
            given["spatial_shapes"] = torch.full((texts, 2), 4)
        elif each == "video":
            name = getattr(model, "main_input_name", "pixel_values")
            frames = int(getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or 4)
            given[name] = noise(frames, 3, int(_side(config)), int(_side(config)))
        elif each == "spectrogram":
            given["input_values"] = noise(int(config.max_length), int(config.num_mel_bins))
        elif each == "sound":
            given["input_values"] = noise(4000)
        else:
            bins = next((getattr(config, name) for name in _BINS if getattr(config, name, None)), 80)
            given["input_features"] = noise(128, bins) if each == "frames" else noise(bins, 128)
    if getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = _ids(model, texts, length, generator)
    if hasattr(config, "use_cache"):
        given["use_cache"] = False
    return given


def _side(config: Any) -> int:
    side = getattr(config, "image_size", None) or getattr(config, "crop_size", None)
    if not isinstance(side, int):
        raise Refused("it reads neither text nor images of one size")
    return side


_BINS = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins", "max_source_positions")


def token_table(model: Any) -> Any:
    """The module that holds the token embedding, or None."""
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def _ids(model: Any, texts: int, length: int, generator: Any) -> Any:
    """Token numbers. A model with several codebooks reads one row for each."""
    import torch

    text = getattr(model.config, "text_config", model.config)
    size = getattr(token_table(model), "num_embeddings", None) or getattr(text, "vocab_size", None) or VOCABULARY
    if size < SPECIAL + texts:
        raise Refused(f"its vocabulary has {size} tokens")
    drawn = torch.randint(SPECIAL, size, (texts, length), generator=generator)
    drawn[:, 0] = torch.randperm(size - SPECIAL, generator=generator)[:texts] + SPECIAL
    books = getattr(model.config, "num_codebooks", None)
    return (
        drawn.repeat_interleave(books, 0)
        if isinstance(books, int) and "musicgen" in model.config.model_type
        else drawn
    )
