"""One commit of a model on the hub: which it is, what it holds, and where each of its files can be read.

A file that lies whole in the Hugging Face cache is read there; of all others the ranges that are needed are fetched.
"""

from __future__ import annotations

import glob
import logging
import sys
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toposcope.checkpoints.hub.cache import RepoCache, cached_models, folder_of, huggingface_cache
from toposcope.checkpoints.hub.file import RemoteFile
from toposcope.checkpoints.hub.http import HubClient, MissingRepoError, RepoFile, UnreachableError, unreachable
from toposcope.checkpoints.hub.meter import Meter
from toposcope.checkpoints.hub.name import HubName, is_commit, is_sound_file
from toposcope.core.errors import BadFile, HubError, NotFound, ToposcopeError, did_you_mean
from toposcope.core.printable import printable
from toposcope.core.untrusted import open_file, parse_json, read_bytes

log = logging.getLogger("toposcope.hub")


class Snapshot:
    """The files of one commit."""

    def __init__(self, name: HubName) -> None:
        self.name = name
        self.client = HubClient()
        self.cache = RepoCache(self.client.endpoint, name.repo)
        self.meter = Meter(name.repo)
        try:
            self.commit = self._resolve()
        except UnreachableError as error:
            raise unreachable(self.name, error) from error
        except MissingRepoError as error:
            raise self._unknown() from error
        self.path = name.pinned(self.commit)
        saved = huggingface_cache() / folder_of(name.repo) / "snapshots" / self.commit
        self.saved = saved if saved.is_dir() else None  # where Hugging Face's own cache has files of it
        self._remote: dict[str, RemoteFile] = {}

    @cached_property
    def files(self) -> dict[str, RepoFile]:
        """All files of the commit by name, from our cache or from the hub."""
        found = self.cache.tree(self.commit)
        if found is None:
            try:
                found = self.client.files_of(self.name.repo, self.commit)
            except UnreachableError as error:
                raise unreachable(self.name, error) from error
            except MissingRepoError as error:
                raise self._unknown() from error
            self.cache.keep_tree(self.commit, found)
        return {file.path: file for file in found}

    def names(self) -> list[str]:
        """The files of the commit; where the hub cannot be asked, those of them that are here."""
        try:
            return sorted(self.files)
        except HubError:
            if self.saved is None:
                raise
            return self.saved_names()

    def saved_names(self) -> list[str]:
        """The files that Hugging Face's cache holds whole."""
        if self.saved is None:
            return []
        found = (entry.relative_to(self.saved).as_posix() for entry in self.saved.rglob("*") if entry.is_file())
        return sorted(name for name in found if is_sound_file(name))

    def local(self, name: str) -> Path | None:
        """Where a file lies whole; one of another size than the hub says is half written, and not used."""
        path = None if self.saved is None else self.saved / name
        if path is None or self.saved is None or not path.is_file():
            return None
        known = self.__dict__.get("files", {}).get(name)
        open_file(path, inside=self.saved).close()
        if known is not None and path.stat().st_size != known.size:
            log.warning(
                "%s has %d bytes instead of %d: it is read from the hub.", path, path.stat().st_size, known.size
            )
            return None
        return path

    def remote(self, name: str) -> RemoteFile:
        """A file that is read by ranges."""
        found = self._remote.get(name)
        if found is None:
            file = self._listed(name)
            found = self._remote[name] = RemoteFile(
                self.path / name, self.name.repo, self.commit, file, self.client, self.cache.ranges(file), self.meter
            )
        return found

    def json(self, name: str, error_type: type[ToposcopeError], *, most: int) -> dict[str, Any]:
        """The JSON object in a file of the commit."""
        where = printable(self.path / name)
        content = self._content(name, most)
        try:
            found = parse_json(content, where)
        except BadFile as error:
            raise error_type(str(error)) from error
        if not isinstance(found, dict):
            raise error_type(f"{where} holds a JSON {type(found).__name__}, and an object ({{...}}) was expected.")
        return found

    def size_of(self, names: Collection[str]) -> int:
        """The bytes of these files that Hugging Face's cache does not hold."""
        return sum(self._listed(name).size for name in names if self.local(name) is None)

    def download(self, names: Sequence[str]) -> Path:
        """Have these files whole in Hugging Face's cache; the directory they are in."""
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.utils import tqdm

        def bar(*given: Any, **options: Any) -> Any:
            return tqdm(*given, **{**options, "disable": not sys.stderr.isatty()})

        try:
            return Path(
                snapshot_download(
                    self.name.repo,
                    revision=self.commit,
                    allow_patterns=[glob.escape(name) for name in names],
                    endpoint=self.client.endpoint,
                    cache_dir=constants.HF_HUB_CACHE,
                    library_name="toposcope",
                    tqdm_class=bar,
                )
            )
        except Exception as error:  # the library and those below it raise anything
            lines = str(error).strip().splitlines()
            raise HubError(
                f"{self.name.repo} could not be fetched ({type(error).__name__}: "
                f"{printable(lines[0] if lines else 'no reason given')}). Check the network and the disk, then start "
                "again: what has arrived is kept."
            ) from error

    # ------------------------------------------------------------- inside
    def _resolve(self) -> str:
        repo, revision = self.name.repo, self.name.revision
        if is_commit(revision):
            return revision
        commit = _saved_commit(repo, revision)
        if commit is not None:
            return commit
        kept = self.cache.commit(revision)
        if self.client.offline:
            if kept is None:
                raise self._unknown()
            return kept
        try:
            commit = self.client.commit_of(repo, revision)
        except UnreachableError as error:
            if kept is None:
                raise
            log.warning("%s. %s is read as it was when it was last asked for.", error, self.name)
            return kept
        self.cache.keep_commit(revision, commit)
        return commit

    def _content(self, name: str, most: int) -> bytes:
        local = self.local(name)
        if local is not None:
            return read_bytes(local, most=most, inside=self.saved)
        file = self.remote(name)
        if file.size > most:
            raise BadFile(f"{printable(file.path)} has {file.size:,} bytes; a file of its kind has at most {most:,}.")
        return file.read(0, file.size).tobytes()

    def _listed(self, name: str) -> RepoFile:
        found = self.files.get(name)
        if found is None:
            raise NotFound(f"{self.path} holds no file '{printable(name)}'. Its index may be of another version.")
        return found

    def _unknown(self) -> ToposcopeError:
        """The sentence for a name that neither caches nor the hub know, with near ones that can be read."""
        known = {each.repo for each in cached_models()}
        beside = Path(self.name.repo).parent  # what was meant may be a path
        known |= {f"{beside}/{entry.name}" for entry in beside.iterdir()} if beside.is_dir() else set()
        near = did_you_mean(self.name.repo, known) if known else ""
        hint = near if near.startswith("Did") else "Check the spelling."
        if self.client.offline:
            return HubError(
                f"{self.name} is in no cache, and the hub is not asked in offline mode (HF_HUB_OFFLINE). {hint}"
            )
        private = "" if self.client.has_token else " (or it is private: log in with 'hf auth login')"
        return NotFound(
            f"'{self.name}' is neither a path here nor a model on {self.client.endpoint}{private}. {hint}"
        )


def _saved_commit(repo: str, revision: str) -> str | None:
    """The commit that a revision stands for in Hugging Face's cache, if files of it are there."""
    directory = huggingface_cache() / folder_of(repo)
    try:
        found = read_bytes(directory / "refs" / revision, most=64).decode("ascii").strip()
    except (ToposcopeError, UnicodeDecodeError):
        return None
    return found if is_commit(found) and (directory / "snapshots" / found).is_dir() else None
