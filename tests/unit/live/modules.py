"""Small attention modules written here, right and wrong on purpose, for the tests of `check_module`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rotate = Callable[[Tensor, Tensor], Tensor]  # (B, H, N, R) at positions (N,)


def angles(positions: Tensor, pairs: int, dtype: torch.dtype, base: float = 10000.0) -> Tensor:
    frequency = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return (positions.to(torch.float64)[:, None] * frequency).to(dtype)


def half(v: Tensor, positions: Tensor) -> Tensor:
    angle = angles(positions, v.shape[-1] // 2, v.dtype)
    a, b = v.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def interleaved(v: Tensor, positions: Tensor) -> Tensor:
    angle = angles(positions, v.shape[-1] // 2, v.dtype)
    a, b = v[..., 0::2], v[..., 1::2]
    turned = torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)
    return turned.flatten(-2)


def partial(v: Tensor, positions: Tensor) -> Tensor:
    turning, still = v.split([v.shape[-1] // 4, v.shape[-1] - v.shape[-1] // 4], dim=-1)
    return torch.cat([half(turning, positions), still], dim=-1)


def along_batch(v: Tensor, positions: Tensor) -> Tensor:
    """Planted: the axis that is counted is the batch."""
    turned = half(v.permute(2, 1, 0, 3), torch.arange(v.shape[0]))
    return turned.permute(2, 1, 0, 3)


def wrong_stride(v: Tensor, positions: Tensor) -> Tensor:
    """Planted: a table [sin.. | cos..] read with stride 2, so that sin w0 is paired with sin w1."""
    pairs = v.shape[-1] // 2
    angle = angles(positions, pairs, v.dtype)
    table = torch.cat([angle.sin(), angle.cos()], dim=-1)
    sin, cos = table[:, 0::2], table[:, 1::2]
    a, b = v[..., 0::2], v[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def backwards(v: Tensor, positions: Tensor) -> Tensor:
    return half(v, -positions)


def twice_as_fast(v: Tensor, positions: Tensor) -> Tensor:
    return half(v, 2 * positions)


def still(v: Tensor, positions: Tensor) -> Tensor:
    return v


def shifted_by(steps: int, rotate: Rotate = half) -> Rotate:
    return lambda v, positions: rotate(v, positions + steps)


def xpos_query(v: Tensor, positions: Tensor) -> Tensor:
    return half(v, positions) * 0.97 ** positions[:, None].to(v.dtype)


def xpos_key(v: Tensor, positions: Tensor) -> Tensor:
    return half(v, positions) * 0.97 ** -positions[:, None].to(v.dtype)


def sinusoid(n: int, width: int, dtype: torch.dtype) -> Tensor:
    angle = angles(torch.arange(n), width // 2, dtype)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def alibi_bias(n: int, heads: int, dtype: torch.dtype) -> Tensor:
    slope = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    at = torch.arange(n)
    return -(slope[:, None, None] * (at[:, None] - at).abs()).to(dtype)


class Attention(nn.Module):
    """Attention with every part replaceable."""

    def __init__(
        self,
        width: int = 64,
        heads: int = 4,
        kv_heads: int | None = None,
        *,
        rotate: Rotate = still,
        rotate_key: Rotate | None = None,
        added: Callable[[int, int, torch.dtype], Tensor] | None = None,
        added_to_values: bool = True,
        bias: Callable[[int, int, torch.dtype], Tensor] | None = None,
        causal: bool = False,
        window: int | None = None,
        fused: bool = False,
        qk_norm: bool = False,
        linear_bias: bool = True,
        dropout: float = 0.1,
        hidden: bool = False,
        softcap: float | None = None,
        log_length: bool = False,
        sink: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=linear_bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=linear_bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=linear_bias)
        self.o_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.rotate, self.rotate_key = rotate, rotate_key or rotate
        self.added, self.added_to_values, self.bias = added, added_to_values, bias
        self.causal, self.window, self.fused, self.qk_norm = causal, window, fused, qk_norm
        self.hidden, self.softcap, self.log_length = hidden, softcap, log_length
        self.sink = sink

    def split(self, z: Tensor, heads: int) -> Tensor:
        return z.view(*z.shape[:2], heads, self.head_dim).transpose(1, 2)

    def queries_and_keys(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        at = torch.arange(x.shape[1]) if positions is None else positions
        if self.added is not None:
            x = x + self.added(int(at.max()) + 1, x.shape[2], x.dtype)[at]
        q, k = self.split(self.q_proj(x), self.heads), self.split(self.k_proj(x), self.kv_heads)
        if self.qk_norm:
            q, k = F.normalize(q, dim=-1) * self.head_dim**0.5, F.normalize(k, dim=-1) * self.head_dim**0.5
        q, k = self.rotate(q, at), self.rotate_key(k, at)
        if self.log_length:
            q = q * torch.log(at + 2.0)[:, None].to(q.dtype)
        return q, k.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def logits(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        q, k = self.queries_and_keys(x, positions)
        n = x.shape[1]
        logits = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        if self.bias is not None:
            logits = logits + self.bias(n, self.heads, x.dtype)
        return logits.masked_fill(~self.visible(n), float("-inf"))

    def visible(self, n: int) -> Tensor:
        offset = torch.arange(n)[:, None] - torch.arange(n)
        seen = torch.ones(n, n, dtype=torch.bool)
        if self.causal:
            seen &= offset >= 0
        if self.window is not None:
            seen &= offset.abs() <= self.window
        return seen

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        y = x
        if self.added is not None and self.added_to_values:
            at = torch.arange(x.shape[1]) if positions is None else positions
            y = x + self.added(int(at.max()) + 1, x.shape[2], x.dtype)[at]
        v = self.split(self.v_proj(y), self.kv_heads).repeat_interleave(self.heads // self.kv_heads, dim=1)
        if self.fused:
            q, k = self.queries_and_keys(x, positions)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            logits = self.logits(x, positions)
            if self.hidden:  # a softmax nobody recognises
                weights = torch.exp(logits - logits.amax(-1, keepdim=True))
                weights = weights / weights.sum(-1, keepdim=True)
            elif self.sink:  # one key that is no token
                none = torch.zeros(*logits.shape[:3], 1, dtype=logits.dtype)
                weights = torch.cat([logits, none], dim=-1).softmax(dim=-1)[..., :-1]
            else:
                weights = logits.softmax(dim=-1)
            out = self.dropout(weights) @ v
        return self.o_proj(self.dropout(out.transpose(1, 2).flatten(2)))
