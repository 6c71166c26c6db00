"""Toposcope shows what positional encoding does to the tokens of a Transformer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toposcope._version import __version__
from toposcope.core.drawing import draw_with

if TYPE_CHECKING:
    from toposcope.checkpoints import Model, load
    from toposcope.checkpoints.inspect import inspect
    from toposcope.checkpoints.live import view as from_transformers
    from toposcope.checkpoints.live_lens import view_lens as from_transformer_lens
    from toposcope.checks.model import check
    from toposcope.checks.module import check_module
    from toposcope.core.errors import ToposcopeError
    from toposcope.core.frames import frame
    from toposcope.dynamics.flow import flow
    from toposcope.lab.known import ls
    from toposcope.models.intervene import ablated, captured
    from toposcope.models.loss import loss
    from toposcope.models.what_if import encoding
    from toposcope.report.kinds import read
    from toposcope.spectra.spectrum import spectrum

_HOMES = {
    "Model": "toposcope.checkpoints",
    "ToposcopeError": "toposcope.core.errors",
    "ablated": "toposcope.models.intervene",
    "captured": "toposcope.models.intervene",
    "check": "toposcope.checks.model",
    "check_module": "toposcope.checks.module",
    "encoding": "toposcope.models.what_if",
    "flow": "toposcope.dynamics.flow",
    "frame": "toposcope.core.frames",
    "from_transformer_lens": "toposcope.checkpoints.live_lens:view_lens",
    "from_transformers": "toposcope.checkpoints.live:view",
    "inspect": "toposcope.checkpoints.inspect",
    "load": "toposcope.checkpoints",
    "loss": "toposcope.models.loss",
    "ls": "toposcope.lab.known",
    "read": "toposcope.report.kinds",
    "spectrum": "toposcope.spectra.spectrum",
}
__all__ = [
    "Model",
    "ToposcopeError",
    "__version__",
    "ablated",
    "captured",
    "check",
    "check_module",
    "encoding",
    "flow",
    "frame",
    "from_transformer_lens",
    "from_transformers",
    "inspect",
    "load",
    "loss",
    "ls",
    "read",
    "spectrum",
]

draw_with(lambda: importlib.import_module("toposcope.report.drawing"))


def __getattr__(name: str) -> Any:
    """Import the heavy parts when first used, so that `import toposcope` and `toposcope --help` cost nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
