"""What stands before every page: who may ask, how much, and what a browser may do with the answer.

* Host: a page of another site can make a name of its own point at 127.0.0.1 (DNS rebinding) and would then be of the
  same origin as this server; its requests carry that name in `Host`, so only our own names are answered.
* Other sites: a browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); only our own pages may use the
  data behind them, and other sites may at most link to a page.
* Token: the first address holds a token, which moves to a cookie; all users of a machine can reach its 127.0.0.1.
* Size: GET and HEAD only, no body, short addresses, so many requests at a time.
* Headers: a Content-Security-Policy without inline code or other sites, no framing, no referrer, no sniffing. Scripts
  and styles come from /static/ only, where all files are ours.

Whoever is refused gets one sentence, and the connection ends.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST_QUERY = 4096
LONGEST_PATH = 300
MOST_REQUESTS = 64  # answered at a time
RUN = ("script", "style", "worker", "sharedworker", "serviceworker", "xslt", "embed", "object")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """An ASGI application that answers for another one only what may be answered."""

    def __init__(
        self, app: App, *, port: int, names: tuple[str, ...] = (), any_address: bool = False, token: str | None = None
    ):
        self._app = app
        self._hosts = {f"{name.lower()}:{port}" for name in (*LOOPBACK, *names)}
        if port == 80:
            self._hosts |= {name.lower() for name in (*LOOPBACK, *names)}
        self._port, self._any_address, self._token = port, any_address, token
        self._cookie = f"toposcope_{port}"
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        send = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, scope, *refusal)
        elif self._token is None or await self._has_token(scope, send, self._token):
            await self._admit(scope, receive, send)

    # ---------------------------------------------------------------- inside
    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = _headers(scope)
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._known(hosts[0].lower()):
            return 421, "this server answers only to its own address; open the one it printed."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, f"the method {scope['method'][:20]} is not used here; everything is read by GET."
        if headers.get("transfer-encoding") or any(
            value.strip() != "0" for value in headers.get("content-length", [])
        ):
            return 413, "no request here has a body."
        if len(scope.get("query_string", b"")) > LONGEST_QUERY:
            return 414, f"the address has too many parameters; at most {LONGEST_QUERY} characters are read."
        if len(scope.get("raw_path", b"") or scope["path"].encode()) > LONGEST_PATH:
            return 414, f"the path is too long; at most {LONGEST_PATH} characters are read."
        if not self._from_here(headers, scope):
            return 403, "a page of another site asked for this; open it here instead."
        if headers.get("sec-fetch-dest", ["document"])[0] in RUN and not scope["path"].startswith("/static/"):
            return 403, "this is no script or style."
        return None

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._requests >= MOST_REQUESTS:
            await _answer(send, scope, 503, f"{MOST_REQUESTS} requests are being answered; try again in a moment.")
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1

    def _known(self, host: str) -> bool:
        if host in self._hosts:
            return True
        if not self._any_address:
            return False
        name, _, port = host.rpartition(":")
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return port == str(self._port)

    def _from_here(self, headers: dict[str, list[str]], scope: Scope) -> bool:
        host = headers["host"][0].lower()
        if any(origin.lower() != f"http://{host}" for origin in headers.get("origin", [])):
            return False
        site = headers.get("sec-fetch-site", ["none"])[0]
        if site in ("same-origin", "none"):
            return True
        link = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
        return link and not scope["path"].startswith("/api/")

    async def _has_token(self, scope: Scope, send: Send, token: str) -> bool:
        """Whether the asker holds the token; where not, the answer is sent from here."""
        headers = _headers(scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if headers.get("sec-fetch-site", ["none"])[0] not in ("same-origin", "none"):
            # A link on a page of another site: the browser keeps the cookie back until one of our own pages asks.
            await _ask_again(send, scope, _place(scope, query))
            return False
        shown = [value for name, value in query if name == "token"]
        if not shown:
            if _same(_cookies(headers).get(self._cookie, ""), token):
                return True
            words = (
                "this server asks for a token: open the whole address that 'toposcope serve' printed in its terminal."
            )
            await _answer(send, scope, 403, words)
            return False
        if len(shown) != 1 or not _same(shown[0], token):
            words = "the token in this address is wrong: open the one that 'toposcope serve' printed in its terminal."
            await _answer(send, scope, 403, words)
            return False
        place = _place(scope, [pair for pair in query if pair[0] != "token"])
        cookie = f"{self._cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
        moved = [(b"location", place.encode()), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": moved})
        await send({"type": "http.response.body", "body": b""})
        return False


def _place(scope: Scope, query: list[tuple[str, str]]) -> str:
    """The address of a request on this server; a path that begins with two slashes would be another site's."""
    path = "/" + quote(scope["path"].lstrip("/\\"))
    return f"{path}?{urlencode(query)}" if query else path


async def _ask_again(send: Send, scope: Scope, place: str) -> None:
    """A page of our own that asks for a place here."""
    shown = html.escape(place)
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={shown}"><title>Toposcope</title>'
    await _send(send, scope, 200, b"text/html; charset=utf-8", f'{page}<a href="{shown}">Toposcope</a>'.encode())


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sent


async def _answer(send: Send, scope: Scope, status: int, words: str) -> None:
    """A sentence, and the end of the connection."""
    more = [(b"connection", b"close")]
    if status == 405:
        more.append((b"allow", b"GET, HEAD"))
    if status == 503:
        more.append((b"retry-after", b"1"))
    if scope["path"].startswith("/api/"):
        await _send(send, scope, status, b"application/json", json.dumps({"error": words}).encode(), more)
    else:
        await _send(send, scope, status, b"text/plain; charset=utf-8", f"toposcope: {words}\n".encode(), more)


async def _send(
    send: Send, scope: Scope, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return found


def _cookies(headers: dict[str, list[str]]) -> dict[str, str]:
    pairs = (part.partition("=") for line in headers.get("cookie", []) for part in line.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
