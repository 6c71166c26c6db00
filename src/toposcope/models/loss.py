"""What a text costs a model, token by token, under its own encoding and under others.

Losses are in nats. Encodings are compared on the same tokens: differences are taken sequence by sequence, and their
interval is Student's, over sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadConfig
from toposcope.core.memory import foresee
from toposcope.core.statistics import half_width
from toposcope.encodings import EncodingSpec
from toposcope.models.corpus import Corpus
from toposcope.models.instrument import attached
from toposcope.models.load import Reference
from toposcope.models.score import Kind, Trial, kind_of, token_losses, trial
from toposcope.models.what_if import encoding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """The mean loss of the tokens predicted from positions `first` to `last`, both counted from 0.

    `half_width` is that of the 95 % interval over the sequences that reach so far; None for fewer than two.
    """

    first: int
    last: int
    loss: float
    tokens: int
    half_width: float | None = None


@dataclass(frozen=True)
class Condition:
    """The loss under one encoding in some layers or heads. `where` is None for all of them.

    `difference` is against the model as it is, with the half-width of its interval over sequences (None for fewer
    than two); `by_sequence` and `bins` are the losses it is made of.
    """

    encoding: str
    title: str
    where: str | None
    loss: float
    difference: float
    half_width: float | None
    by_sequence: tuple[float, ...]
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class LossResult:
    """A model on a corpus; the first condition is the model as it is."""

    model: str
    text: str
    kind: Kind
    context: int | None
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Wanted:
    """One encoding to try, and where."""

    spec: EncodingSpec
    layers: tuple[int, ...] | None = None
    heads: tuple[tuple[int, int], ...] | None = None
    where: str | None = None


def measure_loss(
    reference: Reference,
    corpus: Corpus,
    wanted: Sequence[Wanted] = (),
    *,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> LossResult:
    """The loss of a corpus as the model is, and in each wanted condition; `tick` is called after each."""
    kind = kind_of(reference.model)
    if kind == "drift":
        raise BadConfig(
            f"{type(reference.model).__name__} predicts no tokens, so no text has a loss in it. "
            "'toposcope trace' and 'toposcope ablate' can measure it."
        )
    trials = [trial(reference, ids, number=i, seed=seed) for i, ids in enumerate(corpus.sequences)]
    _foresee(reference, max(each.tokens for each in trials))
    edges = bin_edges(max(int(each.positions_P.max()) + 1 for each in trials))
    found: list[Condition] = []
    with attached(reference.model):
        base = _losses(reference.model, trials)
        found.append(_condition("own", "as it is", None, trials, base, base, edges))
        tick()
        for each in wanted:
            with encoding(reference.model, each.spec, layers=each.layers, heads=each.heads) as put_in:
                losses = _losses(reference.model, trials)
            found.append(_condition(str(each.spec), put_in.title, each.where, trials, losses, base, edges))
            tick()
    return LossResult(reference.path.name, corpus.cut, kind, reference.context, tuple(found))


def bin_edges(count: int) -> list[int]:
    """0, 1, 2, 4, ... up to `count`: each bin twice as long as the one before."""
    edges = [0, 1]
    while edges[-1] < count:
        edges.append(min(2 * edges[-1], count))
    return edges


def _losses(model: Any, trials: Sequence[Trial]) -> list[Array]:
    import torch

    found = []
    for each in trials:
        with torch.no_grad():
            found.append(token_losses(each, model(**each.inputs)).numpy())
    return found


def _condition(
    name: str,
    title: str,
    where: str | None,
    trials: Sequence[Trial],
    losses: Sequence[Array],
    base: Sequence[Array],
    edges: Sequence[int],
) -> Condition:
    means = np.array([each.mean() for each in losses])
    differences = means - np.array([each.mean() for each in base])
    half = None if name == "own" else half_width(differences.tolist())
    at = [each.positions_P.numpy() for each in trials]
    bins = []
    for first, stop in pairwise(edges):
        inside = [part[(here >= first) & (here < stop)] for here, part in zip(at, losses, strict=True)]
        there = [part for part in inside if len(part)]
        if there:
            flat = np.concatenate(there)
            spread = half_width([float(part.mean()) for part in there])
            bins.append(Bin(first, stop - 1, float(flat.mean()), len(flat), spread))
    return Condition(
        encoding=name,
        title=title,
        where=where,
        loss=float(means.mean()),
        difference=float(differences.mean()),
        half_width=half,
        by_sequence=tuple(map(float, means)),
        bins=tuple(bins),
    )


def _foresee(reference: Reference, tokens: int) -> None:
    """Logits, and the widest layer's activations, in float32."""
    config = reference.model.config.get_text_config()
    words, width = getattr(config, "vocab_size", 0), getattr(config, "hidden_size", 0)
    foresee(4 * tokens * (2 * words + 16 * width), f"a text of {tokens} tokens", "Use fewer --tokens.")
