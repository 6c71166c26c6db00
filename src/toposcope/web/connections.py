"""How long a connection may keep us waiting, and how many may wait at once.

A browser says what it wants at once and reads what it gets. Whoever opens connections and is silent, sends headers
letter by letter, or does not read the answer is cut off. Where too many wait, the oldest goes, and of the address
that has most of them: on 127.0.0.1 all users of a machine have one address, so that one is never refused as such.
A connection whose request is being answered does not wait, and is not counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 5.0  # seconds for the headers of the first request to be whole
IDLE = 10.0  # seconds from an answer to the headers of the next request
STALL = 10.0  # seconds in which at least so many bytes of an answer must be read:
LEAST_READ = 2**16
LARGEST_HEADERS = 2**15  # bytes
AT_ONCE = 64  # connections accepted in one turn of the loop
# What a new connection has sent is read one turn after it was accepted: nobody goes before that.
PER_ADDRESS = 2 * AT_ONCE
ALTOGETHER = 2 * PER_ADDRESS


class Connection(H11Protocol):
    """A connection with a time limit on its silence."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waits_since: float | None = None  # None while a request is answered
        self._patience: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._unread = 0

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    # ------------------------------------------------------------ waiting for a request
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEADERS)
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering():  # a request that was sent ahead may have begun
            self._wait(IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self._answering():  # what follows the headers is nonsense: their answer has nowhere to go
            self.cycle.disconnected = True
            self.drop()
        else:
            super().send_400_response(msg)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self.waits_since = self.loop.time()
        self._patience = self.loop.call_later(seconds, self._lose_patience)

    def _stop_waiting(self) -> None:
        self.waits_since = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        if self.flow.write_paused:  # the last answer is still being read: that has a limit of its own
            self._wait(IDLE)
        else:
            self.drop()

    def drop(self) -> None:
        """End the connection at once, whatever has not been sent."""
        self._stop_waiting()
        self.transport.abort()

    def _make_room(self) -> None:
        waiting = [each for each in self.connections if isinstance(each, Connection) and each.waits_since is not None]
        held = Counter(each.address for each in waiting)
        if held[self.address] > PER_ADDRESS:
            crowd = {self.address}
        elif len(waiting) > ALTOGETHER:
            crowd = {address for address, count in held.items() if count == max(held.values())}
        else:
            return
        min((each for each in waiting if each.address in crowd), key=lambda each: each.waits_since or 0.0).drop()

    # ------------------------------------------------------------ an answer that is not read
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reader = self.loop.call_later(STALL, self._look_at_reader)

    def _stop_watching(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _look_at_reader(self) -> None:
        if self._unread - self.transport.get_write_buffer_size() < LEAST_READ:
            self.drop()
        else:
            self._watch()
