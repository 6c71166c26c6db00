"""GGUF files of DeepSeek V2 and V3: queries, keys and values unfolded from small latents (MLA)."""

from __future__ import annotations

from dataclasses import dataclass

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.gguf_facts import GgufFacts, rotation, yarn_size
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import Encoding, mla


@dataclass(frozen=True)
class _Widths:
    key: int  # of one head, its rotary part included
    value: int
    turning: int  # the rotary part, shared by all heads
    latent: int


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Describe a file. Rotary pairs are adjacent, as DeepSeek stores them; nothing was re-ordered."""
    facts = GgufFacts(source)
    widths = _widths(facts)
    encoding, scale, warnings = _positions(facts, widths)

    def layer(i: int) -> LayerSpec:
        at, sizes, eps = f"blk.{i}.", facts.sizes(i), facts.eps("rms")
        direct = facts.has(f"{at}attn_q.weight")
        apart = facts.has(f"{at}attn_k_b.weight")  # since 2025 keys and values have tensors of their own
        return sizes.layer(
            stack="decoder",
            index=i,
            kv_heads=sizes.heads,  # the file says 1: llama.cpp lets all heads share the latent
            head_dim=widths.key,
            value_dim=widths.value,
            shared_key=widths.turning,
            scale=scale,
            causal=True,
            encoding=encoding,
            q=Linear.at(f"{at}attn_q" if direct else f"{at}attn_q_b"),
            q_latent=None if direct else _latent(f"{at}attn_q_a", f"{at}attn_q_a_norm", eps, _query_rank(facts)),
            kv_latent=_latent(f"{at}attn_kv_a_mqa", f"{at}attn_kv_a_norm", eps, widths.latent),
            kv_up=None if apart else Linear.at(f"{at}attn_kv_b"),
            k_up=f"{at}attn_k_b.weight" if apart else None,
            v_up=f"{at}attn_v_b.weight" if apart else None,
            o=Linear.at(f"{at}attn_output"),
            input_norm=NormSpec.at("rms", f"{at}attn_norm", eps),
            warnings=warnings,
        )

    return ModelSpec(
        family="gguf-deepseek2",
        layers=tuple(layer(i) for i in range(facts.layers)),
        embedding="token_embd.weight",
        context=facts.context,
    )


def _widths(facts: GgufFacts) -> _Widths:
    """The true widths of a head; where `_mla` keys exist, the plain ones are those of the latent."""
    key = facts.integer("attention.key_length_mla", "attention.key_length")
    turning = facts.integer("rope.dimension_count")
    if turning >= key:
        raise BadConfig(
            f"'{facts.key('rope.dimension_count')}' in {facts.config.where} is {turning}, but a head's key has only "
            f"{key} channels; expected fewer rotary channels than that."
        )
    value = facts.integer("attention.value_length_mla", "attention.value_length")
    return _Widths(key, value, turning, facts.integer("attention.kv_lora_rank"))


def _query_rank(facts: GgufFacts) -> int:
    return facts.integer("attention.q_lora_rank")


def _latent(down: str, norm: str, eps: float, rank: int) -> LatentSpec:
    return LatentSpec(Linear.at(down), NormSpec.at("rms", norm, eps), rank)


def _positions(facts: GgufFacts, widths: _Widths) -> tuple[Encoding, float, tuple[str, ...]]:
    """The rotation and the scale of the logits, which together hold YaRN's growth.

    DeepSeek scales logits by (1 + 0.1 m ln factor)^2 and rotates without growth; the file holds 0.1 m.
    """
    settings = rotation(facts)
    scale = float(widths.key**-0.5)
    warnings: tuple[str, ...] = ()
    if settings.get("scaling") == "yarn":
        weight = 10 * facts.number("rope.scaling.yarn_log_multiplier", default=0.0)
        if weight:
            settings["attention_factor"] = 1.0
            scale *= yarn_size(settings["factor"], weight) ** 2
        else:
            warnings = (
                "the file has no yarn_log_multiplier: llama.cpp and the original may scale logits differently",
            )
    with facts.blamed():
        encoding = mla(widths.key - widths.turning, widths.turning, pairing="interleaved", **settings)
    return encoding, scale, warnings


FAMILIES = (
    Family(
        "gguf-deepseek2", ("deepseek2",), describe, "GGUF of DeepSeek V2 and V3: latent attention", container="gguf"
    ),
)
