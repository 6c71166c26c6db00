"""One small Transformer: embedding, layers of [norm, attention, norm, MLP] on a residual stream, mean, classes.

Where position enters is said by its encoding alone. Attention calls `self.attend`, a plain attribute with the
signature of transformers' attention interface, so that an instrument can put itself in its place.
Shape suffixes: B batch, N tokens, D width, H heads, G key-value heads, R head width, V value width, C classes.
"""

# mypy: allow-subclassing-any
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toposcope.checkpoints.families.lab import Acting
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import EncodingSpec, Sizes, spec
from toposcope.lab.encoding import RMS, InputPosition, LayerEncoding, completed
from toposcope.lab.mix import Mix, parse_mix
from toposcope.lab.quirks import Quirks

EPS = 1e-5  # of every norm
LARGEST = {"layers": 10_000, "heads": 10_000, "width": 1_000_000, "head_dim": 1_000_000, "ff": 10_000_000}
Attend = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides a model before training. `head_dim` and `kv_heads` of None: width/heads, and heads.

    The stack of layers runs `loops` times with the same weights; logits of content are multiplied by `logit_scale`,
    a bias by position is not. Of MLA: `latent_rank` (None: half the width), and whether heads share the rotary key.
    """

    vocabulary: int
    classes: int
    length: int
    encoding: str = "none"
    reads: Literal["pooled", "token"] = "pooled"
    width: int = 64
    layers: int = 2
    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None
    ff: int = 128
    causal: bool = False
    dropout: float = 0.0
    seed: int = 0
    quirks: Quirks = field(default_factory=Quirks)
    loops: int = 1
    logit_scale: float = 1.0
    latent_rank: int | None = None
    shared_key: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary", "classes", "length", "width", "layers", "heads", "ff", "loops"):
            if getattr(self, name) < 1:
                raise BadValue(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.layers * self.loops > LARGEST["layers"]:
            raise BadValue(f"{self.layers} layers, {self.loops} times: expected at most {LARGEST['layers']} in all.")
        for name, most in LARGEST.items():  # before anything of that size is made, or looked at one by one
            if (getattr(self, name) or 0) > most:
                raise BadValue(f"{name} must be at most {most}, got {getattr(self, name):.3g}.")
        if self.reads not in ("pooled", "token"):
            raise BadValue(f"a task is read 'pooled' or 'token', got '{self.reads}'.")
        if self.head_dim is None and self.width % self.heads:
            raise BadValue(
                f"{self.heads} heads do not divide the width {self.width}. Choose another number, or give head_dim."
            )
        if self.head_dim is not None and self.head_dim < 1:
            raise BadValue(f"head_dim must be at least 1, got {self.head_dim}.")
        if self.groups < 1 or self.heads % self.groups:
            raise BadValue(f"{self.groups} key-value heads do not divide {self.heads} heads.")
        if not 0 <= self.dropout < 1:
            raise BadValue(f"dropout must be in [0, 1), got {self.dropout}.")
        if self.latent and self.groups != self.heads:
            raise BadValue("MLA has a key for every head: leave out kv_heads.")
        if self.latent and self.width < 2:
            raise BadValue(f"MLA's latent has half the width, got {self.width}.")
        if not (math.isfinite(self.logit_scale) and self.logit_scale > 0):
            raise BadValue(f"logit_scale must be above 0, got {self.logit_scale}.")
        if not self.latent and (self.latent_rank is not None or not self.shared_key):
            raise BadValue(
                "latent_rank and shared_key are settings of MLA. Choose the encoding mla, or leave them out."
            )
        if self.latent and not 1 <= self.rank <= self.width:
            raise BadValue(f"latent_rank must be between 1 and the width {self.width}, got {self.latent_rank}.")
        if self.quirks.raw_keys_values and self.causal and not self.apart:
            raise BadValue("raw_keys_values is a quirk of models without a causal mask. Leave out one of the two.")
        for layer in range(self.layers):  # complains now, not when the model is built
            LayerEncoding(self.acting(layer), self.sizes, self.groups)
        if self.added is not None:
            self.added.build(self.sizes)

    @cached_property
    def mix(self) -> Mix:
        return parse_mix(self.encoding)

    @property
    def groups(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def value_dim(self) -> int:
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def latent(self) -> bool:
        """Whether attention is MLA's: content from a latent, rotary key shared by the heads."""
        if "mla" not in self.mix.names:
            return False
        if set(self.mix.names) - {"mla", "none"}:
            raise BadEncoding(f"'mla' is a way to build attention: '{self.mix}' cannot mix it with other encodings.")
        return True

    @property
    def rank(self) -> int:
        """Of MLA's latents: with the full width nothing is left out."""
        return self.width // 2 if self.latent_rank is None else self.latent_rank

    @property
    def apart(self) -> bool:
        """MLA is spared some of the quirks, which makes it differ from the others in more than its encoding."""
        return self.latent and self.quirks.mla_apart

    @property
    def query_widths(self) -> tuple[int, int]:
        """(content, rotary) width of a query: all of it content, but for MLA."""
        if not self.latent:
            return self.value_dim, 0
        given = next(item.spec for item in self.mix.items if item.spec.name == "mla").parameters
        return int(given.get("nope_dim", self.value_dim)), int(given.get("rope_dim", self.value_dim))  # type: ignore[arg-type]

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.width, self.heads, sum(self.query_widths), self.length, self.causal)

    @property
    def added(self) -> EncodingSpec | None:
        """What is added to the embeddings."""
        asked = self.mix.added_to_input
        rotary = any(item.spec.kind.mechanism == "rotary" for item in self.mix.items)
        if self.latent and self.quirks.learned_beside_mla:
            asked = spec("learned")
        elif rotary and not self.latent and self.quirks.sinusoid_beside_rotary:
            asked = spec("sinusoidal")
        return None if asked is None else completed(asked, self.sizes, seed=self.seed)

    def acting(self, layer: int) -> tuple[Acting, ...]:
        """What acts inside attention in a layer, with the lab's defaults filled in."""
        found = self.mix.in_layer(layer, layers=self.layers, heads=self.heads, kv_heads=self.groups)
        seed = 1000 * self.seed + layer + 1  # no two layers draw the same table
        filled = [completed(part.spec, self.sizes, seed=seed, latent=self.query_widths) for part in found]
        return tuple(Acting(self._steep(full), part.heads) for full, part in zip(filled, found, strict=True))

    def _steep(self, asked: EncodingSpec) -> EncodingSpec:
        if asked.name != "alibi" or not self.quirks.steep_alibi:
            return asked
        slopes = torch.arange(self.heads, dtype=torch.float64).div(-self.heads).exp().tolist()
        return spec("alibi", **{**dict(asked.parameters), "slopes": slopes})


def sdpa(
    module: nn.Module,
    query_BHNR: Tensor,
    key_BGNR: Tensor,
    value_BGNV: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention by torch's fused kernel; a mask or bias is handed over only where there is one.

    `attention_mask` is True where a key is seen, and includes the causal mask if the module has one; None: all keys,
    or all past ones, are seen.
    """
    groups = module.num_key_value_groups
    if groups > 1:
        key_BGNR, value_BGNV = (part.repeat_interleave(groups, dim=1) for part in (key_BGNR, value_BGNV))
    mask, causal = attention_mask, module.is_causal and attention_mask is None
    if position_bias is not None:
        if causal:
            mask, causal = causal_mask(query_BHNR.shape[2], query_BHNR.device), False
        mask = position_bias if mask is None else position_bias.masked_fill(~mask, -torch.inf)
    out_BHNV = F.scaled_dot_product_attention(
        query_BHNR, key_BGNR, value_BGNV, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scaling
    )
    return out_BHNV.transpose(1, 2), None


def causal_mask(length: int, device: torch.device) -> Tensor:
    """(N, N), True where a query sees a key."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class SelfAttention(nn.Module):
    """Multi-head attention. Queries and keys reach `attend` as position has changed them."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.heads, self.groups = config.heads, config.groups
        self.num_key_value_groups = self.heads // self.groups
        self.is_causal = config.causal
        self.head_dim, self.value_dim = sum(config.query_widths), config.value_dim
        self.scaling = config.logit_scale * self.head_dim**-0.5
        self.dropout = config.dropout
        self._build(config)
        self.o_proj = nn.Linear(self.heads * self.value_dim, config.width, bias=False)
        misread = config.quirks.mla_misread
        self.position = LayerEncoding(config.acting(layer_idx), config.sizes, self.groups, misread=misread)
        self.together = self.position.alike and not config.latent  # queries and keys turn in one go
        self.attend: Attend = sdpa

    def _build(self, config: ModelConfig) -> None:
        self.q_proj = nn.Linear(config.width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, self.groups * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, self.groups * self.value_dim, bias=False)

    def project(self, x_BND: Tensor, raw_BND: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values before position acts; keys and values read `raw` where it is given."""
        return self.split(self.flat(x_BND, raw_BND))

    def flat(self, x: Tensor, raw: Tensor | None = None) -> Tensor:
        """All that a token says, in one row: queries, keys, values, head after head. Any leading dimensions."""
        maps = [self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]
        if raw is None:  # one product in place of three
            return F.linear(x, torch.cat(maps))
        return torch.cat([self.q_proj(x), F.linear(raw, torch.cat(maps[1:]))], dim=-1)

    def split(self, flat_BNW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, from such rows."""
        widths = [self.heads * self.head_dim, self.groups * self.head_dim, self.groups * self.value_dim]
        q, k, v = flat_BNW.split(widths, dim=-1)
        return _by_head(q, self.heads), _by_head(k, self.groups), _by_head(v, self.groups)

    def forward(self, x_BND: Tensor, mask: Tensor | None = None, raw_BND: Tensor | None = None) -> Tensor:
        return self.o_proj(self.by_head(self.flat(x_BND, raw_BND), mask).flatten(2))

    def by_head(self, flat_BNW: Tensor, mask: Tensor | None = None, at_BN: Tensor | None = None) -> Tensor:
        """What each head makes of the tokens' rows, (B, N, H, V), before the output projection adds it up.

        `at_BN` is where the tokens stand, if not at 0, 1, 2, ...; only where position adds no bias to the logits.
        """
        if self.together:
            q_BHNR, k_BGNR, v_BGNV = self.split(self.position.turn_rows(flat_BNW, self.heads + self.groups, at_BN))
            bias = None
        else:
            q_BHNR, k_BGNR, v_BGNV = self.split(flat_BNW)
            bias = self.position.bias(q_BHNR, k_BGNR, self.scaling)
            q_BHNR, k_BGNR = self.position.turn(q_BHNR, k_BGNR, at_BN)
        out_BNHV, _ = self.attend(
            self,
            q_BHNR,
            k_BGNR,
            v_BGNV,
            mask,
            scaling=self.scaling,
            position_bias=bias,
            dropout=self.dropout if self.training else 0.0,
        )
        return out_BNHV


class LatentAttention(SelfAttention):
    """MLA: queries, keys and values from latents, beside a rotary key that all heads share or each has for itself."""

    def _build(self, config: ModelConfig) -> None:
        content, turning = config.query_widths
        self.content, self.shared = (content, turning) if config.shared_key else (content + turning, 0)
        self.rank = config.rank
        self.q_a_proj = nn.Linear(config.width, self.rank, bias=False)
        self.q_b_proj = nn.Linear(self.rank, self.heads * self.head_dim, bias=False)
        self.kv_a_proj = nn.Linear(config.width, self.rank + self.shared, bias=False)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.content + self.value_dim), bias=False)

    def flat(self, x: Tensor, raw: Tensor | None = None) -> Tensor:
        latent, shared = self.kv_a_proj(x if raw is None else raw).split([self.rank, self.shared], dim=-1)
        return torch.cat([self.q_b_proj(self.q_a_proj(x)), self.kv_b_proj(latent), shared], dim=-1)

    def split(self, flat_BNW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = self.heads * (self.content + self.value_dim)
        q, kv, shared_BNS = flat_BNW.split([self.heads * self.head_dim, own, self.shared], dim=-1)
        own_BHNR, v_BHNV = _by_head(kv, self.heads).split([self.content, self.value_dim], dim=-1)
        shared_BHNS = shared_BNS[:, None].expand(-1, self.heads, -1, -1)
        return _by_head(q, self.heads), torch.cat([own_BHNR, shared_BHNS], dim=-1), v_BHNV


class Block(nn.Module):
    """x + attention(norm x), then x + MLP(norm x)."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=EPS)
        self.attention = (LatentAttention if config.latent else SelfAttention)(config, index)
        self.mlp_norm = nn.LayerNorm(config.width, eps=EPS)
        relu = config.quirks.relu_mlp and not config.apart
        self.mlp = nn.Sequential(
            nn.Linear(config.width, config.ff), nn.ReLU() if relu else nn.GELU(), nn.Linear(config.ff, config.width)
        )
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(self, x_BND: Tensor, mask: Tensor | None = None, raw_BND: Tensor | None = None) -> Tensor:
        return self.after(x_BND, self.attention(self.attention_norm(x_BND), mask, raw_BND))

    def after(self, x_BND: Tensor, added_BND: Tensor) -> Tensor:
        """The layer's output, once attention has said what it adds."""
        x_BND = x_BND + self.dropout(added_BND)
        return x_BND + self.dropout(self.mlp(self.mlp_norm(x_BND)))


class Transformer(nn.Module):
    """The model. The same configuration gives the same weights, whatever was drawn before."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.sees_padding = config.quirks.visible_padding and not config.apart
        self.raw = config.quirks.raw_keys_values and not config.apart
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.embed = nn.Embedding(config.vocabulary, config.width)
            nn.init.normal_(self.embed.weight, std=RMS)
            self.layers = nn.ModuleList(Block(config, i) for i in range(config.layers))
            final = not config.quirks.no_final_norm or config.apart
            self.norm = nn.LayerNorm(config.width, eps=EPS) if final else nn.Identity()
            self.head = nn.Linear(config.width, config.classes)
            for module in self.modules():
                if isinstance(module, nn.Linear):  # torch's own choice is smaller, and learns more slowly
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
        self.position = None if config.added is None else InputPosition(config.added, config.sizes)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.embed.weight.device

    def forward(self, ids_BN: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Scores of the classes: (B, C), or (B, N, C) for a task that is read at every token."""
        x_BND = self.embedded(ids_BN)
        mask, raw_BND = self.mask(ids_BN, lengths_B), x_BND if self.raw else None
        for layer in self.running:
            x_BND = layer(x_BND, mask, raw_BND)
        return self.read(x_BND, lengths_B)

    @property
    def running(self) -> list[Block]:
        """The layers in the order in which they run: all of them, as often as there are loops."""
        return [*self.layers] * self.config.loops

    def embedded(self, ids_BN: Tensor) -> Tensor:
        """What enters the first layer."""
        x_BND = self.embed(ids_BN)
        return x_BND if self.position is None else x_BND + self.position(ids_BN.shape[1])

    def mask(self, ids_BN: Tensor, lengths_B: Tensor | None) -> Tensor | None:
        """(B, 1, 1, N), True at valid tokens; None where every key may be seen, and under a causal mask.

        Padding stands at the end: behind a causal mask no valid token sees it.
        """
        length = ids_BN.shape[1]
        if lengths_B is None or self.sees_padding or self.config.causal or int(lengths_B.min()) >= length:
            return None
        return (torch.arange(length, device=ids_BN.device) < lengths_B[:, None])[:, None, None, :]

    def read(self, x_BND: Tensor, lengths_B: Tensor | None) -> Tensor:
        """From the residual stream to the classes."""
        x_BND = self.norm(x_BND)
        if self.config.reads == "token":
            return self.head(x_BND)
        if lengths_B is None or self.sees_padding:
            return self.head(x_BND.mean(dim=1))
        length = x_BND.shape[1]
        valid_BN = torch.arange(length, device=x_BND.device) < lengths_B[:, None]
        share_BN = valid_BN.to(x_BND.dtype) / lengths_B[:, None].to(x_BND.dtype)
        return self.head(torch.bmm(share_BN[:, None, :], x_BND).squeeze(1))


def _by_head(flat_BNR: Tensor, heads: int) -> Tensor:
    return flat_BNR.unflatten(-1, (heads, -1)).transpose(1, 2)
