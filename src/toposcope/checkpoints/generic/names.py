"""What the tensors of a model are called in its files: transformers renames, splits and joins them when it saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.spec import GateSpec, LatentSpec, LayerSpec, Linear, NormSpec, RowPattern

T = TypeVar("T")
_NAMES = ("weight", "bias", "sinks", "output_gain", "k_up", "v_up")  # fields that name tensors


class FileNames:
    """The names under which a model's parameters are saved, found with transformers' own conversion."""

    def __init__(self, model: Any, tensors: Mapping[str, Any] | None = None) -> None:
        from transformers.core_model_loading import revert_weight_conversion

        self.held = dict(model.state_dict() if tensors is None else tensors)
        self.saved: dict[str, Any] = dict(revert_weight_conversion(model, dict(self.held)))
        self._by_place: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
        for name, tensor in self.saved.items():
            self._by_place[tensor.data_ptr(), tuple(tensor.shape)].append(name)

    def of(self, name: str) -> tuple[str, int, bool]:
        """The saved tensor that holds a parameter, the row it begins at, and whether it is transposed there."""
        tensor = self.held.get(name)
        if tensor is None:
            raise Refused(f"'{name}' is no tensor that is saved")
        if name in self.saved and self.saved[name] is tensor:
            return name, 0, False
        places = self._by_place.get((tensor.data_ptr(), tuple(tensor.shape)), [])
        if places:
            return min(places, key=lambda each: (each != name, len(each))), 0, False
        return self._by_content(name, tensor)

    def _by_content(self, name: str, tensor: Any) -> tuple[str, int, bool]:
        for saved, other in self.saved.items():
            if other.dim() != tensor.dim() or other.dtype != tensor.dtype:
                continue
            if other.shape == tensor.shape and bool((other == tensor).all()):
                return saved, 0, False
            if tensor.dim() == 2 and other.shape == tensor.shape[::-1] and bool((tensor == other.T).all()):
                return saved, 0, True
            if other.shape[1:] == tensor.shape[1:] and len(other) > len(tensor):
                for start in (other == tensor[0]).reshape(len(other), -1).all(1).nonzero().ravel().tolist():
                    part = other[start : start + len(tensor)]
                    if part.shape == tensor.shape and bool((part == tensor).all()):
                        return saved, int(start), False
        raise Refused(f"'{name}' is not stored as such in the model's files")

    def layer(self, spec: LayerSpec) -> LayerSpec:
        """The same layer under the names of its file."""
        return _renamed(spec, self)

    def linear(self, linear: Linear) -> Linear:
        """The same map under the names of its file, and the rows it has there."""
        weight, start, turned = self.of(linear.weight)
        transposed = linear.transposed != turned
        rows, bias = linear.rows, None
        held = self.saved[weight].shape[1 if transposed else 0]
        mine = self.held[linear.weight].shape[1 if linear.transposed else 0]
        if held != mine:
            rows = RowPattern(start, int(mine)) if rows is None else replace(rows, start=rows.start + start)
        if linear.bias is not None:
            bias, first, _ = self.of(linear.bias)
            if first != start or self.saved[bias].shape[0] != held:
                raise Refused(f"the bias '{linear.bias}' is stored in another way than its weight")
        return replace(linear, weight=weight, bias=bias, transposed=transposed, rows=rows)

    def plain(self, name: str) -> str:
        """The name of a tensor that is stored as it is."""
        saved, _, turned = self.of(name)
        if turned or self.saved[saved].shape != self.held[name].shape:
            raise Refused(f"'{name}' is stored as a part of '{saved}'")
        return saved


def _renamed(part: Any, names: FileNames) -> Any:
    if isinstance(part, Linear):
        return names.linear(part)
    changes: dict[str, Any] = {}
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, Linear | NormSpec | LatentSpec | GateSpec):
            changes[entry.name] = _renamed(value, names)
        elif isinstance(value, str) and entry.name in _NAMES:
            changes[entry.name] = names.plain(value)
    return replace(part, **changes)


def tensors_of(part: Any) -> set[str]:
    """All tensors that a layer, a map or a norm names."""
    found: set[str] = set()
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, str) and entry.name in _NAMES:
            found.add(value)
        elif is_dataclass(value) and isinstance(value, Linear | NormSpec | LatentSpec | GateSpec):
            found |= tensors_of(value)
    return found


def renumbered(spec: LayerSpec, old: str, new: str) -> LayerSpec:
    """The layer with the names of another: those that begin with `old.` begin with `new.`."""
    return reprefixed(spec, f"{old}.", f"{new}.")


def reprefixed(spec: LayerSpec, old: str, new: str) -> LayerSpec:
    """The layer with another prefix before the names of its tensors, where they have this one."""

    def move(part: T) -> T:
        changes: dict[str, Any] = {}
        for entry in fields(part):  # type: ignore[arg-type]
            value = getattr(part, entry.name)
            if isinstance(value, str) and entry.name in _NAMES and value.startswith(old):
                changes[entry.name] = new + value[len(old) :]
            elif isinstance(value, Linear | NormSpec | LatentSpec | GateSpec):
                changes[entry.name] = move(value)
        return replace(part, **changes)  # type: ignore[type-var]

    return move(spec)


def prefix_change(wanted: set[str], held: set[str]) -> tuple[str, str]:
    """The prefix to take away and the one to add so that all wanted names are held ('' and '' where they are)."""
    if wanted <= held:
        return "", ""
    longest = max(wanted, key=len)
    parts = longest.split(".")
    for cut in range(len(parts)):
        tail = ".".join(parts[cut:])
        old = longest[: len(longest) - len(tail)]
        for name in sorted(each for each in held if each == tail or each.endswith(f".{tail}")):
            new = name[: len(name) - len(tail)]
            if all(each.startswith(old) and new + each[len(old) :] in held for each in wanted):
                return old, new
    missing = sorted(wanted - held)[0]
    raise Refused(f"the file holds no tensor '{missing}'")
