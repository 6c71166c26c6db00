"""Toposcope shows what positional encoding does to the tokens of a Transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toposcope._version import __version__

if TYPE_CHECKING:
    from toposcope.check.module import check_module
    from toposcope.checkpoints import Model, load

__all__ = ["Model", "__version__", "check_module", "load"]

_HOMES = {
    "Model": "toposcope.checkpoints",
    "check_module": "toposcope.check.module",
    "load": "toposcope.checkpoints",
}


def __getattr__(name: str) -> Any:
    """Import the heavy parts when first used, so that `import toposcope` and `toposcope --help` cost nothing."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
