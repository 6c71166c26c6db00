"""The proof that one head, and only that head, was taken out.

What enters each output projection is watched by hooks of torch's own on the projections that Toposcope's view of the
weights names; nothing of the machinery that removes heads is asked. In the layer of the removed head its slice must
be what it was replaced by, exactly, and every other slice must be the same to the bit; so must all that enters the
projections of earlier layers. Afterwards the weights' hash and the model's output must be what they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadConfig
from toposcope.core.progress import Progress, steps
from toposcope.core.ranges import parse_heads, written_heads, written_layers
from toposcope.core.result import Provenance, Result
from toposcope.models.ablation.replacement import Method, stand_ins
from toposcope.models.ablation.runner import ablation_runner, texts_of
from toposcope.models.about import weights_digest
from toposcope.models.content import matched_view
from toposcope.models.device import computation, memory_told, placement, running_on, with_doubts
from toposcope.models.instrument import Instrument, attached
from toposcope.models.intervene import ablated
from toposcope.models.running import RunnableLike, on_text, running_subject
from toposcope.models.score import Trial
from toposcope.models.sites import checked_heads, checked_site

MOST_PROVED = 64  # heads that are tried when nobody says which


@dataclass(frozen=True)
class HeadProof:
    """One head removed once: what was seen at the output projections. True is as it should be."""

    layer: int
    head: int
    replaced: bool  # its slice is what it was replaced by
    others_same: bool  # all other slices of the layer are the same to the bit
    earlier_same: bool  # so is everything that enters the projections of earlier layers
    undone: bool  # the next plain run gives the first output again, to the bit
    holds: bool  # all of these
    output_changed: bool  # the model's output is another: the head had a say (information, no condition)

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True, eq=False)
class AblateCheckResult(Result):
    """The proof for some heads of a model, and the hash of all its weights before and after."""

    kind = "ablate-check"
    table = "heads"

    text: str
    method: Method
    heads: tuple[HeadProof, ...]
    weights_before: str
    weights_after: str
    holds: bool


def ablate_check(
    model: RunnableLike,
    text: str | Path = "wiki",
    *,
    tokens: int = 16,
    sequences: int = 4,
    begin: int = 0,
    lines: bool = False,
    method: Method = "zero",
    layers: str | int | Sequence[int] | None = None,
    heads: str | Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    device: str | None = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    progress: Progress | None = None,
) -> AblateCheckResult:
    """Prove that `ablate` removes one head and only that one.

    Its slice before the output projection is replaced, and all others are the same to the bit; that needs no long
    text. Of a large model a sample of heads is tried, unless `heads` ("3.2,5.0", "all") or `layers` say which.
    """
    started = time.perf_counter()
    layers, heads = written_layers(layers), written_heads(heads)
    asked = None if heads in (None, "all") else [(each,) for each in parse_heads(heads)]
    reference, corpus = on_text(
        model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, head=True,
        place=placement(device, dtype, device_map), tokenizer=tokenizer,
    )  # fmt: skip
    texts = texts_of(reference, corpus, ["text"], seed=seed)
    with (
        memory_told(None),
        running_on(reference.model) as unsure,
        ablation_runner(reference.model, texts, resume=False) as runner,
    ):
        wanted = runner.wanted(layers, asked)
        if heads is None and layers is None and len(wanted) > MOST_PROVED:
            drawn = np.random.default_rng(seed).choice(len(wanted), MOST_PROVED, replace=False)
            wanted = [wanted[number] for number in sorted(drawn)]
        singles = [head for (head,) in wanted]
        found = prove(reference.model, singles, texts[0].trials, method=method, seed=seed, progress=progress)
    options = {
        "text": str(text), "tokens": tokens, "sequences": sequences, "begin": begin, "lines": lines, "method": method,
        "layers": layers, "heads": heads, "seed": seed, "device": device, "dtype": dtype, "device_map": device_map,
    }  # fmt: skip
    ran = with_doubts(computation(reference.model), unsure)
    subject = running_subject(reference, model, sha256=found.weights_before)
    origin = Provenance((subject,), options, time.perf_counter() - started, ran=ran)
    return replace(found, text=corpus.cut, provenance=origin)


def prove(
    model: Any,
    heads: Sequence[tuple[int, int]],
    trials: Sequence[Trial],
    *,
    method: Method = "zero",
    seed: int = 0,
    progress: Progress | None = None,
) -> AblateCheckResult:
    """Remove each head in turn, on the first trial, and look at what enters the output projections."""
    import torch

    tick = steps(progress, "heads", len(heads))
    given, found = trials[0].inputs, []
    with attached(model) as instrument, torch.no_grad(), _projections(instrument) as seen:
        before = weights_digest(instrument.model)
        stand_in = stand_ins(instrument, trials, method, seed=seed)[0]
        plain, output = _run(instrument, given, seen)
        for layer, head in heads:
            site = checked_site(instrument.sites, layer)
            checked_heads(site, (head,))
            by = stand_in(layer, [head])
            with ablated(instrument.model, layer, head, by=by):
                inputs, without = _run(instrument, given, seen)
            again = _run(instrument, given, seen)[1]
            here, there = (each[layer].unflatten(-1, (site.heads, -1)) for each in (inputs, plain))
            rest = [other for other in range(site.heads) if other != head]
            expected = torch.as_tensor(by).to(here).expand_as(here[:, :, [head]])
            conditions = {
                "replaced": torch.equal(here[:, :, [head]], expected),
                "others_same": torch.equal(here[:, :, rest], there[:, :, rest]),
                "earlier_same": all(torch.equal(a, b) for a, b in zip(inputs[:layer], plain[:layer], strict=True)),
                "undone": torch.equal(again, output),
            }
            changed = not torch.equal(without, output)
            found.append(HeadProof(layer, head, **conditions, holds=all(conditions.values()), output_changed=changed))
            tick()
        after = weights_digest(instrument.model)
    return AblateCheckResult(
        text="",
        method=method,
        heads=tuple(found),
        weights_before=before,
        weights_after=after,
        holds=before == after and all(each.holds for each in found),
    )


@contextmanager
def _projections(instrument: Instrument) -> Iterator[list[Any]]:
    """What enters the output projections of the layers, in their order, as torch hands it to them."""
    names = [layer.spec.o.weight for layer in matched_view(instrument).layers]
    parameters = dict(instrument.model.named_parameters(remove_duplicate=False))
    lost = next((name for name in names if name not in parameters), None)
    if lost is not None:
        raise BadConfig(f"the output projection '{lost}' is no parameter of the running model: it cannot be watched.")
    modules = dict.fromkeys(instrument.model.get_submodule(name.rpartition(".")[0]) for name in names)
    seen: list[Any] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone())) for module in modules
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _run(instrument: Instrument, given: dict[str, Any], seen: list[Any]) -> tuple[list[Any], Any]:
    seen.clear()
    output = instrument.model(**given)[0]
    inputs = list(seen)
    if len(inputs) != len(instrument.sites):
        raise BadConfig(
            f"{type(instrument.model).__name__} ran {len(inputs)} output projections for {len(instrument.sites)} "
            "attentions: which belongs to which cannot be told."
        )
    return inputs, output
