"""What is measured while a model learns: gradients by head, spectra of the logits, the sharpest curvature.

Probes read the model and change nothing: no gradient is left behind and no random number is drawn from training's
generators. Shape suffixes as in `model.py`, and S singular values, P parameters.
"""

# mypy: allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from toposcope.lab.batches import asked, loss_sum
from toposcope.lab.model import LatentAttention, SelfAttention, Transformer, causal_mask
from toposcope.lab.tasks import Batch, Task
from toposcope.spectra.singular import effective_rank

Numbers = list[list[float | None]]  # a number per layer and head


def probe_sentences(task: Task, count: int, seed: int, *, of: int = 128) -> Tensor:
    """The ids of `count` long sentences, cut to one length so that none has padding."""
    batch = task.generate(of, torch.Generator().manual_seed(seed))
    longest = batch.lengths_B.argsort(descending=True, stable=True)[:count]
    return batch.ids_BN[longest, : int(batch.lengths_B[longest].min())]


def gradient_norms(model: Transformer) -> dict[str, Any]:
    """Norms of the present gradients: of each layer, and of each head's slices of q, k, v and o.

    Where heads share keys and values, k and v have one number for each group.
    """
    heads: dict[str, list[list[float]]] = {name: [] for name in "qkvo"}
    layers = []
    for layer in model.layers:
        found = [p.grad for p in layer.parameters() if p.grad is not None]
        layers.append(float(torch.stack(torch._foreach_norm(found)).norm()))
        for name, rows in _slices(layer.attention).items():
            heads[name].append(rows.flatten(1).norm(dim=1).tolist())
    return {"layers": layers, "heads": heads}


def _slices(attention: SelfAttention) -> dict[str, Tensor]:
    """The gradients of a layer's projections, the heads first."""
    o_HDV = _gradient(attention.o_proj).unflatten(1, (attention.heads, -1)).transpose(0, 1)
    if isinstance(attention, LatentAttention):
        q = _gradient(attention.q_b_proj).unflatten(0, (attention.heads, -1))
        both = _gradient(attention.kv_b_proj).unflatten(0, (attention.heads, -1))
        return {"q": q, "k": both[:, : attention.content], "v": both[:, attention.content :], "o": o_HDV}
    return {
        "q": _gradient(attention.q_proj).unflatten(0, (attention.heads, -1)),
        "k": _gradient(attention.k_proj).unflatten(0, (attention.groups, -1)),
        "v": _gradient(attention.v_proj).unflatten(0, (attention.groups, -1)),
        "o": o_HDV,
    }


def _gradient(linear: nn.Linear) -> Tensor:
    return torch.zeros_like(linear.weight) if linear.weight.grad is None else linear.weight.grad


@torch.no_grad()
def logit_pairs(model: Transformer, ids_BN: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each layer its logits (B, H, N, N) with the encoding, and of the same content with the encoding off.

    Off means: rotations at position 0, no bias; for an encoding added to the input, without it in the first layer
    and without the mean over sentences at each position in deeper ones (metric 3.6). Both sides are masked alike.
    """
    with evaluating(model):
        x_BND = model.embedded(ids_BN)
        raw_BND = x_BND if model.raw else None
        bare_BND = model.embed(ids_BN)
        for index, layer in enumerate(model.running):
            attention = layer.attention
            still_BND = x_BND
            if model.position is not None:
                by_position = x_BND.mean(dim=0, keepdim=True)
                still_BND = bare_BND if index == 0 else x_BND - by_position + by_position.mean(dim=1, keepdim=True)
            q, k, _ = attention.project(layer.attention_norm(x_BND), raw_BND)
            q0, k0, _ = attention.project(layer.attention_norm(still_BND), bare_BND if model.raw else None)
            bias = attention.position.bias(q, k, attention.scaling)
            logits = _logits(attention, *attention.position.turn(q, k))
            reference = _logits(attention, *attention.position.turn(q0, k0, at_BN=x_BND.new_zeros(1, 1).long()))
            logits = logits if bias is None else logits + bias
            if model.config.causal:
                hidden = ~causal_mask(ids_BN.shape[1], ids_BN.device)
                logits, reference = logits.masked_fill(hidden, 0.0), reference.masked_fill(hidden, 0.0)
            yield logits, reference
            x_BND = layer(x_BND, None, raw_BND)


def _logits(attention: SelfAttention, q_BHNR: Tensor, k_BGNR: Tensor) -> Tensor:
    k_BHNR = k_BGNR.repeat_interleave(attention.num_key_value_groups, dim=1)
    return attention.scaling * q_BHNR @ k_BHNR.mT


def logit_spectra(model: Transformer, ids_BN: Tensor) -> dict[str, Numbers]:
    """`rho` = ||S|| / ||S_0|| and `erank_ratio` of each layer and head: the median over the sentences."""
    rho: Numbers = []
    spread: Numbers = []
    for pair in logit_pairs(model, ids_BN):
        values, reference = (torch.linalg.svdvals(side.cpu().double()).numpy() for side in pair)  # (B, H, S)
        heads = range(values.shape[1])
        rho.append([_median(_ratios(values[:, h, 0], reference[:, h, 0])) for h in heads])
        ranks, ranks_0 = (np.apply_along_axis(_rank, 2, side) for side in (values, reference))
        spread.append([_median(_ratios(ranks[:, h], ranks_0[:, h])) for h in heads])
    return {"rho": rho, "erank_ratio": spread}


def _rank(values_S: np.ndarray) -> float:
    return effective_rank(values_S) or 0.0


def _ratios(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return above[below > 0] / below[below > 0]


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def sharpness(model: Transformer, batch: Batch, *, iterations: int = 8, seed: int = 0) -> dict[str, float]:
    """The largest eigenvalue of the loss's Hessian, by Lanczos on Hessian-vector products.

    A Krylov space of `iterations` products holds all that as many power iterations see, and more. `residual` is
    |H v - value v| / |value|: the true eigenvalue nearest to `value` is within that share of it.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        loss = loss_sum(model(batch.ids_BN, batch.lengths_B), batch.labels) / max(asked(batch.labels), 1)
        gradient_P = _flat(torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True), parameters)

        def product(vector_P: Tensor) -> Tensor:
            found = torch.autograd.grad(
                gradient_P, parameters, grad_outputs=vector_P, retain_graph=True, allow_unused=True
            )
            return _flat(found, parameters).detach()

        start_P = torch.randn(len(gradient_P), generator=torch.Generator().manual_seed(seed)).to(gradient_P)
        value, residual = largest_eigenvalue(product, start_P, iterations)
    return {"value": value, "residual": residual}


def largest_eigenvalue(product: Callable[[Tensor], Tensor], start_P: Tensor, iterations: int) -> tuple[float, float]:
    """The largest eigenvalue of a symmetric map, by Lanczos with full reorthogonalisation, and its residual share."""
    basis = [start_P / start_P.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(iterations):
        w_P = product(basis[-1])
        diagonal.append(float(w_P @ basis[-1]))
        held = torch.stack(basis)
        for _ in range(2):
            w_P = w_P - held.mT @ (held @ w_P)
        beside.append(float(w_P.norm()))
        if beside[-1] <= 1e-6 * max(map(abs, diagonal)):  # the Krylov space is exhausted
            break
        basis.append(w_P / beside[-1])
    size = len(diagonal)
    small = np.diag(diagonal) + np.diag(beside[: size - 1], 1) + np.diag(beside[: size - 1], -1)
    values, vectors = np.linalg.eigh(small)
    top = float(values[-1])
    return top, abs(beside[size - 1] * float(vectors[-1, -1])) / abs(top) if top else 0.0


def _flat(parts: tuple[Tensor | None, ...], like: list[nn.Parameter]) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(p) if part is None else part).reshape(-1) for part, p in zip(parts, like, strict=True)]
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off, the mode restored afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
