"""Connections to the page's server: closed where the other side keeps them waiting."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
