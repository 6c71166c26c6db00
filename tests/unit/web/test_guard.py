"""Who may ask, how much, and what a browser may do with the answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.unit.web.making import PORT, make_client
from toposcope.web import guard
from toposcope.web.guard import Guard

PAGES = ("/", "/encoding", "/api/encoding", "/static/web.css", "/nowhere", "/api/encoding?context=nan")


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "[::1]:8123", "LOCALHOST:8123"])
def test_own_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:8123",
     "127.0.0.1:8123.evil", "192.168.0.5:8123", "0.0.0.0:8123", "", "127.0.0.1:8123@evil.example", "2130706433:8123"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/web.css"])
def test_other_names_are_not(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"host": host})
    assert answer.status_code == 421
    assert "address" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_only_reading(client: TestClient, method: str) -> None:
    answer = client.request(method, "/api/encoding")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert "access-control-allow-origin" not in answer.headers


def test_head_has_headers_and_no_body(client: TestClient) -> None:
    answer = client.head("/encoding")
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["content-type"].startswith("text/html")


def test_no_bodies(client: TestClient) -> None:
    assert client.request("GET", "/", content=b"x" * 10).status_code == 413
    assert client.request("GET", "/", content=iter([b"x"])).status_code == 413


def test_sizes(client: TestClient) -> None:
    assert client.get("/api/encoding?encoding=" + "a" * 5000).status_code == 414
    assert client.get("/" + "a" * 400).status_code == 414
    assert client.get("/api/encoding?encoding=" + "a" * 1000).status_code == 400


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"origin": "http://evil.example"}, "/", 403),
        ({"origin": "null"}, "/api/runs", 403),
        ({"origin": f"http://127.0.0.1:{PORT}"}, "/api/runs", 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, "/api/flow", 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, "/api/runs", 403),
        (
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
            "/api/flow",
            403,
        ),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, "/", 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, "/", 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, "/api/runs", 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, "/", 200),
    ],
)
def test_other_sites(client: TestClient, headers: dict[str, str], path: str, status: int) -> None:
    assert client.get(path, headers=headers).status_code == status


@pytest.mark.parametrize("path", PAGES)
def test_headers_of_every_answer(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_no_web_sockets(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect) as ended, client.websocket_connect("/api/flow"):
        pass
    assert ended.value.code == 1008


# ---------------------------------------------------------------- the token
SECRET = "s3cret-token-of-the-test"


@pytest.fixture
def guarded(tmp_path: Path) -> TestClient:
    return make_client(tmp_path, token=SECRET)


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/static/web.css", "/?token=wrong", "/?token=", f"/?token={SECRET}&token=x"]
)
def test_nothing_without_the_token(guarded: TestClient, path: str) -> None:
    answer = guarded.get(path, follow_redirects=False)
    assert answer.status_code == 403
    assert SECRET not in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("cookie", ["wrong", SECRET[:-1], SECRET + "x", ""])
def test_a_wrong_cookie_is_refused(guarded: TestClient, cookie: str) -> None:
    answer = guarded.get("/", headers={"cookie": f"toposcope_{PORT}={cookie}"})
    assert answer.status_code == 403


def test_the_token_moves_to_a_cookie(guarded: TestClient) -> None:
    answer = guarded.get(f"/encoding?token={SECRET}&context=64", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/encoding?context=64"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    held = {"cookie": cookie.split(";")[0]}
    assert guarded.get("/", headers=held).status_code == 200
    assert guarded.get("/api/runs", headers=held).status_code == 200
    assert guarded.get("/", headers={**held, "host": "192.0.2.7:8123"}).status_code == 200
    assert guarded.get("/", headers={**held, "host": "evil.example:8123"}).status_code == 421


@pytest.mark.parametrize("path", ["//evil.example/x", "/%2Fevil.example/x", "/%5Cevil.example/x"])
def test_the_redirect_stays_here(guarded: TestClient, path: str) -> None:
    answer = guarded.get(f"{path}?token={SECRET}", follow_redirects=False)
    place = answer.headers.get("location", "/")
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))


@pytest.mark.parametrize("path", ["/%0d%0aSet-Cookie:%20a=b", "/%E2%82%AC/x", "/a%22%3E"])
def test_the_redirect_is_a_plain_address(guarded: TestClient, path: str) -> None:
    answer = guarded.get(f"{path}?a=%0d%0ab&token={SECRET}", follow_redirects=False)
    assert answer.status_code == 303
    place = answer.headers["location"]
    assert place.isascii()
    assert place.isprintable()
    assert not set(place) & set('"<> ')
    assert set(answer.headers.get_list("set-cookie")) == {answer.headers["set-cookie"]}


LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/", "/"),
        ("/encoding?context=64&encoding=%22%3E%3Cscript%3E", "/encoding?context=64&amp;encoding=%22%3E%3Cscript%3E"),
        (f"/flow?token={SECRET}", f"/flow?token={SECRET}"),
        ("/%2Fevil.example/x", "/evil.example/x"),
        ("/%5C%5Cevil.example", "/evil.example"),
    ],
)
def test_a_link_from_elsewhere_asks_again_from_here(guarded: TestClient, site: str, path: str, place: str) -> None:
    """The browser holds back a strict cookie until a page of ours asks."""
    answer = guarded.get(path, headers={**LINK, "sec-fetch-site": site}, follow_redirects=False)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert f'http-equiv="refresh" content="0;url={place}"' in answer.text
    assert answer.text.count("<") == 6  # nothing but what we wrote


@pytest.mark.parametrize("path", ["/", "/encoding", "/api/results/r0", "/results/r0/report"])
@pytest.mark.parametrize("kind", ["script", "style", "worker"])
def test_only_our_files_are_scripts(client: TestClient, path: str, kind: str) -> None:
    """What a policy calls 'self' is /static/ alone."""
    headers = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "no-cors", "sec-fetch-dest": kind}
    assert client.get(path, headers=headers).status_code == 403
    assert client.get("/static/page.js", headers=headers).status_code == 200


def test_so_many_requests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many gets a sentence; who holds no token never takes a place; places become free again."""
    monkeypatch.setattr(guard, "MOST_REQUESTS", 2)

    async def ask(served: Guard, path: str, cookie: str = "") -> int:
        said: list[Any] = []
        headers = [(b"host", b"127.0.0.1:8123"), (b"cookie", cookie.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}

        async def send(message: Any) -> None:
            said.append(message)

        await served(scope, None, send)  # type: ignore[arg-type]
        return int(said[0]["status"])

    async def play() -> None:
        gate = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/broken":
                raise ZeroDivisionError
            await gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        served = Guard(app, port=8123, token=SECRET)
        cookie = f"toposcope_8123={SECRET}"
        assert [await ask(served, "/") for _ in range(5)] == [403] * 5
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await ask(served, "/broken", cookie)
        two = [asyncio.create_task(ask(served, "/", cookie)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await ask(served, "/", cookie) == 503
        assert await ask(served, "/") == 403
        gate.set()
        assert [await each for each in two] == [200, 200]
        assert await ask(served, "/", cookie) == 200

    with ThreadPoolExecutor(1) as pool:  # a browser of another test may have left its loop in this thread
        pool.submit(asyncio.run, play()).result()


def test_who_is_refused_is_not_kept(client: TestClient, guarded: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).headers["connection"] == "close"
    assert guarded.get("/").headers["connection"] == "close"
    assert client.post("/").headers["connection"] == "close"
    assert "connection" not in client.get("/").headers
