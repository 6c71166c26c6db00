"""Toposcope shows what positional encoding does to the tokens of a Transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toposcope._version import __version__

if TYPE_CHECKING:
    from toposcope.checkpoints import Model, load
    from toposcope.checkpoints.live import view as from_transformers
    from toposcope.checkpoints.live_lens import view_lens as from_transformer_lens
    from toposcope.checks.module import check_module
    from toposcope.core.frames import frame
    from toposcope.models.intervene import ablated, captured
    from toposcope.models.what_if import encoding

__all__ = [
    "Model",
    "__version__",
    "ablated",
    "captured",
    "check_module",
    "encoding",
    "frame",
    "from_transformer_lens",
    "from_transformers",
    "load",
]

_HOMES = {
    "Model": ("toposcope.checkpoints", "Model"),
    "ablated": ("toposcope.models.intervene", "ablated"),
    "captured": ("toposcope.models.intervene", "captured"),
    "check_module": ("toposcope.checks.module", "check_module"),
    "encoding": ("toposcope.models.what_if", "encoding"),
    "frame": ("toposcope.core.frames", "frame"),
    "from_transformer_lens": ("toposcope.checkpoints.live_lens", "view_lens"),
    "from_transformers": ("toposcope.checkpoints.live", "view"),
    "load": ("toposcope.checkpoints", "load"),
}


def __getattr__(name: str) -> Any:
    """Import the heavy parts when first used, so that `import toposcope` and `toposcope --help` cost nothing."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
