"""A model on the hub, opened: headers first, then only the bytes of the tensors that are read.

A snapshot that lies whole in the Hugging Face cache is opened there, like any directory.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from toposcope.checkpoints import locate
from toposcope.checkpoints.gguf_file import GgufFile
from toposcope.checkpoints.hub.cache import Range
from toposcope.checkpoints.hub.file import HEAD, RemoteFile, at_once
from toposcope.checkpoints.hub.meter import WORTH_TELLING, show_bytes
from toposcope.checkpoints.hub.name import HubName
from toposcope.checkpoints.hub.repo import Snapshot
from toposcope.checkpoints.peft.settings import CONFIG as ADAPTER
from toposcope.checkpoints.peft.settings import FILES as ADAPTER_FILES
from toposcope.checkpoints.peft.settings import base_of, trained_on
from toposcope.checkpoints.quantised import BESIDE, QuantisedSource, dequantised
from toposcope.checkpoints.safetensors_file import HEADER_LIMIT, SafetensorsFile
from toposcope.checkpoints.shards import FileSource, ShardedSource, index_remarks, open_parts, weight_map
from toposcope.checkpoints.sniff import SUFFIXES
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadConfig, BadFile, HubError, NotFound, did_you_mean
from toposcope.core.progress import Progress
from toposcope.core.untrusted import INDEX as LARGEST_INDEX
from toposcope.core.untrusted import SETTINGS

log = logging.getLogger("toposcope.hub")
_BY_RANGES: dict[str, type[SafetensorsFile | GgufFile]] = {".safetensors": SafetensorsFile, ".gguf": GgufFile}
_TOKENIZERS = {"tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model"}


class RemoteTensors:
    """The tensors of a model on the hub as bytes to be fetched: foretold for many layers, fetched layer by layer."""

    def __init__(self, snapshot: Snapshot, source: Any, shown: QuantisedSource, shards: Mapping[str, str]) -> None:
        self._snapshot = snapshot
        self._source = source  # of files: what dequantises or merges stands above it
        self._shown = shown
        self._shards = shards  # which file holds which tensor, where there are several
        self._modules: dict[str, list[str]] = defaultdict(list)
        for name in source.names():
            self._modules[name.rpartition(".")[0]].append(name)

    def expect(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Say how much these tensors will bring with them, before the first of them is read."""
        missing = (file.missing(ranges) for file, ranges in self._ranges(names).items())
        count = sum(end - start for gaps in missing for start, end in gaps)
        self._snapshot.cache.require_room(count)
        self._snapshot.meter.expect(count, progress)

    def headers(self, names: Iterable[str] | None = None) -> None:
        """Have the headers of the files that hold these tensors, or of all, by asking for all of them at once."""
        wanted = self._shards if names is None else [name for name in names if name in self._shards]
        _fetch_heads(self._snapshot, sorted({self._shards[name] for name in wanted}))

    def fetch(self, names: Iterable[str]) -> None:
        """Have these tensors here; neighbours come in one answer."""
        for file, ranges in self._ranges(names).items():
            file.fetch(ranges)

    def tokenizer(self) -> Path:
        """A directory with the files beside the weights, of which a tokenizer is made."""
        wanted = [name for name in self._snapshot.names() if name in locate.BESIDE_WEIGHTS]
        return self._snapshot.download(wanted)

    def _ranges(self, names: Iterable[str]) -> dict[RemoteFile, list[Range]]:
        """Where the tensors lie, with all that stands in the same modules: scales, codes, biases."""
        wanted: set[str] = set()
        for name in names:
            wanted.update(self._modules.get(name.rpartition(".")[0], ()))
            wanted.update(part for part in self._shown.parts(name) if part in self._source.names())
        found: dict[RemoteFile, list[Range]] = defaultdict(list)
        self.headers(wanted)
        for name in sorted(wanted):
            place = self._source.place(name)
            if place is not None and isinstance(place[0], RemoteFile):
                found[place[0]].append(place[1:])
        return found


def open_hub(name: HubName) -> locate.Opened:
    """Open a model by its name on the hub."""
    snapshot = Snapshot(name)
    here = _whole_here(snapshot)
    place = f"in the Hugging Face cache, {snapshot.saved}" if here else f"on {snapshot.client.endpoint}"
    log.info("%s: commit %s, %s", name.repo, snapshot.commit, place)
    if here is not None and snapshot.saved is not None:
        chosen, left = here
        notes = locate.remarks_on_choice(snapshot.saved, snapshot.saved_names(), chosen, left)
        opened = locate.open_with_config(snapshot.saved / chosen, snapshot.saved, notes)
        return replace(opened, commit=snapshot.commit)
    return _open_remote(snapshot)


def fetch_to_run(name: HubName) -> Path:
    """Have all files of a model that transformers needs to run it, after saying how much that is; where they are."""
    snapshot = Snapshot(name)
    here, saved = (_whole_here(snapshot) or (None, []))[0], snapshot.saved
    log.info("%s: commit %s, %s", name.repo, snapshot.commit, saved if here else f"on {snapshot.client.endpoint}")
    ready = here is not None and (here.endswith(".gguf") or bool({*snapshot.saved_names()} & _TOKENIZERS))
    if here is not None and saved is not None and (ready or snapshot.client.offline):
        chosen, directory = here, saved
    else:
        files = snapshot.names()
        chosen = here or _chosen(snapshot, files)[0]
        beside = [file for file in files if file in locate.BESIDE_WEIGHTS]
        wanted = sorted({*beside, chosen, *_parts(snapshot, chosen)})
        told = snapshot.meter.foretold(snapshot.size_of(wanted))
        log.info("%s: to be run it is needed whole; fetching %s", name.repo, told)
        directory = snapshot.download(wanted)
    return directory / chosen if chosen.lower().endswith(".gguf") else directory


def fetch_adapter(name: HubName) -> tuple[Path, str]:
    """Have the files of an adapter; the directory they are in, and its name with its commit."""
    snapshot = Snapshot(name)
    files = snapshot.names()
    weights = [file for file in ADAPTER_FILES if file in files][:1]
    if ADAPTER not in files or not weights:
        missing = ADAPTER if weights else " or ".join(ADAPTER_FILES)
        raise NotFound(f"{name.repo} is no adapter that PEFT saved: it holds no {missing}.")
    here = all(snapshot.local(file) is not None for file in (ADAPTER, *weights))
    told = "in the Hugging Face cache" if here else snapshot.meter.foretold(snapshot.size_of([ADAPTER, *weights]))
    log.info("%s: adapter, commit %s, %s", name.repo, snapshot.commit, told)
    directory = snapshot.saved if here and snapshot.saved is not None else snapshot.download([ADAPTER, *weights])
    return directory, str(snapshot.path)


def _whole_here(snapshot: Snapshot) -> tuple[str, list[str]] | None:
    """The weights' file, or index, if it and all its parts lie in the Hugging Face cache; and others beside it."""
    saved = snapshot.saved_names()
    if snapshot.saved is None or not saved:
        return None
    try:
        chosen, left = _chosen(snapshot, saved)
    except NotFound:
        return None
    return (chosen, left) if {chosen, *_parts(snapshot, chosen)} <= {*saved} else None


def _parts(snapshot: Snapshot, chosen: str) -> list[str]:
    """The files that an index names, or the numbered parts of a model."""
    folder = PurePosixPath(chosen).parent
    if chosen.endswith(locate.INDEX):
        content = snapshot.json(chosen, BadFile, most=LARGEST_INDEX)
        names: Iterable[str] = set(weight_map(content, snapshot.path / chosen).values())
    else:
        part = locate.part_of(PurePosixPath(chosen).name)
        names = () if part is None else locate.all_parts(part)
    return sorted(str(folder / name) for name in names)


def _chosen(snapshot: Snapshot, files: list[str]) -> tuple[str, list[str]]:
    """The file to read, and the other checkpoints beside it."""
    top = [name for name in files if "/" not in name]
    weights = [name for name in files if name.lower().endswith((*SUFFIXES, locate.INDEX))]
    if ADAPTER in top and {*weights} <= {*ADAPTER_FILES}:
        base = base_of(snapshot.json(ADAPTER, BadConfig, most=SETTINGS))
        raise NotFound(
            f"{snapshot.name.repo} is an adapter, not a whole model. {trained_on(base)}Give its base and it: "
            f"toposcope scan {base or 'BASE'} --adapter {snapshot.name.repo}"
        )
    several = [name for name in files if name.lower().endswith(".gguf") and _is_first(name)]
    if snapshot.name.quant is None:
        plain = any(name.endswith((".safetensors", ".bin", locate.INDEX)) for name in top)
        if not plain and len(several) > 1:
            raise NotFound(
                f"{snapshot.name.repo} holds {len(several)} GGUF files; name one by its quantisation, as in "
                f"{snapshot.name.repo}:{_quants(several)[0]}. There are: {', '.join(_quants(several)[:40])}."
            )
        return (several[0], []) if not plain and several else locate.choose_weights(snapshot.path, top)
    wanted = snapshot.name.quant.lower().removesuffix(".gguf")
    found = [name for name in several if _says(name, wanted)]
    if len(found) != 1:
        what = f"{len(found)} files" if found else "no GGUF file"
        hint = did_you_mean(wanted, _quants(several)) if several else "It holds no GGUF file at all."
        named = f": {', '.join(found[:8])}. Give more of the name." if found else f". {hint}"
        raise NotFound(f"{snapshot.name.repo} holds {what} for ':{snapshot.name.quant}'{named}")
    return found[0], [name for name in several if name != found[0]]


def _is_first(name: str) -> bool:
    """Whether this is a whole file or the first part of one; a projector of images is neither."""
    base = PurePosixPath(name).name
    part = locate.part_of(base)
    return (part is None or int(part["number"]) == 1) and not base.lower().startswith("mmproj")


def _stem(name: str) -> str:
    base = PurePosixPath(name).name
    part = locate.part_of(base)
    return part["stem"] if part else base[: -len(".gguf")]


def _says(name: str, wanted: str) -> bool:
    """Whether a file's name is, or ends in, what the user calls it: 'q4_k_m' of 'Model-7B-Q4_K_M.gguf'."""
    stem = _stem(name).lower()
    return stem == wanted or stem.endswith(("-" + wanted, "." + wanted))


def _quants(names: Iterable[str]) -> list[str]:
    return sorted({_stem(name).replace(".", "-").rpartition("-")[2] for name in names})


def _open_remote(snapshot: Snapshot) -> locate.Opened:
    files = snapshot.names()
    chosen, left = _chosen(snapshot, files)
    notes = locate.remarks_on_choice(snapshot.path, files, chosen, left)
    folder = PurePosixPath(chosen).parent
    said = {
        name: snapshot.json(str(folder / name), BadConfig, most=SETTINGS)
        for name in (locate.CONFIG, *BESIDE)
        if str(folder / name) in files
    }
    config = said.pop(locate.CONFIG, None)
    if not chosen.lower().removesuffix(locate.INDEX).endswith(tuple(_BY_RANGES)):
        return _open_whole(snapshot, chosen)
    source, shards = _source(snapshot, chosen)
    shown = dequantised(source, config, said)
    return locate.Opened(
        shown,
        config,
        None if config is None else snapshot.path / folder / locate.CONFIG,
        snapshot.path / chosen,
        notes,
        RemoteTensors(snapshot, source, shown, shards),
        snapshot.commit,
    )


def _source(snapshot: Snapshot, chosen: str) -> tuple[TensorSource, Mapping[str, str]]:
    """The tensors of a file on the hub, or of all the files that an index names, and which file holds which."""
    parts = _parts(snapshot, chosen)
    opener = partial(_open_one, snapshot)
    if not parts:
        return opener(snapshot.path / chosen, snapshot.path), {}
    if not chosen.endswith(locate.INDEX):
        _fetch_heads(snapshot, parts)
        paths = [snapshot.path / part for part in parts]
        return open_parts(snapshot.path, paths, opener, stamp=_never_replaced), {}
    content = snapshot.json(chosen, BadFile, most=LARGEST_INDEX)
    folder = (snapshot.path / chosen).parent
    where = {tensor: folder / shard for tensor, shard in weight_map(content, snapshot.path / chosen).items()}
    source = ShardedSource(
        snapshot.path,
        str(snapshot.path / chosen),
        where,
        opener,
        form="safetensors",
        metadata=index_remarks(content),
        stamp=_never_replaced,
    )
    return source, {tensor: path.relative_to(snapshot.path).as_posix() for tensor, path in where.items()}


def _open_one(snapshot: Snapshot, path: Path, shown: Path | None = None) -> FileSource:
    name = path.relative_to(snapshot.path).as_posix()
    here = snapshot.local(name)
    if here is not None:
        return locate.open_one(here, shown)
    reader = _BY_RANGES[path.suffix.lower()]
    return reader(path, shown=shown, file=snapshot.remote(name))


def _never_replaced(path: Path) -> object:
    """The stamp of a file on the hub: each of its answers is compared with its size and ETag instead."""
    return None


def _fetch_heads(snapshot: Snapshot, names: Iterable[str]) -> None:
    """The headers of several files at once."""
    at_once([partial(_fetch_head, snapshot.remote(name)) for name in names if snapshot.local(name) is None])


def _fetch_head(file: RemoteFile) -> None:
    """The beginning of a file, and the rest of its header where that is longer and may be believed."""
    file.fetch([(0, min(HEAD, file.size))])
    if file.path.suffix.lower() == ".safetensors" and file.size >= 8:
        length = int.from_bytes(file.read(0, 8).tobytes(), "little")
        if 8 + length <= min(file.size, HEADER_LIMIT):
            file.fetch([(0, 8 + length)])


def _open_whole(snapshot: Snapshot, chosen: str) -> locate.Opened:
    """A torch file cannot be read in parts: a small one is fetched whole, a large one is left to the user."""
    names = [chosen, *_parts(snapshot, chosen)]
    names += [locate.CONFIG] if locate.CONFIG in snapshot.files else []
    size = snapshot.size_of(names)
    if size > WORTH_TELLING:
        raise HubError(
            f"{snapshot.name.repo} holds torch files only ({chosen}), which cannot be read in parts: all "
            f"{show_bytes(size)} would be fetched. If that is fine, run: hf download {snapshot.name.repo} "
            f"--revision {snapshot.commit}, and then this command again."
        )
    told = snapshot.meter.foretold(size)
    log.info("%s: torch files cannot be read in parts; fetching %s", snapshot.name.repo, told)
    directory = snapshot.download(names)
    return replace(locate.open_with_config(directory / chosen, directory), commit=snapshot.commit)
