"""The models a page may speak of: those named on the command line and those found in installed packages.

A model is opened when it is first looked at, and scanned once, in the background, by a reading of its own, so that
looking at a head never waits for the scan: `toposcope.scan` with its defaults, or a stored scan of the same content.
Pages name models by an id from this list, never by a path. Where the files are written to or replaced, the model is
opened and scanned anew.
"""

from __future__ import annotations

import math
import re
import threading
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints import load
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.installed import installed
from toposcope.checkpoints.opened import called
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadValue, NotFound, ToposcopeError, did_you_mean
from toposcope.core.fields import plain
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.run import Problem
from toposcope.dynamics.sources import head_problem
from toposcope.dynamics.storage import layer_storage_error
from toposcope.dynamics.tokens import drawn_tokens, isotropic
from toposcope.report.views import scan as scan_view
from toposcope.report.views.scan_words import summary
from toposcope.scanning.result import ScanHead, ScanResult, head_row
from toposcope.scanning.scan import is_scan_of, scan
from toposcope.spectra.head_kernel import TokenRows, from_covariance
from toposcope.spectra.of_heads import HeadSpectra, second_moment
from toposcope.web.explore_flow import MOST_TOKENS, verdict_words

Array = NDArray[np.float64]
Stamp = tuple[tuple[int, ...], ...]
State = Literal["new", "running", "done", "failed"]
KERNEL_REACH = 256
MOST_MODELS = 100
MOST_NUMBERS = 2e8  # of an embedding from which tokens are drawn (1.6 GB)


class ModelRegistry:
    """All models, by id."""

    def __init__(
        self, named: Iterable[str] = (), *, with_installed: bool = True, stored: Sequence[ScanResult] = ()
    ) -> None:
        self._models: dict[str, ModelEntry] = {}
        self._one_scan, self._growing = threading.Lock(), threading.Lock()
        self.stopping = threading.Event()
        self._stored = stored
        here = {item.name: item.description for item in installed()}
        for target in named:
            self._add(target, Path(target).name or target, named=True, about=here.pop(target, ""))
        if with_installed:
            for name, description in here.items():
                self._add(name, name, named=False, about=description)

    def of_run(self, key: str, place: Path) -> str:
        """The id of the model that a run has trained, which joins the list when it is first asked for."""
        with self._growing:
            found = next((entry.id for entry in self._models.values() if entry.target == str(place)), None)
            if found is None:
                if len(self._models) >= MOST_MODELS:
                    raise BadValue(f"{MOST_MODELS} models are open already. Start the server again to open others.")
                found = self._add(str(place), f"run {key}", named=False, about="trained by this run")
            return found

    def _add(self, target: str, name: str, *, named: bool, about: str = "") -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "model"
        number, chosen = 2, slug
        while chosen in self._models:
            chosen, number = f"{slug}-{number}", number + 1
        self._models[chosen] = ModelEntry(
            chosen, target, name, named, about, self._one_scan, self.stopping, self._stored
        )
        return chosen

    def list(self) -> list[dict[str, Any]]:
        return [entry.brief() for entry in tuple(self._models.values())]

    def get(self, name: str) -> ModelEntry:
        if name not in self._models:
            hint = did_you_mean(name[:80], self._models) if self._models else "None is open."
            raise NotFound(f"there is no model '{name[:80]}' here. {hint}")
        return self._models[name]

    def open_named(self) -> None:
        """Open what the command line named, so that a wrong name is told before the server starts."""
        for entry in self._models.values():
            if entry.named:
                entry.open()

    def head_problem(
        self, model: str, layer: int, head: int, count: int, seed: int, options: dict[str, Any]
    ) -> Problem:
        return self.get(model).head_problem(layer, head, count, seed, options)

    def close(self) -> None:
        """Let running scans end at their next layer, and close the files."""
        self.stopping.set()
        for entry in self._models.values():
            entry.close()


class ModelEntry:
    """One model: opened, scanned and asked about its heads."""

    def __init__(
        self,
        id: str,
        target: str,
        name: str,
        named: bool,
        about: str,
        one_scan: threading.Lock,
        stopping: threading.Event,
        stored: Sequence[ScanResult] = (),
    ) -> None:
        self.id, self.target, self.name, self.named, self.about = id, target, name, named, about
        self._one_scan, self._stopping, self._stored = one_scan, stopping, stored
        self._lock = threading.RLock()  # files and the one layer in memory belong to one thread at a time
        self._starting = threading.Lock()
        self._model: Model | None = None
        self._stamp: Stamp = ()  # of the files as opened,
        self._scanned_as: Stamp = ()  # and as scanned
        self._moment: Array | TokenRows | None = None
        self._thread: threading.Thread | None = None
        self.state: State = "new"
        self.error: str | None = None
        self.done, self.total = 0, 0
        self.result: ScanResult | None = None
        self._found: dict[tuple[int, int], ScanHead] = {}
        self._answer: dict[str, Any] = {}
        self.clouds = lru_cache(maxsize=4)(self._cloud)
        self.verdicts = lru_cache(maxsize=256)(self._verdict)

    def brief(self) -> dict[str, Any]:
        """A row of the list."""
        return {"id": self.id, "name": self.name, "about": self.about, "named": self.named, **self.progress()}

    def progress(self) -> dict[str, Any]:
        """How far the scan is."""
        return {"state": self.state, "done": self.done, "total": self.total, "error": self.error}

    def open(self) -> Model:
        """The model, its headers read; anew where its files are not what they were."""
        with self._lock:
            if self._model is not None and _stamp(self._model) != self._stamp:
                self._model.close()
                self._model = None
                self.clouds.cache_clear()
                self.verdicts.cache_clear()
            if self._model is None:
                self._model = load(self.target)
                self._stamp = _stamp(self._model)
            return self._model

    def version(self) -> Stamp:
        """What changes when somebody writes to the model's files."""
        with self._lock:
            self.open()
            return self._stamp

    def facts(self) -> dict[str, Any]:
        """What the model is, before anything is computed."""
        model = self.open()
        layers = model.layers
        return {
            **self.brief(),
            "family": model.family,
            "layers": len(layers),
            "heads": max((layer.spec.heads for layer in layers), default=0),
            "width": layers[0].spec.width if layers else None,
            "head_dim": layers[0].spec.head_dim if layers else None,
            "context": model.spec.context,
            "causal": all(layer.spec.causal for layer in layers),
            "encodings": sorted({layer.encoding.title for layer in layers}),
        }

    # ------------------------------------------------------------ the scan
    def start_scan(self) -> dict[str, Any]:
        """Begin the scan unless it has begun; its progress, and its rows when it is done."""
        with self._starting:
            self.open()
            if self.state == "new" or (self.state != "running" and self._scanned_as != self._stamp):
                self.state, self.error, self.done = "running", None, 0
                self._scanned_as = self._stamp
                self._thread = threading.Thread(target=self._scan, name=f"scan {self.id}", daemon=True)
                self._thread.start()
        return {**self.progress(), **self._answer} if self.state == "done" else self.progress()

    def scan_result(self) -> ScanResult:
        """The whole scan, once it is done."""
        if self.state != "done" or self.result is None:
            raise NotFound(f"the scan of '{self.name}' is not done yet.")
        return self.result

    def wait(self, seconds: float) -> None:
        """Wait for the scan to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _scan(self) -> None:
        try:
            with self._one_scan, load(self.target) as model:
                model.source.ledger.learn(self.open().source.ledger.lines)  # one content: the page's and the scan's
                stored = self._stored_scan()
                self._keep(model, stored or self._scanned(model), stored=stored is not None)
                changed = _stamp(model) != self._scanned_as
                if not changed:
                    self.open().source.ledger.learn(model.source.ledger.lines)
            self.state = "new" if changed else "done"
        except _Stopped:
            self.state = "new"
        except ToposcopeError as error:
            self.state, self.error = "failed", str(error)
        except Exception:  # noqa: BLE001 - a bug must not leave the page waiting for ever
            traceback.print_exc()
            self.state, self.error = "failed", "the scan broke off; the terminal that runs the server says why."

    def _stored_scan(self) -> ScanResult | None:
        """A scan that was given, if it is one of this very content."""
        for result in self._stored:
            with load(self.target) as fresh:  # what a scan reads and no more, or hashes differ
                if is_scan_of(result, fresh):
                    return result
        return None

    def _scanned(self, model: Model) -> ScanResult:
        found = scan(model, jobs=1, progress=self._tell)
        subject = replace(found.provenance.subjects[0], name=called(self.target, model.path))
        return replace(found, provenance=replace(found.provenance, subjects=(subject,)))

    def _keep(self, model: Model, result: ScanResult, *, stored: bool) -> None:
        self._moment = second_moment(model)
        self.done = self.total = len(model.layers)
        self.result = result
        self._found = {(head.layer, head.head): head for head in result.heads}
        rows = scan_view.map_rows(result)
        self._answer = {
            "rows": plain(rows),
            "measures": plain(scan_view.measures(rows)),
            "summary": summary(result) if result.heads else [],
            "model": plain(result.model),
            "skipped": plain(result.skipped),
            "context": result.spectra.context,
            "stored": stored,
        }

    def _tell(self, what: str, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._stopping.is_set():
            raise _Stopped

    # ------------------------------------------------------------ one head
    def head(self, layer: int, head: int) -> dict[str, Any]:
        """All about one head: verdict and certificate, eigenvalues of V O, its kernel and the frequencies it uses."""
        with self._lock:
            model = self.open()
            chosen = self._self_attention(model, layer, head)
            context = model.spec.context or 4096
            folded = fold(chosen, chosen.head(head))
            scanned = self.state == "done" and self._scanned_as == self._stamp
            known = self._found.get((layer, head)) if scanned else None
            error = layer_storage_error(model, chosen)
            dynamics = head_dynamics(chosen, head, storage_error=error, context=model.spec.context)
            row = known or head_row(dynamics, HeadSpectra(layer=layer, head=head))
            moment = self._moment if scanned else None
            if moment is not None and len(moment) != chosen.spec.width:
                moment = None
            kernel = None
            encoding = chosen.encoding
            over_offsets = encoding.exact_tables and encoding.mechanisms != ("input",)
            if over_offsets and (encoding.bias is None or encoding.bias.toeplitz):
                reach, causal = min(KERNEL_REACH, context), chosen.spec.causal
                seen = from_covariance(
                    folded.q, folded.k, moment, encoding, context=reach, causal=causal, scale=folded.scale, head=head
                )
                kernel = {
                    "offsets": seen.offsets_T.astype(int).tolist(),
                    "values": seen.total_T.tolist(),
                    "looks": str(seen),
                    "peak_offset": seen.peak_offset,
                    "tokens": "identity" if moment is None else "embedding",
                }
        found: dict[str, Any] = plain(
            {
                **plain(replace(row, certificate=None)),
                "verdict_words": {**verdict_words(dynamics.regime), "robust": dynamics.robust},
                "encoding": encoding.title,
                "kernel": kernel,
                "frequencies": None if encoding.rotary is None else encoding.rotary.frequencies(),
                "scanned": known is not None,
            }
        )
        return found

    def head_problem(self, layer: int, head: int, count: int, seed: int, options: dict[str, Any]) -> Problem:
        """A flow of one head on tokens of the vocabulary; the verdict is computed once for each choice of options."""
        with self._lock:
            model = self.open()
            key = (self._stamp, layer, head, count, tuple(sorted(options.items())))
            chosen = self._self_attention(model, layer, head)
            width, own = chosen.spec.width, chosen.encoding
            tokens = self.clouds(width, seed)[:count]
            if "encoding" not in options and own.input is not None and own.input.width != width:
                options = {**options, "encoding": replace(own, input=None)}  # ALBERT: positions enter before a map
            problem = head_problem(model, layer, head, tokens, **options)
        return replace(problem, decide=lambda: self.verdicts(key, _Same(problem.decide)))

    def _verdict(self, key: Any, decide: Any) -> Any:
        with self._lock:
            return decide()

    def _cloud(self, width: int, seed: int) -> Array:
        """Tokens of the vocabulary; a round cloud where there is none, or where it would fill the memory."""
        model = self.open()
        name = model.spec.embedding
        shape = None if name is None else model.source.info(name).shape
        if shape is None or shape[-1] != width or math.prod(shape) > MOST_NUMBERS:
            return isotropic(MOST_TOKENS, width, seed)
        return drawn_tokens(model, MOST_TOKENS, seed)

    @staticmethod
    def _self_attention(model: Model, layer: int, head: int) -> Any:
        if layer >= len(model.layers):
            raise NotFound(f"the model has layers 0 to {len(model.layers) - 1}, not layer {layer}.")
        chosen = model.layers[layer]
        if chosen.spec.kind != "self":
            raise BadValue(f"layer {layer} is cross-attention: its keys come from another stack, and nothing flows.")
        if head >= chosen.spec.heads:
            raise NotFound(f"layer {layer} has heads 0 to {chosen.spec.heads - 1}, not head {head}.")
        return chosen

    def close(self) -> None:
        self.wait(30)
        with self._lock:
            if self._model is not None:
                self._model.close()
                self._model = None


def _stamp(model: Model) -> Stamp:
    """What changes when somebody writes to one of the model's files, or puts another in its place."""
    found: list[tuple[int, ...]] = []
    for path in model.source.files:
        try:
            status = path.stat()
        except OSError:  # it is gone; who opens it next will say so
            found.append((0,))
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(found)


class _Stopped(Exception):
    """The server is going down."""


class _Same:
    """A function that counts as equal to any other, so that a cache looks at the rest of its arguments only."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    def __hash__(self) -> int:
        return 0
