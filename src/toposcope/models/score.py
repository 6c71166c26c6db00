"""How well a model does on one sequence of tokens, as one number that grows when something is taken from it.

* next token      a causal model: nats per predicted token;
* masked token    a masked one: nats per token hidden, 15% of the positions, chosen once by the seed;
* continuation    an encoder and a decoder: nats per token of the second half, the encoder having read the first;
* drift           a model that predicts nothing: 1 - cosine between its mean output and that of the whole model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toposcope.core.errors import BadConfig, BadValue
from toposcope.models.corpus import Ids
from toposcope.models.device import double, home
from toposcope.models.load import Reference

Kind = Literal["next token", "masked token", "continuation", "drift"]
UNITS: dict[Kind, str] = {
    "next token": "nats per token",
    "masked token": "nats per masked token",
    "continuation": "nats per token of the second half",
    "drift": "1 - cosine with the whole model's mean output",
}
HIDDEN_SHARE = 0.15
_ROWS = 64  # rows of logits whose logarithms are held at once
_ROWS_OF = ("input_ids", "decoder_input_ids")  # the inputs that have a row for each sequence


@dataclass(frozen=True, eq=False)
class Trial:
    """One sequence as the model is given it: the loss is that at `positions_P`, where `targets_P` are right."""

    kind: Kind
    inputs: dict[str, Any]
    positions_P: Any
    targets_P: Any | None

    @property
    def tokens(self) -> int:
        return int(self.inputs["input_ids"].shape[1])


def kind_of(model: Any) -> Kind:
    """What a loaded transformers model can be scored by."""
    name = type(model).__name__
    if getattr(model, "get_output_embeddings", lambda: None)() is None:
        return "drift"
    if getattr(model.config, "is_encoder_decoder", False):
        return "continuation"
    return "masked token" if name.endswith(("ForMaskedLM", "ForPreTraining")) else "next token"


def trial(reference: Reference, ids: Ids, *, number: int = 0, seed: int = 0, second_half: bool = False) -> Trial:
    """The trial of one sequence. `second_half`: the loss only there, as for tokens that the first half foretells."""
    import torch

    kind, there = kind_of(reference.model), home(reference.model)
    count = len(ids)
    given = torch.from_numpy(np.asarray(ids, dtype=np.int64))[None].to(there)
    first = (count + 1) // 2 if second_half else 0
    if kind == "drift":
        return Trial(kind, {"input_ids": given}, torch.arange(first, count, device=there), None)
    if kind == "masked token":
        positions = _hidden_positions(reference.tokenizer, ids, first, (seed, number)).to(there)
        hidden = given.clone()
        hidden[0, positions] = reference.tokenizer.mask_token_id
        return Trial(kind, {"input_ids": hidden}, positions, given[0, positions])
    if kind == "continuation":
        half = (count + 1) // 2
        start = reference.model.config.decoder_start_token_id
        begin = given.new_tensor([[0 if start is None else start]])
        inputs = {"input_ids": given[:, :half], "decoder_input_ids": torch.cat([begin, given[:, half:-1]], 1)}
        return Trial(kind, inputs | {"use_cache": False}, torch.arange(count - half, device=there), given[0, half:])
    # Position p predicts p + 1: the last tells nothing that could be checked.
    positions = torch.arange(max(first - 1, 0), count - 1, device=there)
    inputs = {"input_ids": given, "use_cache": False}
    if "logits_to_keep" in inspect.signature(type(reference.model).forward).parameters:
        inputs["logits_to_keep"] = positions
    return Trial(kind, inputs, positions, given[0, positions + 1])


def trial_loss(trial: Trial, output: Any, whole: Any | None = None, row: int = 0) -> Any:
    """The loss of a trial from the model's output, in float64; a drift is from `whole`, a pooled output.

    `row` is the trial's in a batch.
    """
    import torch
    from torch.nn.functional import cosine_similarity

    if trial.kind == "drift":
        return torch.zeros(()) if whole is None else 1 - cosine_similarity(pool(trial, output, row), whole, dim=0)
    return token_losses(trial, output, row).mean()


def token_losses(trial: Trial, output: Any, row: int = 0) -> Any:
    """The loss of each target, in nats: (P,), float64."""
    import torch
    from torch.nn.functional import cross_entropy

    logits_PW = scored_logits(trial, output, row)
    assert trial.targets_P is not None
    targets_P = trial.targets_P.to(logits_PW.device)
    parts = [
        double(cross_entropy(logits_PW[at : at + _ROWS].float(), targets_P[at : at + _ROWS], reduction="none"))
        for at in range(0, len(targets_P), _ROWS)
    ]
    return torch.cat(parts)


def scored_logits(trial: Trial, output: Any, row: int = 0) -> Any:
    """The logits (P, W) from which the targets are told."""
    logits_PW = output.logits[row]
    if len(logits_PW) == len(trial.positions_P):
        return logits_PW
    return logits_PW[trial.positions_P.to(logits_PW.device)]


def pool(trial: Trial, output: Any, row: int = 0) -> Any:
    """The mean of the output over the scored positions, in float64."""
    state = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    return double(state[row, trial.positions_P.to(state.device)]).mean(0)


def batches(trials: Sequence[Trial], size: int) -> Iterator[list[int]]:
    """The numbers of trials that are run together: up to `size`, one after the other, of the same shape."""
    some: list[int] = []
    for number, each in enumerate(trials):
        if some and (len(some) == size or not _alike(trials[some[0]], each)):
            yield some
            some = []
        some.append(number)
    if some:
        yield some


def together(trials: Sequence[Trial]) -> dict[str, Any]:
    """The inputs of trials of one shape, as one batch."""
    import torch

    first = trials[0].inputs
    if len(trials) == 1:
        return first
    rows = [name for name in _ROWS_OF if name in first]
    return {**first, **{name: torch.cat([each.inputs[name] for each in trials]) for name in rows}}


def _alike(first: Trial, other: Trial) -> bool:
    """Whether two trials can be run in one batch: of the same lengths, and asked at the same places."""
    if first.kind != other.kind or first.inputs.keys() != other.inputs.keys():
        return False
    if any(first.inputs[name].shape != other.inputs[name].shape for name in _ROWS_OF if name in first.inputs):
        return False
    return "logits_to_keep" not in first.inputs or bool(
        len(first.positions_P) == len(other.positions_P) and (first.positions_P == other.positions_P).all()
    )


def as_number(value: Any) -> float:
    """A loss as a number, which must be finite."""
    found = float(value)
    if not np.isfinite(found):
        raise BadValue(f"the model's loss is {found}: its outputs hold NaN or infinity, and it cannot be measured.")
    return found


def _hidden_positions(tokenizer: Any, ids: Ids, first: int, seed: tuple[int, int]) -> Any:
    import torch

    if getattr(tokenizer, "mask_token_id", None) is None:
        raise BadConfig(
            "the model predicts hidden tokens, but its tokenizer has no mask token. Add one to its files."
        )
    free = first + np.flatnonzero(~np.isin(ids[first:], tokenizer.all_special_ids))
    if not len(free):
        raise BadValue("a sequence holds nothing but special tokens: there is nothing to hide. Give a longer text.")
    chosen = np.random.default_rng(seed).choice(free, max(1, round(HIDDEN_SHARE * len(free))), replace=False)
    return torch.from_numpy(np.sort(chosen))
