"""What was asked of every layer, and what its record therefore depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy

from toposcope._version import __version__
from toposcope.checkpoints.identity import fingerprint, identity
from toposcope.checkpoints.view import Model
from toposcope.encodings import Encoding, parse
from toposcope.spectra.of_model import Encodings, built

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Asked:
    """The options of a scan that decide what a layer's record says; the names are those of the command line."""

    null: bool = False
    seed: int = 0  # of the twins; nothing else in a record is drawn
    layer_sums: bool | None = None
    context: int = DEFAULT_CONTEXT
    what_if: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Asked:
        return cls(**{**values, "what_if": tuple(values["what_if"])})

    @property
    def encodings(self) -> Encodings:
        """The encodings to look under: the model's own, then the others."""
        return [("own", None), *((name, parse(name)) for name in self.what_if)]


def determines(model: Model, asked: Asked) -> dict[str, Any]:
    """What records depend on beside the weights: a journal that says something else is not continued.

    The weights behind a record stand in its own entry.
    """
    return {
        "work": "scan",
        "toposcope": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        **identity(model, asked.context),
        **asked.as_dict(),
        "encodings": fingerprint(_others(model, asked), asked.context),
        "seed": asked.seed if asked.null else None,
    }


def _others(model: Model, asked: Asked) -> list[Encoding]:
    """The encodings asked for, in every size that the layers have."""
    sizes = {(each.spec.width, each.spec.heads, each.spec.head_dim, each.spec.causal): each for each in model.layers}
    specs = [spec for _, spec in asked.encodings if spec is not None]
    return [built(spec, layer, asked.context) for spec in specs for layer in sizes.values()]
