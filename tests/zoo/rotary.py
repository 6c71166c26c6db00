"""Access to the rotary parts of a model of transformers: frequencies by layer type, and the functions that rotate."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

_NAME = "inv_freq"
_APPLIES = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb")


def text_config(model: nn.Module) -> Any:
    """The settings of the text model."""
    return model.config.get_text_config()


def attentions(model: nn.Module) -> list[nn.Module]:
    """The attention modules of the text model, in their order."""
    found = [each for each in model.modules() if type(each).__name__.endswith("Attention")]
    return [each for each in found if "Vision" not in type(each).__name__]


def rotaries(model: nn.Module) -> list[nn.Module]:
    """The modules that hold frequencies, those of an image tower left out."""
    named = ((name, each) for name, each in model.named_modules() if "visual" not in name and "vision" not in name)
    return [each for _, each in named if any(key.endswith(_NAME) for key in each._buffers)]


def kinds(rotary: nn.Module) -> list[str]:
    """What its buffers are called before 'inv_freq': nothing, or a type of layer and an underscore."""
    names = [key.removesuffix(_NAME) for key in rotary._buffers if key.endswith(_NAME)]
    return [each for each in names if not each.endswith("original_")]


def set_frequencies(model: nn.Module, change: Callable[[torch.Tensor, str], torch.Tensor]) -> None:
    """Put other frequencies in place of a model's: `change` is given those it has, and the type of layer."""
    for rotary in rotaries(model):
        for kind in kinds(rotary):
            new = change(getattr(rotary, kind + _NAME), kind.removesuffix("_"))
            setattr(rotary, kind + _NAME, new.clone())
            if hasattr(rotary, f"{kind}original_{_NAME}"):
                setattr(rotary, f"{kind}original_{_NAME}", new.clone())


def set_factor(model: nn.Module, change: Callable[[float], float]) -> None:
    """Put another attention factor in place of a model's."""
    for rotary in rotaries(model):
        for kind in kinds(rotary):
            setattr(rotary, f"{kind}attention_scaling", change(getattr(rotary, f"{kind}attention_scaling")))


def plain(pairs: int, base: float) -> torch.Tensor:
    """The frequencies of unscaled rotary encoding."""
    return base ** (-torch.arange(pairs, dtype=torch.float64) / pairs).to(torch.float32)


def by_config(model: nn.Module, *, layer_type: str | None = None, length: int | None = None, **changes: Any) -> Any:
    """Frequencies and factor as transformers computes them once the rotary settings are changed in one thing."""
    import copy

    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(text_config(model))
    settings = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    settings.update(changes)
    compute = ROPE_INIT_FUNCTIONS.get(settings["rope_type"])
    if compute is None:
        return plain(_pairs(model, layer_type), settings["rope_theta"]), 1.0
    return compute(config, None, seq_len=length, layer_type=layer_type)


def _pairs(model: nn.Module, layer_type: str | None) -> int:
    rotary = rotaries(model)[0]
    return len(getattr(rotary, f"{layer_type}_{_NAME}" if layer_type else _NAME))


def around_forward(module: nn.Module, wrapper: Callable[..., Any]) -> None:
    """Let calls of a module go through `wrapper(forward, **arguments)`, named as the forward names them."""
    forward = module.forward
    signature = inspect.signature(forward)

    def called(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        rest = given.pop("kwargs", {})
        return wrapper(forward, **{**given, **rest})

    called.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = called  # type: ignore[method-assign]


@contextmanager
def applied_by(model: nn.Module, wrapper: Callable[..., Any]) -> Iterator[None]:
    """While it lasts, all rotations of this model's architecture go through `wrapper(apply, q, k, *table)`."""
    with ExitStack() as stack:
        modules = {type(each).__module__ for each in attentions(model)}
        patched = 0
        for where in (sys.modules[name] for name in modules):
            for name in _APPLIES:
                apply = getattr(where, name, None)
                if apply is None:
                    continue

                def changed(q: Any, k: Any, *table: Any, apply: Any = apply, **more: Any) -> Any:
                    return wrapper(lambda a, b: apply(a, b, *table, **more), q, k)

                stack.enter_context(mock.patch.object(where, name, changed))
                patched += 1
        assert patched, f"no rotation to change in {modules}"
        yield
