"""`toposcope serve` in a process of its own, and a client that opens the address it printed."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Visitor:
    """Asks as a browser does that has opened an address: with the cookie it got there."""

    url: str  # as printed
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self.host, self.port, self.token = str(parts.hostname), int(parts.port or 80), parts.query[len("token=") :]
        if self.token:
            status, headers, _ = self.ask(f"/?token={self.token}")
            assert status == 303
            self.headers = {"Cookie": headers["set-cookie"].split(";")[0]}

    @property
    def place(self) -> str:
        """The address without its token."""
        return f"http://{self.host}:{self.port}"

    def ask(self, path: str, timeout: float = 20) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of an answer, on a connection of its own."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=timeout)) as connection:
            connection.request("GET", path, headers=self.headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


@contextmanager
def running(place: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address it printed."""
    command = [sys.executable, "-m", "toposcope", "serve", *arguments]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    with subprocess.Popen(
        command, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://\S+", first)
            yield process, found[0] if found else first
        finally:
            if process.poll() is None:
                process.kill()
