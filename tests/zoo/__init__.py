"""Tiny models of every model type that transformers lists, and what Toposcope makes of each.

`types(group)` lists them, `build(type, group)` makes one at random, `inputs(model, ...)` is what it is called with;
`python -m tests.zoo` reads them all, compares, and writes docs/models.md.
"""

from tests.zoo.builder import NotBuilt as NotBuilt
from tests.zoo.builder import build as build
from tests.zoo.builder import randomise as randomise
from tests.zoo.given import inputs as inputs
from tests.zoo.kinds import GROUPS as GROUPS
from tests.zoo.kinds import types as types
