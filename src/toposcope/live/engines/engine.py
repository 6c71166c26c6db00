"""A model that runs on texts, as it is or with a bug in it, beside what another engine said of the same tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadValue
from toposcope.core.memory import require_memory
from toposcope.live.engines.logprobs import Array, Ids, log_probabilities
from toposcope.live.engines.situation import Simulation
from toposcope.models.content import precision
from toposcope.models.corpus import RANDOM, cut, zipf
from toposcope.models.instrument import dummy_inputs
from toposcope.models.load import Reference, load_reference, read_text
from toposcope.models.running import RunnableLike, running

TIMES = 4.0  # rounding floors: a difference beyond so many times the largest one counts
PARTS = (2, 4)  # a half and a quarter of a text are texts of other lengths
FLOOR_TOKENS = 128  # of the text on which the floor is measured


@dataclass(frozen=True)
class Floor:
    """How much of a difference rounding explains: A in `dtype` against A in `finer`, on one text of `tokens` tokens.

    A difference beyond `tolerance` nats counts: `TIMES` the largest on that text, or what was given (`tokens` is 0).
    """

    dtype: str
    finer: str
    tokens: int
    rms: float
    largest: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Pair:
    """One text, what B said of it, and which text it is (a beginning of it has the same number)."""

    ids_N: Ids
    b_Q: Array
    number: int


class Engine:
    """A, which says what it says of texts as it is and with a bug in it, and remembers what it has said."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._by_length = _by_length(reference.model)
        self._said: dict[tuple[str, str, bytes], Array] = {}
        self._floors: dict[tuple[str | None, bytes], Floor] = {}

    def floor(self, ids_N: Ids, other: str | None, tolerance: float | None = None) -> Floor:
        """How far rounding takes it, or an engine in precision `other`; not measured where a tolerance is given."""
        if tolerance is not None:
            own = dtype_of(self.reference.model)
            return Floor(own, own, 0, 0.0, 0.0, tolerance)
        key = other, ids_N.tobytes()
        if key not in self._floors:
            self._floors[key] = rounding_floor(self.reference, ids_N, other)
        return self._floors[key]

    def under(self, simulation: Simulation | None, pairs: Sequence[Pair]) -> list[Array]:
        """What it says of texts; of a beginning of a text what it has said there, unless lengths matter to it."""
        if simulation is None:
            return [self._one(None, pair, pairs) for pair in pairs]
        with simulation.put_into(self.reference.model):
            return [self._one(simulation, pair, pairs) for pair in pairs]

    def _one(self, simulation: Simulation | None, pair: Pair, pairs: Sequence[Pair]) -> Array:
        whole = pair.ids_N
        if not self._by_length:
            whole = max((each.ids_N for each in pairs if each.number == pair.number), key=len)
        name = ("", "") if simulation is None else (simulation.bug, simulation.variant)
        key = (*name, whole.tobytes())
        if key not in self._said:
            if self._by_length:
                self._forget()
            moved = None if simulation is None or simulation.positions is None else simulation.positions(len(whole))
            self._said[key] = log_probabilities(self.reference, whole, moved)
        return self._said[key][: len(pair.ids_N) - 1]

    def _forget(self) -> None:
        """Some models keep the frequencies of a longer text until they meet a short one."""
        import torch

        with torch.no_grad():
            self.reference.model(**dummy_inputs(self.reference.model))


def _by_length(model: Any) -> bool:
    names = ("dynamic", "longrope")
    return any(name in str(getattr(model.config.get_text_config(), "rope_parameters", "")) for name in names)


def run_texts(reference: Reference, texts: list[Ids], step: Callable[[], None]) -> list[Pair]:
    """What B says of the texts, then of beginnings of the first and the last: shorter texts after longer ones."""
    require_room(reference, max(map(len, texts)))
    found = []
    for number, ids_N in enumerate(texts):
        found.append(Pair(ids_N, log_probabilities(reference, ids_N), number))
        step()
    for number, part in itertools.product(sorted({0, len(texts) - 1}), PARTS):
        ids_N = texts[number][: len(texts[number]) // part]
        if len(ids_N) >= 2:
            found.append(Pair(ids_N, log_probabilities(reference, ids_N), number))
    return found


def rounding_floor(reference: Reference, ids_N: Ids, other: str | None) -> Floor:
    """How far rounding alone takes log-probabilities: A in the coarser precision of both, against a finer one."""
    import torch

    own = dtype_of(reference.model)
    sizes = {name: torch.finfo(getattr(torch, name)).eps for name in (own, other or own)}
    coarse = max(sizes, key=lambda name: sizes[name])
    fine = "float64" if coarse in ("float32", "float64") else "float32"
    some = ids_N[:FLOOR_TOKENS]
    said = [log_probabilities(_cast(reference, name), some) for name in (coarse, fine)]
    off = np.abs(said[0] - said[1])
    largest = float(off.max())
    return Floor(coarse, fine, len(some), rms(off), largest, TIMES * max(largest, 1e-7))


def _cast(reference: Reference, dtype: str) -> Reference:
    """The same model in another precision, its frequencies as they were (`model.to` would round them)."""
    import torch

    if dtype_of(reference.model) == dtype:
        return reference
    size = sum(each.numel() for each in reference.model.parameters())
    require_memory(
        size * torch.finfo(getattr(torch, dtype)).bits // 8,
        f"a copy of the model in {dtype}",
        "Give tolerance= instead.",
    )
    copy = deepcopy(reference.model)
    held = {name: each.clone() for name, each in copy.named_buffers() if name.endswith("inv_freq")}
    copy = copy.to(getattr(torch, dtype))
    for name, each in copy.named_buffers():
        if name in held:
            each.data = held[name]
    return replace(reference, model=copy)


def dtype_of(model: Any) -> str:
    """The precision of a model's weights, by its name."""
    return precision(next(each.dtype for each in model.parameters() if each.is_floating_point()))


def runnable(model: RunnableLike, *, tokenizer: bool) -> Reference:
    """A model as it runs; its tokenizer is looked for only where it is needed."""
    if isinstance(model, str | Path):
        return load_reference(model, head=True, attention="sdpa", tokenizer=tokenizer)
    if isinstance(model, Reference) or tokenizer:
        return running(model, head=True, attention="sdpa")
    if not (hasattr(model, "config") and callable(model)):
        raise BadValue(
            f"a {type(model).__name__} cannot be run on a text: expected a name, a path, or a model of transformers."
        )
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return Reference(Path(name or type(model).__name__), model.eval(), None)


def texts_of(
    reference: Reference, text: str | Path, *, tokens: int, count: int, begin: int, seed: int
) -> tuple[list[Ids], str]:
    """The texts on which two models are run, and what they are in words."""
    if str(text) != RANDOM:
        corpus = cut(reference, read_text(str(text)), tokens=tokens, count=count, name=str(text), begin=begin)
        return list(corpus.sequences), corpus.cut
    limit = reference.context
    length = tokens if limit is None else min(tokens, limit)
    rows = int(reference.model.get_input_embeddings().weight.shape[0])
    return zipf(np.arange(rows), [length] * count, seed), f"{count} texts of {length} tokens drawn by Zipf's law"


def require_room(reference: Reference, tokens: int) -> None:
    """Complain of texts whose logits do not fit into memory."""
    config = reference.model.config.get_text_config()
    words, width = getattr(config, "vocab_size", 0), getattr(config, "hidden_size", 0)
    require_memory(4 * tokens * (2 * words + 16 * width), f"a text of {tokens} tokens", "Use fewer --tokens.")


def rms(values: Array) -> float:
    """The root mean square."""
    return float(np.sqrt(np.mean(values**2)))
