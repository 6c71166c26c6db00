"""Starting and stopping: a socket that is ours, a token for whoever may use it, and a clean end."""

from __future__ import annotations

import contextlib
import errno
import html
import ipaddress
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.web.library import Library, result_file

DEFAULT_PORT = 8123
PORTS_TRIED = 50
QUEUE = 1024  # connections the system keeps until they are accepted


@dataclass(frozen=True)
class Address:
    """Where the server listens, and the token it asks for (None: it asks for none)."""

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


@contextlib.contextmanager
def opened(address: Address) -> Iterator[None]:
    """The page in the user's browser, by a file that only this user can read and that goes afterwards.

    The arguments of a program can be read by all users of a machine, so the token must not stand among those of the
    browser.
    """
    with tempfile.TemporaryDirectory(prefix="toposcope-") as place:  # mode 700
        file = Path(place, "open.html")
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(address.url)}">')
        webbrowser.open(file.as_uri())
        yield


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
        made.listen(QUEUE)
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
    token: bool = True,
    started: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve until interrupted. `started` is told the address once the server listens.

    `token=False` serves whoever can reach the port: all users of this machine. Elsewhere it is refused.
    """
    if not token and not is_loopback(host):
        raise BadValue(f"{host} can be reached from other machines, so the token stays. Drop --no-token or --host.")
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("the web page needs two more packages: pip install 'toposcope[web]'") from error
    from toposcope.web.app import Served, application
    from toposcope.web.connections import AT_ONCE, IDLE, LARGEST_HEADERS, Connection
    from toposcope.web.guard import Guard
    from toposcope.web.models import ModelRegistry

    library = Library(store, [found for target in targets if (found := result_file(target)) is not None])
    models = [target for target in targets if result_file(target) is None]
    registry = ModelRegistry(models, stored=library.scans())
    with contextlib.closing(registry), contextlib.closing(listen(host, port)) as listening:
        registry.open_named()
        bound = int(listening.getsockname()[1])
        address = Address(host, bound, secrets.token_urlsafe(32) if token else None)
        names = [host if ":" not in host else f"[{host}]"]
        if not is_loopback(host):
            names += [socket.gethostname(), socket.getfqdn()]
        anywhere = host in ("0.0.0.0", "::")
        guarded = Guard(
            application(Served(library, registry)),
            port=bound,
            names=tuple(names),
            any_address=anywhere,
            token=address.token,
        )
        config = uvicorn.Config(
            guarded,
            http=Connection,
            log_level="error",  # warnings are of requests that are none, and anybody can send those
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=int(IDLE),
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=LARGEST_HEADERS,
            backlog=AT_ONCE,
        )

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                listening.listen(QUEUE)  # asyncio takes one number for how many wait and how many it accepts at once

        server = Server(config)
        started(address)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has closed everything
            server.run(sockets=[listening])
