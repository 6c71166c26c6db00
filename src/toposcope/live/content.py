"""Give every attention of a model content of our own, so that nothing but position can differ between its inputs.

Real tokens carry traces of position from layer to layer, and in half precision their rounding passes for position.
Random content of unit size, one vector for each row of the batch, has neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# what transformers, the laboratory and others call the input of an attention
_NAMES = ("hidden_states", "x", "x_BND", "hidden_state", "query_input", "key_input", "value_input", "query")


@contextmanager
def given_content(
    model: Any, modules: Collection[str], contents: ArrayLike, *, sizes: ArrayLike = 1.0, seed: int = 9
) -> Iterator[None]:
    """Inside the block, row b of every batch enters each of these modules as content number `contents[b]`.

    A content is one random vector, the same at all positions of its row; where `contents` has two axes, every token
    has a number of its own. Each module has contents of its own. `sizes` multiplies the rows. Inputs of another batch
    size, and modules that take neither (batch, tokens, width) nor (tokens, batch, width), are left alone.
    """
    import torch

    rows = np.asarray(contents)
    numbers = torch.as_tensor(rows if rows.ndim == 2 else rows[:, None])
    by = torch.as_tensor(np.broadcast_to(np.asarray(sizes, dtype=np.float32), (len(rows),)).copy())
    made: dict[str, Any] = {}

    def content_of(name: str, like: Any) -> Any:
        key = f"{name}/{like.shape[-1]}"
        if key not in made:
            draw = torch.Generator().manual_seed(seed + len(made))
            made[key] = torch.randn(int(rows.max()) + 1, like.shape[-1], generator=draw)
        drawn = made[key][numbers] * by[:, None, None]
        tokens_first = like.shape[0] != len(rows)
        drawn = drawn.expand(-1, like.shape[0 if tokens_first else 1], -1)
        return (drawn.transpose(0, 1) if tokens_first else drawn).to(like.device, like.dtype).contiguous()

    def fits(value: Any) -> bool:
        if not (torch.is_tensor(value) and value.is_floating_point() and value.dim() == 3):
            return False
        batch, tokens = value.shape[:2] if value.shape[0] == len(rows) else (value.shape[1], value.shape[0])
        return bool(batch == len(rows)) and numbers.shape[1] in (1, tokens)

    def enters(name: str) -> Any:
        def hook(module: Any, given: Any, options: Any) -> Any:
            if given and fits(given[0]):
                ours = content_of(name, given[0])  # which may be query, key and value at once
                return tuple(ours if each is given[0] else each for each in given), options
            named = {each: content_of(name, options[each]) for each in _NAMES if fits(options.get(each))}
            return (given, {**options, **named}) if named else None

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name in modules:
                stack.callback(module.register_forward_pre_hook(enters(name), with_kwargs=True).remove)
        yield
