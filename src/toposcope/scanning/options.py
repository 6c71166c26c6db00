"""What was asked of every layer, and what its record therefore depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from toposcope._version import __version__
from toposcope.checkpoints.identity import fingerprint as hashed
from toposcope.checkpoints.identity import identity
from toposcope.checkpoints.view import Model
from toposcope.core.fields import plain
from toposcope.encodings import Encoding, parse
from toposcope.spectra.of_model import Encodings, built

DEFAULT_CONTEXT = 4096
OWN = "own"  # the name of the encoding that the model has


@dataclass(frozen=True)
class ScanOptions:
    """The options of a scan that decide what a layer's record says."""

    context: int = DEFAULT_CONTEXT
    encoding: tuple[str, ...] = ()
    layer_sums: bool | None = None
    random_baseline: bool = False
    seed: int = 0  # of the random baseline; nothing else in a record is drawn

    @property
    def encodings(self) -> Encodings:
        """The encodings to look under: the model's own, then the others."""
        return [(OWN, None), *((name, parse(name)) for name in self.encoding)]


def fingerprint(model: Model, options: ScanOptions) -> dict[str, Any]:
    """What records depend on beside the weights: a journal that says something else is not continued.

    The weights behind a record stand in its own entry.
    """
    return {
        "work": "scan",
        "toposcope": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        **identity(model, options.context),
        **plain(options),
        "encodings": hashed(_others(model, options), options.context),
        "seed": options.seed if options.random_baseline else None,
    }


def _others(model: Model, options: ScanOptions) -> list[Encoding]:
    """The encodings asked for, in every size that the layers have."""
    sizes = {(each.spec.width, each.spec.heads, each.spec.head_dim, each.spec.causal): each for each in model.layers}
    specs = [spec for _, spec in options.encodings if spec is not None]
    return [built(spec, layer, options.context) for spec in specs for layer in sizes.values()]
