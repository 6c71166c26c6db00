"""The command as a user runs it: address, ports, the end, and the token on other addresses."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from tests.unit.tiny import write_llama
from tests.unit.web.running import Visitor, running
from toposcope.core.errors import BadValue, NotFound
from toposcope.web.server import DEFAULT_PORT, Address, is_loopback, listen, opened, serve


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_whole_life(tmp_path: Path) -> None:
    port = free_port()
    write_llama(tmp_path / "model")
    with running(tmp_path, str(tmp_path / "model"), "--port", str(port)) as (process, url):
        visitor = Visitor(url)
        assert visitor.place == f"http://127.0.0.1:{port}"
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", "/api/encoding?context=64", headers=visitor.headers)
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["context"] == 64
            connection.request("GET", "/api/models/model/scan", headers=visitor.headers)
            assert connection.getresponse().read()
        with socket.create_connection(("127.0.0.1", port)) as raw:  # no Host at all, as HTTP/1.0 allows
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b" 421 " in raw.recv(200)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert out.strip().endswith("Stopped.")
        assert "Traceback" not in err


def test_the_end_does_not_wait_for_what_is_queued(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as (process, url), ExitStack() as stack:
        visitor = Visitor(url)
        long = "/api/encoding?encoding=xpos&head_dim=256&settled=1&context="
        for i in range(60):  # about a second each, one after the other
            asked = stack.enter_context(closing(http.client.HTTPConnection(visitor.host, visitor.port, timeout=20)))
            asked.request("GET", f"{long}{131072 - i}", headers=visitor.headers)
        assert visitor.ask("/runs")[0] == 200
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert process.returncode == 0


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as other:
        port = int(other.getsockname()[1])
        with pytest.raises(BadValue, match=f"port {port} is in use.*--port 0 takes the next free one"):
            serve([], port=port, store=tmp_path)


def test_port_0_takes_the_next_free_one() -> None:
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", 0) as second:
        one, two = first.getsockname()[1], second.getsockname()[1]
        assert DEFAULT_PORT <= one < two


def test_answers_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as made:  # asyncio sets TCP_NODELAY only on sockets that name their protocol
        assert made.proto == socket.IPPROTO_TCP


def test_a_foreign_address_is_refused_in_words() -> None:
    host = "203.0.113.1"
    with pytest.raises(BadValue, match=re.escape(host)):
        listen(host, 0)


@pytest.mark.parametrize("target", ["no-such-model", "missing.json"])
def test_wrong_arguments_end_before_anything_is_told(tmp_path: Path, target: str) -> None:
    with pytest.raises(NotFound, match=target):
        serve([target], port=0, store=tmp_path, started=lambda address: pytest.fail("it started"))


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.1.2.3", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_other_addresses_need_the_token(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "--host", "0.0.0.0", "--port", str(port)) as (_, url):
        token = url.partition("?token=")[2]
        assert len(token) >= 40
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("GET", "/")
            refused = connection.getresponse()
            assert refused.status == 403
            assert token not in refused.read().decode()
            connection.request("GET", f"/runs?token={token}")
            moved = connection.getresponse()
            moved.read()
            assert moved.status == 303
            connection.request("GET", "/runs", headers={"Cookie": moved.headers["set-cookie"].split(";")[0]})
            held = connection.getresponse()
            assert held.read()
            assert held.status == 200


def test_addresses_as_printed() -> None:
    assert Address("127.0.0.1", 81, None).url == "http://127.0.0.1:81/"
    assert Address("::1", 81, None).url == "http://[::1]:81/"
    assert Address("0.0.0.0", 81, "t").url == f"http://{socket.gethostname()}:81/?token=t"


def test_a_token_on_every_address_and_none_where_it_is_not_wanted(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0", "--host", "127.1.2.3") as (_, url):
        visitor = Visitor(url)
        assert (visitor.host, len(visitor.token)) == ("127.1.2.3", 43)
        assert visitor.ask("/runs")[0] == 200
    with running(tmp_path, "--port", "0", "--no-token") as (_, url):
        visitor = Visitor(url)
        assert visitor.token == ""
        assert visitor.ask("/runs")[0] == 200


def test_other_machines_always_need_the_token() -> None:
    with pytest.raises(BadValue, match="--no-token"):
        serve([], host="0.0.0.0", port=0, token=False, started=lambda address: pytest.fail("it started"))


def test_the_browser_is_sent_to_a_private_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users of a machine can read the arguments of the browser: the token is not among them."""
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    address = Address("127.0.0.1", 81, "secret")
    with opened(address):
        (only,) = asked
        assert "secret" not in only
        place = Path(url2pathname(urlsplit(only).path))
        assert f"url={address.url}" in place.read_text()
        assert place.parent.stat().st_mode & 0o077 == 0
    assert not place.exists()
