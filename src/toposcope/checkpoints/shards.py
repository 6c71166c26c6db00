"""One model in several files, presented as one source; each file is opened when its first tensor is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.source import ByName, Rows, Stored, TensorInfo, TensorSource
from toposcope.checkpoints.stored_file import Place
from toposcope.core.errors import BadFile, NotFound
from toposcope.core.untrusted import INDEX, read_object, readable, require_inside


class FileSource(TensorSource, Protocol):
    """A source over one file, whose ledger is that of all files together."""

    ledger: Ledger


class ShardedSource:
    """Tensors spread over files; `listing` is what says which file holds which, `stamp` whether one was replaced."""

    def __init__(
        self,
        path: Path,
        listing: str,
        where: Mapping[str, Path],
        opener: Callable[[Path], FileSource],
        *,
        form: str,
        metadata: Mapping[str, Any],
        opened: Mapping[Path, FileSource] | None = None,
        stamp: Callable[[Path], object] | None = None,
    ) -> None:
        self.path = path
        self._listing = listing
        self.format = form
        self.metadata = metadata
        self._where = ByName(where, path)
        self._opener = opener
        self._opened: dict[Path, FileSource] = dict(opened or {})
        self._stamp = stamp or _stamp
        self._stamps = {shard: self._stamp(shard) for shard in self.files}
        self.ledger = Ledger()
        for source in self._opened.values():
            source.ledger = self.ledger

    def names(self) -> Collection[str]:
        return self._where.keys()

    def info(self, name: str) -> TensorInfo:
        return self._holding(name).info(name)

    def read(self, name: str) -> Stored:
        return self._holding(name).read(name)

    def read_rows(self, name: str, rows: Rows) -> Stored:
        return self._holding(name).read_rows(name, rows)

    def place(self, name: str) -> Place | None:
        """Where a tensor lies, if its file can say that."""
        found = getattr(self._holding(name), "place", None)
        return None if found is None else found(name)

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted(set(self._where.values())))

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        for source in self._opened.values():
            source.close()

    def _holding(self, name: str) -> FileSource:
        shard = self._where[name]
        source = self._opened.get(shard)
        if source is None:
            source = self._opened[shard] = self._opener(shard)
            source.ledger = self.ledger
            if self._stamp(shard) != self._stamps[shard]:
                raise BadFile(
                    f"{shard} was replaced after others of its model had been opened, so they may not fit. "
                    "Start again."
                )
        if name not in source.names():
            raise BadFile(
                f"{self._listing} says that tensor '{name}' is in {shard.name}, and {shard.name} does not hold it. "
                "The files are of different versions: download them all again."
            )
        return source


def _stamp(path: Path) -> tuple[int, int, int, int]:
    with readable(path):
        found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def open_index(
    index: Path, opener: Callable[[Path], FileSource], *, form: str, shown: Path | None = None
) -> ShardedSource:
    """The model that an index file (`model.safetensors.index.json`) describes."""
    content = read_object(index, BadFile, limit=INDEX, inside=index.parent if shown not in (None, index) else None)
    shard_of = weight_map(content, index)
    shards = {shard: index.parent / shard for shard in shard_of.values()}
    for path in shards.values():
        require_inside(path, index.parent)
    missing = sorted(name for name, path in shards.items() if not path.is_file())
    if missing:
        raise NotFound(
            f"{index} asks for {len(shards)} files, and {len(missing)} of them are not there: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}. Download the rest of the model."
        )
    where = {name: shards[shard] for name, shard in shard_of.items()}
    return ShardedSource(shown or index, str(index), where, opener, form=form, metadata=index_remarks(content))


def weight_map(content: Mapping[str, Any], index: Path) -> dict[str, str]:
    """Which file of the same directory holds which tensor, as an index says."""
    found = content.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise BadFile(
            f"{index} has no 'weight_map' from tensors to files, which an index must have. Download or save it again."
        )
    for name, shard in found.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BadFile(
                f"{index} puts tensor '{name}' into {shard!r:.80}, and the name of a file in the same directory was "
                "expected. The index is damaged or hostile: download it again."
            )
    return found


def index_remarks(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an index says of the model beside where its tensors are."""
    remarks = content.get("metadata")
    return remarks if isinstance(remarks, dict) else {}


def open_parts(
    path: Path,
    parts: Sequence[Path],
    opener: Callable[[Path], FileSource],
    *,
    stamp: Callable[[Path], object] | None = None,
) -> ShardedSource:
    """A model cut into numbered files without an index: every header is read to learn what is where."""
    opened = {part: opener(part) for part in parts}
    where: dict[str, Path] = {}
    for part, source in opened.items():
        for name in source.names():
            if name in where:
                raise BadFile(
                    f"{part} and {where[name].name} both hold tensor '{name}', and parts of one model were expected. "
                    "Download the model again, into an empty directory."
                )
            where[name] = part
    first = opened[parts[0]]
    return ShardedSource(
        path,
        "the model's header",
        where,
        opener,
        form=first.format,
        metadata=first.metadata,
        opened=opened,
        stamp=stamp,
    )


def _is_plain_name(name: str) -> bool:
    """Whether a name stays in its directory, on any system."""
    return (
        name not in ("", ".", "..")
        and len(name.encode("utf-8", "replace")) <= 255
        and not any(mark in name for mark in "/\\:\0")
    )
