"""A text under a model that runs: the answers are those of `toposcope loss` and `trace`, by the same functions.

One model is loaded at a time, in the background, and stays until another is asked for. All work on it is done by one
thread: a model that is looked into belongs to one.
"""

from __future__ import annotations

import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from toposcope.core.errors import BadValue, ToposcopeError
from toposcope.core.fields import plain
from toposcope.core.ranges import parse_heads
from toposcope.encodings import parse
from toposcope.models.content import ContentReader
from toposcope.models.corpus import Corpus, cut
from toposcope.models.device import placement
from toposcope.models.instrument import attached
from toposcope.models.load import Reference
from toposcope.models.loss import Wanted, measure, wanted_conditions
from toposcope.models.running import running
from toposcope.models.score import UNITS, kind_of
from toposcope.models.tracing.attention import labels
from toposcope.models.tracing.on_text import head_on, heads_on
from toposcope.report.attention import packed
from toposcope.report.views.trace import heads_of
from toposcope.web.models import ModelEntry
from toposcope.web.query import Query

MOST_TOKENS = 256
TOKENS = 128
LONGEST_TEXT = 3000  # characters: a request is an address, of 4096 bytes at most
KEPT = 8  # answers


class Texts:
    """The model that is loaded, and what was last asked of it."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._looking = ExitStack()  # of the pool's thread, as the model itself
        self._lock = threading.Lock()
        self._entry: ModelEntry | None = None
        self._version: Any = None  # of its files, as they were loaded
        self._loading = False
        self._reference: Reference | None = None
        self._error: str | None = None
        self._answers: OrderedDict[tuple[str, ...], dict[str, Any]] = OrderedDict()

    # ------------------------------------------------------------ the model
    def state(self, entry: ModelEntry) -> dict[str, Any]:
        """Whether the model is loaded; it begins to be where it is not, and another one goes."""
        version = entry.version()
        with self._lock:
            if (self._entry, self._version) != (entry, version):
                if self._loading:
                    return {"state": "loading", "words": f"Waiting for {self._entry.name if self._entry else ''} …"}
                self._entry, self._version = entry, version
                self._reference, self._error, self._loading = None, None, True
                self._answers = OrderedDict()  # whoever still works on the other one keeps its own
                threading.Thread(target=self._load, args=(entry,), name=f"load {entry.id}", daemon=True).start()
            if self._loading:
                return {"state": "loading", "words": f"Loading {entry.name} …"}
            if self._error is not None:
                return {"state": "failed", "words": self._error}
            return {"state": "ready", "words": ""}

    def waits(self, entry: ModelEntry) -> bool:
        """Whether an answer about this model says no more than that it is being loaded."""
        version = entry.version()
        with self._lock:
            return (self._entry, self._version) != (entry, version) or self._loading

    def _load(self, entry: ModelEntry) -> None:
        found, error = None, None
        try:
            found = running(entry.target, head=True, attention="sdpa", place=placement("auto", "auto", None))
        except ToposcopeError as problem:
            error = str(problem)
        except Exception:  # noqa: BLE001 - a bug must not leave the page waiting for ever
            traceback.print_exc()
            error = "the model could not be loaded; the terminal that runs the server says why."
        if found is not None:
            error = self.pool.submit(self._attach, found).result()
        with self._lock:
            self._reference, self._error, self._loading = found, error, False

    def _attach(self, reference: Reference) -> str | None:
        """Look into the model for as long as it stays: finding its heads anew takes longer than many an answer."""
        self._looking.close()
        try:
            instrument = self._looking.enter_context(attached(reference))
            ContentReader.of(instrument)
        except ToposcopeError as error:
            return str(error)
        return None

    # ------------------------------------------------------------ answers
    def losses(self, entry: ModelEntry, query: Query) -> dict[str, Any]:
        """What the text costs, by position, as the model is and with what is put in."""
        text, tokens = _text(query)
        asked = _asked(query)
        query.close()
        return self._answered(
            entry, ("losses", text, str(tokens), *asked), lambda model: _losses(model, text, tokens, asked)
        )

    def heads(self, entry: ModelEntry, query: Query) -> dict[str, Any]:
        """What every head attends to, with what is put in."""
        text, tokens = _text(query)
        asked = _asked(query)
        query.close()
        return self._answered(
            entry, ("heads", text, str(tokens), *asked), lambda model: _heads(model, text, tokens, asked)
        )

    def head(self, entry: ModelEntry, query: Query, layer: int, head: int) -> dict[str, Any]:
        """One head's attention on the text."""
        text, tokens = _text(query)
        asked = _asked(query)
        query.close()
        key = ("head", text, str(tokens), *asked, f"{layer}.{head}")
        return self._answered(entry, key, lambda model: _head(model, text, tokens, asked, layer, head))

    def _answered(
        self, entry: ModelEntry, key: tuple[str, ...], work: Callable[[Reference], dict[str, Any]]
    ) -> dict[str, Any]:
        state = self.state(entry)
        with self._lock:
            reference, kept = self._reference, self._answers
            if state["state"] != "ready" or self._entry is not entry or reference is None:
                return (
                    state if state["state"] != "ready" else {"state": "loading", "words": "Loading another model …"}
                )
        if key not in kept:
            kept[key] = {**state, **work(reference)}
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return kept[key]


Asked = tuple[str, str, str]  # an encoding, layers, heads: as `toposcope loss` takes them; empty where not given


def _text(query: Query) -> tuple[str, int]:
    return query.text("text", most=LONGEST_TEXT), query.whole("tokens", TOKENS, 2, MOST_TOKENS)


def _asked(query: Query) -> Asked:
    found = tuple(query.text(name, "") for name in ("encoding", "layers", "heads"))
    encoding, layers, heads = found
    if encoding:
        parse(encoding)  # a wrong name is told before the model is asked
    elif layers or heads:
        raise BadValue("layers and heads say where an encoding goes, and none is given.")
    if heads:
        parse_heads(heads)
    return encoding, layers, heads


def _put_in(reference: Reference, asked: Asked) -> Wanted | None:
    encoding, layers, heads = asked
    if not encoding:
        return None
    with attached(reference) as instrument:
        (found,) = wanted_conditions(instrument.sites, [parse(encoding)], layers or None, heads or None, None)
    return found


def _cut(reference: Reference, text: str, tokens: int) -> Corpus:
    return cut(reference, text, tokens=tokens, count=1, name="this text")


def _losses(reference: Reference, text: str, tokens: int, asked: Asked) -> dict[str, Any]:
    corpus = _cut(reference, text, tokens)
    predicts = kind_of(reference.model)
    conditions: list[Any] = []
    with attached(reference):
        wanted = _put_in(reference, asked)
        if predicts != "drift":
            found, every = measure(reference, corpus, [] if wanted is None else [wanted])
            conditions = [
                {
                    **plain(condition),
                    "positions": losses[0].positions_P.tolist(),
                    "losses": losses[0].losses_P.tolist(),
                }
                for condition, losses in zip(found.conditions, every, strict=True)
            ]
    return {
        "text": corpus.cut,
        "tokens": list(labels(reference.tokenizer, corpus.sequences[0])),
        "predicts": predicts,
        "unit": UNITS[predicts],
        "conditions": conditions,
    }


def _heads(reference: Reference, text: str, tokens: int, asked: Asked) -> dict[str, Any]:
    corpus = _cut(reference, text, tokens)
    with attached(reference):
        traced = heads_on(reference, corpus, _put_in(reference, asked))
    rows, measures = heads_of(traced)
    return {"rows": plain(rows), "measures": plain(measures), "skipped": plain(traced.skipped)}


def _head(reference: Reference, text: str, tokens: int, asked: Asked, layer: int, head: int) -> dict[str, Any]:
    corpus = _cut(reference, text, tokens)
    with attached(reference):
        wanted = _put_in(reference, asked)
        windows = head_on(reference, corpus.sequences[0], layer, head, wanted)
    return {"windows": packed(windows)}
