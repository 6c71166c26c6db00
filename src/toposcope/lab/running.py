"""A model of the laboratory as `trace` and `ablate` take models, with sentences of its own task for a text."""

# mypy: allow-subclassing-any
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toposcope.core.errors import BadConfig, BadValue
from toposcope.core.untrusted import read_object
from toposcope.lab.export import CONFIG, description
from toposcope.lab.load import load_model
from toposcope.lab.model import Transformer
from toposcope.lab.tasks import PROFILES, Batch, Task, find
from toposcope.models.corpus import NO_TEXT, RANDOM, Corpus, zipf

_STREAM = 5  # of the sentences drawn here: none that a run trains or tests on


class LabModel(nn.Module):
    """A trained model under the names that transformers' models have."""

    def __init__(self, inner: Transformer, path: Path) -> None:
        super().__init__()
        self.inner, self.path = inner, path
        self.config = SimpleNamespace(to_dict=lambda: description(inner.config))

    def forward(self, input_ids: Tensor, *, output_hidden_states: bool = False, **_: Any) -> Any:
        """Scores of the classes; or, with the name and the order of transformers, what enters each layer.

        The last of the hidden states is what is read from, after the final norm.
        """
        if not output_hidden_states:
            return self.inner(input_ids)
        states: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: states.append(args[0])) for layer in self.inner.layers
        ]
        hooks.append(self.inner.norm.register_forward_hook(lambda _, args, output: states.append(output)))
        try:
            scores = self.inner(input_ids)
        finally:
            for hook in hooks:
                hook.remove()
        return SimpleNamespace(logits=scores, hidden_states=tuple(states))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.inner.state_dict(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.inner.embed


def load_running(directory: Path) -> LabModel:
    """The model of a directory, in evaluation mode."""
    return LabModel(load_model(directory), directory).eval()


def own_task(directory: Path, model: Transformer) -> Task:
    """The task a model was trained on, in the size it was trained for."""
    name = read_object(directory / CONFIG, BadConfig, inside=directory).get("task")
    if not isinstance(name, str):
        raise BadValue(f"{directory} does not say on which task it was trained. Train it with 'toposcope train'.")
    shape = (model.config.vocabulary, model.config.classes, model.config.length)
    for profile in PROFILES:
        for options in ({}, {"collide": True}) if name == "distance" else ({},):
            task = find(name, profile, **options)
            if (task.vocabulary, task.classes, task.length) == shape:
                return task
    raise BadValue(f"{directory} was trained on '{name}' in a size that is none of {', '.join(PROFILES)}.")


def sentences(task: Task, count: int, seed: int = 0) -> Batch:
    """Sentences of the task that no run has trained or been tested on."""
    return task.generate(count, torch.Generator().manual_seed(16 * seed + _STREAM))


def corpus(task: Task, count: int, seed: int = 0) -> Corpus:
    """The same as sequences of token numbers, padding cut off."""
    batch = sentences(task, count, seed)
    found = tuple(ids[:length].numpy() for ids, length in zip(batch.ids_BN, batch.lengths_B.tolist(), strict=True))
    return Corpus(task.name, found, f"{count} sentences of the task '{task.name}'")


def random_corpus(task: Task, count: int, seed: int = 0) -> Corpus:
    """As many sequences of the task's length, of any of its tokens but the padding, drawn by Zipf's law."""
    found = zipf(np.arange(1, task.vocabulary), [task.length] * count, seed)
    return Corpus(RANDOM, tuple(found), f"{count} sequences of {task.length} tokens of {NO_TEXT}")


def with_sequences(directory: Path, text: str | None, count: int, seed: int) -> tuple[LabModel, Corpus]:
    """A model, and sentences of its own task for `trace`; or random tokens, where `text` asks for them."""
    if text not in (None, RANDOM):
        raise BadValue(
            f"'{text}' cannot be read by a model of the laboratory, which has no tokenizer. Leave --text out for "
            "sentences of its own task, or give --text random."
        )
    model = load_running(directory)
    task = own_task(directory, model.inner)
    return model, (random_corpus if text == RANDOM else corpus)(task, count, seed)
