"""The one view of every model: layers, and heads with Q, K, V, O, whatever the checkpoint calls them.

Layers are read when asked for and only one is kept, so a model larger than memory can be walked through.
Weights follow `nn.Linear`: q = Q x, so Q is (head width, model width) and O is (model width, value width).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.source import Stored, TensorSource, usable
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped, tensor_names
from toposcope.core.progress import Progress
from toposcope.encodings.record import Encoding

if TYPE_CHECKING:
    from toposcope.checkpoints.hub.opening import RemoteTensors

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm or LayerNorm with its effective gain (Gemma's 1 + gain is already formed)."""

    kind: str
    eps: float
    gain: Array | None = None
    bias: Array | None = None

    def __call__(self, x: Array) -> Array:
        """Normalise along the last axis."""
        if self.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps)
        if self.gain is not None:
            x = x * self.gain
        return x if self.bias is None else x + self.bias


@dataclass(frozen=True, eq=False)
class Latent:
    """A low-rank bottleneck (MLA): norm(down x + bias)."""

    down: Stored
    bias: Stored | None
    norm: Norm | None

    def __call__(self, x: Array) -> Array:
        y = x @ self.down.T.astype(np.float64)
        if self.bias is not None:
            y = y + self.bias
        return y if self.norm is None else self.norm(y)

    def linear(self) -> Array:
        """The map without its per-token factor: diag(gain) down."""
        down = self.down.astype(np.float64)
        return down if self.norm is None or self.norm.gain is None else self.norm.gain[:, None] * down


@dataclass(frozen=True, eq=False)
class Gate:
    """What multiplies the heads' outputs before O: activation(weight x + bias), x being the layer's normed input."""

    weight_HCD: Stored  # C channels of a head's output, or 1
    bias_HC: Stored | None
    activation: str

    def __call__(self, x_ND: Array) -> Array:
        """The factors (H, N, C)."""
        z_HNC = np.stack([x_ND @ rows_CD.astype(np.float64).T for rows_CD in self.weight_HCD])
        if self.bias_HC is not None:
            z_HNC = z_HNC + self.bias_HC[:, None, :]
        if self.activation == "softplus":
            return np.logaddexp(0, z_HNC)
        return (2.0 if self.activation == "double_sigmoid" else 1.0) / (1 + np.exp(-z_HNC))


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer's tensors, sorted by head, in the precision they were stored in.

    Shapes: H heads, G key-value heads, R head width, V value width, D model width.
    With latents the projections act on the latent instead of x, and `k_shared` holds the key rows that all heads
    share and that read x itself.
    """

    q_HRD: Stored
    k_GRD: Stored
    v_GVD: Stored
    o_HDV: Stored
    q_bias_HR: Stored | None = None
    k_bias_GR: Stored | None = None
    v_bias_GV: Stored | None = None
    o_bias_D: Stored | None = None
    input_norm: Norm | None = None
    output_norm: Norm | None = None
    residual_norm: Norm | None = None
    q_norm: Norm | None = None  # gain of shape (H, R)
    k_norm: Norm | None = None  # gain of shape (G, R)
    q_latent: Latent | None = None
    kv_latent: Latent | None = None
    k_shared_SD: Stored | None = None
    k_shared_bias_S: Stored | None = None
    output_gain: Array | float | None = None
    v_norm: Norm | None = None  # gain of shape (G, V)
    inner_norm: Norm | None = None  # gain of all heads' outputs joined, or of one head's
    gate: Gate | None = None
    sinks_H: Array | None = None


@dataclass(frozen=True, eq=False)
class Head:
    """One attention head, in float64. Norm gains are not folded in: they belong to the layer.

    With latents (MLA) q, k and v are the products of their two factors with the latent norm's gain between them;
    the latent norm's per-token factor is left out.
    """

    layer: int
    head: int
    kv_group: int
    q: Array
    k: Array
    v: Array
    o: Array
    q_bias: Array | None
    k_bias: Array | None
    v_bias: Array | None
    scale: float
    q_norm: Norm | None
    k_norm: Norm | None


class Heads(Sequence[Head]):
    """The heads of one layer, each made when asked for."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __len__(self) -> int:
        return self._layer.spec.heads

    @overload
    def __getitem__(self, index: int) -> Head: ...
    @overload
    def __getitem__(self, index: slice) -> list[Head]: ...
    def __getitem__(self, index: int | slice) -> Head | list[Head]:
        if isinstance(index, slice):
            return [self._layer.head(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"layer {self._layer.number} has {len(self)} heads, not head {index}")
        return self._layer.head(index % len(self))


class Layer:
    """One attention layer of a model. Cheap to hold: its weights are read when used, and released for the next."""

    def __init__(self, number: int, spec: LayerSpec, weights_of: Callable[[LayerSpec], LayerWeights]) -> None:
        self.number = number
        self.spec = spec
        self._weights_of = weights_of

    def __repr__(self) -> str:
        return f"<Layer {self.number} ({self.spec.stack} {self.spec.index}, {self.spec.heads} heads)>"

    @property
    def encoding(self) -> Encoding:
        return self.spec.encoding

    @property
    def weights(self) -> LayerWeights:
        return self._weights_of(self.spec)

    @property
    def heads(self) -> Heads:
        return Heads(self)

    def head(self, index: int) -> Head:
        """Head `index` in float64."""
        spec, w = self.spec, self.weights
        group = index // (spec.heads // spec.kv_heads)
        q, k = _double(w.q_HRD[index]), _double(w.k_GRD[group])
        v, v_bias = self.values(group)
        k_bias = _double_or_none(w.k_bias_GR, group)
        if w.q_latent is not None:
            q = q @ w.q_latent.linear()
        if w.kv_latent is not None:
            k = k @ w.kv_latent.linear()
        if w.k_shared_SD is not None:
            if w.k_shared_bias_S is not None:
                own = np.zeros(len(k)) if k_bias is None else k_bias
                k_bias = np.concatenate([own, _double(w.k_shared_bias_S)])
            k = np.concatenate([k, _double(w.k_shared_SD)])
        return Head(
            layer=self.number,
            head=index,
            kv_group=group,
            q=q,
            k=k,
            v=v,
            o=self.output(index),
            q_bias=_double_or_none(w.q_bias_HR, index),
            k_bias=k_bias,
            v_bias=v_bias,
            scale=spec.scale,
            q_norm=_norm_of(w.q_norm, index),
            k_norm=_norm_of(w.k_norm, group),
        )

    def values(self, group: int) -> tuple[Array, Array | None]:
        """V of a key-value head and its bias, in float64."""
        w = self.weights
        v = _double(w.v_GVD[group])
        return v if w.kv_latent is None else v @ w.kv_latent.linear(), _double_or_none(w.v_bias_GV, group)

    def output(self, index: int) -> Array:
        """O of head `index` in float64."""
        return _double(self.weights.o_HDV[index])


class Model:
    """A checkpoint: its layers, configuration, and what was skipped. A context manager; or `close()` it."""

    def __init__(
        self,
        spec: ModelSpec,
        source: TensorSource,
        config: Mapping[str, Any],
        read_layer: Callable[[TensorSource, LayerSpec], LayerWeights],
        remarks: tuple[str, ...] = (),
        *,
        hub: RemoteTensors | None = None,
        commit: str | None = None,
    ) -> None:
        self.spec = spec
        self.source = source
        self.config = config
        self.remarks = remarks  # on how it was opened, for people
        self.hub = hub  # where the bytes of a model on the hub come from
        self.commit = commit  # which of its versions this is
        self.tables = source.digest()  # of what was read to describe the model
        self._read_layer = read_layer
        self._held: tuple[LayerSpec, LayerWeights, Mapping[str, str]] | None = None
        self.layers = tuple(Layer(i, layer, self._weights_of) for i, layer in enumerate(spec.layers))

    def __repr__(self) -> str:
        return f"<Model {self.path.name} ({self.family}, {len(self.layers)} attention layers)>"

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def adapter(self) -> str | None:
        """The directory, or the name on the hub, of the adapter that is merged into it, where one is."""
        settings = getattr(self.source, "settings", None)
        return None if settings is None else settings.place

    @property
    def family(self) -> str:
        return self.spec.family

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return self.spec.skipped

    def expect(self, layers: Iterable[int], progress: Progress | None = None) -> None:
        """Say that these layers are about to be read: how much comes from the hub is then told beforehand."""
        if self.hub is not None:
            chosen = [self.layers[number].spec for number in layers]
            self.hub.expect([name for spec in chosen for name in tensor_names(spec)], progress)

    def token_embedding(self) -> Array | None:
        """The token embedding (vocabulary, width) in float64, or None where the model has none."""
        name = self.spec.embedding
        if name is None or name not in self.source.names():
            return None
        return _double(usable(self.source.read(name), name, self.path))

    def _weights_of(self, spec: LayerSpec) -> LayerWeights:
        if self._held is not None and self._held[0] is not spec:
            self._held = None  # released before the next is read: never two layers at once
        if self._held is None:
            if self.hub is not None:
                self.hub.fetch(tensor_names(spec))
            with self.source.ledger.noted() as read:
                self._held = (spec, self._read_layer(self.source, spec), read)
        self.source.ledger.learn(self._held[2])  # used again, though not read again
        return self._held[1]

    def close(self) -> None:
        self._held = None
        self.source.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _double(array: Stored) -> Array:
    return array.astype(np.float64)


def _double_or_none(array: Stored | None, index: int) -> Array | None:
    return None if array is None else _double(array[index])


def _norm_of(norm: Norm | None, index: int) -> Norm | None:
    if norm is None:
        return None
    gain = None if norm.gain is None else norm.gain[index]
    bias = None if norm.bias is None else norm.bias[index]
    return Norm(norm.kind, norm.eps, gain, bias)
