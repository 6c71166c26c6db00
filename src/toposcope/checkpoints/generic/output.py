"""From the heads' outputs to the residual stream: gate, norm before O, O, norm and gain after it, addition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.fit import Fitted
from toposcope.checkpoints.generic.match import Index, ModuleFlow, same
from toposcope.checkpoints.generic.record import Array, double, flat
from toposcope.checkpoints.generic.tensors import linear, norm_spec
from toposcope.checkpoints.spec import GateSpec, Linear, NormSpec

_INVERSES: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda r: np.log(r / (1 - r)),
    "double_sigmoid": lambda r: np.log(r / (2 - r)),
    "softplus": lambda r: np.log(np.expm1(r)),
}


@dataclass(frozen=True, eq=False)
class Ending:
    """What follows the probabilities. `base` is what attention's output was seen to be added to."""

    module: str
    o: Linear
    width: int
    gate: GateSpec | None = None
    inner_norm: NormSpec | None = None
    output_norm: NormSpec | None = None
    residual_norm: NormSpec | None = None
    gain: str | float | None = None
    base: Array | None = None


def ending(fitted: Fitted, model: Any, modules: dict[str, Any], entered: Array) -> Ending:
    """The way from the heads' outputs to the stream; `entered` is the layer's normed input."""
    heads = np.repeat(fitted.v, fitted.q.shape[1] // fitted.v.shape[1], axis=1)
    joined = np.einsum("bhnm,bhmv->bnhv", fitted.probabilities, heads).reshape(*entered.shape[:2], -1)
    o, gate, inner = _map(fitted, modules, entered, joined)
    module = modules[o.name]
    base, output_norm, residual, gain = _added(fitted, modules, entered, o.y)
    return Ending(
        module=o.name,
        o=linear(modules, o.name, np.arange(o.y.shape[2])),
        width=int(o.y.shape[2]),
        gate=gate,
        inner_norm=None if inner is None else norm_spec(modules, inner),
        output_norm=None if output_norm is None else norm_spec(modules, output_norm),
        residual_norm=None if residual is None else norm_spec(modules, residual),
        gain=_named(gain, fitted, modules) if module is not None else None,
        base=base,
    )


def _map(
    fitted: Fitted, modules: dict[str, Any], entered: Array, joined: Array
) -> tuple[ModuleFlow, GateSpec | None, ModuleFlow | None]:
    """The output map, and a gate or a norm between the heads and it."""
    after = [each for each in fitted.later_linears if each.x.shape == joined.shape]
    for flow in after:
        if same(flow.x, joined, 1e-5):
            return flow, None, None
    for flow in after:
        for norm in fitted.later_norms:
            if same(norm.y, flow.x, 1e-5) and same(norm.x, joined, 1e-5):
                return flow, None, norm
        gate = _gate(fitted, modules, entered, flow.x, joined)
        if gate is not None:
            return flow, gate, None
    raise Refused("no linear map takes what the heads give")


def _gate(fitted: Fitted, modules: dict[str, Any], entered: Array, gated: Array, joined: Array) -> GateSpec | None:
    """The activation and the map whose product with the heads' outputs enters O."""
    heads, value = fitted.q.shape[1], fitted.v.shape[3]
    clear = np.abs(joined) > 1e-3 * np.abs(joined).max()
    candidates = [each for each in (*fitted.linears, *fitted.later_linears) if same(each.x, entered)]
    with np.errstate(all="ignore"):
        ratio = gated / joined
        for activation, inverse in _INVERSES.items():
            z = inverse(ratio)
            if not np.isfinite(z[clear]).all():
                continue
            z = np.where(clear, z, np.nan)
            for flow in candidates:
                for rows, over in _gate_rows(flow.y.shape[2], heads, value):
                    spread = rows if over == "channel" else np.repeat(rows, value)
                    error = z - flow.y[:, :, spread]
                    offset = np.nanmedian(error, axis=(0, 1))
                    if np.nanmax(np.abs(error - offset)) < 2e-3:
                        map_ = linear(modules, flow.name, rows)
                        if np.abs(offset).max() > 1e-3:
                            map_ = _with_offset(map_, fitted, modules, offset, heads, value, over)
                        return GateSpec(map_, activation, over)  # type: ignore[arg-type]
    return None


def _with_offset(
    map_: Linear, fitted: Fitted, modules: dict[str, Any], offset: Array, heads: int, value: int, over: str
) -> Linear:
    """The map with the parameter that shifts it as its bias."""
    per = offset.reshape(heads, value)[:, 0] if over == "head" else offset
    near = fitted.call.module
    for name, parameter in modules[near].named_parameters():
        found = double(parameter).ravel()
        if map_.bias is None and map_.rows is None and found.shape == per.shape and np.abs(found - per).max() < 5e-3:
            return Linear(map_.weight, f"{near}.{name}", map_.transposed)
    raise Refused("a gate with an offset that no parameter explains")


def _gate_rows(outputs: int, heads: int, value: int) -> Iterator[tuple[Index, str]]:
    """The rows of a map that may be a gate's: all, one per head, or a part of each head's or of the whole."""
    rows = np.arange(outputs)
    if outputs == heads:
        yield rows, "head"
    if outputs == heads * value:
        yield rows, "channel"
    if outputs > heads * value:
        if outputs % heads == 0:
            by_head = rows.reshape(heads, -1)
            yield by_head[:, -value:].ravel(), "channel"
            yield by_head[:, :value].ravel(), "channel"
        yield rows[-heads * value :], "channel"
        yield rows[: heads * value], "channel"


def _added(
    fitted: Fitted, modules: dict[str, Any], entered: Array, out: Array
) -> tuple[Array | None, ModuleFlow | None, ModuleFlow | None, float | Array | None]:
    """What the output is added to; the norm of the output; the norm of the sum; and the gain."""
    output_norm = next((each for each in fitted.later_norms if same(each.x, out)), None)
    added = out if output_norm is None else output_norm.y
    texts, length = out.shape[:2]
    bases = [entered] + [each.x for each in fitted.norms if same(each.y, entered)]
    if fitted.call.layer_input is not None:
        bases.insert(0, flat(fitted.call.layer_input, texts, length))  # type: ignore[arg-type]
    sums: list[tuple[ModuleFlow | None, Array | None]] = [(each, each.x) for each in fitted.later_norms]
    if fitted.call.layer_output is not None:
        sums.append((None, flat(fitted.call.layer_output, texts, length)))
    for base in bases:
        for norm, total in sums:
            if base is None or total is None or base.shape != added.shape or total.shape != added.shape:
                continue
            gain = _gain(total - base, added)
            if gain is None:
                continue
            if norm is not None and not _is_stream(fitted, norm, sums):
                norm = None
            return base, output_norm, norm, None if isinstance(gain, float) and abs(gain - 1) < 1e-5 else gain
    return None, output_norm, None, None


def _is_stream(fitted: Fitted, norm: ModuleFlow, sums: list[tuple[ModuleFlow | None, Array | None]]) -> bool:
    """Whether what a norm gives is what the next part of the layer is added to, rather than what it was given."""
    for _, total in sums:
        for flow in fitted.later_linears:
            if total is not None and total.shape == flow.y.shape == norm.x.shape:
                if same(total - norm.x, flow.y, 1e-5):
                    return False
                if same(total - norm.y, flow.y, 1e-5):
                    return True
    return True


def _gain(difference: Array, added: Array) -> float | Array | None:
    """The factor, one or one per channel, that makes the difference of what was added."""
    if not np.abs(added).max() > 0:
        return None
    factor = float((difference * added).sum() / (added * added).sum())
    if abs(factor) > 1e-6 and same(difference, factor * added, 1e-5):
        return factor
    factors = (difference * added).sum((0, 1)) / np.maximum((added * added).sum((0, 1)), 1e-300)
    return factors if np.abs(factors).max() > 1e-6 and same(difference, factors * added, 1e-5) else None


def _named(gain: float | Array | None, fitted: Fitted, modules: dict[str, Any]) -> str | float | None:
    """A gain per channel by the name of its parameter; one number as it is."""
    if gain is None or isinstance(gain, float):
        return gain
    near = fitted.call.layer or fitted.call.module
    for name, parameter in modules[near].named_parameters():
        if parameter.numel() == len(gain) and np.abs(double(parameter).ravel() - gain).max() < 1e-4:
            return f"{near}.{name}"
    return None
