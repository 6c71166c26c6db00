"""A device that is not there: tensors that say they are on it, and refuse to meet tensors of the CPU.

    with pretended():
        move(model, "mps:0")
        model(input_ids=ids)                # raises: `ids` is on the CPU
        model(input_ids=ids.to("mps:0"))    # runs

The numbers lie in ordinary memory, so results are those of the CPU to the bit. As on a real device: two tensors of
different devices cannot meet, but for single numbers of the CPU; only `to`, `cpu` and `copy_` cross; an array is made
of the CPU's only; and there is no float64 (as on MPS), so what needs it must come home first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

HERE = torch.device("cpu")
AWAY = "mps:0"
_CROSSING = {"to", "cpu", "copy_", "type_as", "_has_compatible_shallow_copy_type"}
_AT_HOME_ONLY = {"numpy", "__array__"}


class Mixed(RuntimeError):
    """Tensors of two devices met."""


class Away(torch.Tensor):
    """A tensor that says it is on another device."""

    place: torch.device

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(function, args, kwargs or {})


def call(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What a function of torch gives on the device of its arguments."""
    name = getattr(function, "__name__", "")
    met = list(_tensors((args, kwargs)))
    places = {each.place for each in met if isinstance(each, Away)}
    if name == "__get__" and places:
        return _attribute(function, args, kwargs)
    if function is torch.autograd.grad:
        return _gradients(args, kwargs)
    asked = _asked(name, args, kwargs)
    if name in _AT_HOME_ONLY and places:
        raise TypeError(f"can't convert {met[0].place} device type tensor to numpy. Use Tensor.cpu() first.")
    if name not in _CROSSING:
        _refuse_mixed(name, met, places)
        if places and asked is not None and asked not in places:
            places = {asked}  # a factory that is told where: x.new_zeros(..., device=)
    target = asked or (HERE if name == "cpu" else next(iter(places), HERE))
    if name == "copy_":
        target = args[0].place if isinstance(args[0], Away) else HERE
    plain_args, plain_kwargs = _plain(args), {k: _plain(v) for k, v in kwargs.items()}
    with torch._C.DisableTorchFunction():
        found = function(*plain_args, **plain_kwargs)
        if name in ("to", "cpu", "type_as") and found is args[0] and target not in places:
            found = found.clone()  # a copy there, as between real devices
    if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], torch.Tensor):
        return args[0] if found is not None else found
    if target == HERE:
        return found.as_subclass(torch.Tensor) if isinstance(found, Away) else found
    return _wrapped(found, target)


class _Mode(TorchFunctionMode):
    """Sees what takes no tensor: factories that are told a device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asked = _asked(getattr(function, "__name__", ""), args, kwargs)
        if asked is not None or any(isinstance(each, Away) for each in _tensors((args, kwargs))):
            return call(function, args, kwargs)
        return function(*args, **kwargs)


@contextmanager
def pretended() -> Iterator[None]:
    """Devices named mps:0, mps:1, ... can be used inside the block."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter that moves is another one
    try:
        with _Mode():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def away(tensor: torch.Tensor, place: str = AWAY) -> torch.Tensor:
    """A tensor as if it were there."""
    if tensor.dtype == torch.float64:
        raise TypeError("there is no float64 on this device.")
    found = tensor.detach().as_subclass(Away)
    found.place = torch.device(place)
    return found


def move(model: Any, place: str | Callable[[str], str] = AWAY) -> Any:
    """Move a model there in place; a function of a tensor's name spreads it over several devices."""
    made: dict[int, Any] = {}
    for prefix, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    where = place if isinstance(place, str) else place(f"{prefix}.{name}")
                    new = away(tensor, where)
                    if kind is module._parameters:
                        new = nn.Parameter(new, requires_grad=tensor.requires_grad)
                        new.place = torch.device(where)
                    made[id(tensor)] = new
                kind[name] = made[id(tensor)]
    return model


# -------------------------------------------------------------------- inside
def _attribute(function: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    with torch._C.DisableTorchFunction():
        found = function(*args, **kwargs)
    if isinstance(found, torch.device):
        return tensor.place
    return _wrapped(found, tensor.place)


def _gradients(args: Any, kwargs: Any) -> Any:
    """Gradients may be asked for at tensors of any devices; each is where its tensor is."""
    with torch._C.DisableTorchFunction():
        found = torch.autograd.grad(*args, **kwargs)
    at = args[1] if len(args) > 1 else kwargs["inputs"]
    at = [at] if isinstance(at, torch.Tensor) else at
    return tuple(
        _wrapped(part, each.place) if isinstance(each, Away) else part for part, each in zip(found, at, strict=True)
    )


def _refuse_mixed(name: str, met: list[Any], places: set[torch.device]) -> None:
    if not places:
        return
    stray = [each for each in met if not isinstance(each, Away) and each.ndim > 0]
    if len(places) > 1 or stray:
        shapes = ", ".join(str(tuple(each.shape)) for each in stray)
        raise Mixed(
            f"{name}: tensors of {', '.join(map(str, places))} met others{f' of the CPU: {shapes}' if stray else ''}."
        )


def _asked(name: str, args: Any, kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device that a call names, in whatever way."""
    given = kwargs.get("device")
    if given is None and name == "to":
        others = [each for each in args[1:] if isinstance(each, torch.device | str | torch.Tensor)]
        given = others[0] if others else None
    if given is None and name == "type_as":
        given = args[1]
    if isinstance(given, torch.Tensor):
        return given.place if isinstance(given, Away) else HERE
    if given is None or isinstance(given, torch.dtype):
        return None
    found = torch.device(given)
    return found if found.type in ("mps", "cpu") else None


def _wrapped(found: Any, place: torch.device) -> Any:
    if isinstance(found, torch.Tensor):
        if found.dtype == torch.float64:
            raise TypeError(f"there is no float64 on {place}.")
        if type(found) is torch.Tensor:
            found = found.as_subclass(Away)
        if isinstance(found, Away):
            found.place = place
        return found
    if isinstance(found, tuple) and type(found) is not torch.Size:
        parts = [_wrapped(each, place) for each in found]
        return (
            type(found)(parts) if not hasattr(found, "_fields") and type(found) is tuple else _rebuilt(found, parts)
        )
    if isinstance(found, list):
        return [_wrapped(each, place) for each in found]
    return found


def _rebuilt(found: Any, parts: list[Any]) -> Any:
    return type(found)(parts)  # torch.return_types take a sequence


def _plain(value: Any) -> Any:
    """What the function itself is given: no word of other devices."""
    if isinstance(value, torch.device):
        return HERE if value.type == "mps" else value
    if isinstance(value, str) and value.startswith("mps"):
        return "cpu"
    if isinstance(value, list | tuple) and type(value) is not torch.Size:
        return type(value)([_plain(each) for each in value])
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
