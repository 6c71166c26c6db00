"""The additive term x_i^T D x_j in the logits of (rotary) attention, D > 0 diagonal and trained.

x is what the attention module is given: the layer's normalised input. Two forms, both with one number for each of the
layer's D coordinates:

* slice     head h adds sum_c D_c x_ic x_jc over its own slice of the coordinates, as the released code does. It makes
            no form in R^d definite, and no theorem speaks of it.
* uniform   every head adds the whole x_i^T D x_j. With D above `bound` sym(W_k) + D > 0 at every offset k (theory,
            section 3), which is what the robust theorem T8 asks for.

The term costs no n x n table: sqrt(D / scale) x is appended to queries and keys, and the scaled dot product of the
longer vectors is the old logit plus x_i^T D x_j. D = least + start * softplus(raw) / softplus(0): raw begins at 0,
its learning rate is in units of the start, whatever that is, and D never falls below `least` (0, or the bound).
"""

# mypy: allow-subclassing-any, allow-untyped-decorators
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from toposcope.checkpoints.view import Layer
from toposcope.core.errors import BadConfig, BadFile, BadValue
from toposcope.core.files import write_bytes
from toposcope.core.untrusted import SAVED, open_file
from toposcope.dynamics.rotation import tau_uniform, turned
from toposcope.models.instrument import Call, attached
from toposcope.models.load import Reference
from toposcope.models.sites import checked_site

Form = Literal["slice", "uniform"]
FORMS = ("slice", "uniform")
ByLayer = float | Mapping[int, float]
LEAST = 1e-6  # of the start, so that D > 0 whatever raw becomes
_NAME = "added_diagonal"


class Diagonal(nn.Module):
    """D of one layer: (H, D / H) in slice form, (1, D) in uniform form."""

    start: Tensor
    least: Tensor

    def __init__(
        self, width: int, heads: int, *, form: Form = "slice", start: float = 1e-3, least: float = 0.0
    ) -> None:
        super().__init__()
        if form not in FORMS:
            raise BadValue(f"the diagonal's form is 'slice' or 'uniform', got '{form}'.")
        if not (math.isfinite(start) and start > 0 and math.isfinite(least) and least >= 0):
            raise BadValue(f"D must start positive, above a bound that is not negative; got {start} and {least}.")
        if form == "slice" and width % heads:
            raise BadConfig(f"{heads} heads have no equal slices of {width} coordinates. Use form 'uniform'.")
        self.width, self.heads, self.form = width, heads, form
        self.raw = nn.Parameter(torch.zeros((heads, width // heads) if form == "slice" else (1, width)))
        self.register_buffer("start", torch.tensor(float(start)))
        self.register_buffer("least", torch.tensor(float(least)))

    def forward(self) -> Tensor:
        """The values of D."""
        return self.least + self.start * (F.softplus(self.raw) / math.log(2) + LEAST)

    def appended(self, q_BHNR: Tensor, k_BGNR: Tensor, x_BND: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, H, N, R + more) whose scaled dot product is the old one plus x_i^T D x_j."""
        if not scaling > 0:
            raise BadConfig(f"the diagonal needs logits with a positive scale, got {scaling}.")
        if k_BGNR.shape[2] != x_BND.shape[1]:
            raise BadConfig(
                f"{k_BGNR.shape[2]} keys came with {x_BND.shape[1]} tokens: the diagonal needs every token's vector, "
                "which a cache of keys does not hold. Run the model with use_cache=False."
            )
        count = q_BHNR.shape[1]
        root_HC = (self() / scaling).sqrt().to(x_BND.dtype)
        split_BHNC = x_BND.unflatten(-1, root_HC.shape).transpose(1, 2) * root_HC[:, None]
        more = split_BHNC.expand(-1, count, -1, -1)
        k_BHNR = k_BGNR.repeat_interleave(count // k_BGNR.shape[1], dim=1)
        return torch.cat([q_BHNR, more], dim=-1), torch.cat([k_BHNR, more], dim=-1)


class Installed:
    """The diagonals of a model while they are in force; `remove` puts the model back as it was."""

    def __init__(self, parts: dict[int, Diagonal], form: Form, stack: ExitStack) -> None:
        self.parts, self.form, self._stack = parts, form, stack

    def parameters(self) -> list[nn.Parameter]:
        return [part.raw for part in self.parts.values()]

    def values(self) -> dict[int, Tensor]:
        """D of each layer, detached."""
        return {number: part().detach() for number, part in self.parts.items()}

    def remove(self) -> None:
        self._stack.close()

    def save(self, path: str | Path) -> Path:
        """The values of D, one tensor for each layer, with the form in the metadata: `load` puts them in again."""
        return save(path, self.values(), self.form)


@contextmanager
def with_diagonal(model: Any, **settings: Any) -> Iterator[Installed]:
    """`install`, for as long as the block lasts."""
    installed = install(model, **settings)
    try:
        yield installed
    finally:
        installed.remove()


def install(
    model: Any,
    *,
    form: Form = "slice",
    start: ByLayer = 1e-3,
    least: ByLayer = 0.0,
    layers: Sequence[int] | None = None,
) -> Installed:
    """Add the term to a model of transformers, or of the lab; D becomes part of the attention modules.

    D begins at `least` + `start`, given for all layers or for each. A model of transformers must be in evaluation
    mode when it is installed, and may be trained afterwards; dropout inside attention is then left out.
    """
    module = model.model if isinstance(model, Reference) else model
    stack = ExitStack()
    try:
        attentions = _lab_attentions(module)
        route = _in_lab if attentions else _in_transformers
        return route(module, _Making(form, start, least, stack), layers)
    except BaseException:
        stack.close()
        raise


def save(path: str | Path, values: Mapping[int, Tensor], form: Form) -> Path:
    """Write the values of D by layer."""
    tensors = {f"layer.{number}.D": value.contiguous() for number, value in values.items()}
    return write_bytes(path, to_bytes(tensors, metadata={"form": form}))  # of two words the order would be random


def load(model: Any, path: str | Path) -> Installed:
    """Install the values of D that `Installed.save` wrote."""
    open_file(path, most=SAVED).close()  # what is no regular file is refused before it is mapped
    try:
        with safe_open(str(path), "pt") as file:
            form = (file.metadata() or {})["form"]
            found = {int(name.split(".")[1]): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        raise BadFile(f"{path} holds no diagonal that 'toposcope refine' wrote ({error}).") from error
    installed = install(model, form=form, layers=sorted(found))
    with torch.no_grad():
        for number, value in found.items():
            part = installed.parts[number]
            if part().shape != value.shape:
                installed.remove()
                raise BadFile(
                    f"{path} holds {tuple(value.shape)} for layer {number}, the model {tuple(part().shape)}."
                )
            part.start.fill_(float(value.mean()))
            part.raw.copy_(_softplus_inverse((value.double() / float(part.start) - LEAST) * math.log(2)))
    return installed


def bound(layer: Layer) -> float:
    """The tau above which D = tau I makes sym(W_k) + D positive at every offset and in every head of the layer.

    In the coordinates of the layer's normalised input, gain included, which the diagonal reads.
    """
    rotary, found = layer.encoding.rotary, 0.0
    if rotary is None:
        raise BadConfig(f"layer {layer.number} does not rotate: the bound is about rotary attention.")
    for head in layer.heads:
        q, k = turned(rotary, head.q, 0, "query"), turned(rotary, head.k, 0, "key")
        found = max(found, tau_uniform(q, k, rotary, head.scale))
    return found


# -------------------------------------------------------------------- inside
class _NotedInput:
    """What an attention module is about to read, noted on its way in."""

    def __init__(self) -> None:
        self.x_BND: Tensor | None = None

    def note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.x_BND = args[0] if args else kwargs["hidden_states"]

    def take(self) -> Tensor:
        """Handed out once: a run that is not ours must not meet an old one."""
        found, self.x_BND = self.x_BND, None
        if found is None:
            raise BadConfig(
                "attention was asked for without its module being called: the diagonal has nothing to read."
            )
        return found


class _Kept:
    """What an installed diagonal rests on lives as long as the model, whether or not anybody holds `Installed`."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def __deepcopy__(self, memo: Any) -> Any:
        raise BadConfig("a copy of this model would have no diagonal. Remove it, copy, and install it in both.")


@dataclass(frozen=True, eq=False)
class _Making:
    form: Form
    start: ByLayer
    least: ByLayer
    stack: ExitStack

    def __call__(self, module: nn.Module, width: int, heads: int, number: int) -> Diagonal:
        if hasattr(module, _NAME):
            raise BadValue("a diagonal is installed already; remove it first.")
        start, least = (given[number] if isinstance(given, Mapping) else given for given in (self.start, self.least))
        like = next(module.parameters())
        part = Diagonal(width, heads, form=self.form, start=start, least=least).to(like.device)
        if like.dtype.itemsize >= 4:  # in half precision steps of an optimiser would be lost
            part = part.to(like.dtype)
        part.keeps = _Kept(self.stack)
        module.add_module(_NAME, part)
        self.stack.callback(delattr, module, _NAME)
        return part


def _in_transformers(model: Any, making: _Making, layers: Sequence[int] | None) -> Installed:
    stack = making.stack
    instrument = stack.enter_context(attached(model, lasting=True))
    numbers = range(len(instrument.sites)) if layers is None else layers
    sites = [checked_site(instrument.sites, number) for number in dict.fromkeys(numbers)]
    sites = [site for site in sites if layers is not None or not site.cross]
    if any(site.route == "hooks" or site.cross or site.turn for site in sites):
        raise BadConfig(
            f"{type(model).__name__} computes some of its attention in a way of its own (by itself, across two "
            "stacks, or several times in one module): no diagonal can be added there."
        )
    width = model.get_input_embeddings().weight.shape[1]
    parts, seen = {}, {}
    for site in sites:
        parts[site.number] = making(site.module, width, site.heads, site.number)
        seen[site.number] = _NotedInput()
        handle = site.module.register_forward_pre_hook(seen[site.number].note, with_kwargs=True)
        stack.callback(handle.remove)

    def rewrite(call: Call) -> Tensor | None:
        part = parts.get(call.site.number)
        if part is None:
            return None
        if call.softcap is not None or call.sinks is not None or call.bias is not None:
            raise BadConfig("attention with soft-capping, sinks or a bias of positions takes no diagonal yet.")
        x_BND = seen[call.site.number].take()
        q, k = part.appended(call.query_BHNR, call.key_BGMR, x_BND, call.scaling)
        v = call.value_BGMV.repeat_interleave(q.shape[1] // call.value_BGMV.shape[1], dim=1)
        out = F.scaled_dot_product_attention(
            q, k, _widened(v, q), attn_mask=call.mask, is_causal=call.causal, scale=call.scaling
        )
        return out[..., : v.shape[-1]].transpose(1, 2)

    stack.enter_context(instrument.rewriting(rewrite, parts))
    return Installed(parts, making.form, stack)


def _lab_attentions(model: Any) -> list[Any]:
    return [module for module in model.modules() if callable(getattr(module, "attend", None))]


def _in_lab(model: Any, making: _Making, layers: Sequence[int] | None) -> Installed:
    attentions = _lab_attentions(model)
    if getattr(model, "raw", False):
        raise BadConfig("with raw_keys_values queries and keys read different vectors: no diagonal can be added.")
    parts, stack = {}, making.stack
    for number in range(len(attentions)) if layers is None else dict.fromkeys(layers):
        if not 0 <= number < len(attentions):
            raise BadValue(f"there is no layer {number}: the model has layers 0 to {len(attentions) - 1}.")
        module, seen = attentions[number], _NotedInput()
        width = module.o_proj.out_features
        parts[number] = making(module, width, module.heads, number)
        stack.callback(module.register_forward_pre_hook(seen.note, with_kwargs=True).remove)
        stack.callback(setattr, module, "attend", module.attend)
        module.attend = _longer(module.attend, parts[number], seen)
    return Installed(parts, making.form, stack)


def _longer(inner: Callable[..., Any], part: Diagonal, seen: _NotedInput) -> Callable[..., Any]:
    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *, scaling: float, **rest: Any) -> Any:
        each = q.shape[1] // k.shape[1]
        q, k = part.appended(q, k, seen.take(), scaling)
        if each > 1:  # every head has a key of its own now
            module, v = _Ungrouped(module), v.repeat_interleave(each, dim=1)
        out, weights = inner(module, q, k, _widened(v, q), mask, scaling=scaling, **rest)
        return out[..., : v.shape[-1]], weights

    return attend


def _widened(v: Tensor, q: Tensor) -> Tensor:
    """Values as wide as queries: fused kernels want that, and without them attention would hold n x n numbers."""
    return F.pad(v, (0, q.shape[-1] - v.shape[-1]))


class _Ungrouped:
    """An attention module as one whose heads share no keys."""

    num_key_value_groups = 1

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _softplus_inverse(value: Tensor) -> Tensor:
    value = value.clamp_min(1e-12)
    return value + torch.log(-torch.expm1(-value))
