"""Starts the server of the page, and prints its address."""

from __future__ import annotations

import asyncio
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from meshwright.errors import SpecError
from meshwright.ui.app import Settings, create_app

BACKLOG = 128


def serve(settings: Settings, port: int) -> None:
    """Serve the page until Ctrl-C; port 0 takes a free one.

    Raises:
        SpecError: nothing can listen there.
    """
    listener = listener_at(settings.host, port)
    host, bound = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    server = server_of(settings)
    print(f"http://{name}:{bound}/", flush=True)
    server.run(sockets=[listener])


def server_of(settings: Settings) -> uvicorn.Server:
    """Return the server of the page, which does not listen yet."""
    config = uvicorn.Config(
        create_app(settings),
        http=Connection,
        ws="none",
        log_level="warning",
        backlog=BACKLOG,
        server_header=False,
        limit_concurrency=settings.most_connections,
        timeout_keep_alive=settings.wait_s,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def listener_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        told = f"--host {host} --port {port}: {reason.lower()}"
        raise SpecError(told) from None
    listener.listen(BACKLOG)
    return listener


UNFINISHED = (h11.IDLE, h11.SEND_BODY)
"""States of a client whose request has not come whole."""


class Connection(H11Protocol):
    """A connection with a time limit on requests that arrive and answers that leave.

    uvicorn limits only the time between requests, and ends that limit at the first
    byte of the next one. Here the same limit, `timeout_keep_alive`, holds until the
    request has come whole, and again while nobody takes the bytes of its answer. More
    connections than `limit_concurrency` are closed at once.
    """

    _expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, or close one connection too many."""
        super().connection_made(transport)
        most = self.limit_concurrency
        if most is not None and len(self.connections) > most:
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """Wait until the other side takes bytes of the answer."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limit of a connection that has ended."""
        self._end_watch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the time limit where the other side has to act, else end it."""
        is_waiting = self.conn.their_state in UNFINISHED or self.flow.write_paused
        if not is_waiting:
            self._end_watch()
        elif self._expiry is None and not self.transport.is_closing():
            limit_s = self.timeout_keep_alive
            self._expiry = self.loop.call_later(limit_s, self.transport.abort)

    def _end_watch(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
