"""Attention whose regime is chosen and holds at every step of training, whatever the optimiser does.

Three kinds, each on the matrices that act on the residual stream (the norm before attention folded in: V means
V diag(gain), for LayerNorm off the ones vector as well), and each "positive", "negative", "half", or any fraction of
negative directions. `core` is a trained matrix of the chosen signs (`cores`).

* head    V~_h = V_h O_h, which decides a causal head (T6), equals a core exactly:
              O_h = F_h + V_h^+ (core_h - V_h F_h),    V_h^T = Q R,  V_h^+ = Q R^-T by one triangular solve.
          V_h and F_h stay free, so every (V, O) with V_h O_h of these signs is reached: F = O, core = V O. A mixed
          core reaches every V~ with these signs in its spectrum, up to a change of basis of the head's own channels,
          which changes no output (one that makes V~ block diagonal, each block definite).
* layer   U = sum_h O_h V_h. Where the values fill the width: O = V^T core, so U = V^T core V has the core's signs by
          Sylvester's law, without solving anything; every (V, O) of a definite U is reached (after LayerNorm: but for
          writing along the ones vector, which no LayerNorm can see). Where they do not (few key-value heads), U
          cannot be definite: then V O' equals a core, as for a head, with O' the outputs summed over each group.
* full    logits x^T Q^T K x with K = M Q, M a positive core, so W = Q^T M Q > 0; V = B W with B = A^-1 a core of the
          chosen signs. W has no antisymmetric part (`symmetric="W"`: T3b, T4b), or A = W V^-1 has none ("A": T3a,
          T4a). With "W" and one head Q is the identity and K = W, which loses nothing and keeps W symmetric in every
          digit of the stored weights; the symmetry of A is lost when V is rounded, so that only float64 shows it.
          Else Q starts orthogonal, so that no direction of W nearly vanishes. The output projection is the identity:
          with a free one positive and negative are the same class of models, because V -> -V is undone by
          O -> -O (`output="free"` is there to show it).
"""

# mypy: allow-subclassing-any, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from toposcope.core.errors import BadConfig, BadValue
from toposcope.models.load import require
from toposcope.refinements.adapters import InputNorm, Live, Projections, projections, trainable
from toposcope.refinements.cores import FLOOR, Core, negative_directions

Kind = Literal["head", "layer", "full"]
KINDS = ("head", "layer", "full")
SAME = 1e-2  # of the size of O: a layer that has the signs already is left as it is


@dataclass(frozen=True)
class Applied:
    """What was done: `negative` of `size` directions are held negative in each of `layers`.

    Parameters are those an optimiser would change in the whole model; `redundant` of them are directions of F that
    the core decides (they only take part in the floor). `promise` says what `toposcope scan` can say of the saved
    model, `verdict` is its word for heads (kind "head", or "full" with one head) or for layers; None: no theorem
    decides.
    """

    kind: str
    layers: tuple[int, ...]
    negative: int
    size: int
    parameters_before: int
    parameters_after: int
    redundant: int
    verdict: str | None
    promise: str


def apply(
    model: Any,
    kind: Kind = "head",
    regime: str | float = "negative",
    layers: Sequence[int] | None = None,
    *,
    floor: float = FLOOR,
    symmetric: Literal["A", "W"] = "W",
    output: Literal["identity", "free"] = "identity",
    w_scale: float = 1.0,
) -> Applied:
    """Hold a regime in the attention layers of a model (or its `Reference`), in place.

    Weights start near those the model has: what must change sign does, sizes stay. `symmetric`, `output` and
    `w_scale` (the size of W at the start, relative to the usual) belong to kind "full".
    """
    require("torch")
    if kind not in KINDS:
        raise BadValue(f"a kind is one of {', '.join(KINDS)}, got '{kind}'.")
    if symmetric not in ("A", "W") or output not in ("identity", "free") or not w_scale > 0:
        raise BadValue(
            f"expected symmetric 'A' or 'W', output 'identity' or 'free' and a positive w_scale, got '{symmetric}', "
            f"'{output}' and {w_scale}."
        )
    module = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    found = projections(module, layers)
    for layer in found:
        if any(parametrize.is_parametrized(part.module) for part in (layer.q, layer.k, layer.v, layer.o)):
            raise BadValue(f"layer {layer.number} is refined already. Use materialise(model) first.")
        _check(kind, layer)
    before = trainable(module.parameters())
    redundant, negative, size = 0, 0, 0
    for layer in found:
        size = _size(kind, layer)
        negative = negative_directions(regime, size)
        if kind == "full":
            _apply_full(layer, negative, floor, symmetric, output, w_scale)
        else:
            redundant += _apply_output(kind, layer, negative, floor)
    verdict, promise = _promise(kind, found[0], negative, size, symmetric, output)
    numbers = tuple(layer.number for layer in found)
    after = trainable(module.parameters())
    return Applied(kind, numbers, negative, size, before, after, redundant, verdict, promise)


def materialise(model: Any) -> Any:
    """Write plain weights back, in place: the model computes the same, and can be saved and scanned like any other.

    To look at a model that goes on training, materialise a deep copy.
    """
    held = [module for module in model.modules() if _held(module)]
    weights = [module.weight.detach().clone() for module in held]  # all before the first is written
    for module, weight in zip(held, weights, strict=True):
        # torch's own removal deletes the property from the class, which deep copies share
        module.__class__ = type(module).__bases__[0]
        del module.parametrizations
        module.weight = nn.Parameter(weight)
    for layer in projections(model) if held else ():  # what `apply` froze
        for part in (layer.q, layer.o):
            part.module.weight.requires_grad_(True)
    return model


def _held(module: nn.Module) -> bool:
    return parametrize.is_parametrized(module, "weight") and isinstance(
        module.parametrizations.weight[0], HeldParametrization
    )


class HeldParametrization(nn.Module):
    """A parametrisation of ours: what `materialise` removes."""


class HeldOutputs(HeldParametrization):
    """O from free F and a core, so that V O equals the core, head by head (kind "head") or as a whole ("layer")."""

    def __init__(self, layer: Projections, core: Core, *, whole: bool) -> None:
        super().__init__()
        self.values, self.norm, self.core, self.whole = layer.v, layer.norm, core, whole
        self.heads, self.groups, self.value_dim = layer.heads, layer.groups, layer.value_dim
        self.transposed = layer.o.transposed

    def forward(self, stored: Tensor) -> Tensor:
        free_HDR = self._split(stored)
        v_GRD = self._values()
        given = self._summed(free_HDR) if self.whole else free_HDR
        change = _corrected(v_GRD, given, self.core(self._least(v_GRD, given)))
        if self.whole:
            change_GDR = change[0].unflatten(1, (self.groups, -1)).permute(1, 0, 2)
            change = (change_GDR / (self.heads // self.groups)).repeat_interleave(self.heads // self.groups, 0)
        made = (free_HDR + change).permute(1, 0, 2).flatten(1)
        return made.T if self.transposed else made

    @torch.no_grad()
    def right_inverse(self, stored: Tensor) -> Tensor:
        free_HDR, v_GRD = self._split(stored), self._values()
        given = self._summed(free_HDR) if self.whole else free_HDR
        each = len(given) // len(v_GRD)
        wanted = v_GRD.repeat_interleave(each, 0) @ given
        self.core.fit_(wanted, unit=rms(stored), least_B=self._least(v_GRD, given))
        return stored

    def _least(self, v_GRD: Tensor, free_HDR: Tensor) -> Tensor:
        """The floor: a share of the root mean square singular value that V F has when its factors are random."""
        v_H = v_GRD.flatten(1).norm(dim=1).repeat_interleave(len(free_HDR) // len(v_GRD))
        rows, width = v_GRD.shape[1:]
        return self.core.floor * v_H * free_HDR.flatten(1).norm(dim=1) / (rows * width) ** 0.5

    def _summed(self, free_HDR: Tensor) -> Tensor:
        """O': the outputs of each group, summed, side by side."""
        return free_HDR.unflatten(0, (self.groups, -1)).sum(1).permute(1, 0, 2).flatten(1)[None]

    def _split(self, stored: Tensor) -> Tensor:
        o_DM = stored.T if self.transposed else stored
        return o_DM.unflatten(1, (self.heads, self.value_dim)).permute(1, 0, 2)

    def _values(self) -> Tensor:
        folded = self.norm.fold(self.values())
        return folded[None] if self.whole else folded.unflatten(0, (self.groups, self.value_dim))


def _corrected(v_GRD: Tensor, free_HDR: Tensor, core_HRR: Tensor) -> Tensor:
    """V^+ (core - V F): what F lacks for V F to be the core."""
    basis_GDR, upper_GRR = torch.linalg.qr(v_GRD.mT)
    each = len(free_HDR) // len(v_GRD)
    basis_HDR, upper_HRR = basis_GDR.repeat_interleave(each, 0), upper_GRR.repeat_interleave(each, 0)
    wanted_HRR = torch.linalg.solve_triangular(upper_HRR.mT, core_HRR, upper=False)
    return basis_HDR @ (wanted_HRR - basis_HDR.mT @ free_HDR)


class Congruent(HeldParametrization):
    """O = V^T core: U = O V = V^T core V has the core's signs. For values that fill the width."""

    def __init__(self, layer: Projections, core: Core) -> None:
        super().__init__()
        self.values, self.norm, self.core, self.transposed = layer.v, layer.norm, core, layer.o.transposed

    def forward(self, nothing: Tensor) -> Tensor:
        o_DM = self.norm.fold(self.values()).T @ self.core()[0]
        return o_DM.T if self.transposed else o_DM

    @torch.no_grad()
    def right_inverse(self, stored: Tensor) -> Tensor:
        o_DM, v_MD = stored.T if self.transposed else stored, self.norm.fold(self.values())
        self.core.fit_(torch.linalg.lstsq(v_MD.T, o_DM).solution[None], unit=rms(stored))
        if (v_MD.T @ self.core()[0] - o_DM).norm() > SAME * o_DM.norm():  # U has other signs: begin anew, near V O
            self.core.fit_((v_MD @ o_DM)[None], unit=rms(stored))
            self.core.resize_(o_DM.norm() / (v_MD.T @ self.core()[0]).norm())
        return stored.new_empty(0)


class Keys(HeldParametrization):
    """K = M Q with M a positive core: x^T Q^T K x > 0 for every x that Q does not lose. W starts at `size`."""

    def __init__(self, queries: Live, core: Core, size: float) -> None:
        super().__init__()
        self.queries, self.core, self.start = queries, core, size

    def forward(self, nothing: Tensor) -> Tensor:
        return self.core()[0] @ self.queries()

    @torch.no_grad()
    def right_inverse(self, stored: Tensor) -> Tensor:
        fit_keys(self.core, self.queries(), self.start, rms(stored))
        return stored.new_empty(0)


class Values(HeldParametrization):
    """V = B W, W = Q^T K with the norm folded in, so that W V^-1 = B^-1 has B's signs."""

    def __init__(self, queries: Live, keys: Live, norm: InputNorm, core: Core, output: Live, identity: bool) -> None:
        super().__init__()
        self.queries, self.keys, self.norm, self.core = queries, keys, norm, core
        self.output, self.identity = output, identity

    def forward(self, nothing: Tensor) -> Tensor:
        return made_values(self.core()[0], self.queries(), self.keys(), self.norm)

    @torch.no_grad()
    def right_inverse(self, stored: Tensor) -> Tensor:
        fit_values(
            self.core, self.queries(), self.keys(), stored, self.output() if self.identity else None, self.norm
        )
        return stored.new_empty(0)


class FusedFull(HeldParametrization):
    """Keys and values as above, where q, k and v are one transposed tensor (GPT-2); what stays of it is Q."""

    def __init__(
        self, layer: Projections, keys: Core, values: Core, size: float, *, identity: bool, still: bool
    ) -> None:
        super().__init__()
        self.keys, self.values, self.norm, self.start = keys, values, layer.norm, size
        self.output, self.identity, self.still, self.width = layer.o, identity, still, layer.width

    def forward(self, q_T: Tensor) -> Tensor:
        q = torch.eye(self.width, dtype=q_T.dtype, device=q_T.device) if self.still else q_T.T
        k = self.keys()[0] @ q
        return torch.cat([q, k, made_values(self.values()[0], q, k, self.norm)]).T

    @torch.no_grad()
    def right_inverse(self, stored: Tensor) -> Tensor:
        q, _, v = stored.T.split(self.width)
        q = torch.eye(self.width, dtype=q.dtype, device=q.device) if self.still else nearest_orthogonal(q)
        fit_keys(self.keys, q, self.start, rms(stored))
        k = self.keys()[0] @ q
        fit_values(self.values, q, k, v, self.output() if self.identity else None, self.norm)
        return stored.new_empty(0) if self.still else q.T.contiguous()


def fit_keys(core: Core, q: Tensor, size: float, unit: Tensor) -> None:
    """M = m I at the start, with m such that Q^T K has the given size."""
    core.fit_(torch.eye(len(q), dtype=q.dtype, device=q.device)[None], unit=unit)
    core.resize_(torch.as_tensor(size).to(q) / (q.T @ core()[0] @ q).norm())


def rms(weights: Tensor) -> Tensor:
    """The size of a weight: the unit in which a core's parameters are counted."""
    return weights.pow(2).mean().sqrt()


def made_values(core_DD: Tensor, q: Tensor, k: Tensor, norm: InputNorm) -> Tensor:
    """V with fold(V) = B fold(W): the norm stands on both sides of W."""
    return core_DD @ norm.unfold(q.T @ k)


def fit_values(core: Core, q: Tensor, k: Tensor, v: Tensor, output: Tensor | None, norm: InputNorm) -> None:
    """B = +-b I at the start, with b such that the layer writes as much as it did."""
    core.fit_(torch.eye(len(q), dtype=q.dtype, device=q.device)[None], unit=rms(v))
    size = v.norm() if output is None else (output @ v).norm()
    core.resize_(size / made_values(core()[0], q, k, norm).norm())


# -------------------------------------------------------------------- inside
def _fills(layer: Projections, kind: str) -> bool:
    """Whether values fill the width, so that O V can be definite in the residual stream itself."""
    rows = layer.value_dim if kind == "head" else layer.groups * layer.value_dim
    return rows >= layer.rank_limit


def _size(kind: str, layer: Projections) -> int:
    if kind == "full":
        return layer.width
    return layer.value_dim if kind == "head" else layer.groups * layer.value_dim


def _check(kind: str, layer: Projections) -> None:
    square = layer.heads * layer.value_dim == layer.heads * layer.head_dim == layer.width
    if kind == "full" and (layer.groups != layer.heads or not square):
        raise BadConfig(
            f"kind 'full' needs square d x d projections; layer {layer.number} has {layer.heads} heads of "
            f"{layer.head_dim} over {layer.groups} key-value heads at width {layer.width}. Use 'head' or 'layer'."
        )
    if kind == "head" and _fills(layer, kind) and layer.heads > 1:
        raise BadConfig(f"heads of {layer.value_dim} values are as wide as the model: use kind 'layer'.")
    if kind == "layer" and _fills(layer, kind) and layer.groups != layer.heads:
        raise BadConfig("key-value heads that are shared and still fill the width cannot be refined as a layer.")


def _apply_output(kind: str, layer: Projections, negative: int, floor: float) -> int:
    """Parametrise O; returns how many parameters are redundant."""
    size, like = _size(kind, layer), layer.o()
    if _fills(layer, kind):
        mixed = 0 < negative < size  # without an antisymmetric part the spectrum of U has the signs too
        held: HeldParametrization = Congruent(layer, Core(1, size, negative, symmetric=mixed, floor=floor)).to(like)
        _register(layer.o.module, held)
        return 0
    whole = kind == "layer"
    core = Core(1 if whole else layer.heads, size, negative, floor=floor)
    _register(layer.o.module, HeldOutputs(layer, core, whole=whole).to(like))
    return core.count * size * size


def _apply_full(layer: Projections, negative: int, floor: float, symmetric: str, output: str, w_scale: float) -> None:
    width, like, identity = layer.width, layer.o(), output == "identity"
    still = symmetric == "W" and layer.heads == 1  # Q = I: a change of basis of the one head's queries and keys
    keys = Core(1, width, 0, symmetric=symmetric == "W", floor=floor)
    values = Core(1, width, negative, symmetric=symmetric == "A" or 0 < negative < width, floor=floor)
    with torch.no_grad():
        size = w_scale * float((layer.q().T @ layer.k()).norm())
    if layer.fused:
        _register(layer.q.module, FusedFull(layer, keys, values, size, identity=identity, still=still).to(like))
    else:
        if still:
            _freeze_identity(layer.q.module)
        else:
            _orthogonalise(layer.q.module)
        _register(layer.k.module, Keys(layer.q, keys, size).to(like))
        _register(layer.v.module, Values(layer.q, layer.k, layer.norm, values, layer.o, identity).to(like))
    if identity:
        _freeze_identity(layer.o.module)


def nearest_orthogonal(q: Tensor) -> Tensor:
    """A multiple of an orthogonal matrix, of the same size: Q^T M Q is then as well conditioned as M."""
    left, sizes, right = torch.linalg.svd(q)
    return left @ right * sizes.pow(2).mean().sqrt()


def _orthogonalise(module: Any) -> None:
    with torch.no_grad():
        module.weight.copy_(nearest_orthogonal(module.weight))


def _freeze_identity(module: Any) -> None:
    with torch.no_grad():
        nn.init.eye_(module.weight)
    module.weight.requires_grad_(False)


def _register(module: nn.Module, held: HeldParametrization) -> None:
    parametrize.register_parametrization(module, "weight", held)
    original = module.parametrizations.weight.original
    if original.numel() == 0:
        original.requires_grad_(False)


def _promise(
    kind: str, layer: Projections, negative: int, size: int, symmetric: str, output: str
) -> tuple[str | None, str]:
    """The word `toposcope scan` prints for each head (or layer), and what it means here."""
    signs = "negative" if negative == size else "positive" if not negative else "mixed"
    single = layer.heads == 1
    what = "every head" if kind == "head" else "every layer" if kind == "layer" or not single else "every head"
    if kind == "full" and output == "free":
        return None, "with a free output projection V -> -V is undone by O -> -O: no regime is held"
    if layer.causal:
        word = {"negative": "converges", "positive": "diverges", "mixed": "not_convergent"}[signs]
        rule = "T6" if signs == "negative" and what == "every head" else "T5"
    elif kind == "full" and single and signs != "mixed" and not layer.rotary and not layer.biased:
        letter = "a" if symmetric == "A" else "b"
        word, rule = ("converges", f"T3{letter}") if signs == "negative" else ("diverges", f"T4{letter}")
    elif signs != "negative":
        word, rule = "not_convergent", "T5"
    else:
        said = f"{what}: no theorem decides an unmasked system from {signs} values alone"
        return None, said + ("; without biases (frozen at 0) Thm 3 would" if kind == "full" and single else "")
    if what == "every layer" and word == "converges" and layer.drifts:
        return None, (
            "every layer: the spectrum is negative, but a bias that it cannot undo lets the first token drift away: "
            "'indeterminate' with the warning bias_drift once that bias is trained"
        )
    said = f"{what}: {word} (Thm {rule[1:]})"
    if layer.norm.kind != "none" and rule.startswith(("T3", "T4")):
        said += "; the norm before attention makes it a statement about the flow without norms (exact: false)"
    elif layer.post_norm or (layer.norm.kind != "none" and layer.biased):
        why = "norms after the addition" if layer.post_norm else "a norm together with a bias of the values"
        said += f"; {why} make it a statement about the flow without norms (exact: false)"
    if what == "every head" and layer.norm.kind == "layer" and _fills(layer, "head"):
        said += "; LayerNorm leaves one direction unread, which makes the margin 0"
    if kind == "full" and not single:
        said += "; heads alone are not decided: W and A are sums over them"
    return word, said
