"""The server of the page: its routes, the answers it keeps, its guards, its sockets.

The guards see to it that only pages of this server may ask it anything.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from meshwright.errors import MeshwrightError, SpecError
from meshwright.imports.text import mapping
from meshwright.loading.asked import spec_text
from meshwright.ui.page_files import knobs, page_files
from meshwright.ui.pool import END, BusyError, Job, Pool
from meshwright.ui.question import Question, json_object, paste, read_question

LIMIT_S = 30.0
"""Seconds of a solve, after which the best plan so far is the answer."""

WANTED = ("answer", "report", "files", "map")
"""The answers to a question: the page's data, a report, the files of a plan, or the map
of the lattice around plans."""

MOST_PLANS = 2
"""Plans around which a map is drawn: the best, and the fastest."""

KEPT = ("answer", "reasons")
"""Kinds of messages that make an answer."""

MOST_BYTES = 64 * 2**20
"""Bytes of all answers that are kept."""


class KeptAnswers:
    """Lines of answers by the question, the ones used longest ago given up first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Keep nothing yet."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lines: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, fields: dict[str, Any]) -> tuple[bytes, ...]:
        """Return the lines of an answer, none where it is not kept."""
        key = _key(fields)
        with self._lock:
            if key in self._lines:
                self._lines.move_to_end(key)
            return self._lines.get(key, ())

    def keep(self, fields: dict[str, Any], lines: tuple[bytes, ...]) -> None:
        """Keep an answer."""
        key = _key(fields)
        with self._lock:
            self._bytes += _size(key, lines) - _size(key, self._lines.pop(key, None))
            self._lines[key] = lines
            while self._bytes > self._most_bytes:
                self._bytes -= _size(*self._lines.popitem(last=False))


def _key(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _size(key: str, lines: tuple[bytes, ...] | None) -> int:
    return 0 if lines is None else len(key) + sum(map(len, lines))


@dataclass(frozen=True)
class Settings:
    """How much the server does at once."""

    host: str = "127.0.0.1"
    workers: int = 2
    most_queued: int = 64
    most_connections: int = 128
    wait_s: int = 15
    """Seconds that a request may take to arrive, and an answer to be taken."""


@dataclass
class _Server:
    """State that the routes share."""

    pool: Pool
    kept: KeptAnswers = field(default_factory=KeptAnswers)
    jobs: dict[str, Job] = field(default_factory=dict)
    """Jobs that can be stopped, by the number that their stream begins with."""
    asked: int = 0


def create_app(settings: Settings | None = None) -> Guards:
    """Return the app, which starts its processes when the server starts."""
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        pool = Pool(settings.workers, settings.most_queued)
        app.state.server = _Server(pool)
        yield
        pool.close()

    routes = [
        Route("/", _file, methods=["GET"]),
        Route("/files/{name}", _file, methods=["GET"]),
        Route("/api/solve", _solve, methods=["POST"]),
        Route("/api/stop", _stop, methods=["POST"]),
        Route("/api/paste", _paste, methods=["POST"]),
    ]
    handlers: Any = {
        MeshwrightError: _refused,
        BusyError: _busy,
        HTTPException: _wrong_request,
    }
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guards(app, settings.host)


async def _file(request: Request) -> Response:
    """Return a file of the page; only names in a table are known."""
    found = page_files().get(request.path_params.get("name", "index.html"))
    if found is None:
        raise HTTPException(404, "no such file")
    kind, content = found
    return Response(content, media_type=kind)


async def _solve(request: Request) -> Response:
    """Answer a question with a stream of messages, one line of JSON each."""
    body = await json_object(request)
    wanted = body.get("wanted", "answer")
    if wanted not in WANTED:
        raise SpecError(f"wanted: expected one of {', '.join(WANTED)}")
    question = await anyio.to_thread.run_sync(read_question, body)
    task = {
        "spec": question.fields,
        "wanted": wanted,
        "limit_s": LIMIT_S,
        "carried": mapping(body.get("carried")),
        "plan": mapping(body.get("plan")),
        "plans": _plans(body),
        "to": body.get("to") if isinstance(body.get("to"), str) else "",
    }
    return _Streamed(_Stream(request.app.state.server, question, task))


def _plans(body: dict[str, Any]) -> list[Any]:
    value = body.get("plans")
    return value[:MOST_PLANS] if isinstance(value, list) else []


class _Stream:
    """The messages of one question, as they come from a process of the pool."""

    def __init__(
        self, server: _Server, question: Question, task: dict[str, Any]
    ) -> None:
        """Put the task into the queue, unless its answer is kept.

        Raises:
            BusyError: the queue is full.
        """
        self._server = server
        self._question = question
        self._is_answer = task["wanted"] == "answer"
        self._kept = server.kept.get(question.fields) if self._is_answer else ()
        self._lines: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._job = None if self._kept else server.pool.submit(task, self._tell)
        server.asked += 1
        self._number = str(server.asked)
        if self._job is not None:
            server.jobs[self._number] = self._job

    def _tell(self, kind: str, line: bytes) -> None:
        """Take a message in a thread of the pool."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, (kind, line))

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the question as it was understood, then what is told of its answer."""
        yield _line(_understood(self._question, self._number))
        for line in self._kept:
            yield line
        if self._job is None:
            return
        told: list[tuple[str, bytes]] = []
        while (message := await self._lines.get())[0] != END:
            told.append(message)
            yield message[1]
        if self._is_answer and self._job.stop_asked_s is None:
            self._keep(told)

    def close(self) -> None:
        """Give up the job; one that came to its end stays as it is."""
        if self._job is not None:
            self._server.jobs.pop(self._number, None)
            self._server.pool.drop(self._job)

    def _keep(self, told: list[tuple[str, bytes]]) -> None:
        """Keep an answer that came to its end."""
        if any(kind == "failed" for kind, _ in told):
            return
        lines = tuple(line for kind, line in told if kind in KEPT)
        self._server.kept.keep(self._question.fields, lines)


class _Streamed(StreamingResponse):
    """A stream whose job is given up when it ends.

    It is given up too if the client leaves before the first line: then no code of the
    stream runs that could notice.
    """

    def __init__(self, stream: _Stream) -> None:
        super().__init__(stream.lines(), media_type="application/x-ndjson")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


def _understood(question: Question, number: str) -> dict[str, Any]:
    return {
        "kind": "question",
        "job": number,
        "title": question.spec.title,
        "spec": question.fields,
        "yaml": spec_text(question.fields),
        "notes": question.notes,
        "gpus": question.spec.cluster.gpus,
        "knobs": [knob.to_dict() for knob in knobs(question.spec)],
    }


async def _stop(request: Request) -> Response:
    """Let a solve end with the best plan so far."""
    body = await json_object(request)
    server: _Server = request.app.state.server
    job = server.jobs.get(str(body.get("job")))
    if job is not None:
        server.pool.stop(job)
    return JSONResponse({"stopped": job is not None})


async def _paste(request: Request) -> Response:
    """Return the spec with what a pasted text says."""
    body = await json_object(request)
    return JSONResponse(await anyio.to_thread.run_sync(_pasted, body))


def _pasted(body: dict[str, Any]) -> dict[str, Any]:
    text, gpu = body.get("text"), body.get("gpu")
    if not isinstance(text, str) or not text.strip():
        raise SpecError("text: missing; expected what is pasted")
    present = read_question(body)
    named = gpu if isinstance(gpu, str) and gpu else None
    found = paste(text, present.fields, present.spec, named)
    question = read_question({"spec": found.fields})
    notes = [*found.notes, *question.notes]
    return {"spec": question.fields, "read": found.kind, "notes": notes}


def _line(message: dict[str, Any]) -> bytes:
    from pydantic_core import to_json

    return to_json(message, inf_nan_mode="null") + b"\n"


def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 422)


def _busy(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 503, {"retry-after": "2"})


def _wrong_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


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

        refused = self._why_not(Headers(scope=scope))
        app = refused if refused is not None else self._app
        await app(scope, receive, send_with_headers)

    def _why_not(self, headers: Headers) -> JSONResponse | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(_hostname(hosts[0])):
            return _refusal(421, "Host: not a name of this server")
        for origin in headers.getlist("origin"):
            if origin.lower() != f"http://{hosts[0].lower()}":
                return _refusal(403, "Origin: only pages of this server may ask")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refusal(403, "Sec-Fetch-Site: only pages of this server may ask")
        return None

    def _is_ours(self, name: str | None) -> bool:
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


def _refusal(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)


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

    # As uvicorn does, this takes transports that write; asyncio's protocol takes any.
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
