"""A model's weights over the tensors that stand for them: each is dequantised when it is read; codes never pass."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import Ledger, refuse_nonfinite, rows_key
from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import CODES, OF_CACHE, SMALL_FLOATS, Form, Method, Tensors, Weight, kind
from toposcope.checkpoints.source import Rows, Stored, TensorInfo, TensorSource
from toposcope.core.errors import BadConfig, BadFile
from toposcope.core.memory import require_memory
from toposcope.core.printable import printable


class QuantisedSource:
    """A source in which some tensors are made of several stored ones; those are not shown by themselves.

    A weight's line in the ledger is a hash of the lines of all its parts.
    """

    def __init__(self, source: TensorSource, found: Mapping[str, tuple[Method, Weight]], settings: Settings) -> None:
        self._source = source
        self._found = found
        self._settings = settings
        self._forms: dict[str, tuple[Tensors, Form]] = {}
        self.ledger = Ledger() if found else source.ledger
        self._sorted = sorted(source.names()) if found else []
        self._names = dict.fromkeys(source.names()) if not found else self._shown()

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def format(self) -> str:
        return self._source.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    @property
    def files(self) -> tuple[Path, ...]:
        return self._source.files

    def names(self) -> Collection[str]:
        return self._names.keys()

    def parts(self, name: str) -> tuple[str, ...]:
        """The stored tensors that a tensor is read from."""
        return tuple(self._found[name][1].parts.values()) if name in self._found else (name,)

    def info(self, name: str) -> TensorInfo:
        """Name and shape of the weight as the model has it; its type says how it is stored, its bytes are those."""
        if name not in self._found:
            return self._source.info(name)
        _, form = self._form(name)
        return TensorInfo(
            name, form.shape, form.label, sum(self._source.info(part).nbytes for part in self.parts(name))
        )

    def headers(self, *, stored: bool = False) -> list[TensorInfo]:
        """Of all tensors, as the model has them or as they are stored; so, too, where a weight's form is not read."""
        if stored:
            return [self._source.info(name) for name in self._source.names()]
        found: list[TensorInfo] = []
        for name in self.names():
            try:
                found.append(self.info(name))
            except (BadFile, BadConfig):
                found += [self._source.info(part) for part in self.parts(name)]
        return found

    def read(self, name: str) -> Stored:
        if name not in self._found:
            self._refuse_codes(name)
            return self._noted(name, self._source.read(name))
        tensors, form = self._form(name)
        method, _ = self._found[name]
        stored = sum(math.prod(self._source.info(part).shape) for part in self.parts(name))
        require_memory(
            12 * math.prod(form.shape) + 8 * stored,
            f"tensor '{printable(name)}', once dequantised,",
            "Close other programs or use a larger machine.",
        )
        with np.errstate(all="ignore"):
            weight = np.asarray(method.read(tensors, form), order="C")
        refuse_nonfinite(weight, 0, self.info(name), self.path)
        self.ledger.add(name, form.shape, self._content(name))
        return weight

    def read_rows(self, name: str, rows: Rows) -> Stored:
        if name in self._found:
            return self.read(name)[rows]
        self._refuse_codes(name)
        found = self._source.read_rows(name, rows)
        return self._noted(rows_key(name, rows), found)

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        self._source.close()

    # ------------------------------------------------------------- inside
    def _form(self, name: str) -> tuple[Tensors, Form]:
        known = self._forms.get(name)
        if known is None:
            method, weight = self._found[name]
            tensors = Tensors(self._source, weight, self._settings, method.name, self._strange(method, weight))
            known = self._forms[name] = tensors, method.form(tensors)
        return known

    def _shown(self) -> dict[str, None]:
        """All names but those of parts, and of what only serves those who run the model quantised."""
        hidden = {part for _, weight in self._found.values() for part in weight.parts.values()}
        for method, weight in self._found.values():
            hidden |= {f"{weight.name.removesuffix('.weight')}.{leaf}" for leaf in method.idle()}
        shown = (name for name in self._source.names() if name not in hidden)
        return dict.fromkeys(name for name in shown if name.rpartition(".")[2] not in OF_CACHE) | dict.fromkeys(
            self._found
        )

    def _strange(self, method: Method, weight: Weight) -> tuple[str, ...]:
        """What else the file holds under the weight's module, after its name."""
        module = f"{weight.name.removesuffix('.weight')}."
        known = {*weight.parts.values(), *(f"{module}{leaf}" for leaf in (*method.idle(), "bias"))}
        found, at = [], bisect_left(self._sorted, module)
        while at < len(self._sorted) and self._sorted[at].startswith(module):
            if self._sorted[at] not in known:
                found.append(self._sorted[at].removeprefix(module))
            at += 1
        return tuple(found)

    def _content(self, name: str) -> str:
        """The hash of all parts; those that were not needed are read for it."""
        for part in self.parts(name):
            if part not in self._source.ledger.lines:
                self._source.read(part)
        lines = "".join(sorted(self._source.ledger.lines[part] for part in self.parts(name)))
        return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()

    def _noted(self, key: str, found: Stored) -> Stored:
        if self.ledger is not self._source.ledger:
            self.ledger.learn({key: self._source.ledger.lines[key]})
        return found

    def _refuse_codes(self, name: str) -> None:
        """The one place where integers and 8-bit floats are kept from being taken for weights."""
        info = self._source.info(name)
        if not info.shape or kind(info.dtype) not in CODES or self._declared(kind(info.dtype)):
            return
        method = self._settings.method
        why = f"quantised with {printable(method)}" if method else f"stored in {info.dtype} without a scale"
        raise BadFile(
            f"tensor '{printable(name)}' in {printable(self.path)} is {why}, and this form of it is not read: its "
            f"{info.dtype} numbers are codes, not weights. Convert the checkpoint to BF16 first."
        )

    def _declared(self, stored: str) -> bool:
        """Whether the configuration says that the model's own numbers are of this small type."""
        return self._settings.method is None and stored in SMALL_FLOATS and kind(self._settings.dtype or "") == stored
