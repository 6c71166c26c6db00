"""Connections that wait, drip or do not read, against a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn

from toposcope.web import connections
from toposcope.web.connections import Connection
from toposcope.web.guard import Receive, Scope, Send
from toposcope.web.server import listen

GET = b"GET /%s HTTP/1.1\r\nHost: here\r\n\r\n"
LARGE = 32 * 2**20
PATIENCE = 0.8


class Served:
    """A server in a thread of its own: /large sends much, /slow waits for `let_go`, all else answers at once."""

    def __init__(self) -> None:
        self.listening = listen("127.0.0.1", 0)
        self.address = self.listening.getsockname()
        config = uvicorn.Config(
            self.app, http=Connection, interface="asgi3", lifespan="off", log_level="error", ws="none"
        )
        self.server = uvicorn.Server(config)
        self.slow, self.let_go = 0, threading.Event()
        self.failed: list[Exception] = []
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]})
        self.thread.start()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.slow += scope["path"] == "/slow"
        while scope["path"] == "/slow" and not self.let_go.is_set():
            await asyncio.sleep(0.01)
        body = bytes(LARGE) if scope["path"] == "/large" else b"here"
        headers = [(b"content-length", str(len(body)).encode())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        except Exception as error:
            self.failed.append(error)
            raise

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=5)

    def open_connections(self) -> int:
        return len(self.server.server_state.connections)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name in ("HEADERS", "IDLE", "STALL"):
        monkeypatch.setattr(connections, name, PATIENCE)
    made = Served()
    yield made
    made.let_go.set()
    made.server.should_exit = True
    made.thread.join(10)
    assert not made.thread.is_alive()
    assert made.failed == []


def ends(connection: socket.socket, within: float = 5) -> float:
    """The seconds until the other side has ended the connection; what it sends before is thrown away."""
    began = time.monotonic()
    connection.settimeout(within)
    try:
        while connection.recv(2**20):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began


def reads(connection: socket.socket) -> bytes:
    """An answer of four bytes."""
    found = b""
    while not found.endswith(b"\r\n\r\nhere"):
        part = connection.recv(1000)
        assert part
        found += part
    return found


def test_silence_ends(served: Served) -> None:
    with served.connect() as silent:
        assert PATIENCE * 0.9 < ends(silent) < PATIENCE + 2


@pytest.mark.parametrize("first", [b"", GET % b"x"], ids=["a new connection", "a kept one"])
def test_headers_letter_by_letter_end(served: Served, first: bytes) -> None:
    with served.connect() as slow:
        if first:
            slow.sendall(first)
            assert reads(slow).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        try:
            while time.monotonic() - began < 5:
                slow.sendall(b"G")
                time.sleep(0.02)
        except OSError:  # reset, or a broken pipe
            assert time.monotonic() - began < PATIENCE + 2
        else:
            pytest.fail("headers may take for ever")


def test_a_kept_connection_serves_again_and_ends(served: Served) -> None:
    with served.connect() as kept:
        for _ in range(4):
            kept.sendall(GET % b"x")
            assert reads(kept).startswith(b"HTTP/1.1 200")
            time.sleep(PATIENCE / 2)
        assert ends(kept) < PATIENCE + 2


def test_requests_sent_ahead_are_answered(served: Served) -> None:
    with served.connect() as eager:
        eager.sendall(3 * (GET % b"x"))
        found = b""
        while found.count(b"HTTP/1.1 200") < 3:
            part = eager.recv(1000)
            assert part
            found += part


def test_an_answer_that_takes_long_is_no_silence(served: Served) -> None:
    with served.connect() as patient:
        patient.sendall(GET % b"slow")
        time.sleep(3 * PATIENCE)
        served.let_go.set()
        assert reads(patient).startswith(b"HTTP/1.1 200")


def test_an_answer_that_is_not_read_ends(served: Served) -> None:
    with served.connect() as greedy:
        greedy.sendall(GET % b"large")
        began = time.monotonic()
        while served.open_connections():
            assert time.monotonic() - began < 5
            time.sleep(0.02)


def test_an_answer_that_is_read_steadily_arrives(served: Served) -> None:
    with served.connect() as steady:
        steady.sendall(GET % b"large")
        found, began = 0, time.monotonic()
        while found < LARGE:
            part = steady.recv(2**18)
            assert part
            found += len(part)
            time.sleep(0.02)
        assert time.monotonic() - began > 2 * PATIENCE  # longer than any one limit


def test_the_oldest_goes_where_too_many_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS", "IDLE"):
        monkeypatch.setattr(connections, name, 60)
    monkeypatch.setattr(connections, "PER_ADDRESS", 10)
    with ExitStack() as stack:
        answering = stack.enter_context(served.connect())
        answering.sendall(GET % b"slow")
        while not served.slow:
            time.sleep(0.01)
        waiting = [stack.enter_context(served.connect()) for _ in range(30)]
        for old in waiting[:20]:
            assert ends(old) < 2
        for young in waiting[20:]:  # each is answered, and none is pushed out by that
            young.sendall(GET % b"x")
            assert reads(young).startswith(b"HTTP/1.1 200")
        served.let_go.set()
        assert reads(answering).startswith(b"HTTP/1.1 200")


def test_the_address_that_has_most_goes_first(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS", 60)
    monkeypatch.setattr(connections, "ALTOGETHER", 10)
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(served.address, 5, source_address=("127.0.0.2", 0)))
        for _ in range(30):
            stack.enter_context(served.connect())
        first.sendall(GET % b"x")
        assert reads(first).startswith(b"HTTP/1.1 200")


def test_nonsense_after_the_headers_is_no_exception(served: Served) -> None:
    with served.connect() as broken:
        broken.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n")
        assert ends(broken) < 2


def test_headers_without_end_are_refused(served: Served) -> None:
    with served.connect() as large:
        large.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2**16)
        assert large.recv(100).startswith(b"HTTP/1.1 400")
