"""What half precision costs: one sequence run again in float32, beside what the model makes of it.

The weights are widened one module at a time, as it is called, so a model whose float32 copy would not fit can still
be asked. What is widened is exact (every bfloat16 and float16 is a float32), and put back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from toposcope.core.result import Computation
from toposcope.models.device import double
from toposcope.models.score import UNITS, Trial, pool, token_losses


def is_rounded(model: Any) -> bool:
    """Whether some of a model's weights are in less than float32."""
    return any(map(_is_half, model.parameters()))


@contextmanager
def in_float32(model: Any, *, at_once: bool = False) -> Iterator[None]:
    """Inside the block a model in half precision computes in float32, with the weights that it has.

    `at_once` widens all of them, for models whose modules ask each other for their precision (T5).
    """
    with ExitStack() as stack:
        if at_once:
            widening = _Widening([each for each in (*model.parameters(), *model.buffers()) if _is_half(each)])
            stack.callback(widening.restore)
            widening.widen()
        for module in () if at_once else model.modules():
            own = [each for each in _own(module) if _is_half(each)]
            if own:
                widening = _Widening(own)
                before = module.register_forward_pre_hook(widening.widen, prepend=True)
                after = module.register_forward_hook(widening.restore, always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
                stack.callback(widening.restore)
        yield


def with_rounding(ran: Computation, model: Any, trial: Trial) -> Computation:
    """The same, with the mean change of a token's loss on this sequence, which bounds that of their mean.

    A model that predicts nothing has 1 - cosine of its mean output with that in float32.
    """
    if not is_rounded(model):
        return ran
    if trial.kind == "drift":
        from torch.nn.functional import cosine_similarity

        def pooled() -> Any:
            return pool(trial, model(**trial.inputs))

        return measured(ran, model, pooled, lambda a, b: 1 - cosine_similarity(a, b, dim=0), UNITS["drift"])
    return measured(
        ran,
        model,
        lambda: token_losses(trial, model(**trial.inputs)),
        lambda ours, theirs: (ours - theirs).abs().mean(),
        UNITS[trial.kind],
    )


def measured(
    ran: Computation, model: Any, run: Callable[[], Any], apart: Callable[[Any, Any], Any], unit: str
) -> Computation:
    """Run twice, as the model is and in float32, and note how far apart the two are."""
    import torch

    with torch.no_grad():
        ours, why = run(), ""
        for at_once in (False, True):
            try:
                with in_float32(model, at_once=at_once):
                    theirs = run()
            except RuntimeError as error:  # precisions that do not go together, or memory
                why = str(error).strip().splitlines()[0][:160]
            else:
                return replace(ran, rounding=float(apart(ours, theirs)), rounding_of=unit)
        return replace(ran, why_unknown=f"the model could not be run in float32 beside it ({why})")


def relative(ours: list[Any], theirs: list[Any]) -> float:
    """The largest distance of a tensor from its float32 twin, relative to that, over a list of them."""
    pairs = zip(ours, theirs, strict=True)
    return max(float(double(a.float() - b).norm() / double(b).norm().clamp_min(1e-30)) for a, b in pairs)


# -------------------------------------------------------------------- inside
def _is_half(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype.itemsize < 4)


def _own(module: Any) -> list[Any]:
    """The parameters and buffers of a module itself."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


class _Widening:
    """The tensors of one module, widened while it runs. A module may call itself: the outermost call counts."""

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors
        self._before: list[Any] = []
        self._depth = 0

    def widen(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._before = [each.data for each in self._tensors]
            for each in self._tensors:
                each.data = each.data.float()

    def restore(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if not self._depth and self._before:
            for each, before in zip(self._tensors, self._before, strict=True):
                each.data = before
            self._before = []
