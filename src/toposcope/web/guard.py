"""What stands before every page: who may ask, how much, and what a browser may do with the answer.

* Host: a page of another site can make a name of its own point at 127.0.0.1 (DNS rebinding) and would then be of the
  same origin as this server; its requests carry that name in `Host`, so only our own names are answered.
* Other sites: a browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); only our own pages may use the
  data behind them, and other sites may at most link to a page.
* Size: GET and HEAD only, no body, short addresses.
* Token: when the server can be reached from other machines, the first address holds a token, which moves to a cookie.
* Headers: a Content-Security-Policy without inline code or other sites, no framing, no referrer, no sniffing.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LONGEST_QUERY = 4096
LONGEST_PATH = 300
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        guarded = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            status, words = refusal
            await _answer(guarded, scope, status, words)
            return
        if self._token is not None:
            await self._with_token(scope, receive, guarded, self._token)
            return
        await self._app(scope, receive, guarded)

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
        return None

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

    async def _with_token(self, scope: Scope, receive: Receive, send: Send, token: str) -> None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in query if name == "token"]
        if shown:
            if len(shown) != 1 or not _same(shown[0], token):
                await _answer(
                    send, scope, 403, "the token in this address is wrong; open the one the server printed."
                )
                return
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            cookie = f"{self._cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
            # A path that begins with two slashes would be another site's address.
            place = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
            headers = [
                (b"location", place.encode("ascii", "replace")),
                (b"set-cookie", cookie.encode()),
                (b"content-length", b"0"),
            ]
            await send({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        held = _cookies(_headers(scope)).get(self._cookie, "")
        if not _same(held, token):
            await _answer(send, scope, 403, "this server needs a token; open the whole address it printed.")
            return
        await self._app(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sent


async def _answer(send: Send, scope: Scope, status: int, words: str) -> None:
    if scope["path"].startswith("/api/"):
        kind, body = b"application/json", json.dumps({"error": words}).encode()
    else:
        kind, body = b"text/plain; charset=utf-8", f"toposcope: {words}\n".encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    if status in (413, 405):
        headers.append((b"connection", b"close"))
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
