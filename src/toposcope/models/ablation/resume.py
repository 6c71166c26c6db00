"""Run a model from one of its layers on: what comes before is not computed again, but answered from memory.

A model's blocks stand in a list. In one plain run each block's output is kept; then, to try many things in layer l,
the blocks before it answer with what they answered then, and everything else (embeddings, masks, angles, the later
blocks, the final norm, the head) is the model's own code. Where the blocks cannot be told, or where a trial shows
that they do not carry the whole state, every run is a full one, and `reason` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toposcope.models.instrument import Instrument

SAME = 1e-6  # the largest difference that a resumed run may show, relative to the largest output


class Resumable:
    """A model that can be run again from any of its attention layers on."""

    def __init__(self, instrument: Instrument) -> None:
        self.model = instrument.model
        self.reason: str | None = None
        self._blocks: list[Any] = []
        self._block_of_site: list[int] = []
        self._answers: list[Any] = []
        self._recorded: Mapping[str, Any] | None = None
        found = find_blocks(instrument)
        if isinstance(found, str):
            self.reason = found
        else:
            self._blocks, self._block_of_site = found

    @property
    def blocks(self) -> int:
        """How many blocks the model has; 0 where they were not found."""
        return len(self._blocks)

    @property
    def block_list(self) -> Sequence[Any]:
        """The blocks in their order."""
        return self._blocks

    @property
    def block_of_site(self) -> Sequence[int]:
        """The number of the block that holds each attention."""
        return self._block_of_site

    def bytes_kept(self, tokens: int) -> int:
        """The memory that a recorded run of so many tokens takes: L x N x D numbers of 4 bytes."""
        width = getattr(self.model.config.get_text_config(), "hidden_size", 0)
        return 4 * self.blocks * tokens * width

    def record(self, inputs: Mapping[str, Any]) -> Any:
        """A plain run whose blocks' outputs are kept, in place of those of the run before."""
        self._answers, self._recorded = [], None
        handles = [block.register_forward_hook(self._keep) for block in self._blocks[:-1]]
        try:
            output = self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        self._recorded = inputs
        return output

    def run(self, inputs: Mapping[str, Any], layer: int, rows: int = 1) -> Any:
        """The model's output, with the blocks before the one that holds this attention answering from memory.

        Inputs that are not the very ones of the last `record` are run in full. With `rows` the sequence is run so
        many times side by side.
        """
        first = self._block_of_site[layer] if self._blocks and inputs is self._recorded else 0
        with _answering(self._blocks[:first], [repeated(each, rows) for each in self._answers[:first]]):
            return self.model(**{name: repeated(value, rows, name) for name, value in inputs.items()})

    def share(self, layer: int) -> float:
        """The share of blocks that `run` computes."""
        if self.reason is not None or not self._blocks:
            return 1.0
        return 1 - self._block_of_site[layer] / len(self._blocks)

    def trust_or_not(self, inputs: Mapping[str, Any], output_of: Callable[[Any], Any]) -> None:
        """Compare resumed runs with the recorded one; if they differ, say so and run in full from now on."""
        if self.reason is not None:
            return
        theirs = output_of(self.record(inputs))
        middle, last = len(self._block_of_site) // 2, len(self._block_of_site) - 1
        for layer in (middle, last, middle):  # the middle twice: a later block might write into what it is given
            ours = output_of(self.run(inputs, layer))
            if not (ours - theirs).abs().max() <= SAME * theirs.abs().max():
                self.stop(
                    f"runs resumed at layer {layer} differ from full ones: the blocks share more than their output"
                )
                return

    def stop(self, reason: str) -> None:
        """Run in full from now on."""
        self.reason = reason
        self._blocks, self._answers, self._recorded = [], [], None

    def _keep(self, block: Any, args: Any, answer: Any) -> None:
        self._answers.append(answer)


def find_blocks(instrument: Instrument) -> tuple[list[Any], list[int]] | str:
    """The list of blocks that hold the attentions in their order, and the block of each; or why there is none."""
    import torch

    model, sites = instrument.model, instrument.sites
    if getattr(model.config, "is_encoder_decoder", False) and any(site.cross for site in sites):
        return "an encoder and a decoder are two lists of blocks"
    if any(site.turn for site in sites):
        return "one block runs several times"
    for module in model.modules():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        home = {inner: number for number, block in enumerate(module) for inner in block.modules()}
        numbers = [home.get(site.module, -1) for site in sites]
        if min(numbers) >= 0 and numbers == sorted(numbers):
            return list(module), numbers
    return "no list of blocks holds all attentions in order"


@contextmanager
def _answering(blocks: list[Any], answers: list[Any]) -> Iterator[None]:
    """Blocks that answer what they are told; their own `forward` is back when the block of code ends."""
    own = [block.__dict__.get("forward") for block in blocks]  # others may have put one there
    for block, answer in zip(blocks, answers[: len(blocks)], strict=True):
        block.forward = _always(answer)
    try:
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward


def repeated(value: Any, rows: int, name: str = "") -> Any:
    """What a model is given or answers for one sequence, as for so many of it; which logits to keep is said once."""
    if rows == 1 or name == "logits_to_keep":
        return value
    if isinstance(value, tuple):
        return tuple(repeated(each, rows) for each in value)
    if hasattr(value, "expand") and value.ndim > 0 and value.shape[0] == 1:
        return value.expand(rows, *value.shape[1:])
    return value


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer
