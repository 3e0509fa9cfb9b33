"""Guards of all requests: only pages of this server may ask it anything."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guards:
    """Refuses foreign hosts and origins, and sets the headers of all answers.

    A page elsewhere can make a browser send requests here under a name of its site, by
    rebinding that name to 127.0.0.1. So a name must be that of this machine; an address
    cannot be rebound.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Guard an app that listens at a host."""
        self._app = app
        self._host = host
        self._names = {"localhost", host.lower()}
        if not _is_loopback(host):
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refusal(Headers(scope=scope))
        app = refused if refused is not None else self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(_hostname(hosts[0])):
            return _refused(421, "Host: not a name of this server")
        for origin in headers.getlist("origin"):
            if origin.lower() != f"http://{hosts[0].lower()}":
                return _refused(403, "Origin: only pages of this server may ask")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refused(403, "Sec-Fetch-Site: only pages of this server may ask")
        return None

    def _is_own(self, name: str | None) -> bool:
        if name is None:
            return False
        return name in self._names or self._is_address(name)

    def _is_address(self, name: str) -> bool:
        """Return whether a name is an address that this server may have."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not _is_loopback(self._host)


def _hostname(host: str) -> str | None:
    """Return the name in a Host header, None where it is none."""
    try:
        split = urlsplit(f"//{host}")
        _ = split.port
    except ValueError:
        return None
    is_plain = split.netloc == host and not (split.username or split.password)
    return split.hostname if is_plain else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)
