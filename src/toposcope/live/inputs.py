"""What position adds to the stream of a running model: seen at the norms of each stack before its first attention.

The same token stands at all positions, so what differs between positions there has been added to the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.encodings.record import Array


@dataclass(frozen=True, eq=False)
class AddedInput:
    """What is added at positions 0, 1, ... less what is added at the first, and how far tokens disagree about it.

    `size` is the largest entry of the stream itself: half precision rounds by its share.
    """

    module: str  # where it was seen
    stack: str  # "encoder", "decoder", or "" where there is one stack only
    vectors_ND: Array
    disagreement: float
    size: float


@contextmanager
def watched_input(running: Any, attending: frozenset[str]) -> Iterator[list[tuple[str, str, Any]]]:
    """Inside the block, what enters each norm of a stack up to its first attention: (module, stack, tensor)."""
    found: list[tuple[str, str, Any]] = []
    stacks: dict[str, bool] = {"": False}  # whether its first attention has been met
    now = [""]

    def begins(stack: str) -> Any:
        def hook(module: Any, given: Any) -> None:
            now[0] = stack
            stacks[stack] = False

        return hook

    def meets(name: str) -> Any:
        def hook(module: Any, given: Any, options: Any) -> None:
            x = given[0] if given else options.get("hidden_states", options.get("input"))
            if stacks[now[0]] or not hasattr(x, "dim"):
                return
            stacks[now[0]] = name in attending or running.convolves  # which mix tokens before any attention
            if x.dim() == 3 and x.is_floating_point():
                found.append((name, now[0], x.detach().clone()))

        return hook

    with ExitStack() as stack:
        if running.two_stacks:
            for part in ("encoder", "decoder"):
                module = getattr(running.model, f"get_{part}", lambda: None)()
                if module is not None:
                    stack.callback(module.register_forward_pre_hook(begins(part)).remove)
        for name, module in running.model.named_modules():
            kind = type(module).__name__.lower()
            if name in attending or "norm" in kind or "rms" in kind:
                handle = module.register_forward_pre_hook(meets(name), with_kwargs=True, prepend=True)
                stack.callback(handle.remove)
        yield found


def added_input(module: str, stack: str, x_BND: Array) -> AddedInput:
    """From what entered with the same token at all positions of a row."""
    change_BND = x_BND - x_BND[:, :1]
    mean_ND = change_BND.mean(axis=0)
    return AddedInput(
        module,
        stack,
        mean_ND,
        float(np.abs(change_BND - mean_ND).max(initial=0.0)),
        float(np.abs(x_BND).max(initial=0.0)),
    )
