"""How much memory a trace will take, so that too long a text is refused before the machine is out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.errors import BadValue
from toposcope.models.trace_rows import block_rows

GIB = 2**30


def needed(
    specs: Sequence[LayerSpec], tokens: int, *, inner: int, written_out: bool, dense_limit: int, means: bool
) -> dict[str, int]:
    """Bytes by purpose, on the safe side: the forward pass, one layer's content, one head's matrices, means.

    `inner` is the width inside the MLP, `written_out` whether the model holds its attention of all heads at once.
    """
    width, heads = max(spec.width for spec in specs), max(spec.heads for spec in specs)
    channels = max(spec.heads * (2 * spec.head_dim + spec.value_width) for spec in specs)
    square = tokens * tokens
    attention = 12 * heads * square if written_out else 5 * square * any(spec.reach is not None for spec in specs)
    dense = 8 * 6 * square if tokens <= dense_limit else 0
    return {
        "forward pass": 4 * tokens * (8 * width + 3 * inner + 2 * channels) + attention,
        "queries and keys of a layer": 3 * 8 * tokens * channels,
        "one head": 8 * 8 * tokens * block_rows(tokens) + dense,
        "position means": sum(2 * 8 * tokens * spec.heads * spec.head_dim for spec in specs) if means else 0,
    }


def foresee(parts: dict[str, int], tokens: int, free: int | None) -> None:
    """Raise where a trace would not fit into the memory that is free (None: not known)."""
    total = sum(parts.values())
    if free is None or total <= free:
        return
    most = max(parts, key=lambda name: parts[name])
    raise BadValue(
        f"tracing sequences of {tokens} tokens needs about {total / GIB:.1f} GiB (most of it, "
        f"{parts[most] / GIB:.1f} GiB, for: {most}), and {free / GIB:.1f} GiB are free. "
        "Use fewer tokens (--tokens), fewer layers (--layers), or a model loaded with attention 'sdpa'."
    )


def inner_width(config: Any, width: int) -> int:
    """The width inside the MLP, by whatever name the configuration has for it."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    said = [getattr(text, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner", "d_ff")]
    return max([value for value in said if isinstance(value, int)], default=4 * width)
