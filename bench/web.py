"""How long the local page waits for the answer to a drag: `toposcope serve` asked as its sliders ask it."""

from __future__ import annotations

import http.client
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.row import Row

GOAL = 100.0  # ms for each answer while the hand moves
CONTEXTS = [round(2 ** (4 + k / 3)) for k in range(49)]  # 16 to 1,048,576
BASES = [round(10 ** (1 + 7 * k / 40)) for k in range(41)]
VALUES = [-3 + 0.15 * k for k in range(41)]
YARN = "rope:scaling=yarn,factor=8,original_context=4096"
DRAGS = {
    "rope, width 128: the context": [f"/api/encoding?encoding=rope&head_dim=128&context={n}" for n in CONTEXTS],
    "rope, width 128: the base": [f"/api/encoding?encoding=rope:base={b}&head_dim=128&context=65536" for b in BASES],
    "rope with YaRN: the context": [f"/api/encoding?encoding={YARN}&head_dim=128&context={n}" for n in CONTEXTS],
    "alibi: the context": [f"/api/encoding?encoding=alibi&context={n}" for n in CONTEXTS],
    "t5: the context": [f"/api/encoding?encoding=t5&context={n}" for n in CONTEXTS],
    "xpos: the context": [f"/api/encoding?encoding=xpos&context={n}" for n in CONTEXTS],
    "flow of 24 tokens: an eigenvalue": [f"/api/flow?n=24&v1={v:.2f}&horizon=20" for v in VALUES],
    "flow of 128 tokens: an eigenvalue": [f"/api/flow?n=128&v1={v:.2f}&horizon=20" for v in VALUES],
    "flow of 24 tokens with rope, no mask: turning V": [
        f"/api/flow?n=24&encoding=rope&causal=0&v_turn={9 * k}&horizon=20" for k in range(41)
    ],
    "flow of 256 tokens in space with xpos, no mask: turning V": [
        f"/api/flow?n=256&dim=3&encoding=xpos&causal=0&v_turn={9 * k}&horizon=20" for k in range(41)
    ],
    "flow of 24 tokens in space: the diagonal": [
        f"/api/flow?n=24&dim=3&causal=0&diagonal={k / 10:.1f}&horizon=20" for k in range(41)
    ],
}


@contextmanager
def _serving() -> Iterator[tuple[http.client.HTTPConnection, str]]:
    """A server of its own with an empty store; a connection that is kept open, as a browser keeps it; its cookie."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-u", "-m", "toposcope", "serve", "--port", "0", "--store", f"{place}/runs"]
        with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http://\S+", process.stdout.readline())
                assert found, "the server did not start"
                address = urlsplit(found[0])
                connection = http.client.HTTPConnection(str(address.hostname), address.port or 80)
                connection.request("GET", f"/?{address.query}")  # the token becomes a cookie
                opened = connection.getresponse()
                opened.read()
                yield connection, str(opened.headers["set-cookie"]).split(";")[0]
            finally:
                process.terminate()


def _milliseconds(connection: http.client.HTTPConnection, cookie: str, path: str) -> float:
    before = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    body = answer.read()
    spent = time.perf_counter() - before
    assert answer.status == 200, (path, body[:200])
    return 1e3 * spent


def measure() -> list[Row]:
    rows = []
    with _serving() as (connection, cookie):
        for paths in DRAGS.values():
            _milliseconds(connection, cookie, paths[0])  # imports are not part of a drag
        for name, paths in DRAGS.items():
            taken = [_milliseconds(connection, cookie, path) for path in paths]
            middle, worst = statistics.median(taken), max(taken)
            rows.append(
                Row(
                    f"answer to a drag, {name}",
                    f"median {middle:.0f} ms, worst of {len(taken)} {worst:.0f} ms",
                    "-",
                    f"worst {worst / GOAL:.2f}x the goal",
                    f"<= {GOAL:.0f} ms",
                    worst <= GOAL,
                )
            )
    return rows
