"""Who may ask, how much, and what a browser may do with the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.unit.web.making import PORT, make_client

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
    assert "its own address" in answer.text


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


def test_the_redirect_stays_here(guarded: TestClient) -> None:
    answer = guarded.get(f"//evil.example/x?token={SECRET}", follow_redirects=False)
    place = answer.headers.get("location", "/")
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))
