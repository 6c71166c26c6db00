"""Two attention modules, one with a mistake that trains without complaint: `check_module` tells them apart.

python examples/check_my_attention.py
"""

from __future__ import annotations

import torch
from torch import nn

import toposcope
from toposcope.encodings import rope


class RotaryAttention(nn.Module):
    """Causal attention with RoPE. With `axis=0` the rotation counts samples instead of tokens."""

    def __init__(self, width: int = 32, heads: int = 4, axis: int = 1) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        table = rope(width // heads).rotary
        assert table is not None
        self.register_buffer("frequencies", torch.tensor(table.frequencies(), dtype=torch.float32))

    def turn(self, x: torch.Tensor) -> torch.Tensor:  # (batch, tokens, heads, head width)
        at = torch.arange(x.shape[self.axis]).reshape([-1 if i == self.axis else 1 for i in range(4)])
        angle = at * self.frequencies
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], dim=-1
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).unbind(2)
        q, k = self.turn(q), self.turn(k)
        mixed = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, axis in (("along the tokens", 1), ("along the batch", 0)):
        print(f"--- rotation {name}")
        print(toposcope.check_module(RotaryAttention(axis=axis), width=32))
