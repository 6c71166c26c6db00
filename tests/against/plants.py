"""Bugs planted in transformers' own modules, with no code of Toposcope's, and faults that are no known bug at all.

Another configuration, another table of cosines, another `apply_rotary_pos_emb`, a cache with wrong positions. Every
plant runs SmolLM2's weights (all of its layers, or the first few); scalings, partial rotation and layers without
position, which SmolLM2 does not have, are configured into both engines alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

ORIGINAL = 48  # the context that scalings stretch from: shorter than the texts
CHUNK = 40


@dataclass(frozen=True)
class Plant:
    """One fault of B. `bug` is the key that should be found (None: none of them), `of` names A's settings."""

    name: str
    bug: str | None
    of: str
    make: Callable[[Any], Any]
    run: Callable[[Any, Any], Any] | None = None
    around: Callable[[Any], Any] | None = None  # patches what is global, for as long as B runs

    def says(self, model: Any, texts: list[Any]) -> list[Any]:
        """What B says of each text, in the order given: log p of each token but the first."""
        b = self.make(deepcopy(model)).eval()
        with self.around(b) if self.around else _nothing():
            return [logprobs(b, ids, self.run) for ids in texts]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def logprobs(model: Any, ids: Any, run: Callable[[Any, Any], Any] | None = None) -> Any:
    ids_1N = torch.as_tensor(np.asarray(ids))[None]
    with torch.no_grad():
        logits = model(input_ids=ids_1N, use_cache=False).logits if run is None else run(model, ids_1N)
    every = torch.log_softmax(logits[0, :-1].double(), dim=-1)
    return every.gather(1, ids_1N[0, 1:, None])[:, 0].numpy()


# ------------------------------------------------------------------ A's settings
def settings(base: Any, layers: int | None = None) -> dict[str, Callable[[], Any]]:
    """A by the name of its settings; `base` is SmolLM2, of which `layers` are kept."""

    def llama(**changes: Any) -> Any:
        from transformers import LlamaForCausalLM

        return _filled(LlamaForCausalLM, base, layers, **changes)

    pairs = base.config.hidden_size // base.config.num_attention_heads // 2
    theta = base.config.rope_parameters["rope_theta"]
    grows = np.linspace(1, 1.5, pairs).tolist(), np.linspace(1, 6, pairs).tolist()
    original = {"original_max_position_embeddings": ORIGINAL, "rope_theta": theta}
    return {
        "plain": llama,
        "llama3": lambda: llama(
            rope_parameters={
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original,
            },
        ),
        "yarn": lambda: llama(rope_parameters={"rope_type": "yarn", "factor": 4.0, **original}),
        "dynamic": lambda: llama(
            max_position_embeddings=ORIGINAL,
            rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": theta},
        ),
        "longrope": lambda: llama(
            max_position_embeddings=4 * ORIGINAL,
            rope_parameters={
                "rope_type": "longrope", "factor": 4.0, "short_factor": grows[0], "long_factor": grows[1], **original,
            },
        ),
        "some layers without": lambda: _smollm3(base, layers),
        "partial": lambda: _phi3(base, layers),
    }  # fmt: skip


def _config(base: Any, layers: int | None, **changes: Any) -> dict[str, Any]:
    said = base.config.to_dict()
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "rope_parameters", "hidden_act",
    )  # fmt: skip
    count = said["num_hidden_layers"] if layers is None else layers
    return {**{name: said[name] for name in names}, "num_hidden_layers": count, **_no_ids(), **changes}


def _no_ids() -> dict[str, None]:
    return dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def _filled(kind: Any, base: Any, layers: int | None, **changes: Any) -> Any:
    model = kind(kind.config_class(**_config(base, layers, **changes))).eval()
    wanted = set(model.state_dict())
    model.load_state_dict({name: each for name, each in base.state_dict().items() if name in wanted}, strict=True)
    return model


def _smollm3(base: Any, layers: int | None) -> Any:
    """Every fourth layer does not turn."""
    from transformers import SmolLM3ForCausalLM

    count = base.config.num_hidden_layers if layers is None else layers
    pattern = [int((number + 1) % 4 != 0) for number in range(count)]
    return _filled(SmolLM3ForCausalLM, base, layers, no_rope_layers=pattern, use_sliding_window=False)


def _phi3(base: Any, layers: int | None) -> Any:
    """Half of each head's channels turn; Q, K, V lie in one matrix, and so do gate and up."""
    from transformers import Phi3Config, Phi3ForCausalLM

    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    model = Phi3ForCausalLM(Phi3Config(**_config(base, layers, rope_parameters=rope))).eval()
    held, made = base.state_dict(), {}
    for name in model.state_dict():
        if "qkv_proj" in name:
            made[name] = torch.cat([held[name.replace("qkv_proj", f"{each}_proj")] for each in "qkv"])
        elif "gate_up_proj" in name:
            made[name] = torch.cat([held[name.replace("gate_up_proj", f"{each}_proj")] for each in ("gate", "up")])
        else:
            made[name] = held[name]
    model.load_state_dict(made)
    return model


# ------------------------------------------------------------------ known bugs
def _configured(**changes: Any) -> Callable[[Any], Any]:
    """Build the rotary module anew from changed settings, and nothing else."""

    def make(model: Any) -> Any:
        config = deepcopy(model.config)
        lengths = {name: changes[name] for name in changes if name == "max_position_embeddings"}
        config.rope_parameters = {**config.rope_parameters, **{n: v for n, v in changes.items() if n not in lengths}}
        for name, value in lengths.items():
            setattr(config, name, value)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        return model

    return make


def _factor_of_lengths(model: Any) -> Any:
    return _configured(factor=model.config.max_position_embeddings / ORIGINAL)(model)


def _frequencies(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        rotary = model.model.rotary_emb
        rotary.inv_freq = change(rotary.inv_freq)
        rotary.original_inv_freq = rotary.inv_freq.clone()
        return model

    return make


def _attention_scaling(change: Callable[[float], float]) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        model.model.rotary_emb.attention_scaling = change(model.model.rotary_emb.attention_scaling)
        return model

    return make


def _as_it_is(model: Any) -> Any:
    return model


def _applied(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """For as long as B runs, its file's `apply_rotary_pos_emb` is another."""

    def around(model: Any) -> Any:
        home = sys.modules[type(model).__module__]
        before = home.apply_rotary_pos_emb
        return patch.object(home, "apply_rotary_pos_emb", lambda *given, **more: function(before, *given, **more))

    return around


def _interleaved(before: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos, sin = (each[..., : each.shape[-1] // 2].unsqueeze(unsqueeze_dim) for each in (cos, sin))

    def turned(x: Any) -> Any:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)

    return turned(q), turned(k)


def _reversed_partners(before: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Channel f turns with d - 1 - f, at the frequency of f."""
    half = cos.shape[-1] // 2
    order = torch.cat([torch.arange(half), torch.arange(2 * half - 1, half - 1, -1)])
    turned = before(q[..., order], k[..., order], cos, sin, unsqueeze_dim)
    return tuple(each[..., order] for each in turned)


def _twice(before: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return before(*before(q, k, cos, sin, unsqueeze_dim), cos, sin, unsqueeze_dim)


def _backwards(before: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return before(q, k, cos, -sin, unsqueeze_dim)


def _in_chunks(offset: Callable[[int], int]) -> Callable[[Any, Any], Any]:
    """Chunks through a cache, the positions of later ones counted from `offset`."""

    def run(model: Any, ids_1N: Any) -> Any:
        from transformers import DynamicCache

        cache, found = DynamicCache(config=model.config), []
        for at in range(0, ids_1N.shape[1], CHUNK):
            part = ids_1N[:, at : at + CHUNK]
            places = offset(at) + torch.arange(part.shape[1])[None]
            found.append(model(input_ids=part, position_ids=places, past_key_values=cache, use_cache=True).logits)
        return torch.cat(found, dim=1)

    return run


def _at_the_switch(model: Any, ids_1N: Any) -> Any:
    """The original context in one pass, then the rest, with a cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    parts = [ids_1N[:, :ORIGINAL], ids_1N[:, ORIGINAL:]]
    found = [model(input_ids=part, past_key_values=cache, use_cache=True).logits for part in parts if part.shape[1]]
    return torch.cat(found, dim=1)


def _all_turn(model: Any) -> Any:
    for layer in model.model.layers:
        layer.self_attn.use_rope = 1
    return model


def _whole_heads(model: Any) -> Any:
    config = deepcopy(model.config)
    config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": 1.0}
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def _never_reset(model: Any) -> Any:
    model.model.rotary_emb.original_max_seq_len = 0
    return model


def _always_long(model: Any) -> Any:
    rotary = model.model.rotary_emb
    config = deepcopy(rotary.config)
    config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]
    model.model.rotary_emb = type(rotary)(config)
    return model


KNOWN = (
    Plant("rope_theta lost", "theta-lost", "plain", _configured(rope_theta=10000.0)),
    Plant("llama3 scaling lost", "scaling-dropped", "llama3", _configured(rope_type="default")),
    Plant("inv_freq zero", "frequencies-uninitialised", "plain", _frequencies(torch.zeros_like)),
    Plant("inv_freq in bfloat16", "frequencies-rounded", "plain", _frequencies(lambda w: w.bfloat16().float())),
    Plant("whole heads turn", "partial-ignored", "partial", _whole_heads),
    Plant("partners reversed", "partners-wrong", "plain", _as_it_is, around=_applied(_reversed_partners)),
    Plant("interleaved", "pairing-swapped", "plain", _as_it_is, around=_applied(_interleaved)),
    Plant("attention factor 1", "attention-factor-dropped", "yarn", _attention_scaling(lambda f: 1.0)),
    Plant("attention factor squared", "attention-factor-twice", "yarn", _attention_scaling(lambda f: f * f)),
    Plant("truncate false", "truncate-ignored", "yarn", _configured(truncate=False)),
    Plant("factor from lengths", "factor-ignored", "yarn", _factor_of_lengths),
    Plant("long list always", "longrope-choice", "longrope", _always_long),
    Plant("cache across the switch", "cache-stale", "longrope", _as_it_is, run=_at_the_switch),
    Plant("all layers turn", "no-position-layers-rotated", "some layers without", _all_turn),
    Plant("chunks begin at 0", "cache-offset", "plain", _as_it_is, run=_in_chunks(lambda at: 0)),
    Plant("chunks one too far", "cache-offset", "plain", _as_it_is, run=_in_chunks(lambda at: at + (at > 0))),
    Plant("rotated twice", "rotated-twice", "plain", _as_it_is, around=_applied(_twice)),
    Plant("never reset", "dynamic-not-reset", "dynamic", _never_reset),
    Plant("sine negated", "turned-backwards", "plain", _as_it_is, around=_applied(_backwards)),
)


# ------------------------------------------------------------------ none of the known ones
def _epsilon(model: Any) -> Any:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-2
    return model


def _lost_head(model: Any) -> Any:
    attention = model.model.layers[1].self_attn
    attention.o_proj.weight.data[:, : attention.head_dim] = 0
    return model


def _shuffled(model: Any) -> Any:
    layers = model.model.layers
    middle = len(layers) // 2
    layers[middle], layers[middle + 1] = layers[middle + 1], layers[middle]
    return model


def _coarse(model: Any) -> Any:
    """Weights on a grid of 6 bits for each row."""
    for name, each in model.named_parameters():
        if each.ndim == 2 and "embed" not in name and "lm_head" not in name:
            step = each.data.abs().amax(1, keepdim=True) / 31
            each.data = (each.data / step).round() * step
    return model


def _hotter(model: Any) -> Any:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.15
    return model


def _gelu(model: Any) -> Any:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    return model


def _keys_ahead(before: Any, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    """Keys stand one position after their tokens."""
    turned = before(q, k, cos, sin, unsqueeze_dim)[0]
    step = [cos[:, 1:2] * cos[:, :1], sin[:, 1:2] * cos[:, :1]]
    ahead = cos * step[0] - sin * step[1], sin * step[0] + cos * step[1]
    return turned, before(q, k, *ahead, unsqueeze_dim)[1]


UNKNOWN = (
    Plant("base 50000", None, "plain", _configured(rope_theta=50000.0)),
    Plant("epsilon 0.01", None, "plain", _epsilon),
    Plant("a head lost", None, "plain", _lost_head),
    Plant("two layers exchanged", None, "plain", _shuffled),
    Plant("weights of 6 bits", None, "yarn", _coarse),
    Plant("logits x 1.15", None, "plain", _hotter),
    Plant("gelu for silu", None, "llama3", _gelu),
    Plant("keys one ahead", None, "plain", _as_it_is, around=_applied(_keys_ahead)),
)
SOUND = (
    Plant("nothing", "", "plain", _as_it_is),
    Plant("in chunks, rightly", "", "plain", _as_it_is, run=_in_chunks(lambda at: at)),
)
PLANTS = (*KNOWN, *UNKNOWN, *SOUND)
