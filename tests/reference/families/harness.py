"""Build a tiny model of a real architecture, save it, read it with Toposcope, and compare their attention.

`theirs` is what the model computes itself, in float32, with eager attention; `ours` is recomputed from our heads and
our encoding's tables in float64, from the input each layer really saw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import toposcope
from toposcope.checkpoints.attention import attention, output, project

TOLERANCE = 1e-5
COVERED: list[tuple[str, str, float]] = []  # family, setting, worst difference; printed at the end of the run


@dataclass(frozen=True)
class Seen:
    """What one attention layer of their model saw and did."""

    x: np.ndarray
    source: np.ndarray | None
    probabilities: np.ndarray  # (H, N, M)


def randomise(model: nn.Module, seed: int = 0, size: float = 1.0) -> None:
    """Weights large enough that attention is far from uniform, norm gains and biases far from their first values."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(size * noise / parameter.shape[-1] ** 0.5)


def rewrite_config(directory: Path, *, drop: Sequence[str] = (), **changes: Any) -> None:
    """Change a saved configuration, as older versions and other tools would have written it."""
    path = directory / "config.json"
    values = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps({**values, **changes}))


def watch_inputs(modules: Sequence[nn.Module]) -> list[list[torch.Tensor]]:
    """Record the first argument of each module at every call."""
    seen: list[list[torch.Tensor]] = [[] for _ in modules]
    for module, calls in zip(modules, seen, strict=True):

        def hook(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], calls: list[torch.Tensor] = calls
        ) -> None:
            calls.append((args[0] if args else kwargs["hidden_states"]).detach())

        module.register_forward_pre_hook(hook, with_kwargs=True)
    return seen


def watch_outputs(modules: Sequence[nn.Module]) -> list[list[torch.Tensor]]:
    """Record what each module gives back at every call (the first part of a tuple)."""
    seen: list[list[torch.Tensor]] = [[] for _ in modules]
    for module, calls in zip(modules, seen, strict=True):

        def hook(_: nn.Module, __: Any, given: Any, calls: list[torch.Tensor] = calls) -> None:
            calls.append((given[0] if isinstance(given, tuple) else given).detach())

        module.register_forward_hook(hook)
    return seen


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).numpy()


def compare(family: str, setting: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Assert equality, and that the case says something: attention must be far from uniform."""
    assert ours.shape == theirs.shape
    worst = float(np.abs(ours - theirs).max())
    COVERED.append((family, setting, worst))
    assert worst <= tolerance, f"{family} ({setting}): attention differs by {worst:.2e}"


def far_from_uniform(theirs: np.ndarray) -> bool:
    """Some row puts at least twice the uniform weight on one key."""
    return bool((theirs.max(axis=-1) * (theirs > 0).sum(axis=-1)).max() > 2)


def check_self_attention(
    tmp_path: Path,
    family: str,
    setting: str,
    model: nn.Module,
    layers: Callable[[nn.Module], Sequence[nn.Module]],
    *,
    inputs: dict[str, torch.Tensor] | None = None,
    length: int = 12,
    load: Callable[[Path], toposcope.Model] = toposcope.load,
    position_module: Callable[[nn.Module], nn.Module] | None = None,
    stack: str | None = None,
    size: float = 1.0,
    attentions: str = "attentions",
    outputs: Callable[[nn.Module], Sequence[nn.Module]] | None = None,
) -> None:
    """The whole comparison for a model with one stack of self-attention.

    `layers(model)` gives the modules whose first argument is the residual stream entering each layer.
    `position_module(model)` gives the module whose output is what is added to the input, if any.
    `outputs(model)` gives, for each layer, the module whose (first) output is what attention adds to the stream.
    """
    model = model.eval()
    randomise(model, size=size)
    model.save_pretrained(tmp_path)
    if inputs is None:
        vocabulary = model.config.vocab_size
        inputs = {"input_ids": torch.randint(3, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))}
    modules = list(layers(model))
    seen = watch_inputs(modules)
    given = watch_outputs(list(outputs(model))) if outputs is not None else None
    added: list[torch.Tensor] = []
    if position_module is not None:
        position_module(model).register_forward_hook(lambda *a: added.append(a[2].detach()))
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    theirs = [array(layer[0]) for layer in out[attentions]]
    with load(tmp_path) as ours:
        mine = [layer for layer in ours.layers if stack is None or layer.spec.stack == stack]
        assert len(mine) == len(theirs) == len(modules)
        assert ours.family == family
        assert any(far_from_uniform(theirs_i) for theirs_i in theirs), (
            "attention is nearly uniform: the case proves nothing"
        )
        for layer, calls, probabilities in zip(mine, seen, theirs, strict=True):
            x = array(calls[0][0])
            compare(family, setting, attention(layer, x), probabilities)
        if given is not None:
            for layer, calls, out_calls in zip(mine, seen, given, strict=True):
                check_output(layer, array(calls[0][0]), array(out_calls[0][0]))
        if position_module is not None:
            table = mine[0].encoding.input
            assert table is not None
            theirs_p = array(added[0]).reshape(-1, added[0].shape[-1])
            np.testing.assert_allclose(table.vectors(np.arange(len(theirs_p))), theirs_p, atol=1e-6)


def check_output(
    layer: toposcope.checkpoints.Layer, x: np.ndarray, theirs_out: np.ndarray, tolerance: float = 1e-4
) -> None:
    """What attention adds to the stream: values, output projection, output norm and gain."""
    _, _, values = project(layer, x)
    ours = output(layer, attention(layer, x), values)
    scale = max(1.0, float(np.abs(theirs_out).max()))
    assert np.abs(ours - theirs_out).max() <= tolerance * scale
