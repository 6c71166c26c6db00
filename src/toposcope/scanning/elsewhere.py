"""One layer's entry, made by a process that opens the checkpoint itself: a node of a cluster, or another core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from toposcope.checkpoints import load
from toposcope.checkpoints.identity import identity
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadValue
from toposcope.core.fields import rebuilt
from toposcope.dynamics.factored import Factored
from toposcope.scanning.layer import Entry, Moment, layer_entry
from toposcope.scanning.options import ScanOptions

_OPENED: dict[tuple[Any, ...], Model] = {}  # the checkpoint that the jobs of this process read


def entry_of(
    where: Mapping[str, Any],
    expected: Mapping[str, str],
    number: int,
    options: Mapping[str, Any],
    shared: tuple[Moment, Mapping[str, str]],
) -> tuple[Entry, Factored | None]:
    """The entry of layer `number` of what `load(**where)` opens, and its factors if it was judged as a whole.

    Refused where that is another checkpoint than the `expected` one, of whom `shared` is the tokens' moment.
    """
    wanted, opened = rebuilt(ScanOptions, options, "the options"), tuple(where.values())
    model = _OPENED.get(opened)
    if model is None:
        model = load(**where)
        if identity(model, wanted.context) != expected:
            name = os.uname().nodename if hasattr(os, "uname") else "this node"
            raise BadValue(f"{name} finds another checkpoint at {where['target']} than the driver. Copy it there.")
        _OPENED[opened] = model
    with ThreadPoolExecutor(1) as pool:
        return layer_entry(model, number, wanted, *shared, pool)
