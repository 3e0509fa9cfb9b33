"""Connections that keep the server waiting are closed; others are answered."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from meshwright.ui.app import Settings, listener_at, server_of
from tests.ui.questions import SMALL

WAIT_S = 1
MOST = 8

HEAD = (
    b"POST /api/stop HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
)

WHOLE = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

HALVES = (
    b"",
    b"GET / HT",
    HEAD,
    HEAD + b"content-length: 9\r\n\r\n",
    HEAD + b'content-length: 9\r\n\r\n{"job',
    HEAD + b'transfer-encoding: chunked\r\n\r\n9\r\n{"job',
    WHOLE + b"GET / HT",
)
"""What comes of a request whose end never comes."""

Address = tuple[str, int]


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    """Serve the page from a thread, with short limits."""
    listener = listener_at("127.0.0.1", 0)
    settings = Settings(workers=0, most_connections=MOST, wait_s=WAIT_S)
    server = server_of(settings)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[:2]
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def opened(address: Address, sent: bytes = b"") -> Iterator[socket.socket]:
    """Open a connection and send some bytes."""
    with socket.create_connection(address, timeout=WAIT_S * 5) as connection:
        connection.sendall(sent)
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Read to the end; return whether the server closed the connection in time."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def is_cut(connection: socket.socket, text: bytes) -> bool:
    """Send a text again and again; return whether the server ends that soon."""
    end_s = time.monotonic() + 5 * WAIT_S
    try:
        while time.monotonic() < end_s:
            connection.sendall(text)
            time.sleep(WAIT_S / 20)
    except ConnectionError:
        return True
    return False


def status(address: Address) -> int:
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S * 5)
    with contextlib.closing(connection):
        connection.request("GET", "/files/dom.js")
        return connection.getresponse().status


def test_half_a_request_is_not_waited_for(address: Address) -> None:
    with contextlib.ExitStack() as stack:
        several = [
            (sent, stack.enter_context(opened(address, sent))) for sent in HALVES
        ]
        for sent, connection in several:
            assert is_closed(connection), sent


def test_a_byte_now_and_then_does_not_keep_a_connection(address: Address) -> None:
    with opened(address, b"GET / HTTP/1.1\r\nx: ") as connection:
        assert is_cut(connection, b"x")


def test_an_answer_that_nobody_takes_is_given_up(address: Address) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5 * WAIT_S)
        connection.connect(address)
        connection.sendall(WHOLE * 200)
        assert is_cut(connection, WHOLE)


def test_requests_in_turn_outlive_the_limit_of_one(address: Address) -> None:
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S * 5)
    with contextlib.closing(connection):
        connection.connect()
        first = connection.sock
        for _ in range(4):
            connection.request("GET", "/files/dom.js")
            assert connection.getresponse().read()
            time.sleep(WAIT_S * 0.4)
        assert connection.sock is first


def test_an_answer_may_take_longer_than_the_limit(address: Address) -> None:
    connection = http.client.HTTPConnection(*address, timeout=2 * WAIT_S)
    with contextlib.closing(connection):
        body = json.dumps({"spec": SMALL})
        headers = {"content-type": "application/json"}
        connection.request("POST", "/api/solve", body, headers)
        answer = connection.getresponse()
        kinds = [json.loads(answer.readline())["kind"] for _ in range(2)]
        assert kinds == ["question", "queued"]
        with pytest.raises(TimeoutError):  # No process answers, and nothing is closed.
            answer.readline()


def test_many_half_open_connections_make_room_again(address: Address) -> None:
    with contextlib.ExitStack() as stack:
        several = [
            stack.enter_context(opened(address, b"GET / HT")) for _ in range(3 * MOST)
        ]
        assert all(map(is_closed, several))
        assert status(address) == 200
