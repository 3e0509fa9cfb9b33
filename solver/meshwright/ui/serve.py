"""Starts the server of the page, and prints its address."""

from __future__ import annotations

import socket

import uvicorn

from meshwright.errors import SpecError
from meshwright.ui.app import Settings, create_app
from meshwright.ui.connections import Connection

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
