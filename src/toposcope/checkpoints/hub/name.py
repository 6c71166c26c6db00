"""What users call a model on the hub: org/name, org/name@revision, org/name:QUANT, each also behind hf://."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from toposcope.checkpoints.sniff import SUFFIXES
from toposcope.core.errors import NotFound
from toposcope.core.printable import printable

SCHEME = "hf://"
DEFAULT_REVISION = "main"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9_][\w./-]*))?(?::(?P<quant>[A-Za-z0-9_][\w.-]*))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_REPO, _LONGEST_REVISION = 96, 250


@dataclass(frozen=True)
class HubName:
    """A model on the hub: the repository, the branch, tag or commit asked for, and which of its GGUF files."""

    repo: str
    revision: str = DEFAULT_REVISION
    quant: str | None = None

    def __str__(self) -> str:
        at = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{at}{f':{self.quant}' if self.quant else ''}"

    def pinned(self, commit: str) -> Path:
        """The name of this very content: it stands where a path would, and can be opened again."""
        return Path(str(HubName(self.repo, commit, self.quant)))


def is_commit(revision: str) -> bool:
    """Whether this is a whole commit hash, which never moves."""
    return _COMMIT.fullmatch(revision) is not None


def parse_hub_name(target: str | Path) -> HubName | None:
    """The name in what the user typed; None where it can only be a path. With hf:// it can only be a name."""
    text = str(target)
    forced = text.startswith(SCHEME)
    found = _NAME.fullmatch(text.removeprefix(SCHEME)) if len(text) < 500 else None
    if found is not None and _is_sound(found["repo"], found["revision"] or DEFAULT_REVISION):
        if forced or found["quant"] or not text.lower().endswith((*SUFFIXES, ".json")):
            return HubName(found["repo"], found["revision"] or DEFAULT_REVISION, found["quant"])
    elif forced:
        raise NotFound(
            f"'{printable(text, 80)}' is no model's name: expected hf://org/name, hf://org/name@revision or "
            "hf://org/name:QUANT."
        )
    return None


def is_sound_file(name: str) -> bool:
    """Whether a file's name in a repository stays in it, on any system."""
    parts = PurePosixPath(name).parts
    return (
        0 < len(name) <= 1024
        and name == "/".join(parts)
        and not any(part in (".", "..", "/") or len(part.encode("utf-8", "replace")) > 255 for part in parts)
        and not any(mark in name for mark in "\\:\0")
    )


def _is_sound(repo: str, revision: str) -> bool:
    return (
        len(repo) <= _LONGEST_REPO
        and not any(mark in repo for mark in ("--", ".."))
        and not repo.endswith(".git")
        and len(revision) <= _LONGEST_REVISION
        and ".." not in revision
    )
