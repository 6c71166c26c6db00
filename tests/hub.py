"""A hub of our own at 127.0.0.1 for tests: it serves directories as models, counts bytes, and misbehaves when told.

with Hub(tmp_path / "served") as hub:      # served/org/name/ is the model org/name
    hub.redirects = True                   # large files come from a second server, as from a CDN
    ...
    hub.sent["model.safetensors"]          # bytes of bodies, by file
    hub.tokens                             # Authorization headers, by host
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".gguf", ".bin")
Range = tuple[int, int]


@dataclass
class Hub:
    """The server, its CDN, what they were asked for, and what they do wrong."""

    root: Path
    redirects: bool = False  # large files are on the CDN
    commits: dict[str, str] = field(default_factory=dict)  # by revision; 'main' is there from the beginning
    token: str | None = None  # the one that is right; any other is refused
    gated: frozenset[str] = frozenset()  # models that want it
    granted: bool = True  # whether the right token opens them
    ignore_ranges: bool = False
    shorten: int | None = None  # answers hold at most so many bytes, though they announce more, and then again
    cuts: int = 0  # connections that are cut,
    cut_after: int = 1000  # after so many bytes of a large file
    tags: list[str] = field(default_factory=list)  # ETags of the next answers with large files
    trouble: list[int] = field(default_factory=list)  # statuses of the next answers,
    wait: str = ""  # and after how many seconds to ask again
    redirect_to: str | None = None  # where large files are said to be instead
    page: int | None = None  # files on a page of the listing
    slow: float = 0.0  # seconds before each answer with a large file
    lengthen: bytes = b""  # that comes after each file, and is not announced

    sent: Counter[str] = field(default_factory=Counter)  # bytes of bodies, by file
    ranges: dict[str, list[Range]] = field(default_factory=lambda: defaultdict(list))  # that were sent
    requests: list[str] = field(default_factory=list)
    tokens: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by host

    def __post_init__(self) -> None:
        self.commits.setdefault("main", "a" * 40)
        self._lock = threading.Lock()
        self._hub, self._cdn = (_Server(("127.0.0.1", 0), _handler(self, cdn)) for cdn in (False, True))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_address[1]}"

    @property
    def cdn(self) -> str:
        return f"http://localhost:{self._cdn.server_address[1]}"

    @property
    def bytes(self) -> int:
        """All bytes of bodies that were sent."""
        return sum(self.sent.values())

    def forget(self) -> None:
        """Count from 0 again."""
        self.sent.clear()
        self.ranges.clear()
        self.requests.clear()
        self.tokens.clear()

    def __enter__(self) -> Hub:
        for server in (self._hub, self._cdn):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Be gone: connections are refused from now on."""
        for server in (self._hub, self._cdn):
            server.shutdown()
            server.server_close()
        from huggingface_hub.utils import close_session

        close_session()  # or it would go on with the connections that it holds

    def note(self, name: str, start: int, count: int) -> None:
        with self._lock:
            self.sent[name] += count
            if count:
                self.ranges[name].append((start, start + count))

    def take(self, what: list[Any]) -> Any:
        with self._lock:
            return what.pop(0) if what else None

    def twice(self, name: str) -> int:
        """How many bytes of a file were sent more than once."""
        distinct, end = 0, 0
        for start, stop in sorted(self.ranges[name]):
            distinct += max(0, stop - max(start, end))
            end = max(end, stop)
        return sum(stop - start for start, stop in self.ranges[name]) - distinct


def content_hash(path: Path) -> str:
    """What the hub calls a file's content: sha256 of large ones, git's hash of others."""
    status = path.stat()
    return _hashed(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(256)
def _hashed(path: Path, size: int, changed: int) -> str:
    content = path.read_bytes()
    if path.suffix in LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def used(hub: Hub, place: Path, monkeypatch: pytest.MonkeyPatch, token: str | None = None) -> Iterator[None]:
    """Have Toposcope and huggingface_hub use this hub, and caches under `place`, as if the user had set them."""
    from huggingface_hub import constants

    saved, home = place / "huggingface", place / "home"
    for name, value in {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(saved),
        "HF_HUB_OFFLINE": "0",
        "TOPOSCOPE_CACHE": str(place / "toposcope"),
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    # the library has read its environment already
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(saved))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setattr("toposcope.checkpoints.hub.http.PAUSE", 0.0)
    yield


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up, does."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(hub: Hub, cdn: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        server_hub = hub
        is_cdn = cdn

    return Handler


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    is_cdn: bool
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._go()

    def do_GET(self) -> None:
        self._go()

    def _go(self) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path)
        host = "cdn" if self.is_cdn else "hub"
        hub.requests.append(f"{self.command} {host} {path} {self.headers.get('Range', '')}".strip())
        if (secret := self.headers.get("Authorization")) is not None:
            hub.tokens[host].add(secret)
        status = hub.take(hub.trouble) if self.command == "GET" else None
        if status is not None:
            return self._answer(status, **({"Retry-After": hub.wait} if hub.wait else {}))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self.is_cdn:
            return self._file(hub.root / "/".join(parts[1:]), parts[1:])
        if parts[:2] == ["api", "models"]:
            return self._interface("/".join(parts[2:4]), parts[4:])
        return self._resolve("/".join(parts[:2]), parts[2:])

    def _refused(self, repo: str) -> bool:
        """Whether the asker may not have this model."""
        hub, given = self.server_hub, self.headers.get("Authorization")
        if given is not None and hub.token is not None and given != f"Bearer {hub.token}":
            said = "Invalid credentials in Authorization header"
            self._answer(401, **{"X-Error-Message": said})
        elif not (hub.root / repo).is_dir():
            self._answer(404 if given else 401, **{"X-Error-Code": "RepoNotFound"})
        elif repo in hub.gated and "resolve" in self.path and (given is None or not hub.granted):
            self._answer(401 if given is None else 403, **{"X-Error-Code": "GatedRepo"})
        else:
            return False
        return True

    def _interface(self, repo: str, rest: list[str]) -> None:
        if self._refused(repo):
            return None
        hub = self.server_hub
        commit = self._commit("/".join(rest[1:]) or "main")
        if commit is None:
            return None
        files = sorted(path for path in (hub.root / repo).rglob("*") if path.is_file())
        if not rest or rest[0] == "revision":
            siblings = [{"rfilename": path.relative_to(hub.root / repo).as_posix()} for path in files]
            found: Any = {
                "id": repo,
                "modelId": repo,
                "sha": commit,
                "siblings": siblings,
                "tags": [],
                "private": False,
            }
            return self._answer(200, json.dumps(found).encode(), name="api", **{"Content-Type": "application/json"})
        listed = []
        for path in files:
            name, size, known = path.relative_to(hub.root / repo).as_posix(), path.stat().st_size, content_hash(path)
            large = {"lfs": {"oid": known, "size": size, "pointerSize": 130}} if path.suffix in LARGE else {}
            listed.append({"type": "file", "path": name, "size": size, "oid": "b" * 40 if large else known, **large})
        query = dict(part.split("=") for part in urlsplit(self.path).query.split("&") if "=" in part)
        first = int(query.get("cursor", 0))
        last = first + (hub.page or len(listed))
        after = f'<{hub.endpoint}{urlsplit(self.path).path}?recursive=true&cursor={last}>; rel="next"'
        more = {"Link": after} if last < len(listed) else {}
        content = json.dumps(listed[first:last]).encode()
        return self._answer(200, content, name="api", **{"Content-Type": "application/json", **more})

    def _commit(self, revision: str) -> str | None:
        hub = self.server_hub
        found = hub.commits.get(revision, revision if revision in hub.commits.values() else None)
        if found is None:
            self._answer(404, **{"X-Error-Code": "RevisionNotFound"})
        return found

    def _resolve(self, repo: str, rest: list[str]) -> None:
        if self._refused(repo):
            return None
        if len(rest) < 3 or rest[0] != "resolve":
            return self._answer(404)
        hub, commit = self.server_hub, self._commit(rest[1])
        if commit is None:
            return None
        path, told = hub.root / repo / "/".join(rest[2:]), {"X-Repo-Commit": commit}
        if not path.is_file():
            return self._answer(404, **{"X-Error-Code": "EntryNotFound"}, **told)
        if path.suffix in LARGE and (hub.redirects or hub.redirect_to is not None):
            to = hub.redirect_to or f"{hub.cdn}/cdn/{repo}/{'/'.join(rest[2:])}"
            linked = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-Etag": f'"{content_hash(path)}"'}
            return self._answer(302, Location=to, ETag='"other"', **linked, **told)
        return self._file(path, rest[2:], **told)

    def _file(self, path: Path, parts: list[str], **headers: str) -> None:
        hub, name, size = self.server_hub, path.name, path.stat().st_size
        large = path.suffix in LARGE
        tag = (hub.take(hub.tags) if large and self.command == "GET" else None) or content_hash(path)
        headers |= {"ETag": f'"{tag}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None or self.command == "HEAD" or hub.ignore_ranges:
            return self._answer(200, path.read_bytes(), name=name, **headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or size), size - 1) + 1
        if start >= size:
            return self._answer(416, **{"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        with path.open("rb") as file:
            file.seek(start)
            return self._answer(206, file.read(end - start), start=start, name=name, **headers)

    def _answer(self, status: int, content: bytes = b"", *, start: int = 0, name: str = "", **headers: str) -> None:
        hub, large = self.server_hub, name.endswith(LARGE)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if not (hub.lengthen and name and name != "api"):
            self.send_header("Content-Length", str(len(content)))
        else:
            content += hub.lengthen
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        upto = len(content)
        if large and status == 206:
            if hub.shorten is not None:
                upto = min(upto, hub.shorten)
            with hub._lock:
                if hub.cuts > 0:
                    hub.cuts -= 1
                    upto = min(upto, hub.cut_after)
        if large and hub.slow:
            time.sleep(hub.slow)
        hub.note(name, start, upto)  # before: the asker may be quicker than we are
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[:upto])
            self.wfile.flush()
        if upto < len(content):
            self.close_connection = True
