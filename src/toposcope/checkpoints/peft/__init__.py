"""Adapters of PEFT (LoRA, rsLoRA, DoRA), merged into their base tensor by tensor, when a tensor is read.

`settings` parses adapter_config.json, `changes` sorts the adapter's tensors by what they do to which tensor of the
base, `source` is the base as the adapter leaves it. Nothing here needs torch or peft.
"""

from toposcope.checkpoints.peft.source import AdaptedSource, adapted

__all__ = ["AdaptedSource", "adapted"]
