"""Models of several inputs, by their text part: its settings lie in `text_config`, its tensors under a prefix.

The text part is a model of a known type, and that type's adapter reads it. What belongs to images or sound is listed
as skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from toposcope.checkpoints.families import Family, choose_family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped
from toposcope.core.config import optional_numbers
from toposcope.core.errors import BadConfig, UnknownFamily
from toposcope.encodings import Encoding


def _sizes(width: int, layers: int, heads: int) -> dict[str, int]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


_QWEN2_VL = {
    **_sizes(8192, 80, 64),
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "rope_theta": 1e6,
}
# The type of the text part where the file names none.
TEXT_TYPES: Mapping[str, str] = {
    "aria": "aria_text",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "emu3": "emu3_text_model",
    "exaone4_5": "exaone4",
    "glmasr": "llama",
    "got_ocr2": "qwen2",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "musicflamingo": "qwen2",
    "qwen3_asr": "qwen3",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "nemotron_h_omni": "nemotron_h",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "pp_chart2table": "qwen2",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "shieldgemma2": "gemma3_text",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
    "audioflamingo3": "qwen2",
}
# Text parts that are read as another type, and what they mean where a file leaves it out.
ALIKE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen2_5_omni_text": (
        "qwen2",
        {**_sizes(3584, 28, 28), "num_key_value_heads": 4, "rope_theta": 1e6},
    ),
    "qwen2_5_vl_text": ("qwen2", _QWEN2_VL),
    "qwen2_vl_text": ("qwen2", _QWEN2_VL),
    "exaone4_5_text": ("exaone4", {}),
    "qwen3_omni_moe_text": ("qwen3_moe", {**_sizes(2048, 28, 28), "num_key_value_heads": 4, "rope_theta": 1e6}),
    "qwen3_vl_moe_text": (
        "qwen3_moe",
        {**_sizes(2048, 24, 16), "num_key_value_heads": 16, "rope_theta": 5e5},
    ),
    "qwen3_vl_text": ("qwen3", {**_sizes(4096, 32, 32), "rope_theta": 5e5}),
}
# The sizes that a nested configuration may leave out, by the type of the text part.
SIZES: Mapping[str, Mapping[str, int]] = {
    "cohere2": _sizes(8192, 40, 64),
    "gemma": _sizes(3072, 28, 16),
    "llama": _sizes(4096, 32, 32),
    "mistral": _sizes(4096, 32, 32),
    "qwen2": _sizes(4096, 32, 32),
    "qwen3": _sizes(4096, 32, 32),
}
# What the whole model means where its text part leaves it out, whatever the type of that.
OWN: Mapping[str, Mapping[str, Any]] = {
    "glmasr": {
        **_sizes(2048, 28, 16),
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "voxtral": {
        **_sizes(3072, 30, 32),
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e8,
    },
}
_TEXT = frozenset({"language_model", "text_model", "llm"})
_OTHER = frozenset(
    {
        *("vision_tower", "vision_model", "visual", "vision_embed_tokens", "vqmodel", "image_newline"),
        *("multi_modal_projector", "connector", "aligner", "mlp1", "perceiver", "qformer", "audio_tower"),
    }
)
_BOTH_WAYS = {
    "paligemma": "the image and the prompt are seen in both directions; here every token sees those before it",
}
_AXES = ("time", "height", "width")


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The text part, read as the model it is."""
    kind = str(config.get("model_type"))
    inner = config.part("text_config") if config.get("text_config") else config  # flat in Qwen2-VL's first files
    if inner is config and config.get("num_hidden_layers") is None:
        raise BadConfig(f"{config.where} lacks 'text_config', the settings of its text part.")
    named = inner.get("model_type")
    named = TEXT_TYPES.get(kind) if named in (None, kind) else str(named)
    if named is None or named in TEXT_TYPES:
        raise UnknownFamily(f"{config.where} does not say what its text part is; expected text_config.model_type.")
    read_as, unsaid = ALIKE.get(named, (named, SIZES.get(named, {})))
    rope = inner.part("rope_scaling" if inner.get("rope_scaling") else "rope_parameters")
    unsaid = {**unsaid, **OWN.get(kind, {})}
    unsaid = {key: value for key, value in unsaid.items() if key != "rope_theta" or rope.get("rope_theta") is None}
    inner = Config({**unsaid, **inner, "model_type": read_as}, inner.where)
    text = TextPart(source)
    spec = choose_family(inner, text).describe(inner, text)
    rest = tuple(sorted(set(source.names()) - set(text.names())))
    skipped = (Skipped("images and sound", "only the text part is read", rest),) if rest else ()
    warning = _BOTH_WAYS.get(kind)
    layers = (_placed(layer, inner, () if warning is None else (warning,)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers), skipped=spec.skipped + skipped)


class TextPart:
    """A file as if it held the tensors of the text part alone."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        names = [(name, frozenset(name.split("."))) for name in source.names()]
        self._names = frozenset(name for name, parts in names if parts & _TEXT and not parts & _OTHER)
        self._names = self._names or frozenset(name for name, parts in names if not parts & _OTHER)

    def names(self) -> Collection[str]:
        return self._names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def _placed(layer: LayerSpec, config: Config, warnings: tuple[str, ...]) -> LayerSpec:
    return replace(layer, encoding=_in_axes(layer.encoding, config), warnings=(*layer.warnings, *warnings))


def _in_axes(encoding: Encoding, config: Config) -> Encoding:
    """The rotation with the axes that `mrope_section` shares its pairs among: blocks, or every third pair."""
    settings = config.part("rope_scaling" if config.get("rope_scaling") else "rope_parameters")
    sections = optional_numbers(settings, "mrope_section", "rope_parameters")
    rotary = encoding.rotary
    if sections is None or rotary is None:
        return encoding
    pairs, counts = len(rotary.pairs_F2), [int(each) for each in sections]
    if len(counts) != len(_AXES) or sum(counts) != pairs or min(counts) < 0:
        raise BadConfig(
            f"mrope_section in {config.where} is {counts}; expected three counts of {pairs} pairs in all."
        )
    if settings.flag("mrope_interleaved", default=False):
        axis_F = np.zeros(pairs, dtype=np.intp)
        for axis in (1, 2):
            axis_F[axis : 3 * counts[axis] : 3] = axis
    else:
        axis_F = np.repeat(np.arange(len(_AXES), dtype=np.intp), counts)
    return replace(encoding, rotary=replace(rotary, axis_F=axis_F, axes=_AXES))


FAMILIES = (
    Family("multimodal", tuple(TEXT_TYPES), describe, "the text part of models that also take images or sound"),
)
