"""Tiny models of transformers for the probes that run them in several ways, and how to change what they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 50,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64, "bos_token_id": 1}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rotary(kind: str = "Llama", context: int = 128, **settings: Any) -> Any:
    """A rotary decoder: `kind` names its classes in transformers; a window and the like are further settings."""
    import transformers

    groups = {"num_key_value_heads": 2} if kind not in ("GPTNeoX",) else {}
    config = getattr(transformers, f"{kind}Config")(**SIZES, **groups, max_position_embeddings=context, **settings)
    return seeded(lambda: getattr(transformers, f"{kind}ForCausalLM")(config))


def longrope(original: int, pairs: int = 4) -> dict[str, Any]:
    """Settings with short and long factors that differ in every pair."""
    return {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original,
        "short_factor": [1 + 0.1 * f for f in range(pairs)], "long_factor": [1.5 + f for f in range(pairs)],
    }  # fmt: skip


def dynamic(factor: float = 4.0) -> dict[str, Any]:
    return {"rope_type": "dynamic", "rope_theta": 1e4, "factor": factor}


def seeded(make: Callable[[], Any]) -> Any:
    """A model in evaluation mode, its weights larger than at the beginning of a training."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = make().eval()
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.randn_like(each) * 0.1)
    return model


def cast(model: Any, dtype: torch.dtype) -> Any:
    """The parameters in another precision; frequencies stay, as `from_pretrained(dtype=...)` leaves them."""
    for each in model.parameters():
        each.data = each.data.to(dtype)
    return model


def around(module: Any, changed: Callable[[dict[str, Any]], None]) -> None:
    """Let a function change the arguments of a module's forward, by their names."""
    names = list(inspect.signature(module.forward).parameters)

    def hook(_: Any, given: Any, options: dict[str, Any]) -> Any:
        options = {**dict(zip(names, given, strict=False)), **options}
        changed(options)
        return (), options

    module.register_forward_pre_hook(hook, with_kwargs=True)
