"""Llama, Mistral and their mixtures of experts: the plain decoder, with or without a sliding window."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec

LLAMA = Table(family="llama")
MISTRAL = Table(family="mistral", defaults={"sliding_window": 4096, "num_key_value_heads": 8}, windowed=True)
MIXTRAL = Table(
    family="mixtral",
    defaults={"sliding_window": None, "num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    windowed=True,
    rope={"default_base": 1e6},
)
MINISTRAL = Table(family="ministral", defaults=MISTRAL.defaults)


def describe_ministral(config: Config, source: TensorSource) -> ModelSpec:
    """Ministral: Mistral with a sliding window on the layers listed so, on all where none are listed."""
    draft = MINISTRAL.draft(config, source)
    reach = window_reach(draft.config)
    return draft.spec(draft.rope(), windows(draft.config, lambda index: reach is not None, reach))


FAMILIES = (
    Family("llama", ("llama",), LLAMA.describe, "Llama 1-3 and models built like it"),
    Family("mistral", ("mistral",), MISTRAL.describe, "Mistral: Llama with a sliding window"),
    Family("mixtral", ("mixtral",), MIXTRAL.describe, "Mixtral: Mistral with a mixture of experts"),
    Family("ministral", ("ministral",), describe_ministral, "Ministral: a sliding window on some layers"),
)
