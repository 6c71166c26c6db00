"""Results to look at: the runs of a store, and result files of the command line. Both are reached by key only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, NotFound, ToposcopeError
from toposcope.core.fields import plain
from toposcope.core.files import present
from toposcope.core.untrusted import read_saved
from toposcope.scanning.result import ScanResult
from toposcope.scanning.scan import JOURNAL, RESULT
from toposcope.web.reports import title_of

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
MODEL = "model"  # where a training run keeps what it trained


class Library:
    """The store, opened anew for every request (SQLite belongs to one thread), and the files."""

    def __init__(self, store: Path | None, files: Iterable[Path] = ()) -> None:
        self.store = store
        self._files = {f"r{number}": path for number, path in enumerate(files)}
        self._titles: dict[tuple[str, int, int], str | None] = {}  # by key, date and size
        for path in self._files.values():
            read_result(path)  # a wrong file is told before the server starts

    # ------------------------------------------------------------ runs
    def runs(self) -> list[dict[str, Any]]:
        """All runs of the store, the latest first; empty where there is no store."""
        if self.store is None or not self.store.is_dir():
            return []
        from toposcope.runs.listing import listing

        try:
            rows = listing(self.store)
        except NotFound:
            return []
        return [plain(asdict(row)) for row in reversed(rows)]

    def run(self, key: str) -> dict[str, Any]:
        """One run with its result (None before it is done)."""
        if not KEY.fullmatch(key) or self.store is None:
            raise NotFound(f"there is no run '{key[:80]}' here.")
        from toposcope.runs.directory import read_result as read_run
        from toposcope.runs.listing import listing

        row = next(iter(listing(self.store, key)), None) if self.store.is_dir() else None
        if row is None:
            raise NotFound(f"there is no run '{key[:80]}' here.")
        place = self.store / key
        result = read_run(place, row.job) if row.status == "done" else None
        return {**plain(asdict(row)), "result": result, "trained": _is_own(place / MODEL)}

    def model_of(self, key: str) -> Path:
        """The model that a run has trained."""
        self.run(key)
        assert self.store is not None
        place = self.store / key / MODEL
        if not _is_own(place):
            raise NotFound(f"run '{key}' holds no trained model.")
        return place

    # ------------------------------------------------------------ files
    def files(self) -> list[dict[str, Any]]:
        """The result files of the command line; one that has changed for the worse says so in its place."""
        listed = []
        for key, path in self._files.items():
            try:
                found = read_result(path)
                words = {"schema": found["schema"], "about": _about(found), "title": self.title(key, found)}
            except ToposcopeError as error:
                words = {"schema": "not readable", "about": str(error), "title": path.name}
            listed.append({"id": key, "name": path.name, **words})
        return listed

    def scans(self) -> tuple[ScanResult, ...]:
        """The scans among the files, to be shown instead of scanning those models again."""
        found = [read_result(path) for path in self._files.values()]
        return tuple(ScanResult.from_dict(each) for each in found if each["schema"] == ScanResult.schema_name())

    def title(self, key: str, found: dict[str, Any]) -> str:
        """What a result file is called: as its report is, or by its name where this version cannot read it."""
        about = self._files[key].stat()
        stamp = key, about.st_mtime_ns, about.st_size
        if stamp not in self._titles:
            self._titles[stamp] = title_of(found)
        return self._titles[stamp] or self._files[key].name

    def file(self, key: str) -> tuple[str, dict[str, Any]]:
        """The name and content of one result file."""
        if key not in self._files:
            raise NotFound(f"there is no result '{key[:80]}' here.")
        return self._files[key].name, read_result(self._files[key])


def _is_own(place: Path) -> bool:
    """Whether a directory is there itself, not by a link."""
    return place.is_dir() and not place.is_symlink() and not place.parent.is_symlink()


def result_file(target: str) -> Path | None:
    """The result that an argument of the command line names: a file, or a directory of `scan --out`; else a model."""
    if target.lower().endswith(".json"):
        return None if target.lower().endswith(".index.json") else Path(target)
    place = Path(target)
    return place / RESULT if all(present(place / name) for name in (JOURNAL, RESULT)) else None


def read_result(path: Path) -> dict[str, Any]:
    """A result as a command wrote it with --json."""
    found = read_saved(path)
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, str) or not schema.startswith("toposcope/"):
        raise BadFile(f"{path} is not a result of Toposcope: it has no schema. Expected a file written with --json.")
    return found


def _about(found: dict[str, Any]) -> str:
    subject, origin = found.get("subject"), found.get("provenance")
    if isinstance(origin, dict) and isinstance(origin.get("subjects"), list) and origin["subjects"]:
        subject = origin["subjects"][0]
    return str(subject.get("path", "")) if isinstance(subject, dict) else ""
