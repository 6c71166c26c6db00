"""Where one layer keeps its projections: the llama, gpt2 and bert families of transformers, and the lab's model.

All are seen in one way: q, k, v and o as (out, in) matrices, and the norm that stands before them. What is read is
always the live tensor, so a parametrisation may build on another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from toposcope.core.errors import BadConfig, BadValue

FAMILIES = ("llama", "mistral", "gpt2", "bert", "roberta")


class Live:
    """A matrix of a module as it is now: rows `begin` to `end` of its weight, transposed first where it is stored so.

    The module is held in a list, so that it is not registered twice, and a deep copy of the model points at its own.
    """

    def __init__(
        self, module: nn.Module, *, begin: int = 0, end: int | None = None, transposed: bool = False
    ) -> None:
        self._held = [module]
        self.begin, self.end, self.transposed = begin, end, transposed

    @property
    def module(self) -> nn.Module:
        return self._held[0]

    def __call__(self) -> Tensor:
        weight = self.module.weight
        weight = weight.T if self.transposed else weight
        return weight if self.begin == 0 and self.end is None else weight[self.begin : self.end]


class InputNorm:
    """The norm before attention as a linear map: x -> gain * x, for LayerNorm of x less its mean (theory, sec. 2)."""

    def __init__(self, module: nn.Module | None) -> None:
        self._held = [module]
        name = type(module).__name__
        self.kind: Literal["none", "rms", "layer"] = "none" if module is None else "rms" if "RMS" in name else "layer"

    def fold(self, matrix_RD: Tensor) -> Tensor:
        """M diag(gain) [centring]: what acts on the residual stream, up to a positive factor for each token."""
        if self._held[0] is None:
            return matrix_RD
        gain = self._held[0].weight
        folded = matrix_RD if gain is None else matrix_RD * gain
        return folded - folded.mean(-1, keepdim=True) if self.kind == "layer" else folded

    def unfold(self, matrix_DD: Tensor) -> Tensor:
        """[centring] diag(gain) M: the transpose of `fold`."""
        return self.fold(matrix_DD.mT).mT

    @property
    def has_bias(self) -> bool:
        return bias_matters(self._held[0])


def bias_matters(module: nn.Module | None) -> bool:
    """Whether a module has a bias that is trained, or is not zero."""
    bias = getattr(module, "bias", None)
    return bias is not None and (bias.requires_grad or bool(bias.any()))


@dataclass(frozen=True, eq=False)
class Projections:
    """One layer. H heads, G key-value heads, R head width, D model width; `fused` where q, k, v are one tensor."""

    number: int
    attention: nn.Module
    q: Live
    k: Live
    v: Live
    o: Live
    norm: InputNorm
    heads: int
    groups: int
    head_dim: int
    value_dim: int
    width: int
    causal: bool
    rotary: bool
    post_norm: bool = False
    fused: bool = False

    @property
    def rank_limit(self) -> int:
        """The most directions attention can read: LayerNorm takes one away."""
        return self.width - (self.norm.kind == "layer")

    @property
    def biased(self) -> bool:
        """Whether values or queries may have a bias, from the projection or from the norm."""
        return any(map(bias_matters, (self.v.module, self.q.module))) or self.norm.has_bias

    @property
    def drifts(self) -> bool:
        """Whether a constant may be written in a direction that the layer never undoes."""
        full = self.groups * self.value_dim >= self.width and self.norm.kind != "layer"
        return not full and bias_matters(self.o.module)


def projections(model: nn.Module, layers: Sequence[int] | None = None) -> list[Projections]:
    """The chosen self-attention layers of a model, from its live modules."""
    found = list(_find(model))
    if not found:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise BadConfig(
            f"'{kind}' cannot be refined: its projections were not found. Models of the families "
            f"{', '.join(FAMILIES)} and of the lab (not MLA) can."
        )
    if layers is None:
        return found
    for number in layers:
        if not 0 <= number < len(found):
            raise BadValue(f"there is no layer {number}: the model has layers 0 to {len(found) - 1}.")
    return [found[number] for number in dict.fromkeys(layers)]


def _find(model: nn.Module) -> Iterator[Projections]:
    family = getattr(getattr(model, "config", None), "model_type", None)
    number = 0
    for module in model.modules():
        attention = getattr(module, "attention", None)
        if callable(getattr(attention, "attend", None)):
            made = _lab(model, module, attention, number)
        elif family in ("llama", "mistral") and hasattr(module, "self_attn"):
            made = _llama(module, number)
        elif family == "gpt2" and hasattr(module, "attn") and hasattr(module, "ln_1"):
            made = _gpt2(module, number)
        elif family in ("bert", "roberta") and hasattr(getattr(attention, "self", None), "query"):
            made = _bert(module, number)
        else:
            continue
        number += 1
        yield made


def _llama(block: Any, number: int) -> Projections:
    attention, config = block.self_attn, block.self_attn.config
    head_dim = attention.head_dim
    return Projections(
        number=number,
        attention=attention,
        q=Live(attention.q_proj),
        k=Live(attention.k_proj),
        v=Live(attention.v_proj),
        o=Live(attention.o_proj),
        norm=InputNorm(block.input_layernorm),
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        width=config.hidden_size,
        causal=True,
        rotary=True,
    )


def _gpt2(block: Any, number: int) -> Projections:
    attention = block.attn
    width, heads = attention.embed_dim, attention.num_heads
    q, k, v = (Live(attention.c_attn, begin=i * width, end=(i + 1) * width, transposed=True) for i in range(3))
    return Projections(
        number=number,
        attention=attention,
        q=q,
        k=k,
        v=v,
        o=Live(attention.c_proj, transposed=True),
        norm=InputNorm(block.ln_1),
        heads=heads,
        groups=heads,
        head_dim=width // heads,
        value_dim=width // heads,
        width=width,
        causal=True,
        rotary=False,
        fused=True,
    )


def _bert(block: Any, number: int) -> Projections:
    inner, output = block.attention.self, block.attention.output
    heads, head_dim = inner.num_attention_heads, inner.attention_head_size
    return Projections(
        number=number,
        attention=inner,
        q=Live(inner.query),
        k=Live(inner.key),
        v=Live(inner.value),
        o=Live(output.dense),
        norm=InputNorm(None),
        heads=heads,
        groups=heads,
        head_dim=head_dim,
        value_dim=head_dim,
        width=output.dense.out_features,
        causal=bool(getattr(inner, "is_decoder", False)),
        rotary=False,
        post_norm=True,
    )


def _lab(model: Any, block: Any, attention: Any, number: int) -> Projections:
    if not all(hasattr(attention, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")):
        raise BadConfig("MLA reads its values from a latent: there is no V to choose signs of. Use another encoding.")
    if getattr(model, "raw", False):
        raise BadConfig(
            "with raw_keys_values the values are not read from the tokens that move. Leave the quirk out."
        )
    position = getattr(attention, "position", None)
    return Projections(
        number=number,
        attention=attention,
        q=Live(attention.q_proj),
        k=Live(attention.k_proj),
        v=Live(attention.v_proj),
        o=Live(attention.o_proj),
        norm=InputNorm(getattr(block, "attention_norm", None)),
        heads=attention.heads,
        groups=attention.groups,
        head_dim=attention.head_dim,
        value_dim=attention.value_dim,
        width=attention.o_proj.out_features,
        causal=bool(attention.is_causal),
        rotary=bool(getattr(position, "turning", ())),
    )


def trainable(parameters: Any) -> int:
    """How many numbers an optimiser would change."""
    return sum(each.numel() for each in parameters if each.requires_grad)
