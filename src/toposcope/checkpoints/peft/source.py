"""The base as an adapter leaves it: a source whose tensors are merged when they are read, one at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import BLOCK, ROWS, Ledger
from toposcope.checkpoints.hub.name import parse_hub_name
from toposcope.checkpoints.peft.changes import Change, Changes, LowRank, require_fit, require_side, sorted_changes
from toposcope.checkpoints.peft.settings import CONFIG, FILES, AdapterSettings, read_settings
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.checkpoints.source import Rows, Stored, TensorInfo, TensorSource, headers
from toposcope.checkpoints.spec import ModelSpec, claimed, linears
from toposcope.checkpoints.torch_file import TorchFile
from toposcope.checkpoints.unclaimed import is_attention
from toposcope.core.errors import BadWeights, MissingTensor, NotFound
from toposcope.core.printable import printable
from toposcope.core.untrusted import require_inside


def adapted(base: TensorSource, given: str | Path) -> AdaptedSource:
    """The base with the adapter that PEFT saved in this directory, or under this name on the hub."""
    directory, place = _located(given)
    settings = read_settings(directory, place)
    adapter = _open_weights(directory)
    try:
        return AdaptedSource(base, adapter, settings, sorted_changes(adapter, settings, base))
    except BaseException:
        adapter.close()
        raise


def _located(given: str | Path) -> tuple[Path, str]:
    """The directory in which an adapter's files are, and what it is to be called."""
    place = Path(given)
    try:
        exists = place.exists()
    except (OSError, ValueError) as error:  # too long a name; a zero byte in it
        raise NotFound(f"{printable(str(given), 80)} cannot be a path or an adapter's name: {error}.") from error
    name = None if exists else parse_hub_name(given)
    if name is not None:
        from toposcope.checkpoints.hub.opening import fetch_adapter

        return fetch_adapter(name)
    if place.name in (CONFIG, *FILES):
        place = place.parent
    return place, str(place)


def _open_weights(directory: Path) -> TensorSource:
    for name in FILES:
        path = directory / name
        if path.is_file():
            require_inside(path, directory)
            return SafetensorsFile(path) if path.suffix == ".safetensors" else TorchFile(path)
    raise NotFound(f"{printable(directory)} holds {CONFIG} and no weights: expected {' or '.join(FILES)}.")


def _same_model(base: str, given: str, path: Path, config: Mapping[str, Any]) -> bool:
    """Whether the name of an adapter's base can mean this model: by its path, or by the last part of its name."""
    names = {given, path.name, path.resolve().name, str(config.get("_name_or_path") or "")}
    names |= {part.rpartition("--")[2] for part in path.resolve().parts if part.startswith("models--")}
    last = {re.split(r"[/\\]", name.partition("@")[0].rstrip("/\\"))[-1].lower() for name in names if name}
    return re.split(r"[/\\]", base.rstrip("/\\"))[-1].lower() in last


class AdaptedSource:
    """Base and adapter as one source. Its ledger's lines of merged tensors tell the bytes of both."""

    def __init__(
        self, base: TensorSource, adapter: TensorSource, settings: AdapterSettings, changes: Changes
    ) -> None:
        self.base = base
        self.adapter = adapter
        self.settings = settings
        self.changes = changes
        self.ledger = Ledger()
        self.ledger.learn(base.ledger.lines)
        self._names = {*base.names(), *changes.fresh}
        self._transposed: frozenset[str] = frozenset()
        self._fitting: set[str] = set()  # tensors of the base whose shapes were compared

    def settle(self, spec: ModelSpec) -> tuple[str, ...]:
        """Hold the changes against what the model's description uses; the remarks that are left to make.

        A map that is stored as (in, out) is known by the description: where it is square, its shape does not tell.
        """
        used = claimed(spec) | {name.partition(ROWS)[0] for name in self.ledger.lines}
        maps = {linear.weight: linear.transposed for layer in spec.layers for linear in linears(layer)}
        self._transposed = frozenset(name for name, transposed in maps.items() if transposed)
        for name, change in self.changes.by_tensor.items():
            if name in used:
                self._require_fit(name, change)
            if name in maps and change.low_rank is not None:
                require_side(self.adapter, self.settings, self.base, name, change.low_rank, maps[name])
        listed = {name for skipped in spec.skipped for name in skipped.tensors}
        lost = [name for name in self.changes.by_tensor if name not in used | listed and is_attention(name)]
        lost += [name for name in self.changes.homeless if is_attention(name)]
        if lost:
            raise MissingTensor(
                f"the adapter {printable(self.settings.place)} changes {len(lost)} tensors of attention that are "
                f"not used here, such as '{printable(lost[0])}': without them its heads would be wrong. "
                "Give the model that it was trained on, or merge the two with PEFT and point at the merged model."
            )
        inside = [name for name in self.changes.by_tensor if name in used]
        others = len(self.changes.by_tensor) - len(inside)
        if not inside:
            return (f"the adapter changes nothing that is read here: its {others} tensors are outside attention.",)
        return (f"of what the adapter changes, {others} tensors outside attention are not looked at.",) * (others > 0)

    def remarks(self, given: str, config: Mapping[str, Any]) -> tuple[str, ...]:
        """What else is to be said: a base that the adapter does not name, settings that are not known."""
        base = self.settings.base
        if base is None or _same_model(base, given, self.path, config):
            return self.settings.remarks
        told = f"the adapter says that it was trained on '{base}', and '{printable(given, 200)}' was given."
        return (told, *self.settings.remarks)

    @property
    def path(self) -> Path:
        return self.base.path

    @property
    def format(self) -> str:
        return self.base.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of the base, and of the adapter all that decides how it is merged."""
        shapes = [(name, self.adapter.info(name).shape, self.adapter.info(name).dtype) for name in self._held()]
        told = {name: repr(change) for name, change in sorted(self.changes.by_tensor.items())}
        return {**self.base.metadata, "adapter": {"tensors": repr(shapes), **told}}

    def names(self) -> Collection[str]:
        return self._names

    def headers(self, *, stored: bool = False) -> list[TensorInfo]:
        """Those of the base, and of the biases that it gets."""
        return [*headers(self.base, stored=stored), *map(self.info, sorted(self.changes.fresh))]

    def info(self, name: str) -> TensorInfo:
        change = self.changes.by_tensor.get(name)
        if change is not None and (name in self.changes.fresh or change.replaced is not None):
            held = change.replaced or change.tensors[0]
            return replace(self.adapter.info(held), name=name)
        return self.base.info(name)

    def read(self, name: str) -> Stored:
        change = self.changes.by_tensor.get(name)
        kept = change is None or not (change.replaced or name in self.changes.fresh)
        with self.base.ledger.noted() as lines:
            found = self.base.read(name) if kept else None
        if change is None:
            assert found is not None
            self.ledger.learn(lines)
            return found
        self._require_fit(name, change)
        with self.adapter.ledger.noted() as more:
            merged = self._merged(name, change, found)
        content = hashlib.sha256("".join(sorted([*lines.values(), *more.values()])).encode("utf-8", "surrogatepass"))
        content.update(repr(change).encode("utf-8", "surrogatepass"))
        self.ledger.add(name, merged.shape, content.hexdigest())
        return merged

    def read_rows(self, name: str, rows: Rows) -> Stored:
        if name in self.changes.by_tensor:
            return self.read(name)[rows]
        with self.base.ledger.noted() as lines:
            found = self.base.read_rows(name, rows)
        self.ledger.learn(lines)
        return found

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.base.files, *self.adapter.files)

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        self.adapter.close()
        self.base.close()

    def _held(self) -> list[str]:
        return sorted(self.adapter.names())

    def _require_fit(self, name: str, change: Change) -> None:
        if name not in self._fitting and name not in self.changes.fresh:
            require_fit(self.adapter, self.settings, self.base, name, change)
            self._fitting.add(name)

    def _merged(self, name: str, change: Change, base: Stored | None) -> Stored:
        if change.replaced is not None:
            base = self.adapter.read(change.replaced)
        if change.added is not None:
            tensor, factor = change.added
            more = self.adapter.read(tensor).astype(np.float64) * factor
            base = more.astype(np.float32) if base is None else (base + more).astype(base.dtype)
        assert base is not None
        if not base.flags.writeable:
            base = base.copy()
        if change.rows is not None:
            base[list(change.rows[1])] = self.adapter.read(change.rows[0])
        if change.low_rank is not None:
            self._add_low_rank(name, base, change.low_rank)
        if not np.isfinite(base).all():
            raise BadWeights(
                f"tensor '{printable(name)}' of {printable(self.path)} is no longer finite once the adapter "
                f"{printable(self.settings.place)} is merged. Its training may have diverged."
            )
        return base

    def _add_low_rank(self, name: str, base: Stored, low: LowRank) -> None:
        """base += scaling B A, in double precision and some rows at a time; then DoRA's lengths."""
        a, b = (self.adapter.read(each).astype(np.float64) for each in (low.a, low.b))
        flipped = low.embedding or name in self._transposed or base.shape != (len(b), a.shape[1])
        left, right = (a.T, low.scaling * b.T) if flipped else (b, low.scaling * a)
        lengths = None if low.magnitudes is None else self.adapter.read(low.magnitudes).astype(np.float64).reshape(-1)
        squares = np.zeros(base.shape[1])
        step = max(1, BLOCK // max(base.shape[1], 1))
        with np.errstate(all="ignore"):  # what is no number is refused afterwards
            for start in range(0, len(base), step):
                rows = slice(start, start + step)
                merged = base[rows] + left[rows] @ right
                if lengths is not None and flipped:
                    squares += (merged**2).sum(axis=0)
                elif lengths is not None:
                    merged *= (lengths[rows] / np.linalg.norm(merged, axis=1))[:, None]
                base[rows] = merged
            if lengths is not None and flipped:
                base *= (lengths / np.sqrt(squares)).astype(base.dtype)
