"""Toposcope shows what positional encoding does to the tokens of a Transformer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toposcope._version import __version__
from toposcope.core.drawing import draw_with
from toposcope.models.laboratory import run_small_models_with

if TYPE_CHECKING:
    from toposcope.checkpoints import Model, load
    from toposcope.checkpoints.inspect import inspect
    from toposcope.checkpoints.live import view as from_transformers
    from toposcope.checkpoints.live_lens import view_lens as from_transformer_lens
    from toposcope.core.errors import ToposcopeError
    from toposcope.dynamics.flow import flow
    from toposcope.lab.ablation import ablate_lab
    from toposcope.lab.known import ls
    from toposcope.live.callable import check_rotation
    from toposcope.live.check import check
    from toposcope.live.engines.against import against
    from toposcope.live.module.check import check_module
    from toposcope.models.ablation.ablate import ablate
    from toposcope.models.ablation.check import ablate_check
    from toposcope.models.intervene import ablated, captured
    from toposcope.models.loss import loss
    from toposcope.models.swap_encoding import swap_encoding
    from toposcope.models.tracing.trace import trace
    from toposcope.report.kinds import read
    from toposcope.runs.listing import list_runs, show_run
    from toposcope.runs.sweep import sweep
    from toposcope.runs.training import train
    from toposcope.scanning.compare import compare
    from toposcope.scanning.scan import scan
    from toposcope.spectra.spectrum import spectrum
    from toposcope.studies.refine import refine
    from toposcope.studies.reproduce.reproduce import reproduce

_HOMES = {
    "Model": "toposcope.checkpoints",
    "ToposcopeError": "toposcope.core.errors",
    "ablate": "toposcope.models.ablation.ablate",
    "ablate_check": "toposcope.models.ablation.check",
    "ablate_lab": "toposcope.lab.ablation",
    "ablated": "toposcope.models.intervene",
    "against": "toposcope.live.engines.against",
    "captured": "toposcope.models.intervene",
    "check": "toposcope.live.check",
    "check_module": "toposcope.live.module.check",
    "check_rotation": "toposcope.live.callable",
    "compare": "toposcope.scanning.compare",
    "flow": "toposcope.dynamics.flow",
    "from_transformer_lens": "toposcope.checkpoints.live_lens:view_lens",
    "from_transformers": "toposcope.checkpoints.live:view",
    "inspect": "toposcope.checkpoints.inspect",
    "list_runs": "toposcope.runs.listing",
    "load": "toposcope.checkpoints",
    "loss": "toposcope.models.loss",
    "ls": "toposcope.lab.known",
    "read": "toposcope.report.kinds",
    "refine": "toposcope.studies.refine",
    "reproduce": "toposcope.studies.reproduce.reproduce",
    "scan": "toposcope.scanning.scan",
    "show_run": "toposcope.runs.listing",
    "spectrum": "toposcope.spectra.spectrum",
    "swap_encoding": "toposcope.models.swap_encoding",
    "sweep": "toposcope.runs.sweep",
    "trace": "toposcope.models.tracing.trace",
    "train": "toposcope.runs.training",
}
__all__ = [
    "Model",
    "ToposcopeError",
    "__version__",
    "ablate",
    "ablate_check",
    "ablate_lab",
    "ablated",
    "against",
    "captured",
    "check",
    "check_module",
    "check_rotation",
    "compare",
    "flow",
    "from_transformer_lens",
    "from_transformers",
    "inspect",
    "list_runs",
    "load",
    "loss",
    "ls",
    "read",
    "refine",
    "reproduce",
    "scan",
    "show_run",
    "spectrum",
    "swap_encoding",
    "sweep",
    "trace",
    "train",
]

draw_with(lambda: importlib.import_module("toposcope.report.drawing"))
run_small_models_with(lambda: importlib.import_module("toposcope.lab.running"))


def __getattr__(name: str) -> Any:
    """Import the heavy parts when first used, so that `import toposcope` and `toposcope --help` cost nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'toposcope' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
