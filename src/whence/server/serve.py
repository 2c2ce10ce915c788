"""`whence serve`: start the server, say where it is, and end in good order."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from whence.errors import ParameterError, WhenceWarning
from whence.util.checks import check_installed
from whence.util.terminal import say

if TYPE_CHECKING:
    from whence.server.browse import Browsed
    from whence.server.models import Models
    from whence.server.security import Access, Guard


def serve(
    models: Sequence[str] = (), run: str | None = None, *, host: str = "127.0.0.1", port: int = 8000,
    opened: bool = False, allowed: Sequence[str] = (),
) -> int:  # fmt: skip
    """Serve the page until the process is asked to end."""
    check_installed("whence serve", "serve", fastapi="fastapi", uvicorn="uvicorn")
    import uvicorn

    from whence.server.app import build
    from whence.server.models import Models
    from whence.server.security import Access

    offered, browsed = Models(models), _browsed(run)
    for name in models:
        if not name.startswith("zoo:"):
            offered.get(offered.named(name))  # a folder that cannot be read is an error now, not at the first click
    bound = _bound(host, port)
    port = bound.getsockname()[1]
    access = Access.of(host, port, allowed)
    app = build(offered, access, browsed)
    sys.setswitchinterval(0.0005)  # a short answer does not wait for a worker's Python
    warnings.simplefilter("ignore", WhenceWarning)  # they stand on the page, above the pictures
    address = _address(access)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, server_header=False,
        timeout_keep_alive=30, ws="none", h11_max_incomplete_event_size=64 << 10,
    )  # fmt: skip
    say(f"whence serves {len(offered.names)} model{'s' * (len(offered.names) != 1)} at {address} (Ctrl+C ends it)")
    threading.Thread(target=_warm, args=(offered, browsed), daemon=True).start()
    if opened:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    server = uvicorn.Server(config)
    server.capture_signals = lambda: _ending(server, app)  # type: ignore[method-assign]
    server.run([bound])
    if not app.ended:  # a pass that takes long: nobody waits for its answer
        os._exit(0)
    return 0


@contextmanager
def _ending(server: Any, app: Guard) -> Iterator[None]:
    """Signals ask the server to end; uvicorn itself would raise them once more after it has."""

    def end(number: int, frame: Any) -> None:
        app.end()
        server.handle_exit(number, frame)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or an error that says why not."""
    if not 0 <= port < 1 << 16:
        raise ParameterError(f"--port {port} is no port.\n  Give a number from 1 to 65535, or 0 for any that is free.")
    try:
        (family, _, _, _, place), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(128)  # whoever reads the address can connect
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise ParameterError(
            f"The server cannot listen at {host}, port {port}: {error}.\n"
            "  Give another --port, or 0 for any that is free."
        ) from None
    return made


def _browsed(run: str | None) -> Browsed | None:
    if run is None:
        return None
    from whence.runs.opened import open
    from whence.server.browse import Browsed

    return Browsed(open(run))


def _address(access: Access) -> str:
    """What to open; with the token, where one is needed."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname(), "127.0.0.1": "localhost", "::1": "localhost"}
    name = shown.get(access.host, access.host)
    token = f"?token={access.token}" if access.token else ""
    return f"http://{f'[{name}]' if ':' in name else name}:{access.port}/{token}"


def _warm(offered: Models, browsed: Browsed | None) -> None:
    """The run's table is read, and the first model is loaded and described, before somebody asks for them."""
    with suppress(Exception):  # told to whoever asks for it
        _ = browsed.table if browsed is not None else None
    with suppress(Exception):
        offered.described(offered.names[0])
