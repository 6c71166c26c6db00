"""Which model types there are: transformers' own lists, by what the models are for."""

from __future__ import annotations

from functools import cache

GROUPS = {
    "causal": "causal language models",
    "masked": "masked language models",
    "encoder": "encoders of text, images, sound",
    "seq2seq": "sequence to sequence",
    "image_text": "image and text (the text stack, given text)",
}

# transformers has no list of encoders; these are the ones that people embed texts, images and sound with.
_ENCODERS = [
    "dinov3_vit",
    "dinov2",
    "dinov2_with_registers",
    "siglip",
    "siglip2",
    "siglip_vision_model",
    "siglip2_vision_model",
    "clip",
    "clip_text_model",
    "clip_vision_model",
    "vit",
    "vit_mae",
    "deit",
    "beit",
    "ijepa",
    "wav2vec2",
    "hubert",
    "wavlm",
    "wav2vec2-bert",
    "data2vec-audio",
    "whisper",
    "audio-spectrogram-transformer",
    "videomae",
    "sam",
    "pixtral",
    "mlcd_vision_model",
    "aimv2_vision_model",
    "chinese_clip",
    "metaclip_2",
    "gemma3n_vision",
    "splinter",
    "dpr",
    "lilt",
    "layoutlmv3",
    "markuplm",
    "parakeet_encoder",
    "moonshine",
    "timesfm",
    "decision_transformer",
    "imagegpt",
    "gte",
    "jina_embeddings_v3",
    "esm",
    "openai_privacy_filter",
    "speech_to_text",
    "vjepa2",
    "sapiens2",
]


@cache
def classes(group: str) -> dict[str, str]:
    """For each model type of a group the name of its class; a class that an earlier list has is left out."""
    if group == "encoder":
        return _listed(group)
    taken: set[tuple[str, str]] = set()
    for each in ("causal", "masked", "image_text", "seq2seq"):
        named = {kind: name for kind, name in _listed(each).items() if (kind, name) not in taken}
        if each == group:
            return named
        taken |= set(named.items())
    raise KeyError(f"unknown group '{group}'; known are {', '.join(GROUPS)}")


def types(group: str) -> list[str]:
    """The model types of a group, sorted."""
    return sorted(classes(group))


def _listed(group: str) -> dict[str, str]:
    from transformers.models.auto import modeling_auto as auto

    lists = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "image_text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        "encoder": {kind: auto.MODEL_MAPPING_NAMES.get(kind) for kind in _ENCODERS},
    }
    named = ((kind, name[0] if isinstance(name, tuple) else name) for kind, name in lists[group].items())
    return {kind: name for kind, name in named if name}
