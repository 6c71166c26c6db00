"""Give every attention of a model content of our own, so that nothing but position can differ between its inputs.

Real tokens carry traces of position from layer to layer, and in half precision their rounding passes for position.
Random content of unit size, one vector for each row of the batch, has neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

_NAMES = ("hidden_states", "x", "hidden_state", "query_input", "query")


@contextmanager
def given_content(model: Any, modules: Collection[str], contents: Sequence[int], *, seed: int = 9) -> Iterator[None]:
    """Inside the block, row b of every batch enters each of these modules as content number `contents[b]`.

    A content is one random vector, the same at all positions of its row; each module has contents of its own. Inputs
    of another batch size, and modules that take no (batch, tokens, width), are left alone.
    """
    import torch

    rows = torch.as_tensor(list(contents))
    made: dict[str, Any] = {}

    def content_of(name: str, like: Any) -> Any:
        key = f"{name}/{like.shape[-1]}"
        if key not in made:
            draw = torch.Generator().manual_seed(seed + len(made))
            made[key] = torch.randn(int(rows.max()) + 1, 1, like.shape[-1], generator=draw)
        return made[key][rows].expand(-1, like.shape[1], -1).to(like.device, like.dtype).contiguous()

    def enters(name: str) -> Any:
        def hook(module: Any, given: Any, options: Any) -> Any:
            if given and _fits(given[0], len(rows)):
                return (content_of(name, given[0]), *given[1:]), options
            key = next((each for each in _NAMES if _fits(options.get(each), len(rows))), None)
            return None if key is None else (given, {**options, key: content_of(name, options[key])})

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name in modules:
                stack.callback(module.register_forward_pre_hook(enters(name), with_kwargs=True).remove)
        yield


def _fits(value: Any, rows: int) -> bool:
    import torch

    return torch.is_tensor(value) and value.is_floating_point() and value.dim() == 3 and value.shape[0] == rows
