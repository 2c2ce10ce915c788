"""`whence serve`: start the server, say where it is, and end in good order."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
import warnings
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from whence.errors import ParameterError, WhenceWarning
from whence.util.terminal import say

if TYPE_CHECKING:
    from whence.server.models import Models

_NEEDED = ("fastapi", "uvicorn")


def serve(
    models: Sequence[str] = (), run: str | None = None, *, host: str = "127.0.0.1", port: int = 8000,
    opened: bool = False, allowed: Sequence[str] = (),
) -> int:  # fmt: skip
    """Serve the page until the process is asked to end."""
    _check_installed()
    import uvicorn

    from whence.server.app import build
    from whence.server.models import Models

    offered = Models(models)
    bound = _bound(host, port)
    port = bound.getsockname()[1]
    app = build(offered)
    for name in models:
        if not name.startswith("zoo:"):
            offered.get(offered.named(name))  # a folder that cannot be read is an error now, not at the first click
    warnings.simplefilter("ignore", WhenceWarning)  # they stand on the page, above the pictures
    address = f"http://{'localhost' if host in ('127.0.0.1', '::1') else host}:{port}/"
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, server_header=False,
        timeout_keep_alive=30,
    )  # fmt: skip
    say(f"whence serves {len(offered.names)} model{'s' * (len(offered.names) != 1)} at {address} (Ctrl+C ends it)")
    threading.Thread(target=_warm, args=(offered,), daemon=True).start()
    if opened:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    uvicorn.Server(config).run([bound])
    if not getattr(app.state, "ended", True):  # a pass that takes long: nobody waits for its answer
        os._exit(0)
    return 0


def _check_installed() -> None:
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise ParameterError(f"whence serve needs {name}, which is not installed.\n  pip install 'whence[serve]'")


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or an error that says why not."""
    try:
        (family, _, _, _, place), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
    except (OSError, OverflowError) as error:
        raise ParameterError(
            f"The server cannot listen at {host}, port {port}: {error}.\n"
            "  Give another --port, or 0 for any that is free."
        ) from None
    return made


def _warm(offered: Models) -> None:
    """The first model is loaded and described before somebody asks for it."""
    try:
        offered.described(offered.names[0])
    except Exception:  # told to whoever asks for it
        return
