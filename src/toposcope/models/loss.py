"""What a text costs a model, token by token, under its own encoding and under others.

Losses are in nats. Encodings are compared on the same tokens: differences are taken sequence by sequence, and their
interval is Student's, over sequences.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadConfig, BadValue
from toposcope.core.memory import require_memory
from toposcope.core.progress import Progress, steps
from toposcope.core.ranges import parse_heads, parse_range, written_heads, written_layers
from toposcope.core.result import Provenance, Result
from toposcope.core.statistics import half_width
from toposcope.encodings import EncodingSpec, parse
from toposcope.encodings.registry import listed
from toposcope.models.corpus import Corpus
from toposcope.models.device import (
    computation,
    home,
    memory_told,
    placement,
    require_batch,
    running_on,
    with_doubts,
)
from toposcope.models.instrument import attached
from toposcope.models.load import Reference
from toposcope.models.rounding import with_rounding
from toposcope.models.running import RunnableLike, on_text, running_subject
from toposcope.models.score import Kind as Predicts
from toposcope.models.score import Trial, batches, kind_of, together, token_losses, trial
from toposcope.models.sites import Site
from toposcope.models.swap_encoding import swap_encoding

Array = NDArray[np.float64]
OWN = "own"  # the encoding of the first condition: the model as it is


@dataclass(frozen=True)
class Bin:
    """The mean loss of the tokens predicted from positions `first` to `last`, both counted from 0.

    `half_width` is that of the 95% interval over the sequences that reach so far; None for fewer than two.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class LossResult(Result):
    """What a text costs a model; the first condition is the model as it is."""

    kind = "loss"
    table = "conditions"

    text: str  # which, in words
    predicts: Predicts  # what the loss is of
    context: int | None
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Wanted:
    """One encoding to try, and where."""

    spec: EncodingSpec
    layers: tuple[int, ...] | None = None
    heads: tuple[tuple[int, int], ...] | None = None
    where: str | None = None


@dataclass(frozen=True, eq=False)
class TokenLosses:
    """The loss of each predicted token of a sequence, and from which position it was predicted."""

    positions_P: NDArray[np.int64]
    losses_P: Array


def loss(
    model: RunnableLike,
    text: str | Path = "wiki",
    *,
    tokens: int = 256,
    sequences: int = 4,
    begin: int = 0,
    lines: bool = False,
    encoding: str | Sequence[str] = (),
    layers: str | int | Sequence[int] | None = None,
    heads: str | Sequence[tuple[int, int]] | None = None,
    each: Literal["layer", "head"] | None = None,
    beyond: bool = False,
    seed: int = 0,
    tokenizer: Any = None,
    device: str | None = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> LossResult:
    """The loss of a text in nats per token, by position, and how it changes under other encodings.

    `model` is a name, a path, or a loaded model of transformers (with its `tokenizer`, unless that lies in the files
    it was loaded from); `text` a file, or a name of `toposcope ls texts`. `encoding` names others to put in the place
    of the model's own: in all layers, in `layers` ("0-3,7") or `heads` ("3.2,5.0") only, or with `each` in one layer
    or head at a time. `beyond` allows more tokens than the model's context; `seed` draws the tokens that are hidden
    from models which fill in. `batch` sequences of one length are run together; `device`, `dtype` and `device_map`
    say where a model is loaded to, and in which precision (docs/devices.md).
    """
    started = time.perf_counter()
    if each not in (None, "layer", "head"):
        raise BadValue(f"each takes 'layer' or 'head', got '{each}'.")
    layers, heads = written_layers(layers), written_heads(heads)
    specs = [parse(written) for written in listed(encoding)]
    if not specs and (layers or heads or each):
        raise BadValue("layers, heads and each say where an encoding goes, and none is given: add encoding 'none'.")
    asked = {
        "text": str(text), "tokens": tokens, "sequences": sequences, "begin": begin, "lines": lines,
        "encoding": [str(spec) for spec in specs], "layers": layers, "heads": heads, "each": each, "beyond": beyond,
        "seed": seed, "device": device, "dtype": dtype, "device_map": device_map, "batch": require_batch(batch),
    }  # fmt: skip
    reference, corpus = on_text(
        model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, beyond=beyond, head=True,
        place=placement(device, dtype, device_map), tokenizer=tokenizer,
    )  # fmt: skip
    with memory_told(batch), running_on(reference.model) as unsure, attached(reference) as instrument:
        wanted = wanted_conditions(instrument.sites, specs, layers, heads, each)
        found, _ = measure(reference, corpus, wanted, seed=seed, batch=batch, progress=progress)
        first = trial(reference, corpus.sequences[0], seed=seed)
        ran = with_rounding(computation(reference.model), reference.model, first)
    subject = running_subject(reference, model)
    ran = with_doubts(ran, unsure)
    return replace(found, provenance=Provenance((subject,), asked, time.perf_counter() - started, ran=ran))


def measure(
    reference: Reference,
    corpus: Corpus,
    wanted: Sequence[Wanted] = (),
    *,
    seed: int = 0,
    batch: int = 1,
    progress: Progress | None = None,
) -> tuple[LossResult, list[list[TokenLosses]]]:
    """The loss of a corpus as the model is, and in each wanted condition; `batch` sequences are run together.

    Beside the result, the loss of every predicted token: by condition, then by sequence.
    """
    predicts = kind_of(reference.model)
    if predicts == "drift":
        raise BadConfig(
            f"{type(reference.model).__name__} predicts no tokens, so no text has a loss in it. "
            "'toposcope trace' and 'toposcope ablate' can measure it."
        )
    trials = [trial(reference, ids, number=i, seed=seed) for i, ids in enumerate(corpus.sequences)]
    _require_memory(reference, max(each.tokens for each in trials) * min(batch, len(trials)))
    edges = bin_edges(max(int(each.positions_P.max()) + 1 for each in trials), reference.context)
    found: list[Condition] = []
    every: list[list[TokenLosses]] = []
    step = steps(progress, "conditions", 1 + len(wanted))

    def note(name: str, title: str, where: str | None, losses: list[Array]) -> None:
        found.append(_condition(name, title, where, trials, losses, base, edges))
        at = [each.positions_P.cpu().numpy() for each in trials]
        every.append([TokenLosses(here, part) for here, part in zip(at, losses, strict=True)])
        step()

    with attached(reference.model):
        base = _losses(reference.model, trials, batch)
        note(OWN, "as it is", None, base)
        for each in wanted:
            with swap_encoding(reference.model, each.spec, layers=each.layers, heads=each.heads) as put_in:
                losses = _losses(reference.model, trials, batch)
            note(str(each.spec), put_in.title, each.where, losses)
    result = LossResult(text=corpus.cut, predicts=predicts, context=reference.context, conditions=tuple(found))
    return result, every


def wanted_conditions(
    sites: Sequence[Site], specs: Sequence[EncodingSpec], layers: str | None, heads: str | None, each: str | None
) -> list[Wanted]:
    """The conditions that the options ask for."""
    single = None if heads is None else tuple(parse_heads(heads))
    chosen = [site for site in (sites[number] for number in parse_range(layers, len(sites))) if not site.cross]
    some = None if layers is None else f"layer{'' if len(chosen) == 1 else 's'} {layers}"
    found: list[Wanted] = []
    for spec in specs:
        if single is not None:
            found.append(Wanted(spec, heads=single, where=f"head{'' if len(single) == 1 else 's'} {heads}"))
        elif each == "layer":
            found += [Wanted(spec, layers=(site.number,), where=f"layer {site.number}") for site in chosen]
        elif each == "head":
            pairs = [(site.number, head) for site in chosen for head in range(site.heads)]
            found += [Wanted(spec, heads=(pair,), where=f"head {pair[0]}.{pair[1]}") for pair in pairs]
        else:
            numbers = tuple(site.number for site in chosen) if layers else None
            found.append(Wanted(spec, layers=numbers, where=some))
    return found


def bin_edges(count: int, context: int | None = None) -> list[int]:
    """0, 1, 2, 4, ... up to `count`: each bin twice as long as the one before; the model's context is an edge too."""
    edges = [0, 1]
    while edges[-1] < count:
        edges.append(min(2 * edges[-1], count))
    return sorted({*edges, context} if context is not None and 0 < context < count else edges)


def _losses(model: Any, trials: Sequence[Trial], batch: int) -> list[Array]:
    import torch

    found: list[Array] = []
    with torch.no_grad():
        for numbers in batches(trials, batch):
            some = [trials[number] for number in numbers]
            output = model(**together(some))
            found += [token_losses(each, output, row).cpu().numpy() for row, each in enumerate(some)]
            del output  # the next one's logits are as large
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
    half = None if name == OWN else half_width(differences.tolist())
    at = [each.positions_P.cpu().numpy() for each in trials]
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


def _require_memory(reference: Reference, tokens: int) -> None:
    """Logits, and the widest layer's activations, in float32, where that is the memory of this machine."""
    if home(reference.model).type != "cpu":
        return
    config = reference.model.config.get_text_config()
    words, width = getattr(config, "vocab_size", 0), getattr(config, "hidden_size", 0)
    require_memory(
        4 * tokens * (2 * words + 16 * width),
        f"a text of {tokens} tokens",
        "Use fewer --tokens, or a smaller --batch.",
    )
