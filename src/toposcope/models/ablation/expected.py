"""What the removal of each head is expected to cost: the loss to second order, the head's own block exact.

Let x be what leaves the block that a head lives in, and D its change when the head is removed, computed by running
that block again. Then, with the loss a mean over P predicted tokens,

    L(x + D) - L(x)  =  <grad L, D>  +  1/(2 P) E_y [ (sum over tokens of <grad l(y), D>)^2 ]  +  ...

where the labels y are drawn from the model's own predictions: the second term is D's length in the Fisher metric,
which stands in for the Hessian. The slope alone is blind to heads whose loss is flat at first and rises later. One
forward pass, 1 + `draws` backward passes and one run of each head's own block estimate them all.

Where a model has no list of blocks, D is replaced by what a gate on the head's output does to first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from toposcope.models.ablation.replacement import StandIn
from toposcope.models.ablation.resume import repeated
from toposcope.models.device import double
from toposcope.models.intervene import ablated_rows
from toposcope.models.score import Trial, scored_logits, trial_loss
from toposcope.models.sites import Site

if TYPE_CHECKING:
    from toposcope.models.ablation.runner import AblationRunner

TOKENS_AT_ONCE = 1024  # of one block, over several removed heads


def expected_damages(
    runner: AblationRunner, each: Trial, stand_in: StandIn, *, draws: int, seed: Sequence[int]
) -> list[list[float]]:
    """The expected rise of the loss of one sequence, for each head of each layer."""
    if runner.resumable.reason is None and runner.resumable.blocks:
        return _through_blocks(runner, each, stand_in, draws, seed)
    return _by_gates(runner, each, stand_in, draws, seed)


def gradients(each: Trial, output: Any, at: Sequence[Any], draws: int, seed: Sequence[int]) -> list[list[Any]]:
    """The gradients at these tensors: of the loss, then of the summed loss under each set of drawn labels."""
    import torch
    from torch.nn.functional import cross_entropy

    found = [torch.autograd.grad(trial_loss(each, output), at, retain_graph=draws > 0)]
    if draws:
        logits_PW = scored_logits(each, output).float()
        labels_KP = drawn_labels(logits_PW.detach(), draws, seed)
        for number, labels_P in enumerate(labels_KP):
            surprise = cross_entropy(logits_PW, labels_P, reduction="sum")
            found.append(torch.autograd.grad(surprise, at, retain_graph=number + 1 < draws))
    return [[part.detach() for part in parts] for parts in found]


def drawn_labels(logits_PW: Any, draws: int, seed: Sequence[int]) -> Any:
    """Labels (K, P) by the model's own probabilities; the chance behind them is drawn on the CPU, for any device."""
    import torch

    chance_KP = np.random.default_rng(list(seed)).random((draws, len(logits_PW)), dtype=np.float32)
    below_PW = logits_PW.softmax(-1).cumsum(-1)
    wanted_PK = torch.from_numpy(chance_KP.T.copy()).to(below_PW.device) * below_PW[:, -1:]
    return torch.searchsorted(below_PW, wanted_PK).clamp(max=logits_PW.shape[1] - 1).T


def _second_order(products_GH: Any, predicted: int) -> list[float]:
    """The estimate from <gradient, D>: of the loss in the first row, of the drawn labels in the others."""
    slope_H, rest_KH = products_GH[0], products_GH[1:]
    if not len(rest_KH):
        return [float(value) for value in slope_H]
    return [float(value) for value in slope_H + (rest_KH**2).mean(0) / (2 * predicted)]


def _through_blocks(
    runner: AblationRunner, each: Trial, stand_in: StandIn, draws: int, seed: Sequence[int]
) -> list[list[float]]:
    import torch

    blocks, place = runner.resumable.block_list, runner.resumable.block_of_site
    seen: dict[int, tuple[Any, Any, Any]] = {}

    def noting(number: int) -> Any:
        def note(block: Any, args: Any, kwargs: Any, answer: Any) -> None:
            seen[number] = (args, kwargs, _stream(answer))

        return note

    one = torch.ones((), requires_grad=True)  # so that there are gradients, also where all weights are frozen

    def touch(site: Site, output_BNHV: Any) -> Any:
        return output_BNHV * one.to(output_BNHV) if site.number == 0 else output_BNHV

    with ExitStack() as stack:
        for number, block in enumerate(blocks):
            stack.callback(block.register_forward_hook(noting(number), with_kwargs=True).remove)
        runner.instrument.edits.append(touch)
        stack.callback(runner.instrument.edits.remove, touch)
        with torch.enable_grad():
            output = runner.model(**each.inputs)
            found = gradients(each, output, [seen[number][2] for number in range(len(blocks))], draws, seed)
    del output
    estimates = []
    for site in runner.instrument.sites:
        args, kwargs, whole = seen[place[site.number]]
        at_GND = torch.stack([parts[place[site.number]][0].float() for parts in found])
        products = []
        some = max(1, TOKENS_AT_ONCE // each.tokens)
        for first in range(0, site.heads, some):
            heads = range(first, min(first + some, site.heads))
            rows = [{site.number: ((head,), stand_in(site.number, [head]))} for head in heads]
            with torch.no_grad(), ablated_rows(runner.model, rows):
                answer = blocks[place[site.number]](
                    *(repeated(value, len(rows)) for value in args),
                    **{name: repeated(value, len(rows)) for name, value in kwargs.items()},
                )
                change_HND = (_stream(answer) - whole.detach()).float()
                products.append(at_GND.flatten(1) @ change_HND.flatten(1).T)
        predicted = len(each.positions_P)
        estimates.append(_second_order(double(torch.cat(products, dim=1)).cpu(), predicted))
    return estimates


def _by_gates(
    runner: AblationRunner, each: Trial, stand_in: StandIn, draws: int, seed: Sequence[int]
) -> list[list[float]]:
    """With a gate g on each head's output o, so that it hands on b + g (o - b): D is minus the derivative in g."""
    import torch

    sites = runner.instrument.sites
    gates = [torch.ones(site.heads, requires_grad=True) for site in sites]

    def edit(site: Site, output_BNHV: Any) -> Any:
        instead, gate_H1 = stand_in(site.number, range(site.heads)), gates[site.number][:, None]
        if not isinstance(instead, float):
            instead = instead.to(output_BNHV.device).float()
        gated = instead + gate_H1.to(output_BNHV.device) * (output_BNHV.float() - instead)  # slopes add up in float32
        return gated.to(output_BNHV.dtype)

    runner.instrument.edits.append(edit)
    try:
        with torch.enable_grad():
            found = gradients(each, runner.model(**each.inputs), gates, draws, seed)
    finally:
        runner.instrument.edits.remove(edit)
    return [
        _second_order(torch.stack([-parts[site.number].double() for parts in found]), len(each.positions_P))
        for site in sites
    ]


def _stream(answer: Any) -> Any:
    """The residual stream in what a block answers."""
    return answer[0] if isinstance(answer, tuple) else answer
