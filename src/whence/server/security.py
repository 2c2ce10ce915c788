"""Who may ask, and what a browser may do with the answer: checked for every request before anything else.

A page of another site can make a browser send requests to this machine. Host keeps out names that were made to point
here (DNS rebinding), Origin and Sec-Fetch-Site keep out other sites' requests. Whoever can reach the server from
another machine also needs the token.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from whence.server.limits import Limits

Scope = dict[str, Any]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # of exported pages
_HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY", "cache-control": "no-store",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """From where the server may be asked, and the token, if one is needed."""

    host: str = "127.0.0.1"  # that it listens at
    port: int = 0
    allowed: Sequence[str] = ()  # names under which a proxy serves it
    token: str | None = None

    @staticmethod
    def of(host: str, port: int, allowed: Sequence[str] = ()) -> Access:
        """With a new token, unless only this machine can ask."""
        needed = bool(allowed) or host not in _LOOPBACK
        names = tuple(name.lower().rstrip(".") for name in allowed)
        return Access(host, port, names, secrets.token_urlsafe(24) if needed else None)

    @property
    def cookie(self) -> str:
        """Cookies know no ports, so that each server has a name of its own."""
        return f"whence-{self.port}"

    def is_own(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name, port = _split(host.lower())
        if name is None:
            return False
        if name in self.allowed:  # a proxy has a port of its own
            return True
        if port != self.port:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        return self.host not in _LOOPBACK and (_is_address(name) or name == socket.gethostname().lower())

    def knows(self, token: str | None) -> bool:
        """Whether this is the token; the comparison takes as long whatever was given."""
        if self.token is None:
            return True
        return hmac.compare_digest((token or "").encode(errors="replace"), self.token.encode())


def _split(host: str) -> tuple[str | None, int]:
    """The name and the port of a Host header; no name where it is malformed."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon and not host.endswith("]"):
        name, port = host, ""
    if (port and not (port.isdecimal() and len(port) <= 5)) or (colon and not port) or not name:
        return None, 0
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    return bare.rstrip("."), int(port) if port else 80


def _is_address(name: str) -> bool:
    """A number, which no DNS server can make point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Around the application: refuses what may not be asked, bounds bodies, and adds headers to every answer."""

    def __init__(self, app: Any, access: Access, limits: Limits) -> None:
        self.app, self.access, self.limits = app, access, limits

    def end(self) -> None:
        """Ask all work to stop."""
        if hasattr(self.app.state, "jobs"):
            self.app.state.jobs.closing = True

    @property
    def ended(self) -> bool:
        """Whether all work has stopped, once the server has."""
        return getattr(self.app.state, "ended", True)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        with_headers = _adding(send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            return await _answer(with_headers, *refused)
        if self.access.token is not None:
            if self._opens(scope):
                return await self._enter(scope, with_headers)
            if not self._has_token(scope, headers):
                return await _answer(
                    with_headers, 401, "token",
                    "This server asks for its token.\n"
                    "  Open the address that it printed, or send Authorization: Bearer …",
                )  # fmt: skip
        if scope["method"] in ("POST", "PUT", "PATCH"):
            try:
                receive = await self._bounded(headers, receive)
            except _Refused as error:
                return await _answer(with_headers, *error.args)
        return await self.app(scope, receive, with_headers)

    def _refused(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str, str] | None:
        host = headers.get("host", "")
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(hosts) != 1 or not self.access.is_own(host):
            return 403, "host", (
                f"This server does not answer to the name {host[:100]!r}.\n"
                "  Use the address that it printed; behind a proxy, start it with --allow-host NAME."
            )  # fmt: skip
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        own = origin is None or origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        reads = scope["method"] in ("GET", "HEAD")
        visits = reads and headers.get("sec-fetch-mode") == "navigate"
        if not own or (site not in ("same-origin", "none") and not visits):
            return 403, "origin", "Another site asked, and it may not.\n  Open the page itself."
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return 415, "type", "A body must be JSON.\n  Send Content-Type: application/json."
        return None

    # ---- the token ----

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.access.knows(given.strip()):
            return True
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        return any(name == self.access.cookie and self.access.knows(value) for name, _, value in cookies)

    def _opens(self, scope: Scope) -> bool:
        """Whether this is the address that was printed."""
        given = _query(scope).get("token", [None])[0]
        return scope["method"] == "GET" and scope["path"] == "/" and given is not None and self.access.knows(given)

    async def _enter(self, scope: Scope, send: Any) -> None:
        """The address with the token gives the cookie, and leads to the address without it."""
        rest = urlencode({name: values for name, values in _query(scope).items() if name != "token"}, doseq=True)
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{self.access.cookie}={self.access.token}; HttpOnly; SameSite=Lax; Path=/{secure}"
        there = "/" + (f"?{rest}" if rest else "")
        head = [(b"location", there.encode()), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": head})
        await send({"type": "http.response.body", "body": b""})

    # ---- the body ----

    async def _bounded(self, headers: dict[str, str], receive: Any) -> Any:
        """The whole body, read within its limits, and then whatever comes after it: the client's going away."""
        most = self.limits.body
        told = headers.get("content-length", "")
        too_large = 413, "size", f"The request is larger than {most >> 20} MB.\n  Send a smaller text or image."
        if told.isdecimal() and int(told) > most:
            raise _Refused(*too_large)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.upload):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Refused(400, "request", "The request was cut short.")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _Refused(*too_large)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise _Refused(408, "slow", f"The request took longer than {self.limits.upload:g} s to arrive.") from None
        waiting = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def again() -> Any:
            return waiting.pop() if waiting else await receive()

        return again


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope.get("query_string", b"").decode("latin-1"))


class _Refused(Exception):
    """Status, kind and text."""


def _adding(send: Any) -> Any:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", ())}
            more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in there]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sent


async def _answer(send: Any, status: int, kind: str, text: str) -> None:
    body = json.dumps({"error": text, "kind": kind}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
