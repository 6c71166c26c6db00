"""The local page as others on the machine would treat it (lines 5, 6 and 10)."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.tiny import write_llama
from tests.unit.web.making import write_spectrum
from tests.unit.web.running import Visitor, running

SILENT = 200


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    place = tmp_path_factory.mktemp("server")
    write_llama(place / "model")
    with running(place, str(place / "model"), "--port", "0") as (_, url):
        yield Visitor(url)


def answered(visitor: Visitor, path: str) -> tuple[int, float]:
    """Status, and the seconds from the wish to connect to the last byte."""
    began = time.perf_counter()
    status, _, _ = visitor.ask(path)
    return status, time.perf_counter() - began


# ---------------------------------------------------------------- 6: silence
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "], ids=["nothing", "headers"])
def test_6_silent_connections_do_not_lock_the_page(visitor: Visitor, said: bytes) -> None:
    with ExitStack() as stack:
        silent = []
        for _ in range(SILENT):
            silent.append(stack.enter_context(socket.create_connection((visitor.host, visitor.port), timeout=10)))
            silent[-1].sendall(said)
        for path in ("/", "/api/encoding?context=64", "/static/web.css", "/"):
            status, seconds = answered(visitor, path)
            assert status == 200
            assert seconds < 1
            for each in silent:
                try:
                    each.sendall(b"x" if said else b"")  # headers go on, letter by letter
                except OSError:  # this one was cut off
                    continue


def test_6_headers_have_a_time_limit(visitor: Visitor) -> None:
    began = time.perf_counter()
    with socket.create_connection((visitor.host, visitor.port), timeout=10) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        slow.settimeout(0.2)
        while time.perf_counter() - began < 9:
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("headers may take for ever")
    assert visitor.ask("/")[0] == 200


def test_6_one_who_asks_and_does_not_read(visitor: Visitor) -> None:
    """64 connections that ask for much and read nothing leave room for the next one."""
    request = b"GET /static/report/core.js HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (visitor.host.encode(), visitor.port)
    with ExitStack() as stack:
        for _ in range(64):
            greedy = stack.enter_context(socket.create_connection((visitor.host, visitor.port), timeout=10))
            greedy.sendall(20 * request)
        status, seconds = answered(visitor, "/")
        assert status == 200
        assert seconds < 1


# ---------------------------------------------------------------- 10: the token
def test_10_other_users_of_the_machine_are_refused(visitor: Visitor) -> None:
    for path in ("/", "/models", "/api/models", "/api/encoding?context=64", "/static/web.css", "/nowhere"):
        with closing(http.client.HTTPConnection(visitor.host, visitor.port, timeout=20)) as stranger:
            stranger.request("GET", path)
            answer = stranger.getresponse()
            assert answer.status == 403, path
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert b"model" not in answer.read()
        assert visitor.ask(path)[0] == (404 if path == "/nowhere" else 200)


def test_10_every_start_has_a_token_of_its_own(visitor: Visitor, tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as (_, url):
        other = Visitor(url)
    assert len(other.token) >= 40
    assert other.token != visitor.token
    assert other.headers["Cookie"].split("=")[0] != visitor.headers["Cookie"].split("=")[0]


# ---------------------------------------------------------------- 10: the policy
def test_10_the_policy_names_no_injected_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import toposcope.report
    from toposcope.web.app import Served, application
    from toposcope.web.library import Library
    from toposcope.web.models import ModelRegistry

    true, evil = toposcope.report.render, "fetch('//evil.example')"
    monkeypatch.setattr(
        toposcope.report,
        "render",
        lambda results: true(results).replace("</h1>", f"<script>{evil}</script><b style='{evil}'></b></h1>"),
    )
    library = Library(None, [write_spectrum(tmp_path / "spectrum.json")])
    answer = TestClient(application(Served(library, ModelRegistry([], with_installed=False)))).get(
        "/results/r0/report"
    )
    assert answer.status_code == 200
    assert evil in answer.text
    policy = answer.headers["content-security-policy"]
    assert base64.b64encode(hashlib.sha256(evil.encode()).digest()).decode() not in policy
    assert "'unsafe-" not in policy


# ---------------------------------------------------------------- 5: a file that shrinks
def test_5_truncating_the_served_file(tmp_path: Path) -> None:
    place = write_llama(tmp_path / "model", hidden_size=64)
    weights = place / "model.safetensors"
    whole = weights.read_bytes()
    with running(tmp_path, str(place), "--port", "0") as (process, url):
        visitor = Visitor(url)
        assert visitor.ask("/api/models/model/heads/0.0")[0] == 200
        os.truncate(weights, 5000)
        for path in (
            "/api/models/model/heads/2.3",
            "/api/flow?source=head&model=model&layer=1&head=1",
            "/models/model",
        ):
            status, headers, body = visitor.ask(path)
            assert 400 <= status < 600, path
            kind = "application/json" if path.startswith("/api/") else "text/html; charset=utf-8"
            assert headers["content-type"] == kind
            assert weights.name.encode() in body
            assert b"Traceback" not in body
        assert process.poll() is None
        weights.write_bytes(whole)
        assert visitor.ask("/api/models/model/heads/2.3")[0] == 200
        assert visitor.ask("/models/model")[0] == 200


def test_5_a_file_that_shrinks_during_the_scan(tmp_path: Path) -> None:
    place = write_llama(tmp_path / "model", hidden_size=256, num_attention_heads=32, num_hidden_layers=12)
    with running(tmp_path, str(place), "--port", "0") as (process, url):
        visitor = Visitor(url)
        assert visitor.ask("/api/models/model/scan")[0] == 200
        os.truncate(place / "model.safetensors", 5000)
        deadline = time.monotonic() + 30
        while visitor.ask("/api/models/model/scan")[0] == 200:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert process.poll() is None
        assert visitor.ask("/encoding")[0] == 200
