"""Which models from the hub are here: in Hugging Face's cache, whole files of them; in ours, what was read so far."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from toposcope.checkpoints.hub.cache import CHUNK_NAME, HUB
from toposcope.checkpoints.hub.name import is_commit
from toposcope.core.cache import cache_root


@dataclass(frozen=True)
class CachedModel:
    """A model of which something is here: how many bytes of what, of which commits, and in whose cache."""

    repo: str
    commits: tuple[str, ...]
    size: int
    holds: str
    origin: str
    directory: Path


def cached_models() -> list[CachedModel]:
    """All of them, those in Hugging Face's cache first."""
    found = []
    for directory in _directories(huggingface_cache(), "models--*--*"):
        commits = tuple(path.name for path in _directories(directory / "snapshots", "*"))
        size = _size(path for path in directory.glob("blobs/*") if not path.name.endswith(".incomplete"))
        found.append(_model(directory, commits, size, "of files", "the Hugging Face cache"))
    root = cache_root()
    for directory in _directories(root / HUB, "*/models--*--*") if root is not None else ():
        commits = tuple(path.stem for path in directory.glob("trees/*.json"))
        size = _size(path for path in directory.glob("blobs/*/*") if CHUNK_NAME.fullmatch(path.name))
        found.append(_model(directory, commits, size, "of tensors", "Toposcope's cache"))
    return found


def huggingface_cache() -> Path:
    """Where huggingface_hub and transformers keep what they download."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _model(directory: Path, commits: Iterable[str], size: int, what: str, origin: str) -> CachedModel:
    repo = directory.name.removeprefix("models--").replace("--", "/", 1)
    known = tuple(sorted(commit for commit in commits if is_commit(commit)))
    return CachedModel(repo, known, size, f"{what} in {origin}", origin, directory)


def _directories(place: Path, pattern: str) -> list[Path]:
    return sorted(path for path in place.glob(pattern) if path.is_dir())


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):  # removed by another program meanwhile
            total += path.stat().st_size
    return total
