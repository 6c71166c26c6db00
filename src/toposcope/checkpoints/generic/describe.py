"""From what was measured of one call to the description of its layer, in the model's own parameter names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.fit import Fitted
from toposcope.checkpoints.generic.match import Columns, Index, ModuleFlow, matched, same
from toposcope.checkpoints.generic.output import Ending, ending
from toposcope.checkpoints.generic.record import Array, double, flat
from toposcope.checkpoints.generic.tensors import linear, norm_spec
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, NormSpec

_ENCODER, _VISION = re.compile(r"encoder"), re.compile(r"vision|visual|image|vit")


@dataclass(frozen=True, eq=False)
class Drafted:
    """A layer in the model's own names, without its encoding, and what was measured of that.

    `reads` is the module whose input is what enters the layer ('' for the numbered module itself); `keys_read` the
    linear map whose input is what keys and values of a cross-attention read.
    """

    spec: LayerSpec
    fitted: Fitted
    pairs_F2: Index | None  # channels that turn, in the order of the description
    attention_factor: float | None  # of the turning channels against the others; None: all turn, so none is seen
    reads: str
    o_module: str
    keys_read: str | None


def draft(fitted: Fitted, model: Any) -> Drafted:
    """The layer that a fitted call belongs to."""
    return _Drafting(fitted, model).done()


class _Drafting:
    def __init__(self, fitted: Fitted, model: Any) -> None:
        self.fitted = fitted
        self.modules = dict(model.named_modules())
        self.model = model
        self.heads, self.wide = fitted.q.shape[1], fitted.q.shape[3]
        self.groups, self.value = fitted.k.shape[1], fitted.v.shape[3]

    def done(self) -> Drafted:
        fitted = self.fitted
        if fitted.v.shape[1] != self.groups or self.heads % self.groups:
            raise Refused(f"{self.heads} heads, {self.groups} of keys and {fitted.v.shape[1]} of values")
        parts, order, entered, source = self._maps()
        query, still = self._factors(fitted.queries, order)
        key, key_still = self._factors(fitted.keys, order)
        scale = fitted.logits.scale * query * key
        factor = None if still is None or key_still is None else float(np.sqrt(still * key_still))
        parts |= self._head_norms(order)
        end = ending(fitted, self.model, self.modules, entered)
        layer_input = None if fitted.call.layer_input is None else self._shaped(fitted.call.layer_input)
        reads, input_norm = self._input(entered, layer_input, end)
        width = entered.shape[2]
        if end.width != width:
            raise Refused(f"attention reads width {width} and writes width {end.width}")
        stack, index = self._place()
        odd = input_norm is not None and end.base is not None and same(end.base, entered)
        spec = LayerSpec(
            stack=stack,
            index=index,
            width=width,
            heads=self.heads,
            kv_heads=self.groups,
            head_dim=self.wide,
            value_dim=None if self.value == self.wide else self.value,
            scale=float(scale),
            causal=fitted.logits.causal,
            reach=fitted.logits.reach,
            chunk=fitted.logits.chunk,
            softcap=fitted.logits.softcap,
            input_norm=input_norm,
            output_norm=end.output_norm,
            residual_norm=end.residual_norm if input_norm is None else None,
            output_gain=end.gain,
            gate=end.gate,
            inner_norm=end.inner_norm,
            sinks=self._sinks(),
            qk_norm_after=fitted.norm_after,
            o=end.o,
            warnings=("attention is added to the normed input",) if odd else (),
            **parts,
        )
        pairs = None
        if fitted.turn is not None:
            back = np.argsort(order)
            pairs = back[fitted.turn.pairs_F2]
        if source is not None and spec.keys_of is None:
            spec = replace(spec, source_width=self._flow(source).x.shape[2], causal=False)
        return Drafted(spec, fitted, pairs, factor, reads, end.module, source)

    # ------------------------------------------------------------------ projections
    def _maps(self) -> tuple[dict[str, Any], Index, Array, str | None]:
        """Projections, the order of a head's channels, the normed input, and what keys read if that is another."""
        fitted = self.fitted
        q, v = self._one(fitted.queries, "queries"), self._one(fitted.values, "values")
        parts: dict[str, Any] = {}
        entered, q_factor = fitted.linears[q].x, 1.0
        if (latent := self._latent(q)) is not None:
            norm, down, rows, q_factor = latent
            parts["q_latent"] = LatentSpec(self._linear(down, rows), self._norm(norm), len(rows))
            entered = fitted.linears[down].x
        if fitted.key_linears is fitted.linears and (latent := self._latent(v)) is not None:
            order = self._latent_keys(parts, v, *latent)
            source = fitted.key_linears[latent[1]]
        else:
            order = self._plain_keys(parts, v)
            source = fitted.key_linears[self._one(fitted.keys, "keys")]
        rows = np.take_along_axis(fitted.queries.column, np.tile(order, (self.heads, 1)), 1)
        parts["q"] = self._linear(q, rows.ravel(), factor=q_factor)
        cross = None if same(source.x, entered) else source.name
        if cross is not None:
            parts |= self._cross(source)
        return parts, order, entered, cross

    def _plain_keys(self, parts: dict[str, Any], v: int) -> Index:
        fitted = self.fitted
        k = self._one(fitted.keys, "keys")
        order = np.argsort(fitted.keys.column[0], kind="stable")
        for each in (fitted.queries, fitted.keys):
            if (np.argsort(each.column, axis=1, kind="stable") != order).any():
                raise Refused("heads order their channels differently")
        if not same(fitted.key_linears[v].x, fitted.key_linears[k].x):
            raise Refused("values read another input than keys")
        rows = np.take_along_axis(fitted.keys.column, np.tile(order, (self.groups, 1)), 1)
        parts["k"] = linear(self.modules, fitted.key_linears[k].name, rows.ravel())
        factor = self._constant(fitted.values.factor, "values")
        name = fitted.key_linears[v].name
        parts["v"] = linear(self.modules, name, fitted.values.column.ravel(), factor=factor)
        if fitted.values.norm is not None:
            if abs(factor - 1) > 1e-5 or abs(fitted.values.norm_factor - 1) > 1e-5:
                raise Refused("a factor beside a norm of values")
            parts["v_norm"] = self._norm(fitted.values.norm)
        return order

    def _latent_keys(
        self, parts: dict[str, Any], v: int, norm: ModuleFlow | None, down: int, rows: Index, factor: float
    ) -> Index:
        """Keys and values from a latent: a head's own channels from its upward map, shared ones from the downward."""
        fitted = self.fitted
        own = [c for c in range(self.wide) if (fitted.keys.linear[:, c] == v).all()]
        shared = [c for c in range(self.wide) if c not in own]
        if any((fitted.keys.linear[:, c] != down).any() for c in shared):
            raise Refused("shared keys come from another map than the latent")
        if fitted.keys.norm is not None or fitted.queries.norm is not None or fitted.values.norm is not None:
            raise Refused("a norm of queries, keys or values beside a latent")
        own.sort(key=lambda c: fitted.keys.column[0, c])
        shared.sort(key=lambda c: fitted.keys.column[0, c])
        order = np.array(own + shared)
        all_rows = np.concatenate([rows, fitted.keys.column[0, shared].astype(rows.dtype)])
        parts["kv_latent"] = LatentSpec(self._linear(down, all_rows), self._norm(norm), len(rows))
        up = np.concatenate([fitted.keys.column[:, own], fitted.values.column], axis=1)
        parts["kv_up"] = self._linear(v, up.ravel(), factor=factor)
        parts["shared_key"] = len(shared)
        value = fitted.values.factor
        if np.abs(fitted.keys.factor[:, own] - 1).max(initial=0) > 1e-5 or np.abs(value - 1).max() > 1e-5:
            raise Refused("keys or values from a latent are multiplied by a factor")
        return order

    def _latent(self, number: int) -> tuple[ModuleFlow | None, int, Index, float] | None:
        """The bottleneck behind a linear map: its norm, the map before, the rows used, a factor; or None."""
        fitted, x = self.fitted, self.fitted.linears[number].x
        for norm in fitted.norms:
            if norm.y.shape != x.shape or norm.wide != x.shape[2]:
                continue
            factor = float((norm.y * x).sum() / max(float((norm.y * norm.y).sum()), 1e-300))
            if same(factor * norm.y, x):
                found = self._map_before(norm.x, number)
                if found is not None:
                    return norm, *found, 1.0 if abs(factor - 1) < 1e-7 else factor
        found = self._map_before(x, number)
        return None if found is None else (None, *found, 1.0)

    def _map_before(self, x: Array, number: int) -> tuple[int, Index] | None:
        fitted = self.fitted
        near = fitted.call.layer or fitted.call.module
        for other, flow in enumerate(fitted.linears):
            if other == number or flow.y.shape[2] < x.shape[2] or not flow.name.startswith(near):
                continue
            index, factor = matched(x.reshape(-1, x.shape[2])[:48].T, flow.y.reshape(-1, flow.y.shape[2])[:48].T)
            if (index >= 0).all() and np.abs(factor - 1).max() < 1e-5 and (np.diff(index) == 1).all():
                return other, index
        return None

    def _cross(self, source: ModuleFlow) -> dict[str, Any]:
        fitted = self.fitted
        layer = fitted.call.layer or ""
        if source.after == fitted.number and (not layer or source.name.startswith(f"{layer}.")):
            return {"kind": "cross"}
        number = next((part for part in reversed(source.name.split(".")) if part.isdigit()), None)
        if number is None:
            raise Refused("keys come from elsewhere")
        return {"kind": "cross", "keys_of": int(number)}

    def _factors(self, found: Columns, order: Index) -> tuple[float, float | None]:
        """What multiplies the channels that do not turn, and by how much more those that turn are multiplied."""
        turn = self.fitted.turn
        if found.norm is not None:
            if np.abs(found.factor - 1).max() > 1e-5 and not self.fitted.norm_after:
                raise Refused("a factor before a norm of queries or keys")
            return found.norm_factor, None
        factor = found.factor
        if turn is None:
            return self._constant(factor, "queries or keys"), None
        moved = np.zeros(self.wide, dtype=bool)
        moved[turn.pairs_F2.ravel()] = True
        turned = self._constant(factor[:, moved], "turning channels")
        if moved.all():
            return turned, None
        still = self._constant(factor[:, ~moved], "channels that do not turn")
        return still, turned / still

    def _head_norms(self, order: Index) -> dict[str, Any]:
        fitted = self.fitted
        parts: dict[str, Any] = {}
        for name, found, heads in (
            ("q_norm", fitted.queries, self.heads),
            ("k_norm", fitted.keys, self.groups),
        ):
            if found.norm is None or found.norm_column is None:
                continue
            if found.norm.wide not in (self.wide, self.wide * heads):
                raise Refused(f"a norm over {found.norm.wide} channels of heads of {self.wide}")
            stored = found.norm_column[:, order]
            if not np.array_equal(stored.ravel(), np.arange(heads * self.wide)):
                raise Refused("a norm of queries or keys orders its channels in another way")
            parts[name] = self._norm(found.norm)
            if found.norm.wide == self.wide * heads and heads > 1:
                parts["qk_norm_over"] = "layer"
        return parts

    # ------------------------------------------------------------------ names
    def _one(self, found: Columns, who: str) -> int:
        numbers = np.unique(found.linear)
        if len(numbers) > 1 and who != "keys":
            raise Refused(f"{who} come from several linear maps")
        if len(numbers) > 1:
            raise Refused("keys come from several linear maps and no latent")
        return int(numbers[0])

    def _flow(self, name: str) -> ModuleFlow:
        return next(each for each in self.fitted.key_linears if each.name == name)

    def _linear(self, number: int, rows: Index, factor: float = 1.0) -> Linear:
        return linear(self.modules, self.fitted.linears[number].name, rows, factor)

    def _norm(self, flow: ModuleFlow | None) -> NormSpec | None:
        return None if flow is None else norm_spec(self.modules, flow)

    def _constant(self, factors: NDArray[Any], who: str) -> float:
        if np.ptp(factors) > 1e-5 * np.abs(factors).max():
            raise Refused(f"{who} have a factor for each channel")
        factor = float(np.mean(factors))
        return 1.0 if abs(factor - 1) < 1e-7 else factor

    def _sinks(self) -> str | None:
        sinks = self.fitted.logits.sinks_H
        if sinks is None:
            return None
        for name, parameter in self.modules[self.fitted.call.module].named_parameters():
            if parameter.numel() == self.heads and np.abs(double(parameter).ravel() - sinks).max() < 5e-3:
                return f"{self.fitted.call.module}.{name}"
        raise Refused("a sink that no parameter explains")

    # ------------------------------------------------------------------ place in the model
    def _shaped(self, tensor: Any) -> Array | None:
        return flat(tensor, len(self.fitted.q), self.fitted.q.shape[2])

    def _input(self, entered: Array, layer_input: Array | None, end: Ending) -> tuple[str, NormSpec | None]:
        """What enters: the numbered module's input or a norm's; and the norm it passes first, if any."""
        norm = next((each for each in self.fitted.norms if same(each.y, entered)), None)
        if same(entered, layer_input):
            return "", None
        if norm is not None and same(norm.x, layer_input):
            return "", self._norm(norm)
        if norm is None or (end.base is not None and same(end.base, entered)):
            return self.fitted.linears[self._one(self.fitted.queries, "queries")].name, None
        return norm.name, self._norm(norm)

    def _place(self) -> tuple[str, int]:
        call = self.fitted.call
        path = call.layer or call.module
        number = next((int(part) for part in reversed(path.split(".")) if part.isdigit()), 0)
        if _VISION.search(path):
            return "vision", number
        if _ENCODER.search(path):
            return "encoder", number
        decoder = self.fitted.logits.causal or "decoder" in path
        return ("decoder" if decoder else "encoder"), number
