"""Tiny models of every model type that transformers lists, and what Toposcope makes of each.

`types(group)` lists them, `build(type, group)` makes one at random, `inputs(model, ...)` is what it is called with;
`python -m tests.architectures` reads them all, compares, and writes docs/models.md.
"""

from tests.architectures.builder import NotBuilt as NotBuilt
from tests.architectures.builder import build as build
from tests.architectures.builder import randomise as randomise
from tests.architectures.given import inputs as inputs
from tests.architectures.kinds import GROUPS as GROUPS
from tests.architectures.kinds import types as types
