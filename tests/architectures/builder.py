"""Tiny models at random: of a model type and a group a model that runs, in a fraction of a second.

Random means every parameter: norm gains, biases and sinks too are far from the 0 or 1 they begin with, so that a
reader who forgets one is noticed.
"""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import torch
from torch import nn

from tests.architectures.given import inputs
from tests.architectures.kinds import classes
from tests.architectures.settings import SETTINGS
from tests.architectures.shrink import merged, small, variants

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
LARGEST = 45_000_000  # parameters; a model that is larger was not shrunk
_KEPT = ("A_log", "dt_bias", ".D", "conv1d")  # of state-space layers: at random they would not be stable


class NotBuilt(Exception):
    """No tiny model of this type could be made to run here, with what was tried."""


def build(model_type: str, group: str, seed: int = 0) -> nn.Module:
    """A tiny model of the type: on the CPU, in float32, eager, evaluating, its parameters drawn by the seed."""
    import transformers
    from transformers import CONFIG_MAPPING

    transformers.utils.logging.disable_progress_bar()
    name = classes(group)[model_type]
    reasons: dict[str, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made, config = getattr(transformers, name), CONFIG_MAPPING[model_type]
            base = _configured(small(config), model_type)
        except Exception as error:  # what other people's classes say when they miss a package
            raise NotBuilt(_said(error)) from error
        for settings in variants(base):
            try:
                model = _made(made, config(**copy.deepcopy(settings)), name)
                randomise(model, seed)
                with torch.no_grad():
                    model(**inputs(model, 1, 12, 1))
            except Exception as error:  # noqa: BLE001 - the next variant may do
                reasons[_said(error)] = None
            else:
                return model
    raise NotBuilt("; ".join(list(reasons)[:2]))


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draw all parameters that are trained; attention becomes far from uniform."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad or not parameter.is_floating_point() or any(k in name for k in _KEPT):
                continue
            noise = torch.randn(parameter.shape, generator=dice)
            if parameter.ndim < 2:
                parameter.copy_(
                    torch.nan_to_num(parameter, nan=0.0, posinf=0.0, neginf=0.0).clamp(-9, 9) + 0.3 * noise
                )
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)


def _configured(settings: dict[str, Any], model_type: str) -> dict[str, Any]:
    settings = merged(settings, SETTINGS.get(model_type, {}))
    return {
        key: _configured(value, value["model_type"]) if isinstance(value, dict) and "model_type" in value else value
        for key, value in settings.items()
    }


def _parts(config: Any) -> list[Any]:
    nested = (getattr(config, name, None) for name in getattr(config, "sub_configs", None) or {})
    return [config, *(part for part in nested if part is not None and not isinstance(part, dict))]


def _made(cls: Any, config: Any, name: str) -> nn.Module:
    wanted = getattr(cls, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):  # a language model, listed by a larger one's type
        config = next((part for part in _parts(config) if isinstance(part, wanted)), config)
    for part in _parts(config):
        for slow in ("use_mambapy", "use_mamba_kernels"):
            if hasattr(part, slow):
                setattr(part, slow, False)
    if (
        hasattr(config, "is_decoder")
        and name.endswith(("ForCausalLM", "LMHeadModel"))
        and config.model_type != "bart"
    ):
        config.is_decoder = True
    with torch.device("meta"):
        size = sum(each.numel() for each in cls(copy.deepcopy(config)).parameters())
    if size > LARGEST:
        raise NotBuilt(f"it stays too large: {size} parameters")
    try:
        model = cls._from_config(config, attn_implementation="eager")
    except Exception:  # noqa: BLE001 - some classes know one implementation only
        model = cls(config)
    if hasattr(model, "set_default_language"):
        model.set_default_language(config.languages[0])
    return model.float().eval()


def _said(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:160]}" if first else type(error).__name__
