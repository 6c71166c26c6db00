"""A small stand-in for a HookedTransformer: its attributes, the arguments of its attention, its way to rotate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class _Attention(nn.Module):
    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        for name in "QKVO":
            shape = (cfg.n_heads, cfg.d_head, cfg.d_model) if name == "O" else (cfg.n_heads, cfg.d_model, cfg.d_head)
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(shape) / cfg.d_model**0.5))
            setattr(self, f"b_{name}", nn.Parameter(0.1 * torch.randn(cfg.d_model if name == "O" else shape[::2])))
        self.hook_q, self.hook_k = nn.Identity(), nn.Identity()
        if cfg.positional_embedding_type == "rotary":
            angle = torch.arange(cfg.n_ctx)[:, None] * cfg.rotary_base ** (
                -torch.arange(0, cfg.rotary_dim, 2) / cfg.rotary_dim
            )
            angle = angle.repeat(1, 2)
            self.register_buffer("rotary_sin", angle.sin())
            self.register_buffer("rotary_cos", angle.cos())

    def _rotated(self, x_BNHR: Tensor) -> Tensor:
        half, n = self.cfg.rotary_dim // 2, x_BNHR.shape[1]
        turning, rest = x_BNHR.split([2 * half, x_BNHR.shape[-1] - 2 * half], dim=-1)
        crossed = torch.cat([-turning[..., half:], turning[..., :half]], dim=-1)
        cos, sin = (table[:n, None] for table in (self.rotary_cos, self.rotary_sin))
        return torch.cat([turning * cos + crossed * sin, rest], dim=-1)

    def forward(self, query_input: Tensor, key_input: Tensor, value_input: Tensor) -> Tensor:
        made = {}
        for name, x in (("Q", query_input), ("K", key_input), ("V", value_input)):
            made[name] = torch.einsum("bnd,hdr->bnhr", x, getattr(self, f"W_{name}")) + getattr(self, f"b_{name}")
        q, k = self.hook_q(made["Q"]), self.hook_k(made["K"])
        if self.cfg.positional_embedding_type == "rotary":
            q, k = self._rotated(q), self._rotated(k)
        scores = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) / self.cfg.attn_scale
        n = scores.shape[-1]
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        mixed = scores.softmax(dim=-1) @ made["V"].permute(0, 2, 1, 3)
        return torch.einsum("bhnr,hrd->bnd", mixed, self.W_O) + self.b_O


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(1 + 0.1 * torch.randn(width)), nn.Parameter(0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[-1:], self.w, self.b)


class _Block(nn.Module):
    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.ln1, self.attn = _Norm(cfg.d_model), _Attention(cfg)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.ln1(x)
        return x + self.attn(query_input=normed, key_input=normed, value_input=normed)


class Lens(nn.Module):
    """The model; `position` is 'standard' or 'rotary'."""

    def __init__(self, position: str, **changes: Any) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(
            **{
                "n_layers": 2, "d_model": 24, "n_ctx": 96, "d_head": 8, "n_heads": 3, "eps": 1e-5,
                "use_attn_scale": True, "attn_scale": 8**0.5, "normalization_type": "LN",
                "attention_dir": "causal", "use_local_attn": False, "positional_embedding_type": position,
                "rotary_dim": 8, "rotary_base": 10000, "rotary_adjacent_pairs": False,
                "attn_scores_soft_cap": -1.0, "model_name": "custom", **changes,
            }
        )  # fmt: skip
        torch.manual_seed(3)
        self.embed, self.pos_embed = nn.Module(), nn.Module()
        self.embed.W_E = nn.Parameter(torch.randn(30, self.cfg.d_model))
        if position == "standard":
            self.pos_embed.W_pos = nn.Parameter(torch.randn(self.cfg.n_ctx, self.cfg.d_model))
        else:
            del self.pos_embed
        self.blocks = nn.ModuleList(_Block(self.cfg) for _ in range(self.cfg.n_layers))

    def forward(self, input: Tensor) -> Tensor:
        x = self.embed.W_E[input]
        if hasattr(self, "pos_embed"):
            x = x + self.pos_embed.W_pos[: input.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x @ self.embed.W_E.T
