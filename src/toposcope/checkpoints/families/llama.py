"""Llama, Mistral and their mixtures of experts: the plain decoder, with or without a sliding window."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import Encoding
from toposcope.encodings.record import QueryScale

LLAMA = Table(family="llama")
MISTRAL = Table(family="mistral", defaults={"sliding_window": 4096, "num_key_value_heads": 8}, windowed=True)
MIXTRAL = Table(
    family="mixtral",
    defaults={"sliding_window": None, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    windowed=True,
    rope={"default_base": 1e6},
)
MINISTRAL = Table(family="ministral", defaults=MISTRAL.defaults)
MINISTRAL3 = Table(
    family="ministral3",
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 262_144},
    windowed=True,
    rope_unsaid={
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
)
CWM = Table(
    family="cwm",
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 8192},
    rope={"default_base": 1e6},
    rope_unsaid={
        "rope_type": "llama3",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
)


def describe_ministral(config: Config, source: TensorSource) -> ModelSpec:
    """Ministral: Mistral with a sliding window on the layers listed so, on all where none are listed."""
    draft = MINISTRAL.draft(config, source)
    reach = window_reach(draft.config)
    return draft.spec(draft.rope(), windows(draft.config, lambda index: reach is not None, reach))


def describe_ministral3(config: Config, source: TensorSource) -> ModelSpec:
    """Ministral 3: beyond the original context a query grows with the logarithm of its position, step by step."""
    draft = MINISTRAL3.draft(config, source)
    return draft.spec(growing(draft.rope(), draft.config))


def growing(encoding: Encoding, config: Config) -> Encoding:
    """The encoding with the query scale that the rotary settings ask for (`llama_4_scaling_beta`)."""
    settings = config.part("rope_scaling" if config.get("rope_scaling") else "rope_parameters")
    if settings.get("llama_4_scaling_beta") is None:
        return encoding
    period = settings.integer("original_max_position_embeddings")
    return replace(encoding, query_scale=QueryScale(settings.number("llama_4_scaling_beta"), period))


def describe_cwm(config: Config, source: TensorSource) -> ModelSpec:
    """Code World Model: Llama in which three layers of four slide, the first of each four does not."""
    draft = CWM.draft(config, source)
    return draft.spec(draft.rope(), windows(draft.config, lambda index: index % 4 != 0, window_reach(draft.config)))


FAMILIES = (
    Family("llama", ("llama",), LLAMA.describe, "Llama 1-3 and models built like it"),
    Family("mistral", ("mistral",), MISTRAL.describe, "Mistral: Llama with a sliding window"),
    Family("mixtral", ("mixtral",), MIXTRAL.describe, "Mixtral: Mistral with a mixture of experts"),
    Family("ministral", ("ministral",), describe_ministral, "Ministral: a sliding window on some layers"),
    Family("ministral3", ("ministral3",), describe_ministral3, "Ministral 3: queries grow with their position"),
    Family("cwm", ("cwm",), describe_cwm, "Code World Model: three layers of four slide"),
)
