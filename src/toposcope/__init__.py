"""Toposcope shows what positional encoding does to the tokens of a Transformer."""

from toposcope._version import __version__

__all__ = ["__version__"]
