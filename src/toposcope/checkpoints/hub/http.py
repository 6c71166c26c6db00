"""What is asked of the hub: which commit a name stands for, which files it has, and ranges of their bytes.

huggingface_hub brings the endpoint, the token, the offline switch and the HTTP session with its proxies. Redirects
are followed here, one by one: the token is sent to the endpoint and to no other host. What a server answers is
compared with what was asked, so that no byte of another file or version is ever taken for one of ours.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from toposcope._version import __version__
from toposcope.checkpoints.hub.name import is_commit, is_sound_file
from toposcope.core.errors import BadFile, HubError, NotFound, nearest
from toposcope.core.printable import printable
from toposcope.core.untrusted import MEGABYTE, parse_json

T = TypeVar("T")
MOST_REDIRECTS = 5
MOST_PAGES = 200  # of a listing, a thousand files each
LARGEST_PAGE = 32 * MEGABYTE
MOST_FILES = 100_000
PATIENCE = 4  # tries in a row that bring nothing
PAUSE = 0.5  # seconds before the second try; doubled for each further one
MOST_PAUSE = 60.0
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_LATER = (408, 425, 429, 500, 502, 503, 504)  # statuses of a server that may answer when asked again
Origin = tuple[str, str, int | None]


class CutError(Exception):
    """A connection that ended before its answer did, or a server that wants to be left alone for so many seconds."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class UnreachableError(CutError):
    """A host that could not be found or connected to at all: there may be no network."""


class MissingRepoError(Exception):
    """The hub knows no model of this name, or keeps it from us."""


@dataclass(frozen=True)
class RepoFile:
    """A file in a repository: its size, and the hash by which the hub knows its content."""

    path: str
    size: int
    content: str


class HubClient:
    """The hub that the user's settings name. Cheap to make: nothing is asked of it before it is used."""

    def __init__(self) -> None:
        from huggingface_hub import constants

        self.endpoint: str = constants.ENDPOINT.rstrip("/")
        if not urlsplit(self.endpoint).hostname or _origin(self.endpoint)[0] not in ("http", "https"):
            raise HubError(
                f"HF_ENDPOINT is '{printable(self.endpoint, 80)}'; expected an address (https://...). "
                "Correct or unset it."
            )
        self.offline: bool = constants.is_offline_mode()
        self.received = 0  # bytes of answers, headers not counted
        self._timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        self._token: list[str | None] = []
        self._stores: dict[tuple[str, str, str], str] = {}  # where the hub last sent us for a file
        self._tags: dict[tuple[str, str, str, Origin], str] = {}  # the ETag under which a host serves it
        self._lock = threading.Lock()

    @property
    def has_token(self) -> bool:
        return self._secret() is not None

    def commit_of(self, repo: str, revision: str) -> str:
        """The commit that a branch or tag stands for: told in the header of an answer without a body."""
        url = f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/config.json"
        return patiently(lambda: self._commit(url, repo, revision), f"asking {self.endpoint} for {repo}")

    def files_of(self, repo: str, commit: str) -> tuple[RepoFile, ...]:
        """All files of a commit, with their sizes."""
        return patiently(lambda: self._tree(repo, commit), f"asking {self.endpoint} for the files of {repo}")

    def stream(self, repo: str, commit: str, file: RepoFile, start: int, end: int) -> Iterator[bytes]:
        """The bytes of a range, in pieces as they arrive; a `CutError` where they end too early."""
        key = (repo, commit, file.path)
        with self._lock:
            known = self._stores.get(key)
        if known is not None:  # the store behind the hub, as long as its address is good
            with self._answer("GET", known, _asking(file, start, end)) as response:
                if response.status_code not in (401, 403, 404, 410):
                    yield from self._body(response, key, file, start, end)
                    return
            with self._lock:
                self._stores.pop(key, None)
        url = f"{self.endpoint}/{repo}/resolve/{commit}/{quote(file.path)}"
        with self._answer("GET", url, _asking(file, start, end), file=file) as response:
            address = str(response.url)
            if response.status_code in (200, 206):
                with self._lock:
                    if _origin(address) != _origin(self.endpoint):
                        self._stores[key] = address
            elif _origin(address) != _origin(self.endpoint) and response.status_code not in _LATER:
                raise HubError(
                    f"{_host(address)}, where {self.endpoint} sent us for {printable(file.path)} of {repo}, answered "
                    f"{response.status_code}. Try again later, or fetch the model with: hf download {repo}"
                )
            else:
                self._refuse(response, repo, commit)
            yield from self._body(response, key, file, start, end)

    # ------------------------------------------------------------- inside
    def _commit(self, url: str, repo: str, revision: str) -> str:
        with self._answer("HEAD", url, {}, until="x-repo-commit") as response:
            commit = response.headers.get("x-repo-commit", "")
            missing = response.status_code == 404 and response.headers.get("x-error-code") == "EntryNotFound"
            if not missing:
                self._refuse(response, repo, revision)
        if is_commit(commit):
            return commit
        found = self._json(f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}", repo, revision)[
            0
        ]
        commit = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise HubError(
                f"{self.endpoint} does not say which commit '{printable(revision, 60)}' of {repo} is. "
                "Check HF_ENDPOINT, or name the commit: org/name@COMMIT."
            )
        return commit

    def _tree(self, repo: str, commit: str) -> tuple[RepoFile, ...]:
        url: str | None = f"{self.endpoint}/api/models/{repo}/tree/{commit}?recursive=true"
        found: list[RepoFile] = []
        for _ in range(MOST_PAGES):
            if url is None:
                return tuple(found)
            page, url = self._json(url, repo, commit)
            if not isinstance(page, list) or len(found) + len(page) > MOST_FILES:
                raise self._not_the_hub("its list of files is none")
            found += filter(None, map(_repo_file, page))
        raise self._not_the_hub("its list of files has no end")

    def _json(self, url: str, repo: str, revision: str) -> tuple[Any, str | None]:
        """The value at an address of the interface, and the address of its next page."""
        with self._answer("GET", url, {}) as response:
            self._refuse(response, repo, revision)
            content = b""
            for piece in self._pieces(response):
                content += piece
                if len(content) > LARGEST_PAGE:
                    raise self._not_the_hub(f"an answer of more than {LARGEST_PAGE >> 20} MB")
            said = _NEXT.search(response.headers.get("link", ""))
            after = None if said is None else urljoin(url, said[1])
        if after is not None and _origin(after) != _origin(self.endpoint):
            after = None
        try:
            return parse_json(content, f"what {self.endpoint} says of {repo}"), after
        except BadFile as error:
            raise self._not_the_hub(str(error)) from error

    def _not_the_hub(self, why: str) -> HubError:
        return HubError(f"{self.endpoint} does not answer as the hub does ({why}). Check HF_ENDPOINT and any proxy.")

    @contextmanager
    def _answer(
        self, method: str, url: str, headers: dict[str, str], *, file: RepoFile | None = None, until: str = ""
    ) -> Iterator[Any]:
        """The answer at the end of all redirects, or the first with the header `until`; its body is not read yet."""
        if self.offline:
            raise HubError(
                f"offline mode is on (HF_HUB_OFFLINE), and {_host(url)} would have to be asked. "
                "Unset it, or name a model that the cache holds: 'toposcope ls models'."
            )
        from huggingface_hub.utils import get_session

        first = url
        for _ in range(MOST_REDIRECTS + 1):
            asked = {**headers, **self._credentials(url)}
            with (
                _network(url),
                get_session().stream(
                    method, url, headers=asked, follow_redirects=False, timeout=self._timeout
                ) as response,
            ):
                if response.status_code not in (301, 302, 303, 307, 308) or (until and until in response.headers):
                    yield response
                    return
                self._compare_link(response, file)
                url = self._next(url, response.headers.get("location", ""))
        raise HubError(f"{_host(first)} sends us in circles. Check HF_ENDPOINT and any proxy.")

    def _next(self, url: str, location: str) -> str:
        try:
            after = urljoin(url, location)
            parts = urlsplit(after)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            sound = False
        if not sound or not location or (url.startswith("https:") and not after.startswith("https:")):
            raise HubError(
                f"{_host(url)} sends us to '{printable(location, 80)}', which is not followed. "
                "Check HF_ENDPOINT and any proxy."
            )
        return after

    def _compare_link(self, response: Any, file: RepoFile | None) -> None:
        """A redirect to the store says which content lies there."""
        tag, size = _tag(response.headers.get("x-linked-etag")), response.headers.get("x-linked-size", "")
        if file is None:
            return
        if _is_other_content(tag, file) or (size and size != str(file.size)):
            raise _changed(file)

    def _credentials(self, url: str) -> dict[str, str]:
        secret = self._secret() if _origin(url) == _origin(self.endpoint) else None
        known = {"User-Agent": f"toposcope/{__version__}"}
        return known if secret is None else {**known, "Authorization": f"Bearer {secret}"}

    def _secret(self) -> str | None:
        if not self._token:
            from huggingface_hub import constants, get_token

            self._token.append(None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
        return self._token[0]

    def _refuse(self, response: Any, repo: str, revision: str) -> None:
        """Say in a sentence what an answer other than the one asked for means."""
        status, code = response.status_code, response.headers.get("x-error-code", "")
        said = response.headers.get("x-error-message", "")
        if status < 400:
            return
        if code == "RevisionNotFound":
            raise NotFound(
                f"{repo} on {self.endpoint} has no branch, tag or commit '{printable(revision, 60)}'. "
                f"Leave it out for the newest version, or look at {self.endpoint}/{repo}/tree/main."
            )
        if code == "EntryNotFound":
            raise NotFound(f"a file of {repo} at {printable(revision, 60)} is gone from {self.endpoint}. Try again.")
        if code == "GatedRepo":
            todo = (
                "your token has no access to it: ask for it there"
                if self.has_token
                else "log in with 'hf auth login', or set HF_TOKEN"
            )
            raise HubError(f"{repo} is gated: accept its terms at {self.endpoint}/{repo}, and {todo}.")
        if status == 401 and self.has_token and (code != "RepoNotFound" or "credentials" in said):
            raise HubError(
                f"{self.endpoint} does not accept your token (401). Log in again with 'hf auth login', or correct "
                "or unset HF_TOKEN."
            )
        if code == "RepoNotFound" or status in (401, 404):
            raise MissingRepoError(repo)
        if status in _LATER:
            raise _later(response)
        raise HubError(
            f"{self.endpoint} refuses {repo} ({status}{': ' + printable(said, 120) if said else ''}). "
            "Look at its page there; a token of another kind may be needed."
        )

    def _body(
        self, response: Any, key: tuple[str, str, str], file: RepoFile, start: int, end: int
    ) -> Iterator[bytes]:
        """What an answer brings of a range, once its headers say that it is that range of that file."""
        if response.status_code in _LATER:
            raise _later(response)
        upto = _range_end(response, key[0], file, start, end)
        tag = _tag(response.headers.get("etag"))
        if tag:
            with self._lock:
                before = self._tags.setdefault((*key, _origin(str(response.url))), tag)
            ours = _origin(str(response.url)) == _origin(self.endpoint)
            if before != tag or (ours and _is_other_content(tag, file)):
                raise _changed(file)
        at = start
        for piece in self._pieces(response):
            at += len(piece)
            if at > upto:
                raise _changed(file)
            yield piece
            if at == upto:
                return
        raise CutError(f"its answer ended after {at - start:,} of {upto - start:,} bytes")

    def _pieces(self, response: Any) -> Iterator[bytes]:
        for piece in response.iter_raw() if "content-encoding" not in response.headers else response.iter_bytes():
            with self._lock:
                self.received += len(piece)
            yield piece


def patiently(work: Callable[[], T], what: str) -> T:
    """The outcome of some work, tried again where a connection is cut, but not where there is none."""
    for tried in range(PATIENCE):
        try:
            return work()
        except UnreachableError:
            raise
        except CutError as cut:
            if tried == PATIENCE - 1:
                raise gave_up(what, cut) from cut
            rest(cut, tried)
    raise AssertionError("not reached")


def rest(cut: CutError, tried: int) -> None:
    """Wait before the next try: as long as the server asks for, else the longer the more often it failed."""
    time.sleep(min(MOST_PAUSE, max(cut.wait, PAUSE * 2**tried)) if PAUSE else 0)


def unreachable(name: object, error: UnreachableError) -> HubError:
    """The sentence for a hub that cannot be asked at all."""
    words = f"there is no path '{name}' here{_beside(Path(str(name)))}, and {error}."
    return HubError(
        f"{words} Check the network and HF_ENDPOINT; what 'toposcope ls models' lists can be read without a network."
    )


def _beside(path: Path) -> str:
    """What a path may have meant that is not there: it looks like the name of a model on the hub."""
    try:
        names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:
        names = []
    guess = nearest(path.name, names)
    return f" ({guess})" if guess else ""


def gave_up(what: str, cut: CutError) -> HubError:
    """The sentence for a connection that was tried often enough."""
    return HubError(
        f"{what} failed {PATIENCE} times in a row: {cut}. Check the network and start again: what has come is kept."
    )


def _later(response: Any) -> CutError:
    said = response.headers.get("retry-after", "")
    return CutError(f"it answers {response.status_code}", float(said) if said.isdigit() and len(said) < 6 else 0.0)


def _asking(file: RepoFile, start: int, end: int) -> dict[str, str]:
    whole = start == 0 and end == file.size
    return {"Accept-Encoding": "identity", **({} if whole else {"Range": f"bytes={start}-{end - 1}"})}


def _range_end(response: Any, repo: str, file: RepoFile, start: int, end: int) -> int:
    """Where the bytes end that an answer brings."""
    length = response.headers.get("content-length", "")
    if response.status_code == 200:
        if start == 0 and end == file.size:
            if length not in ("", str(file.size)):
                raise _changed(file)
            return end
        raise HubError(
            f"{_host(str(response.url))} answers with all of {printable(file.path)} where a range was asked for: "
            f"it, or a proxy, ignores ranges. Fetch the model whole with: hf download {repo}"
        )
    said = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.status_code == 416 or (said and said[3] not in ("*", str(file.size))):
        raise _changed(file)
    if response.status_code != 206 or said is None or int(said[1]) != start or not start <= int(said[2]) < end:
        raise HubError(
            f"{_host(str(response.url))} answers {response.status_code} with the range "
            f"'{printable(response.headers.get('content-range', 'none'), 60)}' where bytes {start}-{end - 1} of "
            f"{printable(file.path)} were asked for. Check HF_ENDPOINT and any proxy, or run: hf download {repo}"
        )
    return int(said[2]) + 1


def _changed(file: RepoFile) -> BadFile:
    return BadFile(
        f"{printable(file.path)} on the hub is no longer the file that was begun: its size or ETag changed, so two "
        "contents would be mixed. Start again."
    )


def _repo_file(entry: Any) -> RepoFile | None:
    """One line of a listing; None for a directory and for what cannot be a file of ours."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    path, large = entry.get("path"), entry.get("lfs")
    known = large if isinstance(large, dict) else entry
    size, content = known.get("size"), known.get("oid")
    if not isinstance(path, str) or not is_sound_file(path) or type(size) is not int or not 0 <= size < 1 << 50:
        return None
    if not isinstance(content, str) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", content):
        return None
    return RepoFile(path, size, content)


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Connections that fail become a `CutError`."""
    from huggingface_hub.errors import HfHubHTTPError

    library: Any = sys.modules[HfHubHTTPError.__bases__[0].__module__.partition(".")[0]]  # httpx, or its successor
    try:
        yield
    except library.ConnectError as error:
        raise UnreachableError(f"{_host(url)} cannot be reached ({printable(error, 120)})") from error
    except (library.HTTPError, library.InvalidURL, OSError) as error:
        raise CutError(f"{type(error).__name__}: {printable(error, 120) or 'no reason given'}") from error


def _is_other_content(tag: str, file: RepoFile) -> bool:
    """Whether an ETag is the sha256 of another content than that of a large file; other tags say nothing of it."""
    return len(tag) == len(file.content) == 64 and tag != file.content


def _tag(header: str | None) -> str:
    return (header or "").removeprefix("W/").strip('"')


def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _host(url: str) -> str:
    parts = urlsplit(url)
    return printable(f"{parts.hostname}{f':{parts.port}' if parts.port else ''}", 100)
