"""Starting and stopping: a socket that is ours, a token where others can reach it, and a clean end."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toposcope.errors import BadValue, MissingExtra
from toposcope.web.library import Library, is_result

DEFAULT_PORT = 8123
PORTS_TRIED = 50


@dataclass(frozen=True)
class Address:
    """Where the server listens, and the token it asks for (None on loopback)."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """The address to open."""
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        name = f"[{shown}]" if ":" in shown else shown
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means the next free one from the usual port on."""
    wanted = range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED) if port == 0 else (port,)
    for number in wanted:
        try:
            return _bound(host, number)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                words = f"cannot listen on {host}, port {number}: {error.strerror or error}."
                raise BadValue(f"{words} Choose another --host or --port.") from error
    if port == 0:
        return _bound(host, 0)
    raise BadValue(
        f"port {port} is in use, perhaps by another 'toposcope serve'. Choose another with --port; "
        "--port 0 takes the next free one."
    )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sends at once (TCP_NODELAY) only where it is; else answers wait 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made


def serve(
    targets: list[str],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    store: Path | None = None,
    started: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve until interrupted. `started` is told the address once the server listens."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("the web page needs two more packages: pip install 'toposcope[web]'") from error
    from toposcope.web.app import Served, application
    from toposcope.web.guard import Guard
    from toposcope.web.models import Shelf

    library = Library(store, [Path(target) for target in targets if is_result(target)])
    shelf = Shelf([target for target in targets if not is_result(target)])
    with contextlib.closing(shelf), contextlib.closing(listen(host, port)) as listening:
        shelf.open_named()
        bound = int(listening.getsockname()[1])
        local = is_loopback(host)
        address = Address(host, bound, None if local else secrets.token_urlsafe(32))
        names = () if local else (host if ":" not in host else f"[{host}]", socket.gethostname(), socket.getfqdn())
        anywhere = host in ("0.0.0.0", "::")
        guarded = Guard(
            application(Served(library, shelf)), port=bound, names=names, any_address=anywhere, token=address.token
        )
        config = uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            limit_concurrency=64,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=32_768,
        )
        server = uvicorn.Server(config)
        started(address)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has closed everything
            server.run(sockets=[listening])
